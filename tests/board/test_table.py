"""Entries of the standard board: which runs and weights are, and what they are called."""

import dataclasses
import pathlib

import pytest

from memobench.board import families, peak
from memobench.board import table as board
from memobench.board.peak import LEAST_TABLES
from memobench.certificates import counting
from memobench.common.errors import UserError
from memobench.core import module as models
from memobench.core.architecture import Architecture, read_family
from memobench.core.cells import cells
from memobench.core.columns import integer
from memobench.core.run import Run
from memobench.core.spec import kind
from memobench.experiments.board import typical
from memobench.models.gpt import GPT
from memobench.store import rows
from memobench.tasks.associations import Associations
from tests.entries import BUDGET, HEADS, NEURONS, made, overfull


def _entry(architecture, vocab_size=50):
    """The sizes of an architecture as columns."""
    return cells(Run(task=Associations(vocab_size=vocab_size), architecture=architecture))


@pytest.mark.parametrize("budget", board.LABEL_TABLES)
def test_every_run_of_the_board_is_an_entry(budget):
    assert board.LABEL_TABLES.keys() == peak.TABLES.keys() == families.VOCAB_SIZES.keys()
    for shape in families.shapes(budget)[::9]:
        row = made(board.run(shape, budget), 1.0, 0.0)
        assert board.track_of(row) == board.EXACT
        assert not board.is_of_overfull_set(row)
        for track in typical.TRAININGS:
            row = overfull(typical.run(shape, budget, track), 1.0, 0.0)
            assert typical.track_of(row) == track
            assert board.track_of(row) is None


@pytest.mark.parametrize(
    ("place", "change"),
    [
        ("task", {"seed": 1}),
        ("task", {"n_sequences": 254}),
        ("task", {"vocab_size": 17}),
        ("architecture", {"n_heads": 9}),
        ("method", {"tables": LEAST_TABLES - 1}),
        ("training", {"epochs": 128}),
        ("training", {"trained": "memory"}),
        ("training", {"learning_rate": 0.02}),
        ("method", {"rate_factors": (1.0, 2.0, 5.0, 20.0)}),
    ],
    ids=lambda x: str(x),
)
def test_what_differs_in_task_training_or_budget_is_no_entry(place, change):
    run = board.run(HEADS, BUDGET)
    if place == "training":
        place, change = "method", {"training": run.method.training.replace(**change)}
    other = dataclasses.replace(run, **{place: getattr(run, place).replace(**change)})
    n_params = models.count_parameters(other.module(), 2)[0]
    assert board.track_of(made(other, 1.0, 0.0, n_params=n_params)) is None


def test_fewer_label_tables_are_an_entry():
    run = board.run(HEADS, BUDGET)
    fewer = dataclasses.replace(run, method=run.method.replace(tables=LEAST_TABLES))
    assert board.track_of(made(fewer)) == board.EXACT


@pytest.mark.parametrize(
    "change",
    [
        {"size_bits": [[[1.0]]]},
        {"size_bits": [[[1e300] * 24] * 4] * 5},
        {"size_bits": [[[-1.0] * 24] * 4] * 5},
        {"size_known": [[[97] * 24] * 4] * 5},
        {"size_known": [[[1] * 24] * 4] * 4},
        {"size_known": [[[1] * 24, [1]]] * 5},
        {"size_known": None},
        {"d_model": 5},
    ],
    ids=str,
)
def test_a_row_that_no_run_makes_is_left_out_in_one_line(change, caplog):
    assert board.track_of(made(board.run(HEADS, BUDGET)) | change) is None
    (record,) = caplog.records
    assert "\n" not in record.getMessage()


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda: board.run(NEURONS, 300), "budget must be one of the board's, 256, "),
        (lambda: families.task(300), "budget must be one of the board's, 256, "),
        (
            lambda: board.run(NEURONS, 512),
            "mlp: n_params must be within 5% of the budget of 512, got 353. Choose other sizes, "
            "such as n_heads=5 or n_layers=2 or d_mlp=40",
        ),
    ],
)
def test_what_the_board_lacks_is_said_in_one_line(ask, said):
    with pytest.raises(UserError) as error:
        ask()
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("task", "n_params", "said"),
    [
        (families.task(256, board.LABEL_TABLES[256] - 1), 256, ""),
        (families.task(256), 268, ""),
        (peak.task(512, 39), 512, ""),
        (families.task(512, 40), 512, "task_seed must be one of the 40 label tables of 512"),
        (families.task(8192, 6), 8192, "0 to 5, got 6"),
        (families.task(256), 269, "n_params must be within 5% of the budget of 256, got 269"),
        (Associations(vocab_size=16), 256, "its task must be one of the board's"),
        (
            families.task(256).replace(vocab_size=17),
            256,
            "as many associations of pairs as parameters: 16 tokens at 256, 32 tok",
        ),
    ],
)
def test_weights_without_a_place_hear_why_in_one_line(task, n_params, said):
    reason = board.placement_error(task, n_params) or ""
    assert said in reason
    assert bool(reason) == bool(said)
    assert "\n" not in reason


