"""Families: every budget has shapes of each, and all of them meet it."""

import math

import pandas as pd
import pytest

from memobench.board import families
from memobench.board import peak as peaks
from memobench.board import table as board
from memobench.board.capacity_summary import ATTENTION, BOTH, MLP, SIDES
from memobench.core import module as models
from memobench.core.architecture import Architecture
from memobench.experiments.board import blocks, depth, finalists, neurons, peak, shapes, tied
from memobench.experiments.board import typical as board_typical
from memobench.models.modern import Modern
from memobench.models.product_key_memory import ProductKeyMemory
from memobench.store import results
from memobench.store.published import published
from tests.entries import BUDGET, HEADS, made, n_params_of, overfull


@pytest.mark.parametrize("of", shapes.SHAPES.values(), ids=shapes.SHAPES)
@pytest.mark.parametrize("budget", families.VOCAB_SIZES)
def test_every_family_has_shapes_that_meet_a_budget(budget, of):
    task, found = families.task(budget), of(budget)
    assert len(set(found)) == len(found)
    assert {shape.family for shape in found} == {shape.family for shape in of(256)}
    for shape in found:
        n_params, _ = models.count_parameters(shape.module_for(task), task.context_length)
        assert abs(n_params - budget) <= families.TOLERANCE * budget
    # More associations than any memorizes, all of them different.
    assert task.n_examples == budget <= families.VOCAB_SIZES[budget] ** 2


@pytest.mark.parametrize("budget", [*depth.SMALL, *depth.LARGE])
def test_shapes_of_two_layers_meet_a_budget(budget):
    task = families.task(budget)
    for shape in depth.halve_shapes(budget):
        n_params, _ = models.count_parameters(shape.module_for(task), task.context_length)
        assert abs(n_params - budget) <= families.TOLERANCE * budget, shape


@pytest.mark.parametrize("of", shapes.SHAPES)
def test_chosen_shapes_are_among_those_tried(of, searched):
    """One of each family and budget of which all shapes were tried, and of no other."""
    known, n_chosen = set(searched["run_id"]), 0
    for budget in families.VOCAB_SIZES:
        missing = dict.fromkeys((x.family for x in shapes.SHAPES[of](budget)), 0)
        for run in shapes.runs([budget], shapes.SHAPES[of]):
            missing[run.architecture.family] += run.run_id not in known
        chosen = shapes.standard(budget, of)
        assert set(chosen) <= set(shapes.SHAPES[of](budget))
        assert sorted(x.family for x in chosen) == sorted(x for x, n in missing.items() if not n)
        n_chosen += len(chosen)
    assert n_chosen


def test_the_board_has_the_mlp_of_gated_neurons_and_no_other_narrow_block():
    for budget in blocks.TABLES:
        narrow = set(shapes.standard(budget, "narrow blocks"))
        (ranked,) = narrow & set(peak.entries(budget))
        assert (ranked.n_heads, ranked.activation, ranked.norm) == (1, "swiglu", "none")
        others = {run.architecture for run in blocks.runs()}
        assert {x for x in narrow if x not in others} == {ranked}


@pytest.mark.parametrize("budget", shapes.TIED)
def test_every_side_has_forms_with_tied_embeddings(budget):
    of_runs = [run.architecture for run in tied.runs()]
    forms = [x for x in of_runs if families.meets_budget(x, budget)]
    assert all(x.tied and x.norm == "none" and x.side[1] == "narrow" for x in forms)
    known = {side: {x.activation for x in forms if x.side[0] == side} for side in SIDES}
    assert known == {ATTENTION: {"swiglu"}, MLP: {"swiglu", "geglu"}, BOTH: {"swiglu"}}
    for side in (ATTENTION, BOTH):
        assert {x.positions for x in forms if x.side[0] == side} == {"learned", "rope"}


def test_neurons_are_compared_in_the_shapes_of_the_board():
    for run, (activation, budget, *_) in zip(neurons.runs(), neurons.TRIED, strict=True):
        (ranked,) = shapes.standard_gated_mlps(budget)
        shape = run.architecture
        assert shape == ranked.replace(activation=activation, d_mlp=shape.d_mlp)
        assert families.meets_budget(shape, budget)
        if shape == ranked:
            assert max(run.method.rate_factors) > max(peaks.RATE_FACTORS)


