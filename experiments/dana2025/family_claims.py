"""One family of architectures against another.

Letters in names: I points of comparison, W widths; the others as in `statistics`.
"""

from typing import Any

import numpy as np
import pandas as pd
from scipy.interpolate import make_interp_spline

from memobench.analysis.statistics import (
    Means,
    bonferroni_factor,
    bootstrap_means,
    interval,
    intervals,
)
from memobench.claims.claim import UNDECIDED, Finding, Test
from memobench.claims.evidence import (
    POSITIVE,
    Statistic,
    conclude,
    conclude_groups,
    format_estimate,
    report_too_few,
    statistic_of,
)
from memobench.common.notation import pluralize

ALL_KNOWN = 0.99  # Where both families know all, neither is better.
MAY_BE_BEST = 0.025  # Of replicates; a width that is best in fewer is not.
SAME_SIZE = 0.07  # Sizes that should be equal differ by the biases of an MLP.


def better_at_equal_parameters(
    first: str,
    second: str,
    n_params: str = "n_params",
    group: str | None = "d_model",
) -> Test:
    """The first family is more accurate than the second at equal numbers of parameters.

    Decides on the mean difference over the first family's sizes, at which the second family's
    curve is interpolated; with group=None over 25 budgets, at which the best width of each family
    is taken (`_compare_envelopes`). Points where both know nearly all are left out.
    """

    def test(table: pd.DataFrame) -> Finding:
        keys = ["architecture", group or "d_model", n_params]
        table = table[table["architecture"].isin([first, second])]
        families = bootstrap_means(table, keys).split_by("architecture")
        if set(families) != {first, second}:
            return report_too_few(f"{first} and {second} are needed")
        one, other = families[first], families[second]
        if group is None:
            pairs, accuracies = {None: (one, other)}, _compare_envelopes
        else:
            ones, others = one.split_by(group), other.split_by(group)
            pairs = {value: (ones[value], others[value]) for value in ones if value in others}
            accuracies = _compare_curves
        statistics: dict[Any, Statistic] = {}
        for value, pair in pairs.items():
            lower_BI, upper_BI = (_difference(*of) for of in accuracies(*pair, n_params))
            if lower_BI.shape[1]:
                seeds = min(means.seeds for means in pair)
                statistics[value] = _mean_difference(lower_BI, upper_BI, seeds, first)
        return conclude_groups(statistics, group, "no size is comparable and not saturated")

    return test


# Accuracies of both families at the points of comparison, with replicates.
_Both = tuple[np.ndarray, np.ndarray]


def _difference(first_BI: np.ndarray, second_BI: np.ndarray) -> np.ndarray:
    """Of both families, where not both know nearly all."""
    kept = (first_BI[0] <= ALL_KNOWN) | (second_BI[0] <= ALL_KNOWN)
    return first_BI[:, kept] - second_BI[:, kept]


def _mean_difference(
    lower_BI: np.ndarray, upper_BI: np.ndarray, seeds: int, first: str
) -> Statistic:
    """The mean over points, and at how many its interval excludes 0.

    Lower ends of intervals are those of one array of replicates, upper ends those of the other.
    """
    above = (intervals(lower_BI, seeds)[0] > 0).sum()
    below = (intervals(upper_BI, seeds)[1] < 0).sum()
    n_sizes = pluralize(lower_BI.shape[1], "size")
    details = f"of {n_sizes} {first} is above at {above}, below at {below}"
    lower_B, upper_B = lower_BI.mean(axis=1), upper_BI.mean(axis=1)
    low, high = interval(lower_B, seeds)[0], interval(upper_B, seeds)[1]
    return Statistic("mean difference", float(lower_B[0]), low, high, POSITIVE, seeds, details)


def _compare_curves(one: Means, other: Means, n_params: str) -> tuple[_Both, _Both]:
    """Both families' accuracies at the sizes of the first, as far as the second reaches."""
    x_X, known_X = one.x(n_params), other.x(n_params)
    reached = (x_X >= known_X[0] * (1 - SAME_SIZE)) & (x_X <= known_X[-1] * (1 + SAME_SIZE))
    if len(known_X) == 1:
        second_BX = np.repeat(other.y_BX, len(x_X), axis=1)
    else:
        second_BX = make_interp_spline(known_X, other.y_BX, k=1, axis=1)(x_X)
    both = one.y_BX[:, reached], second_BX[:, reached]
    return both, both


