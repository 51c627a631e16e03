"""One family of architectures against another.

Letters in names: I points of comparison; the others as in `statistics`.
"""

from typing import Any

import numpy as np
import pandas as pd

from memobench.claims.claim import UNDECIDED, Finding, Test
from memobench.claims.evidence import (
    POSITIVE,
    Statistic,
    conclude,
    conclude_groups,
    stated,
    statistic_of,
    too_few,
)
from memobench.claims.statistics import Means, bootstrap_means
from memobench.notation import plural

ALL_KNOWN = 0.99  # Where both families know all, neither is better.
SAME_SIZE = 0.07  # Sizes that should be equal differ by the biases of an MLP.


def better_at_equal_parameters(
    first: str = "mlp",
    second: str = "attention_only",
    n_params: str = "n_params",
    group: str | None = "d_model",
) -> Test:
    """The first family is more accurate than the second at equal numbers of parameters.

    Decides on the mean difference over the first family's sizes, at which the second family's
    curve is interpolated; with group=None over 25 budgets, at which the best width of each family
    is taken. Points where both know nearly all are left out.
    """

    def test(table: pd.DataFrame) -> Finding:
        keys = ["architecture", group or "d_model", n_params]
        table = table[table["architecture"].isin([first, second])]
        families = bootstrap_means(table, keys).by("architecture")
        if set(families) != {first, second}:
            return too_few(f"{first} and {second} are needed")
        one, other = families[first], families[second]
        if group is None:
            pairs, accuracies = {None: (one, other)}, _of_envelopes
        else:
            ones, others = one.by(group), other.by(group)
            pairs = {value: (ones[value], others[value]) for value in ones if value in others}
            accuracies = _of_curves
        statistics: dict[Any, Statistic] = {}
        for value, pair in pairs.items():
            first_BI, second_BI = _not_all_known(*accuracies(*pair, n_params))
            if first_BI.shape[1]:
                seeds = min(means.seeds for means in pair)
                statistics[value] = _difference(first_BI - second_BI, seeds, first)
        return conclude_groups(statistics, group, "no size is comparable and not saturated")

    return test


def _difference(difference_BI: np.ndarray, seeds: int, first: str) -> Statistic:
    sizes = [statistic_of("", difference_B, POSITIVE, seeds) for difference_B in difference_BI.T]
    above, below = sum(size.low > 0 for size in sizes), sum(size.high < 0 for size in sizes)
    details = f"of {plural(len(sizes), 'size')} {first} is above at {above}, below at {below}"
    return statistic_of("mean difference", difference_BI.mean(axis=1), POSITIVE, seeds, details)


def _of_curves(one: Means, other: Means, n_params: str) -> tuple[np.ndarray, np.ndarray]:
    """Both families' accuracies at the sizes of the first, as far as the second reaches."""
    x_X, known_X = one.x(n_params), other.x(n_params)
    reached = (x_X >= known_X[0] * (1 - SAME_SIZE)) & (x_X <= known_X[-1] * (1 + SAME_SIZE))
    if len(known_X) == 1:
        second_BX = np.repeat(other.y_BX, len(x_X), axis=1)
    else:
        second_BX = other.y_BX @ _interpolation(known_X, x_X).T
    return one.y_BX[:, reached], second_BX[:, reached]


def _of_envelopes(one: Means, other: Means, n_params: str) -> tuple[np.ndarray, np.ndarray]:
    """The accuracies of both families' best widths at evenly spaced budgets."""
    sizes = [means.x(n_params) for means in (one, other)]
    start, stop = max(x.min() for x in sizes), min(x.max() for x in sizes)
    budgets_I = np.linspace(start, stop, 25) if start <= stop else np.zeros(0)
    first_BI, second_BI = (_envelope(means, n_params, budgets_I) for means in (one, other))
    reached = np.isfinite(first_BI[0]) & np.isfinite(second_BI[0])
    return first_BI[:, reached], second_BI[:, reached]


def _envelope(means: Means, n_params: str, budgets_I: np.ndarray) -> np.ndarray:
    """The best width's interpolated accuracy at each budget, -inf where no width has it."""
    best_BI = np.full((len(means.y_BX), len(budgets_I)), -np.inf)
    for curve in means.by("d_model").values():
        x_X = curve.x(n_params)
        covered = (budgets_I >= x_X[0]) & (budgets_I <= x_X[-1])
        if len(x_X) > 1 and covered.any():
            values = curve.y_BX @ _interpolation(x_X, budgets_I[covered]).T
            best_BI[:, covered] = np.maximum(best_BI[:, covered], values)
    return best_BI


def _interpolation(x_X: np.ndarray, at_I: np.ndarray) -> np.ndarray:
    """The matrix_IX of linear interpolation; the end segments extend outwards."""
    right_I = np.clip(np.searchsorted(x_X, at_I), 1, len(x_X) - 1)
    weight_I = (at_I - x_X[right_I - 1]) / (x_X[right_I] - x_X[right_I - 1])
    matrix_IX = np.zeros((len(at_I), len(x_X)))
    rows = np.arange(len(at_I))
    matrix_IX[rows, right_I] = weight_I
    matrix_IX[rows, right_I - 1] = 1 - weight_I
    return matrix_IX


def _not_all_known(first_BI: np.ndarray, second_BI: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    kept = (first_BI[0] <= ALL_KNOWN) | (second_BI[0] <= ALL_KNOWN)
    return first_BI[:, kept], second_BI[:, kept]


def gains_more_from_steps(first: str = "mlp", second: str = "attention_only") -> Test:
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
            return too_few(f"{first} and {second} with both numbers of steps are needed")
        gains = {
            name: means.y_BX[:, family == name] @ sign_X[family == name] / count
            for name, count in counts.items()
        }
        details = f"from {budgets[0]} to {budgets[1]} steps " + ", ".join(
            f"{name} gains {stated(gain_B, means.seeds)} ({plural(counts[name], 'configuration')})"
            for name, gain_B in gains.items()
        )
        gain_B = gains[first] - gains[second]
        return conclude(
            [statistic_of("difference of gains", gain_B, POSITIVE, means.seeds, details)]
        )

    return test
