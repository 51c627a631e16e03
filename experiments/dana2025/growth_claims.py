"""Claims on the growth of accuracy with the heads, their dimension and the width."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from memobench.analysis.statistics import (
    SATURATED,
    Means,
    Profile,
    aicc,
    aicc_of_runs,
    bootstrap_means,
    count_memorized,
    dense_grid,
    divide_or,
    fit_of,
    has_spread,
    least_squares,
    mask_unsaturated,
    means_by_group,
    polynomial,
    power,
    profile,
)
from memobench.claims.claim import UNDECIDED, Finding, Fit, Test
from memobench.claims.evidence import (
    Region,
    conclude,
    conclude_groups,
    format_estimate,
    format_number,
    join_parts,
    pick_severest,
    report_too_few,
    statistic_of,
)
from memobench.claims.slopes import STRAIGHT, fit_slopes
from memobench.common.notation import pluralize

LINEAR: Region = (0.5, 1.5)
QUADRATIC: Region = (1.5, 2.5)
HALVED: Region = (-np.inf, 0.5)
LEAST_JUMP = 0.03
EXPONENTS_G = np.arange(10, 601) / 100


def power_law(low: float, high: float, narrow: bool = False) -> Test:
    """Accuracy follows a + b d_h^p with p between low and high; p is 0 without growth.

    Up to the first saturated point; with `narrow`, only of heads narrower than the stream.
    """
    x = "d_head"

    def test(table: pd.DataFrame) -> Finding:
        if narrow:
            table = table[table["d_head"] < table["d_model"]]
        means = _means_while_growing(table, x)
        if len(means.at) < 4:
            return report_too_few(f"{len(means.at)} unsaturated values of {x}, four are needed")
        if not has_spread(means.mean_X):
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
            f"power law, exponent {exponent_B[0]:.2f}",
            None,
            x,
            dense_grid(x_X),
            curve(dense_grid(x_X))[0],
        )
        details = join_parts(f"{len(x_X)} values of {x}", compare_criteria(criteria))
        return conclude(
            [statistic_of("exponent", exponent_B, (low, high), means.seeds, details, (fit,))]
        )

    return test


def _means_while_growing(table: pd.DataFrame, x: str) -> Means:
    """The means along x up to the first saturated one."""
    means = bootstrap_means(table, x)
    return means.where(mask_unsaturated(means.mean_X))


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


def jump_at_full_width() -> Test:
    """At d_h = d accuracy lies above what narrower heads predict, by at least LEAST_JUMP.

    The prediction is a power law, or a parabola where there are only four of them; up to the first
    saturated point.
    """
    x = "d_head"

    def test(table: pd.DataFrame) -> Finding:
        means = _means_while_growing(table[table["d_head"] <= table["d_model"]], x)
        if not (means.at["d_head"] == means.at["d_model"]).any():
            return report_too_few("no unsaturated run with d_h = d")
        if len(means.at) < 5:
            return report_too_few(f"{len(means.at)} unsaturated values of {x}, five are needed")
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
        fit = Fit(
            f"{name} without the last point", None, x, dense_grid(x_X), curve(dense_grid(x_X))[0]
        )
        details = (
            f"at {x} = {x_X[-1]:g} measured {format_number(means.mean_X[-1])}, predicted "
            f"{format_number(predicted_B[0])} by the {name} through {len(others_X)} others"
        )
        jump_B = means.y_BX[:, -1] - predicted_B
        region = (LEAST_JUMP, np.inf)
        return conclude(
            [statistic_of("measured minus predicted", jump_B, region, means.seeds, details, (fit,))]
        )

    return test


def fit_break(x_X: np.ndarray, y_BX: np.ndarray) -> Profile:
    """The best fit of a broken line, its break between the second x and the last but one."""
    # Strictly inside, and at every point, where the break of exact data usually is.
    grid = np.union1d(np.linspace(x_X[1], x_X[-2], 301), x_X[1:-1])
    return profile(x_X, y_BX, broken_basis, grid)


def broken_line(x: str, at: float) -> Test:
    """Growth slows down to at most half its slope, at the given x up to 1.

    Without saturated points, as growth always ends where all is known.
    """

    def test(table: pd.DataFrame) -> Finding:
        means = bootstrap_means(table, x)
        means = means.where(means.mean_X <= SATURATED)
        if len(means.at) < 5:
            return report_too_few(f"{len(means.at)} unsaturated values of {x}, five are needed")
        if not means.x(x)[1] < at < means.x(x)[-2]:
            return report_too_few(f"{x} = {at:g} is not well within the unsaturated ones")
        if not has_spread(means.mean_X):
            return Finding(UNDECIDED, "all means are equal, so that no break is defined")
        x_X = means.x(x)
        break_B, coefficients_B3, _ = fit_break(x_X, means.y_BX)
        _, before_B, change_B = coefficients_B3.T
        after_B = before_B + change_B
        # Where nothing grows before the break, nothing slows down at it.
        ratio_B = divide_or(after_B, before_B, np.inf)
        within = (at - 1, at + 1)
        statistics = (
            statistic_of("break", break_B, within, means.seeds),
            statistic_of("slope after over before", ratio_B, HALVED, means.seeds),
        )
        fitted_X = broken_basis(x_X, break_B[0]) @ coefficients_B3[0]
        straight_X = fit_of(polynomial(x_X, 1), means.mean_X)
        difference = aicc_of_runs(means, straight_X, 3) - aicc_of_runs(means, fitted_X, 5)
        before, after = (format_estimate(slope_B, means.seeds) for slope_B in (before_B, after_B))
        details = (
            f"slopes {before} before and {after} after; AICc of a straight line minus the broken "
            f"one's {format_number(difference)}"
        )
        corners = np.sort([x_X[0], break_B[0], x_X[-1]])
        drawn = broken_basis(corners, break_B[0]) @ coefficients_B3[0]
        fit = Fit(f"broken line, break at {break_B[0]:.3g}", None, x, corners, drawn)
        finding = conclude([pick_severest(*statistics)], join_parts(*map(str, statistics), details))
        return dataclasses.replace(finding, fits=(fit,))

    return test


def exponent_of_slopes(low: float = 2, high: float = 3, bent: bool = True) -> Test:
    """A test that slopes in the heads grow with the width d as a d^p + b, p from low to high.

    Args:
      low: the least exponent.
      high: the largest.
      bent: whether lines go through the first saturated point too.
    """

    def test(table: pd.DataFrame) -> Finding:
        found = {
            d_model: (slope_B, means.seeds)
            for d_model, (slope_B, means) in fit_slopes(table, "d_model", bent).items()
            if len(means.at) > 1
        }
        if len(found) < 5:
            return report_too_few(f"{pluralize(len(found), 'width')} with a slope, five are needed")
        d_X = np.array(list(found), dtype=float)
        slope_BX = np.stack([slope_B for slope_B, _ in found.values()], axis=1)
        seeds = min(seeds for _, seeds in found.values())
        if not has_spread(slope_BX[0]):
            return Finding(UNDECIDED, "all slopes are equal, so that no exponent is defined")
        exponent_B, _ = _power_fit(d_X, slope_BX)
        unit_X, dense_X = d_X / d_X.max(), dense_grid(d_X)
        scale = float(np.abs(slope_BX[0]).max())
        criteria, left_out, fits = {}, {}, []
        for name, exponent in {"quadratic": 2, "cubic": 3}.items():
            design_X2 = power(unit_X, exponent)
            residual_X = slope_BX[0] - fit_of(design_X2, slope_BX[0])
            criteria[name] = aicc((residual_X**2).sum(), len(d_X), 3, scale)
            leverage_X = np.diag(design_X2 @ np.linalg.pinv(design_X2))
            left_out[name] = np.sqrt(np.mean((residual_X / (1 - leverage_X)) ** 2))
            coefficients_2 = least_squares(design_X2, slope_BX[:1])[0]
            drawn_X = power(dense_X / d_X.max(), exponent) @ coefficients_2
            fits.append(Fit(name, None, "d_model", dense_X, drawn_X, "slope"))
        errors = ", ".join(f"{name} {format_number(error)}" for name, error in left_out.items())
        details = join_parts(
            f"{len(d_X)} widths", compare_criteria(criteria), f"leave-one-out error: {errors}"
        )
        return conclude(
            [statistic_of("exponent", exponent_B, (low, high), seeds, details, tuple(fits))]
        )

    return test


def equal_slopes(group: str) -> Test:
    """The slope of accuracy in the heads is the same at the last value of a column as at its first.

    Slopes are of the same numbers of heads, at which no value's accuracy is saturated, and count as
    the same within a factor of 1.5.
    """

    def test(table: pd.DataFrame) -> Finding:
        found = _same_heads(means_by_group(table, group, "n_heads"))
        if len(found) < 2:
            return report_too_few(f"no two values of {group} are unsaturated at two equal heads")
        slopes = {
            value: least_squares(polynomial(means.x("n_heads"), 1), means.y_BX)[:, 1]
            for value, means in found.items()
        }
        seeds = min(means.seeds for means in found.values())
        first, last = min(found), max(found)
        details = (
            f"{group} = {last} over {first}; slopes {_name_heads(found[first])}: "
            + ", ".join(
                f"{format_estimate(slope_B, seeds)} at {value}" for value, slope_B in slopes.items()
            )
        )
        ratio_B = divide_or(slopes[last], slopes[first], np.inf)
        return conclude([statistic_of("ratio of slopes", ratio_B, STRAIGHT, seeds, details)])

    return test


def _same_heads(groups: dict[Any, Means]) -> dict[Any, Means]:
    """The means at the numbers of heads that all groups have, and at which none is saturated.

    A curve bends before it saturates, and a line through that point is flatter: the steeper of two
    curves would look less steep. Empty with fewer than two such numbers.
    """
    unsaturated = {
        value: set(means.x("n_heads")[mask_unsaturated(means.mean_X) & (means.mean_X <= SATURATED)])
        for value, means in groups.items()
    }
    shared = set.intersection(*unsaturated.values()) if unsaturated else set()
    if len(shared) < 2:
        return {}
    return {
        value: means.where(np.isin(means.x("n_heads"), list(shared)))
        for value, means in groups.items()
    }


def _name_heads(means: Means) -> str:
    return f"of H = {', '.join(f'{heads:g}' for heads in sorted(set(means.x('n_heads'))))}"


def slope_over_bound(low: float, high: float, corrected: bool = True) -> Test:
    """Associations memorized per head and head dimension: the slope on H d_h, 1 in Corollary 2.

    Corrected for guessing, or else accuracy times the number of associations.
    """
    group = "d_model"

    def test(table: pd.DataFrame) -> Finding:
        statistics = {}
        for value, means in _steep_means(table, group).items():
            slope_B, fit = _slope_over_bound(means, value, corrected)
            details = pluralize(len(means.at), "point")
            statistics[value] = statistic_of(
                "slope over d_h", slope_B, (low, high), means.seeds, details, (fit,)
            )
        return conclude_groups(statistics, group, "no group has two unsaturated ones")

    return test


def equal_slopes_over_bound(group: str, low: float, high: float) -> Test:
    """The slope of what is known on H d_h in the last group over that in the first, by a column.

    Slopes are of the same numbers of heads, at which no group's accuracy is saturated.
    """

    def test(table: pd.DataFrame) -> Finding:
        groups = _same_heads(means_by_group(table, group, "n_heads", "d_head"))
        if len(groups) < 2:
            return report_too_few(f"no two values of {group} are unsaturated at two equal heads")
        slopes = {value: _slope_over_bound(means, value) for value, means in groups.items()}
        seeds = min(means.seeds for means in groups.values())
        values = sorted(slopes)
        first_B, last_B = (slopes[value][0] for value in (values[0], values[-1]))
        each = (f"{x}: {format_estimate(slope_B, seeds)}" for x, (slope_B, _) in slopes.items())
        heads = _name_heads(groups[values[0]])
        details = f"slopes over the bound's {heads} by {group}, {', '.join(each)}"
        fits = tuple(fit for _, fit in slopes.values())
        ratio_B = divide_or(last_B, first_B, np.inf)
        return conclude([statistic_of("ratio", ratio_B, (low, high), seeds, details, fits)])

    return test


def _steep_means(table: pd.DataFrame, group: str) -> dict[Any, Means]:
    """The unsaturated means of each value of a column that has two or more numbers of heads."""
    found = {
        value: means.where(mask_unsaturated(means.mean_X))
        for value, means in means_by_group(table, group, "n_heads", "d_head").items()
    }
    return {value: means for value, means in found.items() if len(set(_heads(means))) > 1}


def _heads(means: Means) -> np.ndarray:
    return means.x("n_heads") * means.x("d_head")


def _slope_over_bound(means: Means, group: Any, corrected: bool = True) -> tuple[np.ndarray, Fit]:
    x_X = _heads(means)
    known_BX = count_memorized(means) if corrected else means.y_BX * means.x("n_examples")
    slope_B = least_squares(polynomial(x_X, 1), known_BX)[:, 1]
    fitted_X = fit_of(polynomial(x_X, 1), means.mean_X)
    return slope_B, Fit("line", group, "n_heads", means.x("n_heads"), fitted_X)


def broken_basis(x_X: np.ndarray, at: float) -> np.ndarray:
    """Basis of a line whose slope changes at a point."""
    return np.stack([np.ones_like(x_X), x_X, np.maximum(x_X - at, 0)], axis=1)


def compare_criteria(criteria: dict[str, float]) -> str:
    """Each model's AICc above the best one's, in words."""
    best = min((value for value in criteria.values() if not np.isnan(value)), default=np.nan)
    return "AICc above the best: " + ", ".join(
        f"{name} {format_number(value - best)}" for name, value in criteria.items()
    )
