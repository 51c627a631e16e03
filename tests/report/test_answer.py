"""Attention or MLP: each side by its best measured form, at a budget that has all of them."""

import ast
import re

import numpy as np
import pandas as pd
import pytest

from memobench.board import capacity_summary
from memobench.core.architecture import read_family
from memobench.experiments import EXPERIMENTS
from memobench.report import answer
from memobench.store.published import published

ATTENTION, MLP, BOTH = capacity_summary.SIDES

NARROW = "narrow heads (narrower than the model)"


@pytest.fixture(scope="module")
def board():
    """The published runs of up to 2,048 parameters, where every form was measured."""
    table = published("board/typical")
    return table[table["n_params"] < 3000].reset_index(drop=True)


def families(table):
    return np.array([read_family(run) for run in table.to_dict("records")])


def is_form(table, *form):
    """Whether each run is of a side, or of one of its forms of heads."""
    sides = [capacity_summary.architecture(run).side for run in table.to_dict("records")]
    return np.array([side[: len(form)] == form for side in sides])


def scaled(bits, factor):
    """The same list of lists as a row has it, every number times a factor."""
    lists = ast.literal_eval(bits) if isinstance(bits, str) else bits
    return (factor * np.array(lists)).tolist()


def with_bits(table, where, factor):
    table = table.copy()
    table["rung_bits"] = [
        scaled(bits, factor) if chosen else bits
        for bits, chosen in zip(table["rung_bits"], where, strict=True)
    ]
    return table


def test_each_side_is_its_best_form_at_every_budget(board):
    for contest in capacity_summary.contests(board):
        exact = board[(board["protocol"] == "exact")]
        for side, best in contest.best.items():
            bits = [
                np.mean(capacity_summary.models(run, "rung_bits")[-1]) / run["n_params"]
                for run in exact.to_dict("records")
                if capacity_summary.budget(run["n_params"]) == contest.budget
                and capacity_summary.architecture(run).side[0] == side
            ]
            mean = np.mean(capacity_summary.models(best, "rung_bits")[-1]) / best["n_params"]
            assert len(bits) > 1
            assert mean == max(bits)


def test_the_answer_names_the_largest_budget_with_every_form(board):
    assert " bits per parameter from 256 to 2,048 parameters. " in answer.answer(board)
    largest = board["n_params"] > 1500
    for family in ("attention-only, narrow heads", "MLP, narrow head"):
        is_family = np.char.startswith(families(board).astype(str), family)
        some = board[~(largest & is_family)]
        assert " bits per parameter from 256 to 1,024 parameters. " in answer.answer(some), family


def test_runs_of_other_tasks_beside_them_leave_the_answer_as_it_is(board):
    """Of labelled contexts, say: a column that they lack holds floats."""
    beside = board.astype({"vocab_size": float, "steps": float})
    assert answer.answer(beside) == answer.answer(board)


def test_a_better_form_turns_the_answer_round(board):
    said = answer.answer(board)
    assert said.startswith(f"With {NARROW} attention + MLP memorizes the most: ")
    assert " Attention alone with narrow heads knows " in said
    narrow = families(board) == "attention-only, narrow heads"
    turned = answer.answer(with_bits(board, narrow, 1.4))
    assert turned.startswith(f"With {NARROW} attention alone memorizes ")
    over = [float(re.search(r"heads knows (\S+) to", text)[1]) for text in (said, turned)]
    assert over[1] / over[0] == pytest.approx(1.4, abs=0.02)
    # Wide heads are one form: as long as narrow ones know more, they move their own ratio alone.
    wide = is_form(board, ATTENTION, "full")
    slower = answer.answer(with_bits(board, wide, 0.5))
    assert slower.split(" With wide ")[0] == said.split(" With wide ")[0]
    assert slower != said


def test_runs_without_narrow_heads_say_so(board):
    wide = board[["narrow" not in family for family in families(board)]]
    assert f"{NARROW[0].upper()}{NARROW[1:]} are not among these runs." in answer.answer(wide)
    assert "not among these runs" not in answer.answer(board)


def test_sets_that_fit_are_compared_where_trials_measured_them(board):
    assert "; the sets that half of its trainings learn to 99% are " in answer.answer(board)
    without = board.assign(threshold_trials=0, complete_trials="[]")
    assert "sets that half" not in answer.answer(without)
    largest = board["n_params"] > 0.9 * board["n_params"].max()
    partly = pd.concat([board[~largest], without[largest]])
    assert re.search(r"learn to 99% (at|from) [\d,]+ .*parameters are ", answer.answer(partly))


def test_equal_sides_are_not_ranked(board):
    mlp = board[(families(board) == "MLP") & (board["protocol"] == "exact")]
    changes = {"architecture": "attention_only", "d_mlp": 0, "activation": None}
    attention = mlp.assign(run_id="f" + mlp["run_id"].str[1:], **changes)
    equal = pd.concat([mlp, attention], ignore_index=True)
    assert "memorizes as much as any: " in answer.answer(equal)


def test_the_first_at_the_largest_budget_may_know_less_elsewhere(board):
    largest = board["n_params"] > 0.9 * board["n_params"].max()
    mlp = board["architecture"] == "mlp"
    said = answer.answer(with_bits(board, mlp & ~largest & (board["n_heads"] > 1), 0.3))
    assert " memorizes the most at 2,048, not everywhere: " in said


@pytest.mark.parametrize("kept", [(), ("attention-only, full heads",), ("MLP", "attention + MLP")])
def test_runs_of_one_side_have_no_answer(board, kept, tmp_path):
    some = board[[family in kept for family in families(board)]]
    experiment = EXPERIMENTS["board/typical"]
    sections = experiment.figure.sections(some)
    assert "## Attention against MLP in these runs" not in sections
    assert bool(sections) == bool(kept)
    experiment.figure.draw(experiment, "quick", some).savefig(tmp_path / "typical.png")
    assert (tmp_path / "typical.png").stat().st_size > 0
    with pytest.raises(ValueError, match="attention alone and an MLP"):
        answer.answer(some)


@pytest.mark.parametrize("name", ["tables", "task_seed"])
def test_sides_of_unlike_label_tables_are_not_compared(board, name):
    is_mlp = is_form(board, MLP)
    assert not capacity_summary.contests(board.assign(**{name: board[name] + is_mlp}))


def test_runs_of_fewer_rungs_are_compared_at_the_steps_that_both_have(board):
    narrow = families(board) == "attention-only, narrow heads"
    table = board.copy()
    for name in ("rung_bits", "rung_known", "rung_steps", "rung_rates"):
        table[name] = [
            capacity_summary.parse_list(value)[-1:] if chosen else value
            for value, chosen in zip(table[name], narrow, strict=True)
        ]
    first = answer.answer(board)
    assert answer.answer(table) == first


def test_the_answer_is_short(board):
    assert len(answer.answer(board).split()) <= 105


def test_learned_sets_are_compared_at_all_budgets(board):
    said = answer.compare_learned_sets(board)
    first = answer.answer(board)
    # The same numbers as in the answer on such sets.
    for numbers in re.findall(r"\d\.\d\d to \d\.\d\d times", said):
        assert numbers in first
    assert said.endswith(" times the MLP's (to 2,048; undecided at 256).")
    assert answer.compare_learned_sets(board[:0]) == ""
