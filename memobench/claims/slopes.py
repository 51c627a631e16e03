"""The growth of accuracy with the heads."""

from typing import Any

import numpy as np
import pandas as pd

from memobench.analysis.statistics import (
    SATURATED,
    Means,
    aicc_of_runs,
    divide_or,
    fit_of,
    has_spread,
    least_squares,
    mask_unsaturated,
    means_by_group,
    polynomial,
    profile,
    saturating_basis,
)
from memobench.claims.claim import Finding, Fit, Test, split_by_variant
from memobench.claims.evidence import (
    POSITIVE,
    Region,
    Statistic,
    conclude_groups,
    format_estimate,
    format_number,
    statistic_of,
)
from memobench.common.notation import pluralize

# Slopes at both ends within a factor of 1.5: what a reader would still call straight.
STRAIGHT: Region = (2 / 3, 3 / 2)


def slopes_in_heads(table: pd.DataFrame) -> pd.DataFrame:
    """Slope of accuracy in the heads over unsaturated points, per variant, steps and width."""
    rows = []
    for label, of_variant in split_by_variant(table):
        for steps in sorted(set(of_variant["steps"])):
            at_steps = of_variant[of_variant["steps"] == steps]
            for value, (slope_B, means) in fit_slopes(at_steps, "d_model").items():
                slope = statistic_of("slope", slope_B, POSITIVE, means.seeds)
                found = (slope.estimate, slope.low, slope.high, len(means.at))
                rows.append((label, steps, value, *found))
    columns = ["variant", "steps", "d_model", "slope", "low", "high", "n_points"]
    return pd.DataFrame(rows, columns=columns)


def fit_slopes(
    table: pd.DataFrame, group: str, bent: bool = True
) -> dict[Any, tuple[np.ndarray, Means]]:
    """Per group the slopes_B in the heads, NaN for a single point, and the points.

    Args:
      table: of runs.
      group: the column that tells groups apart.
      bent: with the first saturated point, at which a curve has bent already.
    """
    found = {}
    for value, means in means_by_group(table, group, "n_heads").items():
        means = means.where(mask_unsaturated(means.mean_X) & (bent | (means.mean_X <= SATURATED)))
        line_B2 = least_squares(polynomial(means.x("n_heads"), 1), means.y_BX)
        found[value] = (
            line_B2[:, 1] if len(means.at) > 1 else np.full(len(line_B2), np.nan),
            means,
        )
    return found


def linear_in_heads(group: str = "d_model") -> Test:
    """Accuracy grows linearly with the heads until it saturates, in every group.

    Decides on the slope at the most heads over that at the fewest, under a quadratic fit: 0 where
    accuracy does not grow, infinite where it starts flat. At least four unsaturated points.
    """

    def test(table: pd.DataFrame) -> Finding:
        groups = {
            # Without the first saturated point, which the mask keeps: the curve bends there.
            value: means.where(mask_unsaturated(means.mean_X) & (means.mean_X <= SATURATED))
            for value, means in means_by_group(table, group, "n_heads").items()
        }
        statistics = {
            value: _straightness(means, value)
            for value, means in groups.items()
            if len(means.at) >= 4 and has_spread(means.mean_X)
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
    scale = profile(from_first_X, means.y_BX[:1], saturating_basis, scales).best_B[0]
    curved_X = fit_of(saturating_basis(from_first_X, scale), means.mean_X)
    difference = aicc_of_runs(means, curved_X, 4) - aicc_of_runs(means, fitted_X, 3)
    details = (
        f"{pluralize(len(x_X), 'point')}, slope {format_estimate(line_B2[:, 1], means.seeds)} "
        f"per head, R² {r_squared:.4f}, AICc of a saturating curve minus the line's "
        f"{format_number(difference)}"
    )
    fit = Fit("line", group, "n_heads", x_X, fitted_X)
    return statistic_of("slope ratio", ratio_B, STRAIGHT, means.seeds, details, (fit,))


def slope_ratio(x_X: np.ndarray, y_BX: np.ndarray) -> np.ndarray:
    """The slope at the last x over that at the first, under a quadratic fit."""
    _, b_B, c_B = least_squares(polynomial(x_X, 2), y_BX).T
    first_B, last_B = b_B + 2 * c_B * x_X[0], b_B + 2 * c_B * x_X[-1]
    # (last - first) / (last + first) stays finite where the first slope passes through zero; the
    # ratio is increasing in it, so the quantiles carry over.
    bend_B = divide_or(last_B - first_B, last_B + first_B, -1.0)
    return divide_or(1 + bend_B, 1 - bend_B, np.inf)
