"""Claims that compare groups of entries over label tables, on tables whose truth is known."""

import json
import re
import types

import numpy as np
import pandas as pd
import pytest

from memobench import claims
from memobench.analysis.statistics import replicates
from memobench.claims import FAILS, HOLDS, UNDECIDED
from memobench.experiments.blocks import claims as groups
from memobench.experiments.blocks.common import EQUAL, LESS, MORE
from memobench.experiments.blocks.figure import Groups

STEPS = (64, 256)
BITS = groups.bits_per_parameter()
GROUPS = {name: [types.SimpleNamespace(run_id=f"{name}{i}") for i in range(6)] for name in "ab"}


def _table(levels, spread=0.02, tables=8, n_entries=6, number=0):
    """Rows of `Capacity` with 100 parameters: entries of a group know as much, but for noise."""
    random = np.random.default_rng(number)
    of_table_T = random.normal(size=tables)
    rows = []
    for name, level in levels.items():
        for i in range(n_entries):
            noise_TxS = random.normal(size=(tables, 2)) + of_table_T[:, None]
            last_M = 100 * level * (1 + spread * noise_TxS).ravel()
            about = {"run_id": f"{name}{i}", "d_model": i, "activation": name, "status": "ok"}
            bits = {"rung_bits": json.dumps([[1.0] * len(last_M), last_M.tolist()])}
            sizes = {"n_params": 100, "n_params_active": 50, "tables": tables, "task_seed": 3}
            rows.append({**about, **bits, **sizes, "rung_steps": json.dumps(STEPS)})
    return pd.DataFrame(rows)


@pytest.mark.parametrize(
    ("level", "region", "verdict"), [(1.5, MORE, HOLDS), (1.5, LESS, FAILS), (1.0, EQUAL, HOLDS)]
)
def test_a_ratio_is_decided_by_its_interval(level, region, verdict):
    table = _table({"a": level, "b": 1.0})
    found = groups.compare_best(GROUPS, "a", "b", region, BITS)(table)
    assert found.verdict == verdict
    assert found.low < found.estimate < found.high
    assert not found.needed
    # Of two edges within the interval the nearer one decides how many tables are needed.
    reaches = found.high - found.estimate
    for distance, n_tables in ((reaches / 2, range(16, 100)), (reaches / 100, range(10**4, 10**6))):
        edge = (found.estimate + distance, np.inf)
        open_ = groups.compare_best(GROUPS, "a", "b", edge, BITS)(table)
        assert open_.verdict == UNDECIDED
        needed = int(re.search(r"([\d,]+) label tables would", open_.needed)[1].replace(",", ""))
        assert needed in n_tables


def test_what_is_measured_is_of_the_rung_and_the_parameters_that_are_named():
    table = _table({"a": 2.0, "b": 1.0}, spread=0.0)
    for measure, ratio in (
        (BITS, 2.0),
        (groups.bits_per_parameter(256), 2.0),
        (groups.bits_per_parameter(64), 1.0),
    ):
        assert groups.compare_best(GROUPS, "a", "b", EQUAL, measure)(
            table
        ).estimate == pytest.approx(ratio)
    active = groups.bits_per_parameter(count="n_params_active")
    assert active.values(table.iloc[0]) == pytest.approx(np.full(8, 4.0))


def test_groups_of_one_entry_have_students_interval_and_others_a_wider_one():
    table = _table({"a": 1.2, "b": 1.0})
    first_TxX, second_TxY = groups.values_by_group(table, GROUPS, BITS).values()
    mean_BxX = replicates(np.concatenate([first_TxX, second_TxY], axis=1))
    one, other = mean_BxX[:, :1], mean_BxX[:, 6:7]
    ratio, low, high = groups.ratio_of_best(one, other, 8)
    assert (low, high) == claims.interval(one[:, 0] / other[:, 0], 8)
    # Far worse entries are not the best: what they cost is the correction.
    worse = np.concatenate([one, 0.5 * mean_BxX[:, 1:3]], axis=1)
    found = groups.ratio_of_best(worse, other, 8)
    assert found[0] == pytest.approx(ratio)
    assert found[2] == pytest.approx(high)
    assert low - 0.5 * (ratio - low) < found[1] < low
    # And what cannot be is not in the interval.
    assert groups.ratio_of_best(one, other, 8, most=other[0, 0])[2] < high


