"""Columns are declared once: what pages, tables and checks say of them follows."""

import pathlib
import subprocess
import sys

import pytest

from memobench.analysis import capacities
from memobench.analysis import seeds as analysis
from memobench.board import table as board
from memobench.common.errors import UserError
from memobench.core import columns
from memobench.core.cells import cells
from memobench.core.columns import int_between, one_of
from memobench.core.run import Run
from memobench.experiments.capacity import scaling_claims as claims_of_scaling
from memobench.methods.optimum import Optimum
from memobench.models.sequence_encoder import SequenceEncoder
from memobench.report import capacity, constructions
from memobench.report import experiment as page
from memobench.store import measures, results, rows
from memobench.tasks.associations import Associations

DOCS = pathlib.Path(__file__).parents[2] / "docs" / "columns.md"


def test_the_page_of_columns_is_the_generated_one():
    command = [sys.executable, "-m", "memobench.experiments.pages.columns"]
    made = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert DOCS.read_text() == made, "columns have changed: make docs"
    listed = {line.split("|")[1].strip() for line in made.splitlines() if line.startswith("| ")}
    assert listed - {"column"} >= set(rows.all_columns())


@pytest.mark.parametrize(
    "names",
    [
        analysis.ORDER,
        capacities.CAPACITIES,
        {*constructions.CERTIFIED} - {"aimed"},
        claims_of_scaling._SIZES,
        claims_of_scaling._RATES,
        capacity.SIZES,
        capacity.CONVENTIONS.values(),
        {*page.CONFIGURATION_COLUMNS} - {"seeds", "diverged"},
        page.MEANS,
        rows._PRESENT,
    ],
)
def test_what_a_page_or_a_reader_names_is_declared(names):
    assert set(names) <= set(rows.all_columns())


def test_columns_of_the_board_are_declared_once():
    assert len(board.names()) == len(set(board.names()))
    for name, column in board.COLUMNS.items():
        assert column.name == name
        assert column.meaning
        assert column.label
        # What is of a range or a measure is a number.
        assert column.digits is not None or not (column.of_range or column.is_measure)


def test_a_table_has_its_columns_in_the_order_of_their_declarations():
    table = results.to_table([{"own": 1, "status": "ok", "seed": 0}])
    assert list(table) == [*rows.all_columns(), "own", "family"]


MEASURED = {"status": "ok", "loss": 0.5, "device": "none"}


def _optimum(seed=0, **options):
    run = Run(
        task=Associations(vocab_size=3),
        architecture=SequenceEncoder(d_model=2),
        method=Optimum(**options),
        seed=seed,
    )
    return {**cells(run), "n_params": 9, "n_params_memory": 6, **MEASURED}


def test_unlike_optima_are_no_repetitions_of_each_other():
    options = ({}, {"starts": 32}, {"adam_steps": 10}, {"polished": 2})
    table = results.to_table([_optimum(seed, **each) for each in options for seed in range(2)])
    means = analysis.mean_over_seeds(table, ("loss",))
    assert means["seeds"].tolist() == [2] * 4
    assert set(zip(means["starts"], means["adam_steps"], means["polished"], strict=True)) == {
        (64, 1000, 3),
        (32, 1000, 3),
        (64, 10, 3),
        (64, 1000, 2),
    }


def test_rows_that_differ_never_look_alike():
    table = analysis.mean_over_seeds(results.to_table([_optimum(), _optimum(starts=32)]), ("loss",))
    shown = analysis.distinguishing_columns(table, ["architecture", "d_model", "heads"])
    assert shown == ["architecture", "d_model", "starts"]
    assert analysis.distinguishing_columns(table[:1], ["architecture", "heads"]) == ["architecture"]


def test_a_column_of_several_kinds_holds_what_any_of_them_may():
    both = columns.unite(one_of("gelu", "relu"), one_of("relu", "tanh"))
    assert all(map(both.holds, ("gelu", "relu", "tanh")))
    assert not both.holds("silu")
    assert both.description == "one of gelu, relu, tanh"
    numbers = columns.unite(columns.numbers(3), int_between(1, 2))
    assert numbers.holds("0.5 1.0")
    assert numbers.read("0.5 1.0") == (0.5, 1.0)
    # A file of text has a single number as a number.
    assert columns.numbers(3).read(3.5) == (3.5,)
    assert not numbers.holds(-3)
    assert not numbers.holds("no")


@pytest.mark.parametrize(
    "name",
    ["accuracy", "device", "d_model", "trials", "curve_loss", "load", "family", "seeds"],
)
def test_two_columns_of_one_name_are_a_mistake(name):
    def own(task, data, output_TxC):
        return 0.0

    own.__name__ = name
    measures.measure("of my own", Associations)(own)
    with pytest.raises(UserError, match=f"two columns are named '{name}'; rename"):
        rows.all_columns()
    # In a notebook the next cell may have renamed it.
    rows.all_columns()


def test_all_columns_have_one_meaning_and_a_way_to_aggregate():
    for name, column in rows.all_columns().items():
        assert column.name == name
        assert column.meaning
        assert "\n" not in column.meaning
        assert column.over_seeds in ("same", "seed", "mean", "none")