@pytest.mark.parametrize(
    ("sizes", "side"),
    [
        ({}, ("attention alone", "full")),
        ({"n_heads": 3, "d_head": 2}, ("attention alone", "narrow")),
        ({"d_mlp": 3}, ("MLP", "full")),
        ({"d_mlp": 3, "d_head": 2, "activation": "gelu"}, ("MLP", "narrow")),
        ({"d_mlp": 3, "n_heads": 2}, ("attention + MLP", "full")),
        # What weighs no values by softmax is another kind of model.
        ({"attention": "delta"}, ("", "")),
    ],
)
def test_a_block_is_a_form_of_a_side_by_its_heads_and_neurons(sizes, side):
    assert Modern(**{"d_model": 4, "d_head": 4, "n_heads": 1, **sizes}).side == side


def _chosen(table, entries):
    """The widths that stand, by what of, budget and family."""
    found = shapes.choose_shapes(table, entries).set_index(["of", "budget", "family"])
    return found["d_model"].to_dict()


@pytest.fixture(name="searched", scope="module")
def _searched():
    return published("board/shapes")


@pytest.fixture(name="entries", scope="module")
def _entries():
    rows = pd.concat(map(published, ("board/typical", "board/peak")))
    entries = shapes.measure_entries(rows)
    return pd.concat([entries, pd.read_csv(shapes.PASSED)], ignore_index=True)


def test_the_shapes_that_stand_follow_from_what_is_published(searched, entries):
    stands = pd.read_csv(shapes.CHOSEN)
    found = shapes.choose_shapes(searched, entries)[list(stands)]
    expected = [Architecture.from_row(row) for row in _rows(stands)]
    assert expected == [Architecture.from_row(row) for row in _rows(found)]
    # A shape that was passed over knows less than the one that stands.
    known = entries.groupby(["budget", "family"])[["in_the_end", "at_peak"]].max()
    for row in _rows(pd.read_csv(shapes.PASSED)):
        by = "in_the_end" if pd.isna(row["at_peak"]) else "at_peak"
        assert row[by] < known.loc[(row["budget"], row["family"]), by]


def _rows(table):
    return table.to_dict("records")


@pytest.mark.parametrize(("more", "moves"), [(0.01, False), (0.03, True)])
def test_a_measured_shape_stays_where_a_search_found_hardly_more(searched, entries, more, moves):
    mlp = ("families", 256, "MLP")
    # Those of a budget are chosen without others.
    searched = searched[searched["n_params"] < 400]
    (entry,) = _rows(entries.query("budget == 256 and family == 'MLP'"))
    other = next(
        run
        for run in shapes.runs([256])
        if run.architecture.family == "MLP" and run.architecture.d_model != entry["d_model"]
    )
    (own,) = (
        run.run_id for run in shapes.runs([256]) if run.architecture == Architecture.from_row(entry)
    )
    known = (searched["bits"] / searched["n_params"])[searched["run_id"] == own]
    bits = (1 + more) * max(entry["as_searched"], *known) * searched["n_params"]
    better = searched["bits"].where(searched["run_id"] != other.run_id, bits)
    found = _chosen(searched.assign(bits=better), entries)[mlp]
    assert found == (other.architecture.d_model if moves else entry["d_model"])
    # Without entries the best of the search stands.
    best = searched["bits"].where(searched["run_id"] != other.run_id, searched["n_params"] * 9)
    unmeasured = _chosen(searched.assign(bits=best), entries.iloc[:0])
    assert unmeasured[mlp] == other.architecture.d_model
    # Once both are measured the one that knows more in the end does.
    for end, stands in ((0.99, entry["d_model"]), (1.01, other.architecture.d_model)):
        cells = {"d_model": other.architecture.d_model, "d_mlp": other.architecture.d_mlp}
        cells |= {"d_head": other.architecture.d_head, "in_the_end": end * entry["in_the_end"]}
        # At its best size of set, if that was measured of both, else on one as large as the budget.
        for at_peak, is_same in ((math.nan, True), (end, True), (2 - end, False)):
            measured = entry | cells | {"at_peak": at_peak * entry["at_peak"]}
            both = pd.concat([entries, pd.DataFrame([measured])], ignore_index=True)
            assert (_chosen(searched.assign(bits=better), both)[mlp] == stands) == is_same


