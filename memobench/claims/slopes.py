"""How the slope of accuracy in the heads depends on other sizes."""

from typing import Any

import numpy as np
import pandas as pd

from memobench.analysis.statistics import (
    SATURATED,
    Means,
    aicc,
    dense,
    fit_of,
    grouped,
    least_squares,
    memorized,
    polynomial,
    power,
    ratio_or,
    unsaturated,
    varies,
)
from memobench.claims.claim import UNDECIDED, Finding, Fit, Test, by_variant
from memobench.claims.evidence import (
    POSITIVE,
    above_best,
    conclude,
    conclude_groups,
    joined,
    rounded,
    stated,
    statistic_of,
    too_few,
)
from memobench.claims.growth import STRAIGHT, _power_fit
from memobench.common.notation import pluralize


def slopes_in_heads(table: pd.DataFrame, group: str = "d_model") -> pd.DataFrame:
    """Slope of accuracy in the heads over unsaturated points, per variant, steps and group."""
    rows = []
    for label, of_variant in by_variant(table):
        for steps in sorted(set(of_variant["steps"])):
            at_steps = of_variant[of_variant["steps"] == steps]
            for value, (slope_B, means) in _slopes(at_steps, group).items():
                slope = statistic_of("slope", slope_B, POSITIVE, means.seeds)
                found = (slope.estimate, slope.low, slope.high, len(means.at))
                rows.append((label, steps, value, *found))
    columns = ["variant", "steps", group, "slope", "low", "high", "n_points"]
    return pd.DataFrame(rows, columns=columns)


def _slopes(
    table: pd.DataFrame, group: str, bent: bool = True
) -> dict[Any, tuple[np.ndarray, Means]]:
    """Per group the slopes_B in the heads, NaN for a single point, and the points.

    bent: with the first saturated point, at which a curve has bent already.
    """
    found = {}
    for value, means in grouped(table, group, "n_heads").items():
        means = means.where(unsaturated(means.mean_X) & (bent | (means.mean_X <= SATURATED)))
        line_B2 = least_squares(polynomial(means.x("n_heads"), 1), means.y_BX)
        found[value] = (
            line_B2[:, 1] if len(means.at) > 1 else np.full(len(line_B2), np.nan),
            means,
        )
    return found


def exponent_of_slopes(low: float = 2, high: float = 3, bent: bool = True) -> Test:
    """The slopes in the heads grow with the width d as a d^p + b, p between low and high.

    bent: lines go through the first saturated point too.
    """

    def test(table: pd.DataFrame) -> Finding:
        found = {
            d_model: (slope_B, means.seeds)
            for d_model, (slope_B, means) in _slopes(table, "d_model", bent).items()
            if len(means.at) > 1
        }
        if len(found) < 5:
            return too_few(f"{pluralize(len(found), 'width')} with a slope, five are needed")
        d_X = np.array(list(found), dtype=float)
        slope_BX = np.stack([slope_B for slope_B, _ in found.values()], axis=1)
        seeds = min(seeds for _, seeds in found.values())
        if not varies(slope_BX[0]):
            return Finding(UNDECIDED, "all slopes are equal, so that no exponent is defined")
        exponent_B, _ = _power_fit(d_X, slope_BX)
        unit_X, dense_X = d_X / d_X.max(), dense(d_X)
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
            fits.append(Fit(name, None, dense_X, drawn_X))
        errors = ", ".join(f"{name} {rounded(error)}" for name, error in left_out.items())
        details = joined(
            f"{len(d_X)} widths", above_best(criteria), f"leave-one-out error: {errors}"
        )
        return conclude(
            [statistic_of("exponent", exponent_B, (low, high), seeds, details, tuple(fits))]
        )

    return test


def equal_slopes(group: str) -> Test:
    """The slope of accuracy in the heads is the same at the last value of a column as at its first.

    Slopes count as the same within a factor of 1.5.
    """

    def test(table: pd.DataFrame) -> Finding:
        found = {value: x for value, x in _slopes(table, group).items() if len(x[1].at) > 1}
        if len(found) < 2:
            return too_few(
                f"{pluralize(len(found), 'value')} of {group} with a slope, two are needed"
            )
        (first_B, _), (last_B, _) = found[min(found)], found[max(found)]
        seeds = min(means.seeds for _, means in found.values())
        details = f"{group} = {max(found)} over {min(found)}; slopes " + ", ".join(
            f"{stated(slope_B, seeds)} at {value}" for value, (slope_B, _) in found.items()
        )
        ratio_B = ratio_or(last_B, first_B, np.inf)
        return conclude([statistic_of("ratio of slopes", ratio_B, STRAIGHT, seeds, details)])

    return test


def slope_over_bound(low: float, high: float, corrected: bool = True) -> Test:
    """Associations memorized per head and head dimension: the slope on H d_h, 1 in Corollary 2.

    Corrected for guessing, or else accuracy times the number of associations.
    """
    group = "d_model"

    def test(table: pd.DataFrame) -> Finding:
        statistics = {}
        for value, means in grouped(table, group, "n_heads", "d_head").items():
            means = means.where(unsaturated(means.mean_X))
            x_X = means.x("n_heads") * means.x("d_head")
            if len(set(x_X)) < 2:
                continue
            known_BX = memorized(means) if corrected else means.y_BX * means.x("n_examples")
            slope_B = least_squares(polynomial(x_X, 1), known_BX)[:, 1]
            fitted_X = fit_of(polynomial(x_X, 1), means.mean_X)
            fit = Fit("line", value, means.x("n_heads"), fitted_X)
            details = pluralize(len(x_X), "point")
            statistics[value] = statistic_of(
                "slope over d_h", slope_B, (low, high), means.seeds, details, (fit,)
            )
        return conclude_groups(statistics, group, "no group has two unsaturated ones")

    return test