def test_the_best_of_many_equal_entries_is_no_better_than_one():
    high, covered = [], []
    for number in range(60):
        table = _table({"a": 1.0, "b": 1.0}, number=number)
        one = table[(table["activation"] == "a") | (table["run_id"] == "b0")]
        found = groups.compare_best(GROUPS, "a", "b", MORE, BITS)(one)
        high.append(found.estimate > 1)
        covered.append(found.low <= 1 <= found.high)
        assert found.verdict != FAILS
    # It looks better, and is not called so.
    assert np.mean(high) > 0.8
    assert np.mean(covered) >= 0.93


def test_an_entry_that_diverged_is_none_and_a_group_without_any_decides_nothing():
    table = _table({"a": 1.0, "b": 1.0})
    of_b = table["run_id"].str.startswith("b")
    some = table.assign(status=np.where(table["run_id"] == "b3", "diverged", "ok"))
    test = groups.compare_best(GROUPS, "a", "b", EQUAL, BITS)
    assert test(some).verdict == HOLDS
    assert test(table.assign(status=np.where(of_b, "diverged", "ok"))).verdict == UNDECIDED
    assert test(table[~of_b]).verdict == UNDECIDED


def test_a_training_that_diverged_knows_nothing_of_its_table():
    """Of trainings of one table each."""
    columns = {"run_id": "a0", "d_model": 4, "n_params": 1}
    table = pd.DataFrame([{**columns, "status": "ok", "task_seed": k} for k in range(4)])
    known = groups.Measure("known", lambda row: [2.0])
    table.loc[1, "status"] = "diverged"
    assert groups.values_by_table(table, known).ravel().tolist() == [2, 0, 2, 2]
    assert groups.values_by_table(table.assign(status="diverged"), known).size == 0
    # A run of several tables that diverged knows nothing of any of them.
    two = table.assign(tables=2, task_seed=[0, 2, 4, 6])
    of_two = groups.Measure("known", lambda row: [2.0, 4.0])
    assert groups.values_by_table(two, of_two).ravel().tolist() == [2, 4, 0, 0, 2, 4, 2, 4]


def test_runs_of_one_entry_and_table_count_with_their_mean():
    rows = [
        {"run_id": f"a{seed}", "d_model": 4, "status": "ok", "task_seed": 0, "known": known}
        for seed, known in enumerate([1.0, 2.0, 30.0])
    ]
    known = groups.Measure("known", lambda row: [row["known"]])
    assert groups.values_by_table(pd.DataFrame(rows), known).ravel().tolist() == [11]


def test_tables_read_from_a_file_and_tables_just_learnt_are_of_one_entry():
    # Of an option that is left out rows have NaN in a file, and None before they are written.
    halves = [
        _table({"a": 1.5, "b": 1.0}, tables=4, number=n).assign(task_seed=4 * n, rounded=value)
        for n, value in enumerate((np.nan, None))
    ]
    both = pd.concat([half.astype({"rounded": object}) for half in halves])
    assert groups.compare_best(GROUPS, "a", "b", MORE, BITS)(both).verdict == HOLDS


def test_the_figure_shows_the_groups_that_are_there():
    shown = Groups(groups=GROUPS, measures=(BITS, groups.bits_per_parameter(64)))
    table = _table({"b": 1.0})
    figure = shown.draw(types.SimpleNamespace(title="A title"), "quick", table)
    assert [axis.get_xlabel() for axis in figure.axes] == [x.name for x in shown.measures]
    assert [len(axis.containers) for axis in figure.axes] == [1, 1]
    assert "| b | 1.0" in shown.sections(table)[-1]
    assert "| a |" not in shown.sections(table)[-1]
    diverged = pd.concat([table, _table({"a": 1.0}).assign(status="diverged")])
    assert "| a | – |" in shown.sections(diverged)[-1]


def test_equal_values_vary_by_their_least_step_or_decide_nothing():
    rows = [
        {"run_id": f"{name}0", "activation": name, "status": "ok", "task_seed": k, "accuracy": 1.0}
        for name in "ab"
        for k in range(4)
    ]
    table = pd.DataFrame(rows)
    known = groups.Measure("share", lambda row: [row["accuracy"]], most=1.0)
    found = groups.compare_best(GROUPS, "a", "b", MORE, known)(table)
    assert (found.verdict, found.estimate) == (UNDECIDED, 1.0)
    assert "equal runs, which show no spread" in found.evidence
    stepped = groups.Measure("share", known.values, most=1.0, step=1 / 512)
    found = groups.compare_best(GROUPS, "a", "b", (0.99, np.inf), stepped)(table)
    assert found.verdict == HOLDS
    assert 0.99 < found.low < 1 < found.high < 1.01
