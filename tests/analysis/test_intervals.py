"""Intervals have the truth as often as they say; docs/intervals.md has the whole table."""

import numpy as np
import pandas as pd
import pytest
import scipy.stats

from memobench.analysis import seeds as analysis
from memobench.analysis import statistics
from memobench.report import peak_answer
from memobench.store.published import published
from tests import coverage

PLAIN = ("mean", "difference of", "slope", "smallest")
LINEAR = [kind for kind in coverage.KINDS if kind.name.startswith(PLAIN)]
RATIOS = [kind for kind in coverage.KINDS if kind.name.startswith("ratio")]
BEST = [kind for kind in coverage.KINDS if kind.name.startswith(("group", "difference at"))]
FITTED = [kind for kind in coverage.KINDS if kind.fitted]


@pytest.mark.parametrize(
    ("noise", "n_seeds"),
    [
        ("ours", 3),  # The noise that is least normal, and the fewest seeds.
        *(
            pytest.param(*x, marks=pytest.mark.slow)
            for x in (("normal", 5), ("normal", 3), ("ours", 5))
        ),
    ],
)
@pytest.mark.parametrize("kind", LINEAR, ids=lambda kind: kind.name)
def test_intervals_of_few_seeds_have_the_truth(kind, noise, n_seeds):
    found = coverage.rates(kind, coverage.NOISES[noise], n_seeds, repetitions=2000)
    assert found.covered >= 0.93
    # Wrong verdicts: "above" and "below" the truth.
    assert max(found.above, found.below) <= 0.04


@pytest.mark.parametrize(
    "kind",
    [*RATIOS, *(pytest.param(kind, marks=pytest.mark.slow) for kind in FITTED)],
    ids=lambda kind: kind.name,
)
def test_derived_statistics_have_the_truth_too(kind):
    assert coverage.rates(kind, coverage.NOISES["ours"], 3, repetitions=200).covered >= 0.93


@pytest.mark.parametrize("noise", ["ours", pytest.param("normal", marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", BEST, ids=lambda kind: kind.name)
def test_the_best_of_a_group_has_the_truth_whichever_entries_are_equal(kind, noise):
    found = coverage.rates(kind, coverage.NOISES[noise], 5, repetitions=200)
    assert found.covered >= 0.93


def test_our_runs_are_nearly_normal_of_unequal_spread_and_alike_by_seed():
    """What docs/intervals.md says of them, and why variances are not pooled."""
    found = coverage.spread()
    assert found.log_spread > 0.3
    assert 0 < found.correlation < 0.3
    assert abs(scipy.stats.skew(found.residual_I)) < 1
    assert scipy.stats.kurtosis(found.residual_I, fisher=False) < 6


def test_intervals_of_the_answers_peaks_have_the_truth_unless_trainings_fail():
    found = coverage.compared(repetitions=200)
    # 95% less twice the error of 200 cases; the best of several MLPs looks better than it is.
    assert found["attention alone"].min() >= 0.92
    assert found[["MLP", "ratio"]].min(axis=None) >= 0.87
    # As docs/intervals.md warns.
    assert found["attention alone, 5% fail"].max() < 0.87
    assert found["ratio, 5% of the MLP's fail"].iloc[-2] < 0.75


def test_ranks_tell_leads_apart_that_are_not_small():
    rows = [line.split(" | ") for line in coverage.ranked(2).splitlines()[2:]]
    leads = [int(row[-1].rstrip("% |")) for row in rows]
    assert len(leads) == len(peak_answer.find_best(peak_answer.name_peaks(published("board/peak"))))
    assert 3 <= min(leads) <= max(leads) <= 40


@pytest.mark.parametrize("n", [2, 3, 5, 20])
def test_the_interval_of_one_mean_is_students(n):
    runs_SxX = np.random.default_rng(n).normal(size=(n, 20))
    y_BX = statistics.replicates(runs_SxX)
    ends = []
    for x in range(20):
        half = analysis.half_width(pd.Series(runs_SxX[:, x]))
        found = np.array(statistics.interval(y_BX[:, x], seeds=max(n, 3)))
        ends.append((found - runs_SxX[:, x].mean()) / half)
    # Up to the luck of the replicates.
    np.testing.assert_allclose(np.mean(ends, axis=0), [-1, 1], atol=0.03)
    np.testing.assert_allclose(ends, [[-1, 1]] * 20, atol=0.15)


def test_what_seeds_share_widens_means_and_cancels_in_differences():
    shared_SxX = np.random.default_rng(0).normal(size=(5, 1)).repeat(9, axis=1)
    y_BX = statistics.replicates(shared_SxX)
    one, mean = (np.ptp(statistics.interval(y_B, 5)) for y_B in (y_BX[:, 0], y_BX.mean(axis=1)))
    assert mean == pytest.approx(one)
    assert np.abs(y_BX[:, 0] - y_BX[:, 1]).max() < 1e-12


def test_missing_seeds_change_nothing_for_other_configurations():
    runs_SxX = np.random.default_rng(0).normal(size=(6, 3))
    some_SxX = runs_SxX.copy()
    some_SxX[4:, 1] = np.nan
    all_BX, some_BX = statistics.replicates(runs_SxX), statistics.replicates(some_SxX)
    np.testing.assert_array_equal(all_BX[:, [0, 2]], some_BX[:, [0, 2]])
    low, high = statistics.interval(some_BX[:, 1], 4)
    half = analysis.half_width(pd.Series(runs_SxX[:4, 1]))
    assert high - low == pytest.approx(2 * half, rel=0.05)


def test_equal_accuracies_vary_by_one_example_and_nothing_else_has_an_interval():
    """Three runs that know all of 100 examples: not 1 [1, 1], and no wider than the binomial."""
    known = np.ones((3, 1))
    low, high = statistics.interval(statistics.replicates(known, 0.01)[:, 0], 3)
    exact, _ = statistics.share_interval(300, 300)
    assert 1 - 1.5 * (1 - exact) < low < 1 < high
    assert np.isnan(analysis.half_width(pd.Series([0.1, 0.1, 0.1])))
    # One run off by one example has that very spread.
    off = np.array([[1.0], [1.0], [0.99]])
    low_off, high_off = statistics.interval(statistics.replicates(off, 0.01)[:, 0], 3)
    assert high_off - low_off == pytest.approx(high - low, rel=0.1)


def test_the_interval_of_a_share_has_it_for_every_share():
    for n in coverage.N_SEEDS:
        for share in np.linspace(0.05, 0.95, 7):
            assert coverage.share_rates(n, share).covered >= 0.95
