"""How accuracy grows with the heads, their dimension and the width."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from memobench.analysis.statistics import (
    SATURATED,
    Means,
    Profile,
    aicc_of_runs,
    bootstrap_means,
    broken,
    dense,
    fit_of,
    grouped,
    least_squares,
    polynomial,
    power,
    profile,
    ratio_or,
    saturating,
    unsaturated,
    varies,
)
from memobench.claims.claim import UNDECIDED, Finding, Fit, Test
from memobench.claims.evidence import (
    Region,
    Statistic,
    above_best,
    conclude,
    conclude_groups,
    joined,
    rounded,
    severest,
    smallest,
    stated,
    statistic_of,
    too_few,
)
from memobench.common.notation import pluralize

LINEAR: Region = (0.5, 1.5)
QUADRATIC: Region = (1.5, 2.5)
# Slopes at both ends within a factor of 1.5: what a reader would still call straight.
STRAIGHT: Region = (2 / 3, 3 / 2)
HALVED: Region = (-np.inf, 0.5)
EXPONENTS_G = np.arange(10, 601) / 100


def linear_in_heads(group: str = "d_model") -> Test:
    """Accuracy grows linearly with the heads until it saturates, in every group.

    Decides on the slope at the most heads over that at the fewest, under a quadratic fit: 0 where
    accuracy does not grow, infinite where it starts flat. At least four unsaturated points.
    """

    def test(table: pd.DataFrame) -> Finding:
        groups = {
            # Without the first saturated point, which `unsaturated` keeps: the curve bends there.
            value: means.where(unsaturated(means.mean_X) & (means.mean_X <= SATURATED))
            for value, means in grouped(table, group, "n_heads").items()
        }
        statistics = {
            value: _straightness(means, value)
            for value, means in groups.items()
            if len(means.at) >= 4 and varies(means.mean_X)
        }
        return conclude_groups(statistics, group, "no group has four unsaturated ones that vary")

    return test


def _straightness(means: Means, group: Any) -> Statistic:
    x_X = means.x("n_heads")
    line_B2 = least_squares(polynomial(x_X, 1), means.y_BX)
    ratio_B = slope_ratio(x_X, means.y_BX)
    fitted_X = polynomial(x_X, 1) @ line_B2[0]
    residuals = ((means.mean_X - fitted_X) ** 2).sum()
    r_squared = 1 - residuals / ((means.mean_X - means.mean_X.mean()) ** 2).sum()
    from_first_X = x_X - x_X[0]
    scales = np.ptp(x_X) * np.logspace(-1.5, 2, 200)
    scale = profile(from_first_X, means.y_BX[:1], saturating, scales).best_B[0]
    curved_X = fit_of(saturating(from_first_X, scale), means.mean_X)
    difference = aicc_of_runs(means, curved_X, 4) - aicc_of_runs(means, fitted_X, 3)
    details = (
        f"{pluralize(len(x_X), 'point')}, slope {stated(line_B2[:, 1], means.seeds)} "
        f"per head, R² {r_squared:.4f}, AICc of a saturating curve minus the line's "
        f"{rounded(difference)}"
    )
    fit = Fit("line", group, x_X, fitted_X)
    return statistic_of("slope ratio", ratio_B, STRAIGHT, means.seeds, details, (fit,))


def slope_ratio(x_X: np.ndarray, y_BX: np.ndarray) -> np.ndarray:
    """The slope at the last x over that at the first, under a quadratic fit."""
    _, b_B, c_B = least_squares(polynomial(x_X, 2), y_BX).T
    first_B, last_B = b_B + 2 * c_B * x_X[0], b_B + 2 * c_B * x_X[-1]
    # (last - first) / (last + first) stays finite where the first slope passes through zero; the
    # ratio is increasing in it, so the quantiles carry over.
    bend_B = ratio_or(last_B - first_B, last_B + first_B, -1.0)
    return ratio_or(1 + bend_B, 1 - bend_B, np.inf)


def never_falls(
    x: str, group: str = "n_examples", by: float = 0.02, least_gain: float = 0.02
) -> Test:
    """Accuracy grows with x: in every group it gains from first to last, and falls nowhere.

    A step down by up to `by` does not count as a fall, nor a gain below `least_gain` as a gain.
    Where the first point is saturated there is nothing to gain.
    """

    def test(table: pd.DataFrame) -> Finding:
        statistics = {}
        for value, means in grouped(table, group, x).items():
            if len(means.at) < 3 or means.mean_X[0] > SATURATED:
                continue
            gain = statistic_of(
                f"gain from {x} = {means.x(x)[0]:g} to {means.x(x)[-1]:g}",
                means.y_BX[:, -1] - means.y_BX[:, 0],
                (least_gain, np.inf),
                means.seeds,
            )
            steps_BX = np.diff(means.y_BX, axis=1)
            lowest = int(steps_BX[0].argmin())
            step = smallest(
                f"least step, at {x} = {means.x(x)[lowest + 1]:g},",
                steps_BX,
                (-by, np.inf),
                means.seeds,
                str(gain),
            )
            statistics[value] = severest(gain, step)
        return conclude_groups(statistics, group, "no group has three values to grow between")

    return test


def levels_off(x: str, at: str, most: float = 0.1, group: str = "n_examples") -> Test:
    """Once x has reached the column `at`, accuracy gains at most a share of its gain before.

    In every group that is not yet saturated there.
    """

    def test(table: pd.DataFrame) -> Finding:
        statistics = {}
        for value, means in grouped(table, group, x, at).items():
            reached_X = means.x(x) >= means.x(at)
            if not 0 < reached_X.sum() < len(reached_X) or len(means.at) < 3:
                continue
            there = int(reached_X.argmax())
            if there == len(reached_X) - 1 or means.mean_X[there] > SATURATED:
                continue
            before_B = means.y_BX[:, there] - means.y_BX[:, 0]
            after_B = means.y_BX[:, -1] - means.y_BX[:, there]
            details = (
                f"{rounded(before_B[0])} gained up to {x} = {means.x(x)[there]:g}, "
                f"{rounded(after_B[0])} from there to {means.x(x)[-1]:g}"
            )
            # Without any gain before, nothing can level off.
            share_B = ratio_or(after_B, before_B, np.inf)
            region = (-np.inf, most)
            statistics[value] = statistic_of(
                "gain after over before", share_B, region, means.seeds, details
            )
        return conclude_groups(statistics, group, f"no unsaturated group has {x} on both sides")

    return test


def power_law(low: float, high: float, narrow: bool = False) -> Test:
    """Accuracy follows a + b d_h^p with p between low and high; p is 0 where there is no growth.

    Up to the first saturated point; with `narrow`, only of heads narrower than the stream.
    """
    x = "d_head"

    def test(table: pd.DataFrame) -> Finding:
        if narrow:
            table = table[table["d_head"] < table["d_model"]]
        means = _growing(table, x)
        if len(means.at) < 4:
            return too_few(f"{len(means.at)} unsaturated values of {x}, four are needed")
        if not varies(means.mean_X):
            return Finding(UNDECIDED, "all means are equal, so that no exponent is defined")
        x_X = means.x(x)
        exponent_B, curve = _power_fit(x_X, means.y_BX)
        unit_X = x_X / x_X.max()
        criteria = {
            "linear": aicc_of_runs(means, fit_of(power(unit_X, 1), means.mean_X), 3),
            "quadratic": aicc_of_runs(means, fit_of(power(unit_X, 2), means.mean_X), 3),
            "power law": aicc_of_runs(means, curve(x_X)[0], 4),
        }
        fit = Fit(
            f"power law, exponent {exponent_B[0]:.2f}", None, dense(x_X), curve(dense(x_X))[0]
        )
        details = joined(f"{len(x_X)} values of {x}", above_best(criteria))
        return conclude(
            [statistic_of("exponent", exponent_B, (low, high), means.seeds, details, (fit,))]
        )

    return test


def _growing(table: pd.DataFrame, x: str) -> Means:
    """The means along x up to the first saturated one."""
    means = bootstrap_means(table, x)
    return means.where(unsaturated(means.mean_X))


def _power_fit(
    x_X: np.ndarray, y_BX: np.ndarray
) -> tuple[np.ndarray, Callable[[np.ndarray], np.ndarray]]:
    """The exponent of every row, 0 where it does not grow, and the fitted curves."""
    largest = x_X.max()
    exponent_B, coefficients_B2, _ = profile(x_X / largest, y_BX, power, EXPONENTS_G)
    grows_B = coefficients_B2[:, 1] > 0

    def curve(at_X: np.ndarray) -> np.ndarray:
        a_B1, b_B1 = coefficients_B2[:, :1], coefficients_B2[:, 1:]
        return a_B1 + b_B1 * (at_X / largest) ** exponent_B[:, None]

    return np.where(grows_B, exponent_B, 0.0), curve


def jump_at_full_width(threshold: float = 0.03) -> Test:
    """At d_h = d accuracy lies above what narrower heads predict, by at least the threshold.

    The prediction is a power law, or a parabola where there are only four of them; up to the first
    saturated point.
    """
    x = "d_head"

    def test(table: pd.DataFrame) -> Finding:
        means = _growing(table[table["d_head"] <= table["d_model"]], x)
        if not (means.at["d_head"] == means.at["d_model"]).any():
            return too_few("no unsaturated run with d_h = d")
        if len(means.at) < 5:
            return too_few(f"{len(means.at)} unsaturated values of {x}, five are needed")
        x_X = means.x(x)
        others_X, y_BX = x_X[:-1], means.y_BX[:, :-1]
        if len(others_X) > 4:
            _, curve = _power_fit(others_X, y_BX)
            name = "power law"
        else:
            coefficients_Bk = least_squares(polynomial(others_X, 2), y_BX)
            name = "parabola"

            def curve(at_X: np.ndarray) -> np.ndarray:
                return coefficients_Bk @ polynomial(at_X, 2).T

        # No accuracy exceeds 1.
        predicted_B = np.minimum(curve(x_X[-1:])[:, 0], 1)
        fit = Fit(f"{name} without the last point", None, dense(x_X), curve(dense(x_X))[0])
        details = (
            f"at {x} = {x_X[-1]:g} measured {rounded(means.mean_X[-1])}, "
            f"predicted {rounded(predicted_B[0])} by the {name} through {len(others_X)} others"
        )
        jump_B = means.y_BX[:, -1] - predicted_B
        region = (threshold, np.inf)
        return conclude(
            [statistic_of("measured minus predicted", jump_B, region, means.seeds, details, (fit,))]
        )

    return test


def break_of(x_X: np.ndarray, y_BX: np.ndarray) -> Profile:
    """The best fit of a broken line, its break between the second x and the last but one."""
    # Strictly inside, and at every point, where the break of exact data usually is.
    grid = np.union1d(np.linspace(x_X[1], x_X[-2], 301), x_X[1:-1])
    return profile(x_X, y_BX, broken, grid)


def broken_line(x: str, at: float, tolerance: float = 1.0) -> Test:
    """Growth slows down to at most half its slope, at the given x up to the tolerance.

    Without saturated points: that growth ends where all is known says nothing.
    """

    def test(table: pd.DataFrame) -> Finding:
        means = bootstrap_means(table, x)
        means = means.where(means.mean_X <= SATURATED)
        if len(means.at) < 5:
            return too_few(f"{len(means.at)} unsaturated values of {x}, five are needed")
        if not means.x(x)[1] < at < means.x(x)[-2]:
            return too_few(f"{x} = {at:g} is not well within the unsaturated ones")
        if not varies(means.mean_X):
            return Finding(UNDECIDED, "all means are equal, so that no break is defined")
        x_X = means.x(x)
        break_B, coefficients_B3, _ = break_of(x_X, means.y_BX)
        _, before_B, change_B = coefficients_B3.T
        after_B = before_B + change_B
        # Where nothing grows before the break, nothing slows down at it.
        ratio_B = ratio_or(after_B, before_B, np.inf)
        within = (at - tolerance, at + tolerance)
        statistics = (
            statistic_of("break", break_B, within, means.seeds),
            statistic_of("slope after over before", ratio_B, HALVED, means.seeds),
        )
        fitted_X = broken(x_X, break_B[0]) @ coefficients_B3[0]
        straight_X = fit_of(polynomial(x_X, 1), means.mean_X)
        difference = aicc_of_runs(means, straight_X, 3) - aicc_of_runs(means, fitted_X, 5)
        before, after = (stated(slope_B, means.seeds) for slope_B in (before_B, after_B))
        details = (
            f"slopes {before} before and {after} after; AICc of a straight line minus the broken "
            f"one's {rounded(difference)}"
        )
        corners = np.sort([x_X[0], break_B[0], x_X[-1]])
        drawn = broken(corners, break_B[0]) @ coefficients_B3[0]
        fit = Fit(f"broken line, break at {break_B[0]:.3g}", None, corners, drawn)
        finding = conclude([severest(*statistics)], joined(*map(str, statistics), details))
        return dataclasses.replace(finding, fits=(fit,))

    return test