@pytest.mark.parametrize(("more", "is_better"), [(0.01, False), (0.03, True)])
def test_a_finalist_is_measured_again_that_knows_more_than_those_that_stand(more, is_better):
    stand = set(peak.main_shapes(BUDGET))
    others = [x for x in finalists.finalists(BUDGET) if x not in stand]
    rows = []
    for shape in finalists.finalists(BUDGET):
        bits = 2.0 if shape in stand else 2.0 * (1 + more) if shape == others[0] else 1.9
        level = bits * n_params_of(shape)
        rows.append(made(board.run(shape, BUDGET), level, spread=0.0))
    expected = {(BUDGET, others[0])} if is_better else set()
    assert finalists.find_better(pd.DataFrame(rows)) == expected


def test_finalists_are_the_best_of_the_published_search(searched):
    kept = [
        (row["budget"], Architecture.from_row(row), row["again"])
        for row in _rows(pd.read_csv(finalists.FINALISTS))
    ]
    assert [x[:2] for x in kept] == [
        (row["budget"], Architecture.from_row(row)) for row in _rows(finalists.find(searched))
    ]
    again = {(budget, shape) for budget, shape, again in kept if again}
    assert finalists.find_better(published("board/finalists")) <= again
    measured = peaks.peaks(published("board/challengers"))
    assert set(zip(measured["budget"], measured["model"], strict=True)) == again
    # One that holds more by the whole grid has taken the place of what was on the board.
    on_board = peaks.peaks(published("board/peak")).groupby(["budget", "side"])["bits"].max()
    for row in _rows(measured):
        assert row["bits"] <= (1 + shapes.EQUAL) * on_board[row["budget"], row["side"]]


def test_a_family_is_named_by_options_and_its_shapes_by_sizes():
    memory = ProductKeyMemory(d_model=4, d_head=4, d_key=3, n_keys=5, norm="none")
    assert memory.family == "product_key_memory (norm=none)"
    assert memory.shown_sizes == ["d=4", "d_key=3", "n_keys=5"]
    more = memory.replace(n_memory_heads=2, top_k=3)
    assert more.family == "product_key_memory (norm=none, top_k=3)"
    assert more.shown_sizes == ["d=4", "d_key=3", "n_keys=5", "n_memory_heads=2"]


def test_entries_that_spread_get_more_initial_weights(monkeypatch):
    def wanted(spread, starts=1, budgets=(BUDGET,)):
        row = overfull(board_typical.run(HEADS, BUDGET, inits=starts), 300.0, spread)
        found = board_typical.inits(results.to_table([row]), budgets)
        assert set(zip(found["track"], found["family"], strict=True)) <= {
            (board.EXACT, HEADS.family)
        }
        return found["inits"].tolist()

    assert wanted(10.0) == []
    # Half an interval is about a fifth of the standard deviation of 96 tables.
    assert wanted(36.0) == [2]
    assert wanted(60.0) == [4]
    assert wanted(90.0) == [9]
    monkeypatch.setattr(board_typical, "MOST_INITS", 8)
    assert wanted(90.0) == [8]
    # What is narrow because of more weights keeps them; other budgets stay as they are.
    assert wanted(10.0, starts=3) == [3]
    assert wanted(60.0, budgets=(512,)) == []
    assert wanted(90.0, starts=2, budgets=(512,)) == [2]
    # Pilots tell the rates of entries that spread apart.
    starting = [board_typical.run(HEADS, BUDGET, inits=starts) for starts in (1, 3, 5, 8)]
    assert [run.method.pilots for run in starting] == [12, 12, 20, 32]
