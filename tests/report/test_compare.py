"""A user's runs beside published ones: differences, their intervals, and what is paired."""

import numpy as np
import pandas as pd
import pytest
import scipy.stats

import memobench
from memobench.core.cells import cells
from memobench.report import compare
from memobench.store import results


def _table(make_run, seeds, bits, **sizes):
    """Rows of runs of one configuration with these bits."""
    rows = [
        {**cells(make_run(seed=seed, **sizes)), "status": "ok", "n_params": 9, "bits": value}
        for seed, value in zip(seeds, bits, strict=True)
    ]
    return results.to_table(rows)


def _compared(mine, theirs):
    ((_, found),) = compare.compare(mine, [("theirs", theirs)])
    return found


def _bits(*drawn):
    (row,) = _compared(*drawn).to_dict("records")
    assert row["measure"] == "bits"
    return row


@pytest.mark.parametrize("shift", [0.0, 10.0, -3.5])
def test_a_table_shifted_by_a_number_differs_by_it(make_run, shift):
    """Exactly, for the same seeds; of other seeds within an interval as wide as their spread."""
    bits = np.random.default_rng(0).normal(100, 5, 6)
    mine = _table(make_run, range(6), bits + shift)
    same = _bits(mine, _table(make_run, range(6), bits))
    for end in ("difference", "difference_low", "difference_high"):
        assert same[end] == pytest.approx(shift, abs=1e-9)
    assert (same["seeds"], same["seeds_published"]) == (6, 6)
    other = _bits(mine, _table(make_run, range(6, 12), bits))
    assert other["difference"] == pytest.approx(shift, abs=1e-9)
    welch = scipy.stats.ttest_ind(bits + shift, bits, equal_var=False).confidence_interval()
    width = other["difference_high"] - other["difference_low"]
    assert welch.high - welch.low == pytest.approx(width, rel=0.25)


def test_runs_of_equal_seeds_are_compared_pairwise(make_run):
    random = np.random.default_rng(1)
    bits, noise = random.normal(100, 50, 8), random.normal(2, 1, 8)
    row = _bits(_table(make_run, range(8), bits + noise), _table(make_run, range(8), bits))
    paired = scipy.stats.ttest_1samp(noise, 0).confidence_interval()
    assert row["difference_low"] == pytest.approx(paired.low, abs=0.1)
    assert row["difference_high"] == pytest.approx(paired.high, abs=0.1)
    assert row["mine_low"] < row["mine"] - 10


def test_only_equal_configurations_are_compared_and_few_seeds_have_no_interval(make_run):
    mine = _table(make_run, range(2), [1.0, 2.0])
    assert _compared(mine, _table(make_run, range(2), [1.0, 2.0], n_heads=3)).empty
    assert np.isnan(_bits(mine, mine)["difference_low"])
    diverged = mine.assign(status="diverged")
    assert _compared(mine, diverged).empty
    text = compare.page(compare.compare(mine, [("a/b", mine), ("a/c", mine)]))
    assert text.splitlines()[-2:] == [
        "a/b: too few seeds for intervals (2 of yours, 2 published); bits differ by 0.0% at most.",
        "a/c: as a/b.",
    ]


def test_the_page_fits_a_terminal_and_shows_what_differs(make_run):
    bits = np.random.default_rng(0).normal(100, 5, 4)
    sizes = [{"n_heads": 2, "d_model": 4}, {"n_heads": 3, "d_model": 5}]
    mine = pd.concat([_table(make_run, range(4), bits + 1, **x) for x in sizes])
    theirs = pd.concat([_table(make_run, range(4), bits, **x) for x in sizes])
    text = compare.page(compare.compare(mine, [("a/b", theirs)]))
    assert max(map(len, text.splitlines())) <= 100
    head, *rows = text.split("a/b\n")[1].split("\n\n")[0].splitlines()
    assert head.split() == ["d_model", "measure", "yours", "published", "difference"]
    assert [row.split()[:2] for row in rows] == [["4", "bits"], ["5", "bits"]]
    assert all(row.endswith(" 1.0 [1.0, 1.0]") for row in rows)
    assert text.endswith(
        "a/b: 2 of 2 differences with an interval exclude 0; of equal means about 0 would."
    )


def test_rows_are_grouped_once_however_many_tables_are_published(make_run, monkeypatch):
    grouped, group = [], compare._group_by_configuration
    monkeypatch.setattr(compare, "_group_by_configuration", lambda x: grouped.append(x) or group(x))
    mine = _table(make_run, range(2), [1.0, 2.0])
    theirs = {name: _table(make_run, range(2), [1.0, 2.0]) for name in "abc"}
    assert [name for name, x in compare.compare(mine, theirs.items()) if len(x) == 1] == [*theirs]
    assert sum(table is mine for table in grouped) == 1


def test_a_published_table_is_that_of_nobody_else():
    """Published rows beside themselves: every difference of every measure is zero."""
    theirs = memobench.published("board/typical", "large")
    row = theirs.iloc[[0]].assign(bits=1.0)
    compared = _compared(row, theirs)
    assert set(compared["measure"]) >= {"bits", "accuracy"}
    of_tables = compared[compared["measure"].isin(["bits", "accuracy"])]
    # Label tables are the seeds of a capacity, whose mean its row has.
    assert (of_tables["seeds"] == row["tables"].iloc[0]).all()
    assert (of_tables[["difference", "difference_low", "difference_high"]] == 0).all(axis=None)
