"""The answer on label tables that chose nothing: fresh ones, and intervals that cover."""

import numpy as np
import pandas as pd
import pytest

from memobench.board import peak
from memobench.core.cells import cells
from memobench.experiments import EXPERIMENTS
from memobench.experiments.board import fresh, shapes
from memobench.experiments.board.peak import main_shapes
from memobench.report.peak_answer import find_best, name_peaks
from memobench.store.published import published
from tests.entries import n_params_of


def test_no_other_run_of_the_board_has_its_label_tables():
    for name, experiment in EXPERIMENTS.items():
        if name.startswith("board/") and name != "board/fresh":
            for preset in experiment.presets:
                for run in experiment.presets[preset]:
                    last = run.task.seed + getattr(run.method, "tables", 1) - 1
                    assert last < fresh.FIRST, (name, preset)


@pytest.mark.parametrize("budget", fresh.TABLES)
def test_forms_of_each_side_learn_what_was_best_on_the_board(budget):
    """And the best MLP of all that were tried, in pairs of set and rate."""
    table, places = published("board/peak"), set()
    for jointly in (False, True):
        found = name_peaks(table, jointly).query("budget == @budget").to_dict("records")
        shapes_of_sides = {*main_shapes(budget), *shapes.standard_gated_mlps(budget)}
        places |= {_place(row) for row in found if row["model"] in shapes_of_sides}
    others = name_peaks(published("board/neurons"), jointly=True).query("budget == @budget")
    mlps = name_peaks(table, jointly=True).query("budget == @budget and side == @fresh.MLP")
    places.add(_place(pd.concat([mlps, others]).sort_values("bits").iloc[-1]))
    made = list(fresh.runs([budget]))
    assert {
        (run.architecture, run.task.n_examples, run.method.training.learning_rate) for run in made
    } == places
    assert len(made) == len(places)
    for run in made:
        assert run.method.steps == peak.TRAINING.steps
        assert run.method.tables == fresh.TABLES[budget]


def _place(row):
    return row["model"], row["n_examples"], row["learning_rate"]


@pytest.mark.parametrize("n_tables", [12, 24])
def test_the_interval_covers_the_ratio_of_the_true_means(n_tables):
    rng, covered = np.random.default_rng(0), []
    for _ in range(1500):
        shared_T = rng.normal(size=n_tables) * 0.05
        bits_T, other_T = (
            mean + shared_T + rng.normal(size=n_tables) * spread
            for mean, spread in ((2.9, 0.04), (2.7, 0.12))
        )
        found = fresh.ratio(bits_T, other_T)
        covered.append(found.low <= 2.9 / 2.7 <= found.high)
    # 95%, give or take thrice the error of 1,500 cases.
    assert 0.933 <= np.mean(covered) <= 0.967


def test_equal_label_tables_do_not_widen_the_interval():
    rng = np.random.default_rng(0)
    bits_T = 2 + rng.normal(size=8)
    paired, apart = fresh.ratio(1.1 * bits_T, bits_T), fresh.ratio(1.1 * bits_T[::-1], bits_T)
    assert paired.high - paired.low == pytest.approx(0, abs=1e-12)
    assert apart.high - apart.low > 0.1


BITS = {fresh.BOTH: 1.5, fresh.ATTENTION: 1.1, fresh.MLP: 1.0}
WIDE = 0.75


def _row(run):
    """The row of a run whose label tables know more and more, by its form."""
    side, heads = run.architecture.side
    is_wide = (side, heads) == (fresh.ATTENTION, "full")
    level = WIDE if is_wide else BITS[side]
    n_params, n = n_params_of(run.architecture), run.task.n_examples
    bits_T = level * n_params * np.linspace(0.95, 1.05, run.method.tables)
    known_T = np.full(run.method.tables, n // 2)
    return cells(run) | {
        "run_id": run.run_id,
        "status": "ok",
        "n_params": n_params,
        "size_bits": [[bits_T.tolist()]],
        "size_known": [[known_T.tolist()]],
    }


@pytest.fixture(scope="module")
def table():
    return pd.DataFrame([_row(run) for run in fresh.runs([256, 512])])


def test_the_page_compares_each_form_with_the_mlp(table, tmp_path):
    figure = EXPERIMENTS["board/fresh"].figure
    said = figure.answer(table)
    assert (
        "attention alone knows 1.10 times the bits of the board's MLP, attention + MLP 1.50" in said
    )
    assert said.endswith(" times, from 256 to 512 parameters.")
    sections = "\n".join(figure.sections(table))
    assert "| 256 | 1.500 [1.500, 1.500] |" in sections
    assert "0 of 48" in sections
    assert "attention alone / best MLP tried" in sections
    figure.draw(EXPERIMENTS["board/fresh"], "quick", table).savefig(tmp_path / "figure.png")


def test_the_form_set_and_rate_of_most_bits_on_the_board_count(table):
    """Not another that knows more here."""
    best = {
        (row["model"], row["n_examples"], row["learning_rate"])
        for of_budget in find_best(fresh.read_board(False)).values()
        for row in of_budget.values()
    }
    is_best = [
        (run.architecture, run.task.n_examples, run.method.training.learning_rate) in best
        for run in fresh.runs([256, 512])
    ]
    less = [
        [[[0.1 * bits for bits in x[0][0]]]] if counts else x
        for x, counts in zip(table["size_bits"], is_best, strict=True)
    ]
    compared = fresh.compare_forms(fresh.measure(table.assign(size_bits=less)))
    assert list(compared) == [256, 512]
    for of_form in compared.values():
        assert of_form[fresh.ATTENTION].value == pytest.approx(1.1)


def test_a_form_that_scatters_is_undecided(table):
    is_alone = table["architecture"] == "attention_only"
    tilt = np.linspace(0.0, 2.0, 48)
    scattered = [
        [[(np.array(x[0][0]) * tilt).tolist()]] if alone else x
        for x, alone in zip(table["size_bits"], is_alone, strict=True)
    ]
    said = EXPERIMENTS["board/fresh"].figure.answer(table.assign(size_bits=scattered))
    assert "(undecided at 256, 512)" in said


def test_without_an_mlp_nothing_is_compared(table):
    alone = table[table["architecture"] == "attention_only"]
    figure = EXPERIMENTS["board/fresh"].figure
    assert figure.answer(alone) == ""
    assert figure.sections(alone) == []
    assert figure.answer(alone.iloc[:0]) == ""


def test_the_mlp_that_counts_is_the_best_of_all_neurons_and_rates_tried():
    table = pd.DataFrame([_row(run) for run in fresh.runs([1024])])
    beyond = fresh.find_beyond()[1024]
    found, place = fresh.measure(table), _place(beyond[fresh.MLP])
    more = [row["bits_T"] * (2 if _place(row) == place else 1) for row in found.to_dict("records")]
    compared = fresh.compare_forms(found.assign(bits_T=more), {1024: beyond})
    assert compared[1024][fresh.ATTENTION].value == pytest.approx(0.55)