def _compare_envelopes(one: Means, other: Means, n_params: str) -> tuple[_Both, _Both]:
    """The accuracies of both families' best widths at evenly spaced budgets.

    Which width is truly the best is not known, and the one that looks best has been lucky. So for
    the lower ends of differences the first family takes the width that looks best, with intervals
    as wide as those of all widths that may be best together (Bonferroni's correction), and the
    second the best of each replicate. The upper ends are their mirror image.
    """
    sizes = [means.x(n_params) for means in (one, other)]
    start, stop = max(x.min() for x in sizes), min(x.max() for x in sizes)
    budgets_I = np.linspace(start, stop, 25) if start <= stop else np.zeros(0)
    first, second = (_envelope(means, n_params, budgets_I) for means in (one, other))
    reached = np.isfinite(first[0][0]) & np.isfinite(second[0][0])
    (first_best, first_chosen), (second_best, second_chosen) = (
        [each_BI[:, reached] for each_BI in of] for of in (first, second)
    )
    return (first_chosen, second_best), (first_best, second_chosen)


def _envelope(means: Means, n_params: str, budgets_I: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`pick_best` of the widths' curves at each budget, -inf where no width has it."""
    value_WxBxI = []
    for curve in means.split_by("d_model").values():
        x_X = curve.x(n_params)
        covered = (budgets_I >= x_X[0]) & (budgets_I <= x_X[-1])
        if len(x_X) > 1 and covered.any():
            value_BI = make_interp_spline(x_X, curve.y_BX, k=1, axis=1)(budgets_I)
            value_WxBxI.append(np.where(covered, value_BI, -np.inf))
    if not value_WxBxI:
        return (np.full((len(means.y_BX), len(budgets_I)), -np.inf),) * 2
    return pick_best(np.stack(value_WxBxI), means.seeds)


def pick_best(value_WxBxI: np.ndarray, seeds: int) -> tuple[np.ndarray, np.ndarray]:
    """The best of W at every point I, of each replicate, and then the one that looks best.

    The latter's replicates are as wide as Bonferroni's correction asks for those that may be best,
    which are so in MAY_BE_BEST of the replicates or more. -inf marks a missing width.
    """
    best_BI = value_WxBxI.max(axis=0)
    chosen_BI = np.take_along_axis(value_WxBxI, value_WxBxI[:, :1].argmax(axis=0)[None], axis=0)[0]
    share_WxI = (value_WxBxI == best_BI)[:, 1:].mean(axis=1)
    factor_I = np.array(
        [bonferroni_factor(n, seeds) for n in (share_WxI >= MAY_BE_BEST).sum(axis=0)]
    )
    with np.errstate(invalid="ignore"):
        widened_BI = chosen_BI[0] + factor_I * (chosen_BI - chosen_BI[0])
    return best_BI, np.where(np.isfinite(chosen_BI), widened_BI, -np.inf)


def gains_more_from_steps(first: str, second: str) -> Test:
    """Twice the steps raise the first family's accuracy by more than the second's, on average.

    For a claim across steps; a configuration counts if it ran with both numbers of steps and had
    something left to gain.
    """

    def test(table: pd.DataFrame) -> Finding:
        table = table[table["architecture"].isin([first, second])]
        sizes = ["architecture", "d_model", "d_head", "n_heads", "d_mlp"]
        means = bootstrap_means(table, [*sizes, "steps"])
        budgets = sorted(set(means.at["steps"]))
        if len(budgets) != 2 or budgets[1] != 2 * budgets[0]:
            found = ", ".join(map(str, budgets)) or "none"
            return Finding(UNDECIDED, f"needs a number of steps and its double, has {found}")
        both = means.at.groupby(sizes)["steps"].transform("nunique") == 2
        least_X = pd.Series(means.mean_X, means.at.index).groupby([means.at[c] for c in sizes])
        means = means.where(both & (least_X.transform("min") <= ALL_KNOWN))
        sign_X = np.where(means.at["steps"] == budgets[1], 1.0, -1.0)
        family = means.at["architecture"].to_numpy()
        counts = {name: int((family == name).sum()) // 2 for name in (first, second)}
        if not all(counts.values()):
            return report_too_few(f"{first} and {second} with both numbers of steps are needed")
        gains = {
            name: means.y_BX[:, family == name] @ sign_X[family == name] / count
            for name, count in counts.items()
        }
        details = f"from {budgets[0]} to {budgets[1]} steps " + ", ".join(
            f"{name} gains {format_estimate(gain_B, means.seeds)} "
            f"({pluralize(counts[name], 'configuration')})"
            for name, gain_B in gains.items()
        )
        gain_B = gains[first] - gains[second]
        return conclude(
            [statistic_of("difference of gains", gain_B, POSITIVE, means.seeds, details)]
        )

    return test
