"""Tests of the growth of accuracy with sizes, and of means."""

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from memobench.analysis.statistics import SATURATED, bootstrap_means, divide_or, means_by_group
from memobench.claims.claim import Finding, Test
from memobench.claims.evidence import (
    Region,
    conclude,
    conclude_groups,
    format_number,
    pick_severest,
    report_too_few,
    smallest_mean,
    statistic_of,
)

# A change of accuracy by LEAST counts for none, and so does a gain of MOST of the one before.
LEAST, MOST = 0.02, 0.1


def never_falls(x: str) -> Test:
    """Accuracy grows with x: in sets of every size it gains from first to last, and falls nowhere.

    A step by up to LEAST counts neither as a fall nor as a gain. Where the first point is saturated
    there is nothing to gain.
    """

    def test(table: pd.DataFrame) -> Finding:
        statistics = {}
        for value, means in means_by_group(table, "n_examples", x).items():
            if len(means.at) < 3 or means.mean_X[0] > SATURATED:
                continue
            gain = statistic_of(
                f"gain from {x} = {means.x(x)[0]:g} to {means.x(x)[-1]:g}",
                means.y_BX[:, -1] - means.y_BX[:, 0],
                (LEAST, np.inf),
                means.seeds,
            )
            steps_BX = np.diff(means.y_BX, axis=1)
            lowest = int(steps_BX[0].argmin())
            step = smallest_mean(
                f"least step, at {x} = {means.x(x)[lowest + 1]:g},",
                steps_BX,
                (-LEAST, np.inf),
                means.seeds,
                str(gain),
            )
            statistics[value] = pick_severest(gain, step)
        none = "no group has three values to grow between"
        return conclude_groups(statistics, "n_examples", none)

    return test


def levels_off(x: str, at: str) -> Test:
    """Once x has reached the column `at`, accuracy gains at most MOST of its gain before.

    In sets of every size that are not yet saturated there.
    """

    def test(table: pd.DataFrame) -> Finding:
        statistics = {}
        for value, means in means_by_group(table, "n_examples", x, at).items():
            reached_X = means.x(x) >= means.x(at)
            if not 0 < reached_X.sum() < len(reached_X) or len(means.at) < 3:
                continue
            there = int(reached_X.argmax())
            if there == len(reached_X) - 1 or means.mean_X[there] > SATURATED:
                continue
            before_B = means.y_BX[:, there] - means.y_BX[:, 0]
            after_B = means.y_BX[:, -1] - means.y_BX[:, there]
            details = (
                f"{format_number(before_B[0])} gained up to {x} = {means.x(x)[there]:g}, "
                f"{format_number(after_B[0])} from there to {means.x(x)[-1]:g}"
            )
            # Without any gain before, nothing can level off.
            share_B = divide_or(after_B, before_B, np.inf)
            region = (-np.inf, MOST)
            statistics[value] = statistic_of(
                "gain after over before", share_B, region, means.seeds, details
            )
        none = f"no unsaturated group has {x} on both sides"
        return conclude_groups(statistics, "n_examples", none)

    return test


def on_average(
    name: str,
    value: Callable[[pd.DataFrame], pd.Series],
    region: Region,
    keys: Sequence[str],
    possible: Region = (-np.inf, np.inf),
) -> Test:
    """The mean over seeds of a value lies in the region, open above, for every configuration.

    Args:
      name: of the value.
      value: from the rows to a number each.
      region: only its lower end decides.
      keys: the columns by which configurations differ.
      possible: the least and the largest value that are possible.
    """

    def test(table: pd.DataFrame) -> Finding:
        means = bootstrap_means(table, keys, value=value)
        if not len(means.at):
            return report_too_few("no run that did not diverge")
        each = ", ".join(
            f"{format_number(mean)} ({', '.join(f'{key} = {row[key]}' for key in keys)})"
            for mean, (_, row) in zip(means.mean_X, means.at.iterrows(), strict=True)
        )
        least = smallest_mean(name, means.y_BX, region, means.seeds, f"means {each}", possible)
        return conclude([least])

    return test