@pytest.mark.parametrize(
    ("sizes", "name"),
    [
        ({"name": "attention_only", "heads": "full", "n_heads": 5}, "attention-only, full heads"),
        # Compressed ones share maps before and behind all heads, whatever their size.
        ({"name": "attention_only", "n_heads": 5}, "attention-only, compressed heads"),
        ({"name": "attention_only", "d_head": 2}, "attention-only, compressed heads"),
        (
            {"name": "attention_only", "heads": "full", "n_layers": 2},
            "attention-only, full heads, 2 layers",
        ),
        ({"name": "attention_only", "heads": "full", "d_head": 1}, "attention-only, narrow heads"),
        ({"name": "mlp", "d_mlp": 3}, "MLP"),
        ({"name": "mlp", "d_mlp": 3, "heads": "full", "d_head": 3}, "MLP, narrow head"),
        (
            {"name": "mlp", "d_mlp": 3, "heads": "full", "d_head": 1, "n_heads": 2},
            "attention + MLP, narrow heads",
        ),
        ({"name": "mlp", "d_mlp": 3, "activation": "relu"}, "MLP (relu)"),
        ({"name": "mlp", "d_mlp": 3, "n_heads": 2}, "attention + MLP"),
        ({"name": "mlp", "d_mlp": 3, "n_layers": 3}, "MLP, 3 layers"),
        ({"name": "sequence_encoder"}, "sequence encoder"),
        ({"name": "linear_memory"}, "linear_memory"),
    ],
)
def test_families_by_hand(sizes, name):
    sizes = {**sizes}
    kind = Architecture.get_kind(sizes.pop("name"))
    heads = {"d_head": 4} if "d_head" in kind.columns() else {}
    row = _entry(kind(d_model=4, **heads | sizes))
    assert read_family(row) == name
    assert read_family({**row, "architecture": "mine", "n_layers": 2}) == "mine, 2 layers"


def test_options_that_are_not_usual_tell_entries_apart():
    plain, other = (GPT(d_model=4, d_head=4, d_mlp=8, **x) for x in ({}, {"activation": "relu"}))
    assert "activation" not in " ".join(plain.shown_sizes)
    assert "activation=relu" in other.shown_sizes


def test_no_option_of_a_users_can_have_the_name_of_a_column():
    """Neither of the board nor of certified weights: a table would have one of the two."""
    file = next((pathlib.Path(__file__).parents[2] / "results").rglob("*.safetensors"))
    taken = {*rows.all_columns(), *Architecture.taken}
    suffixes = tuple(f"_{x}" for x in counting.FORMATS)
    certified = {x for x in counting.certify(file) if not x.endswith(suffixes)}
    assert {*board.names(), *certified} <= taken
    with pytest.raises(UserError, match=r"Mine.first has the name of a column of the board or of"):

        @kind("mine")
        class Mine(Architecture):
            first: int = integer("of it", 1)
