"""Families: every budget has shapes of each, and all of them meet it."""

import pandas as pd
import pytest

from memobench import board, families
from memobench.board import EXACT
from memobench.experiments.board import shapes
from memobench.experiments.board import typical as board_typical
from memobench.models import base as models
from memobench.models.product_key_memory import ProductKeyMemory
from memobench.table import results
from memobench.table.published import published
from tests.entries import BUDGET, HEADS, made


@pytest.mark.parametrize("of", shapes.SHAPES.values(), ids=shapes.SHAPES)
@pytest.mark.parametrize("budget", families.VOCAB_SIZES)
def test_every_family_has_shapes_that_meet_a_budget(budget, of):
    task, found = families.task(budget), of(budget)
    assert len(set(found)) == len(found)
    assert {shape.family for shape in found} == {shape.family for shape in of(256)}
    for shape in found:
        n_params, _ = models.count_parameters(shape.build(task), task.context_length)
        assert abs(n_params - budget) <= families.TOLERANCE * budget
    # More associations than any memorizes, all of them different.
    assert task.n_examples == budget <= families.VOCAB_SIZES[budget] ** 2


@pytest.mark.parametrize("of", shapes.SHAPES)
def test_chosen_shapes_are_among_those_tried(of):
    """One of each family, at budgets of which all shapes were tried."""
    budgets = [budget for budget in families.VOCAB_SIZES if shapes.standard(budget, of)]
    assert budgets
    for budget in budgets:
        tried, chosen = shapes.SHAPES[of](budget), shapes.standard(budget, of)
        assert set(chosen) <= set(tried)
        assert sorted(x.family for x in chosen) == sorted({x.family for x in tried})


@pytest.mark.parametrize(("more", "moves"), [(0.01, False), (0.03, True)])
def test_a_chosen_shape_stays_where_another_knows_hardly_more(more, moves):
    stands, table = pd.read_csv(shapes.CHOSEN), published("board/shapes")
    assert shapes.chosen(table, stands)["d_model"].tolist() == stands["d_model"].tolist()
    (mlp,) = stands.query("budget == 256 and family == 'MLP'").to_dict("records")
    of_mlp = [run for run in shapes.runs([256]) if run.architecture.family == "MLP"]
    known = table.set_index("run_id")["bits"] / table.set_index("run_id")["n_params"]
    (entry,) = [run for run in of_mlp if run.architecture.d_model == mlp["d_model"]]
    other = next(run for run in of_mlp if run != entry)
    bits = (1 + more) * known[entry.run_id] * table["n_params"]
    table["bits"] = table["bits"].where(table["run_id"] != other.run_id, bits)
    for before, stayed in ((stands, not moves), (stands.iloc[:0], False)):
        found = shapes.chosen(table, before).query("budget == 256 and family == 'MLP'")
        expected = entry if stayed else other
        assert found["d_model"].tolist() == [expected.architecture.d_model]


def test_a_family_is_named_by_options_and_its_shapes_by_sizes():
    memory = ProductKeyMemory(d_model=4, d_head=4, d_key=3, n_keys=5, norm="none")
    assert memory.family == "product_key_memory (norm=none)"
    assert memory.shown_sizes == ["d=4", "d_key=3", "n_keys=5"]
    more = memory.replace(n_memory_heads=2, top_k=3)
    assert more.family == "product_key_memory (norm=none, top_k=3)"
    assert more.shown_sizes == ["d=4", "d_key=3", "n_keys=5", "n_memory_heads=2"]


def test_entries_that_spread_get_more_initial_weights(monkeypatch):
    def wanted(spread, starts=1, budgets=(BUDGET,)):
        row = made(board.run(HEADS, BUDGET, inits=starts), 300.0, spread)
        found = board_typical.inits(results.to_table([row]), budgets)
        assert set(zip(found["track"], found["family"], strict=True)) <= {(EXACT, HEADS.family)}
        return found["inits"].tolist()

    assert wanted(10.0) == []
    # Half an interval is about a fifth of the standard deviation of 96 tables.
    assert wanted(36.0) == [2]
    assert wanted(60.0) == [5]
    assert wanted(90.0) == [10]
    monkeypatch.setattr(board_typical, "MOST_INITS", 8)
    assert wanted(90.0) == [8]
    # What is narrow because of more weights keeps them; other budgets stay as they are.
    assert wanted(10.0, starts=3) == [3]
    assert wanted(60.0, budgets=(512,)) == []
    assert wanted(90.0, starts=2, budgets=(512,)) == [2]
    # Pilots tell the rates of entries that spread apart.
    pilots = [board.run(HEADS, BUDGET, inits=starts).method.pilots for starts in (1, 3, 5, 8)]
    assert pilots == [12, 12, 20, 32]
