"""Least squares on means over seeds, with Student's intervals of whatever follows from them.

Coverage, and the reasons for this method: docs/intervals.md. Letters: S seeds, X configurations
(points), B the estimate (row 0) and its replicates, G values on a grid, k coefficients.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import scipy

from memobench.analysis.grouping import find_varying, group_rows
from memobench.analysis.seeds import CONFIDENCE, chance, student_factor
from memobench.common.errors import UserError
from memobench.methods.thresholds import Estimate
from memobench.store.rows import configuration

REPLICATES = 1024  # Sobol's points are even for powers of two.
MIN_SEEDS = 3  # Fewer say too little about their spread.
NORMAL = float(scipy.special.ndtri(0.5 + CONFIDENCE / 2))
SATURATED = 0.95  # Up to the first point above it, Dana et al. (2025) fit lines in H.

Value = Callable[[pd.DataFrame], Any]


def compared_accuracy(table: pd.DataFrame) -> pd.Series:
    """The accuracy that is compared, of the published protocol as the authors' code reports it."""
    return table["accuracy_protocol"].where(table["protocol"] == "published", table["accuracy"])


def one_example(table: pd.DataFrame) -> pd.Series:
    """The least step of an accuracy."""
    return 1 / table["n_examples"]


def drop_diverged(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of runs that did not diverge."""
    return table[(table["status"] == "ok") & compared_accuracy(table).notna()]


@dataclasses.dataclass(frozen=True)
class Means:
    """Means over seeds of the configurations X, and replicates of them.

    Attributes:
      at: the columns of each configuration, with `runs`, `squares` (deviations from its mean) and
        `least_step` (of the averaged value, 0 where it is unknown).
      y_BX: row 0 is the means, the other rows are replicates.
    """

    at: pd.DataFrame
    y_BX: np.ndarray

    @property
    def mean_X(self) -> np.ndarray:
        """The means themselves."""
        return self.y_BX[0]

    @property
    def seeds(self) -> int:
        """The fewest runs of a configuration; equal runs without a least step count as one."""
        spread = (self.at["squares"] > 0) | (self.at["least_step"] > 0)
        return int(self.at["runs"].where(spread, 1).min()) if len(self.at) else 0

    def x(self, column: str) -> np.ndarray:
        """A column of the configurations as numbers."""
        return self.at[column].to_numpy(dtype=float)

    def where(self, mask_X: Any) -> "Means":
        """The means of some of the configurations."""
        mask_X = np.asarray(mask_X)
        return Means(self.at[mask_X], self.y_BX[:, mask_X])

    def select_best(self, columns: Sequence[str]) -> "Means":
        """The configuration with the largest mean, for each distinct value of the columns."""
        means = self.at.assign(mean=self.mean_X).groupby(list(columns), dropna=False)["mean"]
        return self.where(self.at.index.isin(means.idxmax()))

    def split_by(self, column: str) -> dict[Any, "Means"]:
        """The means of each value of a column, in its order."""
        return {
            value: self.where(self.at[column] == value) for value in sorted(set(self.at[column]))
        }


def bootstrap_means(
    table: pd.DataFrame,
    columns: str | Sequence[str],
    value: Value | None = None,
    step: Value | None = None,
) -> Means:
    """The means of a value of every run at each distinct value of the columns, with replicates.

    Means that are compared must come from one call: runs of the same seed may be correlated.

    Args:
      table: of runs.
      columns: by which configurations differ.
      value: from the rows to a number each; by default `compared_accuracy`.
      step: from the rows to the least step of the value, where there is one.

    Raises:
      UserError: runs with equal values of the columns are not repetitions of each other.
    """
    columns = [columns] if isinstance(columns, str) else list(columns)
    if value is None:
        value, step = compared_accuracy, one_example
    table = drop_diverged(table)
    table = table.assign(_y=value(table), least_step=step(table) if step else 0.0)
    table = table.sort_values([*columns, *_seeds(table), "_y"], ignore_index=True)
    others = [column for column in configuration() if column in table and column not in columns]
    if mixed := find_varying(table, group_rows(table, columns), others):
        raise UserError(
            f"runs with equal {', '.join(columns)} differ in {', '.join(mixed)}; "
            f"choose comparable ones: claims.restrict(test, {mixed[0]}=...)"
        )
    at = table.drop_duplicates(columns, ignore_index=True)
    seed_R: Any = table.groupby(_seeds(table), dropna=False).ngroup() if len(table) else []
    run_SxX = np.full((len(set(seed_R)), len(at)), np.nan)
    run_SxX[seed_R, table.duplicated(columns).eq(False).cumsum() - 1] = table["_y"]
    y_BX = replicates(run_SxX, at["least_step"].to_numpy(float))
    squares_X = np.nansum((run_SxX - y_BX[0]) ** 2, axis=0)
    return Means(at.assign(runs=np.isfinite(run_SxX).sum(axis=0), squares=squares_X), y_BX)


def _seeds(table: pd.DataFrame) -> list[str]:
    return [column for column in ("seed", "task_seed") if column in table]


def replicates(run_SxX: np.ndarray, least_step_X: np.ndarray | float = 0.0) -> np.ndarray:
    """The means over seeds, row 0 of y_BX, and replicates whose percentiles are Student's.

    A replicate adds up each mean's deviations with Gaussian weights, one for every seed: whatever
    is linear in the means varies as it does from seed to seed, whatever the variances and
    correlations of configurations are. Deviations are wider than the standard error by the quantile
    of Student's t, with one degree of freedom less than runs, over that of the normal distribution.

    Equal runs vary as if one of them were off by the least step.

    Args:
      run_SxX: a value for every seed, NaN where a configuration has none.
      least_step_X: of each value, 0 where none is known.
    """
    n_X = np.maximum(np.isfinite(run_SxX).sum(axis=0), 1)
    # Relative to one of the values, so that equal runs have a spread of exactly zero.
    first_X = np.fmin.reduce(run_SxX, axis=0, initial=np.nan)
    mean_X = first_X + np.nansum(run_SxX - first_X, axis=0) / n_X
    deviation_SxX = np.nan_to_num(run_SxX - mean_X)
    freedom_X = np.maximum(n_X - 1, 1)
    widening_X = scipy.special.stdtrit(freedom_X, 0.5 + CONFIDENCE / 2) / NORMAL / np.sqrt(n_X)
    weight_BxS = _gaussian_weights(len(run_SxX))
    spread_BX = weight_BxS @ (deviation_SxX / np.sqrt(freedom_X))
    missing_X = least_step_X**2 / n_X - (deviation_SxX**2).sum(axis=0) / freedom_X
    if (missing_X > 0).any():
        own_BX = np.random.default_rng(0).normal(size=spread_BX.shape)
        spread_BX = spread_BX + own_BX * np.sqrt(np.maximum(missing_X, 0))
    return mean_X + np.concatenate([np.zeros((1, len(n_X))), widening_X * spread_BX])


@functools.lru_cache
def _gaussian_weights(n: int) -> np.ndarray:
    """Gaussian numbers for n seeds, more even than random ones, so percentiles vary little."""
    if n == 0:
        return np.zeros((REPLICATES, 0))
    points = scipy.stats.qmc.Sobol(n, seed=0).random(REPLICATES)
    weight_BxS = scipy.special.ndtri(points)
    weight_BxS.flags.writeable = False
    return weight_BxS


def means_by_group(table: pd.DataFrame, group: str, *columns: str) -> dict[Any, Means]:
    """The bootstrapped means at every point of each group, by the group's value."""
    return bootstrap_means(table, [group, *columns]).split_by(group)


def least_squares(design_Xk: np.ndarray, y_BX: np.ndarray) -> np.ndarray:
    """The coefficients_Bk of the least squares fit of every row of y_BX."""
    return y_BX @ np.linalg.pinv(design_Xk).T


def fit_of(design_Xk: np.ndarray, y_X: np.ndarray) -> np.ndarray:
    """The least squares fit at each point."""
    return design_Xk @ least_squares(design_Xk, y_X[None])[0]


def polynomial(x_X: np.ndarray, degree: int) -> np.ndarray:
    """Basis 1, x, ..., x^degree."""
    return np.vander(x_X, degree + 1, increasing=True)


def power(x_X: np.ndarray, exponent: float) -> np.ndarray:
    """Basis of a + b x^exponent."""
    return np.stack([np.ones_like(x_X), x_X**exponent], axis=1)


def saturating_basis(x_X: np.ndarray, scale: float) -> np.ndarray:
    """Basis of a + b (1 - exp(-x / scale))."""
    return np.stack([np.ones_like(x_X), -np.expm1(-x_X / scale)], axis=1)


class Profile(NamedTuple):
    """The best value of the nonlinear parameter, the coefficients and the RSS of every row."""

    best_B: np.ndarray
    coefficients_Bk: np.ndarray
    rss_B: np.ndarray


def profile(
    x_X: np.ndarray,
    y_BX: np.ndarray,
    basis: Callable[[np.ndarray, float], np.ndarray],
    grid: Iterable[float],
) -> Profile:
    """The separable least squares fit: one parameter from a grid, the others in closed form.

    Args:
      x_X: the points.
      y_BX: the values there; every row is fitted by itself.
      basis: from points and the nonlinear parameter to a design_Xk that spans the constants.
      grid: values of the nonlinear parameter.
    """
    grid_G = np.asarray(list(grid), dtype=float)
    u_GXk, s_Gk, v_Gkk = np.linalg.svd(
        np.stack([basis(x_X, value) for value in grid_G]), full_matrices=False
    )
    kept_Gk = s_Gk > 1e-12 * s_Gk[:, :1]
    u_GXk = u_GXk * kept_Gk[:, None, :]
    # Constants are fitted exactly; subtracting them keeps the difference of squares precise.
    centred_BX = y_BX - y_BX.mean(axis=1, keepdims=True)
    explained_BG = (np.tensordot(centred_BX, u_GXk, axes=(1, 1)) ** 2).sum(axis=2)
    best_B = explained_BG.argmax(axis=1)
    inverse_Gk = np.divide(kept_Gk, s_Gk, where=kept_Gk, out=np.zeros_like(s_Gk))
    pinv_GkX = np.einsum("gjk,gj,gxj->gkx", v_Gkk, inverse_Gk, u_GXk)
    coefficients_Bk = np.einsum("bkx,bx->bk", pinv_GkX[best_B], y_BX)
    explained_B = np.take_along_axis(explained_BG, best_B[:, None], axis=1)[:, 0]
    rss_B = np.maximum((centred_BX**2).sum(axis=1) - explained_B, 0)
    return Profile(grid_G[best_B], coefficients_Bk, rss_B)


def aicc(rss: float, n: int, k: int, scale: float = 1.0) -> float:
    """Akaike's criterion, corrected for small n; k counts the variance too. NaN if n <= k + 1.

    Residuals below 1e-9 of the scale count as rounding, so that exact fits differ by k alone.

    >>> round(aicc(rss=1.0, n=10, k=3), 2)
    -13.03
    """
    if n <= k + 1:
        return float("nan")
    floor = max(n * (1e-9 * scale) ** 2, float(np.finfo(float).tiny))
    return float(n * np.log(max(rss, floor) / n) + 2 * k + 2 * k * (k + 1) / (n - k - 1))


def aicc_of_runs(means: Means, fitted_X: np.ndarray, k: int) -> float:
    """AICc over runs, by deviations from the means and of the means from the fit."""
    runs_X = means.x("runs")
    rss = means.x("squares").sum() + (runs_X * (means.mean_X - fitted_X) ** 2).sum()
    return aicc(rss, int(runs_X.sum()), k, float(np.abs(means.mean_X).max()))


def mask_unsaturated(mean_X: np.ndarray) -> np.ndarray:
    """Mask of the points up to and including the first whose mean exceeds SATURATED.

    >>> mask_unsaturated(np.array([0.2, 0.6, 0.96, 0.94, 1.0])).tolist()
    [True, True, True, False, False]
    """
    above_X = np.asarray(mean_X) > SATURATED
    return np.cumsum(above_X) - above_X == 0


def half_widths(value_XxT: np.ndarray) -> np.ndarray:
    """Half of Student's 95% intervals of means over the last axis, of two values at least.

    >>> half_widths(np.array([1.0, 2.0, 3.0])).round(3)
    np.float64(2.484)
    """
    return student_factor(value_XxT.shape[-1]) * value_XxT.std(axis=-1, ddof=1)


def interval(values_B: np.ndarray, seeds: int) -> tuple[float, float]:
    """95% interval of a statistic from its estimate and replicates, NaN with too few seeds."""
    low, high = intervals(values_B[:, None], seeds)
    return float(low[0]), float(high[0])


def intervals(values_BxX: np.ndarray, seeds: int) -> tuple[np.ndarray, np.ndarray]:
    """`interval` of many statistics, of any shape X."""
    none = np.isnan(values_BxX).any(axis=0) | (seeds < MIN_SEEDS)
    outside = (1 - CONFIDENCE) / 2
    # Without interpolation: infinite values have no differences.
    ends = np.quantile(values_BxX[1:], (outside, 1 - outside), axis=0, method="inverted_cdf")
    # At a kink (a break at a point, the best of many) replicates may all lie on one side.
    low_X, high_X = np.minimum(ends[0], values_BxX[0]), np.maximum(ends[1], values_BxX[0])
    return np.where(none, np.nan, low_X), np.where(none, np.nan, high_X)


def bonferroni_factor(n: int, seeds: int) -> float:
    """The factor of Student's intervals so that all of n have the truth (Bonferroni's)."""
    outside = (1 - CONFIDENCE) / 2
    quantiles = scipy.special.stdtrit(max(seeds - 1, 1), (outside / n, outside))
    return float(np.divide(*quantiles))


def holm(p_values: Sequence[float]) -> list[bool]:
    """The mask of rejected hypotheses; with a chance of 5% at most any is true (Holm 1979).

    >>> holm([0.01, 0.04, 0.03, float("nan")])
    [True, False, False, False]
    """
    rejected = [False] * len(p_values)
    for place, i in enumerate(np.argsort(p_values)):
        # NaN where nothing can be tested, as of one label table; such ones sort last.
        if not p_values[i] <= (1 - CONFIDENCE) / (len(p_values) - place):
            break
        rejected[i] = True
    return rejected


def share_interval(successes: int, trials: int) -> tuple[float, float]:
    """The exact interval of a share (Clopper & Pearson 1934).

    >>> low, high = share_interval(40, 40)
    >>> round(low, 3), high
    (0.912, 1.0)
    """
    found = scipy.stats.binomtest(successes, trials).proportion_ci(CONFIDENCE, method="exact")
    return float(found.low), float(found.high)


def divide_or(numerator_B: np.ndarray, denominator_B: np.ndarray, otherwise: float) -> np.ndarray:
    """The ratio where the denominator is positive, and `otherwise` elsewhere."""
    out_B = np.full_like(numerator_B, otherwise)
    return np.divide(numerator_B, denominator_B, where=denominator_B > 0, out=out_B)


def has_spread(y_X: np.ndarray) -> bool:
    """True where not all values are equal, up to rounding."""
    return bool(np.ptp(y_X) > 1e-12)


def dense_grid(x_X: np.ndarray) -> np.ndarray:
    """A hundred points from the least to the largest, for curves."""
    return np.linspace(x_X.min(), x_X.max(), 100)


def count_memorized(means: Means) -> np.ndarray:
    """Associations known beyond guessing, for the estimate and every replicate."""
    chance_X = chance(means.at).to_numpy()
    return means.x("n_examples") * (means.y_BX - chance_X) / (1 - chance_X)


def estimate_mean(value_TxS: np.ndarray) -> Estimate:
    """The mean over tables and starts; the interval is Student's of the means of tables.

    Tables are drawn independently, and starts within each: whatever the two variances are, means of
    tables are independent and of one distribution. Equal means show no spread, and no interval.

    >>> estimate_mean(np.array([[9.0, 11.0], [11.0, 13.0], [10.0, 12.0]])).value
    11.0
    """
    mean_T = value_TxS.mean(axis=1)
    if len(mean_T) < MIN_SEEDS or np.ptp(mean_T) == 0:
        return Estimate(float(mean_T.mean()), math.nan, math.nan)
    mean, half = float(mean_T.mean()), float(half_widths(mean_T))
    return Estimate(mean, mean - half, mean + half)


def estimate_gain(value_KxTxS: np.ndarray) -> Estimate:
    """The ratio of the last rung's mean to that of the one before, on the same tables.

    A table has the same starts on every rung, so that the interval is narrower than of two
    independent means.

    >>> estimate_gain(np.array([[[8.0], [10.0], [12.0]], [[10.0], [11.0], [12.0]]])).value
    1.1
    """
    mean_BxK = replicates(value_KxTxS[-2:].mean(axis=2).T)
    gain_B = mean_BxK[:, 1] / mean_BxK[:, 0]
    return Estimate(float(gain_B[0]), *interval(gain_B, value_KxTxS.shape[1]))
