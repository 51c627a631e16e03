"""Decides by statistics whether a claim of a paper holds on a results table.

A claim has a test, a function of the rows of one variant at one number of steps. Each test
estimates a statistic by least squares on the means over seeds, takes its 95% interval from a
bootstrap over seeds, and compares it with the region in which the claim is true: it holds where
the interval lies inside, fails where it lies outside, and is undecided otherwise, since absence of
evidence is not evidence. Pure functions; no files, no JAX.

Letters in names: X configurations (points), B the estimate (row 0) and its bootstrap replicates,
G values on a grid, k coefficients, I points of comparison.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import scipy.stats

from memobench.analysis import CONFIGURATION

HOLDS, FAILS, UNDECIDED = "holds", "fails", "undecided"
SEVERITY = (FAILS, UNDECIDED, HOLDS)

VARIANTS = {
    ("published", "compressed"): "(a) published protocol, compressed heads",
    ("exact", "compressed"): "(b) exact gradient, compressed heads",
    ("exact", "full"): "(c) exact gradient, full heads",
    ("optimal", "compressed"): "optimum in double precision",
}

Region = tuple[float, float]  # Closed: both ends belong to it.
LINEAR: Region = (0.5, 1.5)
QUADRATIC: Region = (1.5, 2.5)
# Slopes at both ends within a quarter of each other: what a reader would still call straight.
STRAIGHT: Region = (0.8, 1.25)
# The least positive number stands for "above 0", so that a tie is not inside.
POSITIVE: Region = (float(np.finfo(float).tiny), np.inf)

N_BOOTSTRAP = 1000
MIN_SEEDS = 3
SATURATED = 0.95  # Up to the first point above it, Dana et al. (2025) fit lines in H.
ALL_KNOWN = 0.99  # Where both families know all, none is better.
SAME_SIZE = 0.02  # Sizes that are meant to be equal differ by a percent or so.
HALVED: Region = (-np.inf, 0.5)
EXPONENTS_G = np.arange(10, 601) / 100


@dataclasses.dataclass(frozen=True)
class Fit:
    """A fitted line to draw; `group` is the value of the grouping column it belongs to."""

    label: str
    group: Any
    x: np.ndarray
    y: np.ndarray


@dataclasses.dataclass(frozen=True)
class Finding:
    """A verdict, the line of evidence for it, and the statistic that decided, NaN where none."""

    verdict: str
    evidence: str
    estimate: float = np.nan
    low: float = np.nan
    high: float = np.nan
    fits: tuple[Fit, ...] = ()


Test = Callable[[pd.DataFrame], Finding]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Claim:
    """What a paper says, in one sentence, and the test that decides it.

    name: short, unique within an experiment.
    test: takes the rows of one variant at one number of steps, or, with `across_steps`, at all.
    """

    name: str
    statement: str
    source: str
    test: Test
    across_steps: bool = False


# --- Tables ---------------------------------------------------------------------------------------


def measured(table: pd.DataFrame) -> pd.Series:
    """What is compared: under the published protocol what the authors' code reports."""
    return table["accuracy_protocol"].where(table["protocol"] == "published", table["accuracy"])


def variant(table: pd.DataFrame) -> pd.Series:
    """The label of each run's protocol and parameterisation of the heads."""
    pairs = zip(table["protocol"], table["heads"], strict=True)
    return pd.Series(
        [VARIANTS.get(pair, ", ".join(pair)) for pair in pairs], index=table.index, dtype=object
    )


def findings(
    claims: Iterable[Claim], table: pd.DataFrame
) -> Iterator[tuple[Claim, str, int, Finding]]:
    """Every claim on every variant and number of steps in the table, in this order.

    A claim across steps is reported once per variant, at the fewest steps.
    """
    for claim, (label, rows) in itertools.product(claims, _by_variant(table)):
        budgets = sorted(set(rows["steps"]))
        for steps in budgets[:1] if claim.across_steps else budgets:
            chosen = rows if claim.across_steps else rows[rows["steps"] == steps]
            finding = claim.test(chosen)
            if diverged := len(chosen) - len(_usable(chosen)):
                evidence = f"{finding.evidence}; {diverged} of {len(chosen)} runs diverged"
                finding = dataclasses.replace(finding, evidence=evidence)
            yield claim, label, int(steps), finding


def verdicts(claims: Iterable[Claim], table: pd.DataFrame) -> pd.DataFrame:
    """One row per claim, variant and number of steps, with the verdict and its evidence.

    `doubling` says what twice the steps change: `same verdict`, `becomes VERDICT`, `not run`;
    it is empty where the row itself has twice the steps of another, and for claims across steps.
    """
    found = list(findings(claims, table))
    known = {(claim.name, label, steps): finding.verdict for claim, label, steps, finding in found}

    def doubling(claim: Claim, label: str, steps: int) -> str:
        doubled = known.get((claim.name, label, 2 * steps))
        if claim.across_steps:
            return ""
        if doubled is None:
            return "" if (claim.name, label, steps / 2) in known else "not run"
        same = doubled == known[claim.name, label, steps]
        return "same verdict" if same else f"becomes {doubled}"

    rows = [
        {
            "claim": claim.name,
            "variant": label,
            "steps": steps,
            "verdict": finding.verdict,
            "evidence": finding.evidence,
            "estimate": finding.estimate,
            "low": finding.low,
            "high": finding.high,
            "doubling": doubling(claim, label, steps),
        }
        for claim, label, steps, finding in found
    ]
    names = "claim variant steps verdict evidence estimate low high doubling".split()
    return pd.DataFrame(rows, columns=names)


def only(test: Test, **values: Any) -> Test:
    """The test on the rows with these values; a list, tuple or range allows several.

    >>> attention = only(linear_in_heads(), architecture="attention_only", d_model=range(5, 14))
    """

    def selected(table: pd.DataFrame) -> Finding:
        for column, value in values.items():
            several = isinstance(value, (list, tuple, range))
            table = table[table[column].isin(value if several else [value])]
        return test(table)

    return selected


def _by_variant(table: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    labels = variant(table)
    order = [*VARIANTS.values(), *sorted(set(labels) - set(VARIANTS.values()))]
    floor = VARIANTS["optimal", "compressed"]
    if (labels != floor).any():  # Beside what is trained, the optimum is its floor, no variant.
        order.remove(floor)
    return [(label, table[labels == label]) for label in order if (labels == label).any()]


def _usable(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of runs that did not diverge."""
    return table[(table["status"] == "ok") & measured(table).notna()]


# --- Statistics -----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Means:
    """Means over seeds of the configurations X, and bootstrap replicates of them.

    at: the columns of each configuration, with `runs` and `squares` (deviations from its mean).
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
        """The fewest runs of a configuration."""
        return int(self.at["runs"].min()) if len(self.at) else 0

    def x(self, column: str) -> np.ndarray:
        """A column of the configurations as numbers."""
        return self.at[column].to_numpy(dtype=float)

    def where(self, mask_X: Any) -> "Means":
        """The means of some of the configurations."""
        mask_X = np.asarray(mask_X)
        return Means(self.at[mask_X], self.y_BX[:, mask_X])

    def by(self, column: str) -> dict[Any, "Means"]:
        """The means of each value of a column, in its order."""
        return {
            value: self.where(self.at[column] == value) for value in sorted(set(self.at[column]))
        }


def bootstrap_means(
    table: pd.DataFrame, columns: str | Sequence[str], n: int = N_BOOTSTRAP
) -> Means:
    """The means of `measured` at each distinct value of the columns, resampled n times.

    All that is compared must be resampled in one call, which keeps it independent.

    Raises:
      ValueError: runs with equal values of the columns are no repetitions of each other.
    """
    columns = [columns] if isinstance(columns, str) else list(columns)
    table = _usable(table)
    # Sorted by value too, so that the order of the rows does not matter.
    table = table.assign(_y=measured(table)).sort_values([*columns, "_y"], ignore_index=True)
    groups = table.groupby(columns, sort=True)
    others = [column for column in CONFIGURATION if column in table and column not in columns]
    mixed = [column for column in others if (groups[column].nunique(dropna=False) > 1).any()]
    if mixed:
        raise ValueError(
            f"runs with equal {', '.join(columns)} differ in {', '.join(mixed)}; "
            "choose comparable rows with claims.only"
        )
    random = np.random.default_rng(0)
    starts = np.flatnonzero(~table.duplicated(columns))
    samples = np.split(table["_y"].to_numpy(), starts)[1:]
    replicas = [_replicates(sample, n, random) for sample in samples]
    at = table.drop_duplicates(columns, ignore_index=True).assign(
        runs=[len(sample) for sample in samples],
        squares=[((sample - sample.mean()) ** 2).sum() for sample in samples],
    )
    return Means(at, np.stack(replicas, axis=1) if replicas else np.zeros((n + 1, 0)))


def _replicates(sample: np.ndarray, n: int, random: np.random.Generator) -> np.ndarray:
    size = len(sample)
    # From the first value on, so that equal runs have a spread of exactly zero.
    mean = sample[0] + (sample - sample[0]).mean()
    deviations = (sample - mean)[random.integers(size, size=(n, size))].mean(axis=1)
    # A resampled mean varies by (size - 1) / size too little, much for five seeds.
    deviations *= np.sqrt(size / max(size - 1, 1))
    return mean + np.concatenate([[0.0], deviations])


def least_squares(design_Xk: np.ndarray, y_BX: np.ndarray) -> np.ndarray:
    """The coefficients_Bk of the least squares fit of every row of y_BX."""
    return y_BX @ np.linalg.pinv(design_Xk).T


def polynomial(x_X: np.ndarray, degree: int) -> np.ndarray:
    """Basis 1, x, ..., x^degree."""
    return np.vander(x_X, degree + 1, increasing=True)


def power(x_X: np.ndarray, exponent: float) -> np.ndarray:
    """Basis of a + b x^exponent."""
    return np.stack([np.ones_like(x_X), x_X**exponent], axis=1)


def broken(x_X: np.ndarray, at: float) -> np.ndarray:
    """Basis of a line whose slope changes at a point."""
    return np.stack([np.ones_like(x_X), x_X, np.maximum(x_X - at, 0)], axis=1)


def saturating(x_X: np.ndarray, scale: float) -> np.ndarray:
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
    """Separable least squares: the nonlinear parameter on a grid, all else linear in closed form.

    basis(x_X, value) returns a design_Xk that spans the constants.
    """
    grid_G = np.asarray(list(grid), dtype=float)
    u_GXk, s_Gk, v_Gkk = np.linalg.svd(
        np.stack([basis(x_X, value) for value in grid_G]), full_matrices=False
    )
    kept_Gk = s_Gk > 1e-12 * s_Gk[:, :1]
    u_GXk = u_GXk * kept_Gk[:, None, :]
    # Constants are fitted exactly; without them less is lost in the difference of squares.
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


def unsaturated(mean_X: np.ndarray, threshold: float = SATURATED) -> np.ndarray:
    """Mask of the points up to and including the first whose mean exceeds the threshold.

    >>> unsaturated(np.array([0.2, 0.6, 0.96, 0.94, 1.0])).tolist()
    [True, True, True, False, False]
    """
    above_X = np.asarray(mean_X) > threshold
    return np.cumsum(above_X) - above_X == 0


def interval(values_B: np.ndarray) -> tuple[float, float]:
    """95% percentile interval of the replicates, which follow the estimate in values_B."""
    if np.isnan(values_B).any():
        return float("nan"), float("nan")
    # Without interpolation: infinite values have no differences.
    low, high = np.quantile(values_B[1:], (0.025, 0.975), method="inverted_cdf")
    # At a kink (a break at a point, the best of many) replicates may all lie on one side.
    return float(min(low, values_B[0])), float(max(high, values_B[0]))


def decide(low: float, high: float, region: Region) -> str:
    """Holds if the interval lies inside the region, fails if outside, is undecided otherwise.

    >>> [decide(low, high, (0, 1)) for low, high in ((0.2, 0.9), (1.1, 2), (0.9, 1.1))]
    ['holds', 'fails', 'undecided']
    """
    if region[0] <= low and high <= region[1]:
        return HOLDS
    return FAILS if high < region[0] or low > region[1] else UNDECIDED


def every(decided: Iterable[str]) -> str:
    """Holds if all hold and there are some, fails if any fails, is undecided otherwise."""
    return min(decided, key=SEVERITY.index, default=UNDECIDED)


# --- From statistics to findings ------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Statistic:
    """An estimate, its 95% interval, and the region in which the claim is true."""

    name: str
    estimate: float
    low: float
    high: float
    region: Region
    seeds: int
    details: str = ""
    fits: tuple[Fit, ...] = ()

    @property
    def verdict(self) -> str:
        return decide(self.low, self.high, self.region)

    @property
    def distance(self) -> float:
        """How far the estimate lies outside the region, negative inside."""
        low, high = self.region
        distance = max(low - self.estimate, self.estimate - high)
        return -np.inf if np.isnan(distance) else distance

    def __str__(self) -> str:
        estimate = _estimate(self.estimate, self.low, self.high)
        return f"{self.name} {estimate} against {_region(self.region)}"


def _statistic(
    name: str,
    values_B: np.ndarray,
    region: Region,
    seeds: int,
    details: str = "",
    fits: tuple[Fit, ...] = (),
) -> _Statistic:
    # Too few seeds say nothing of their spread: no interval, hence no verdict.
    low, high = interval(values_B) if seeds >= MIN_SEEDS else (float("nan"), float("nan"))
    return _Statistic(name, float(values_B[0]), low, high, region, seeds, details, fits)


def _conclude(statistics: Sequence[_Statistic], evidence: str = "") -> Finding:
    """All statistics must lie in their regions; the one that decides stands for them."""
    deciding = _deciding(statistics)
    few = deciding.seeds < MIN_SEEDS
    return Finding(
        deciding.verdict,
        _sentence(
            f"{_count(deciding.seeds, 'seed')}; at least {MIN_SEEDS} are needed" if few else "",
            evidence or _sentence(str(deciding), deciding.details),
        ),
        deciding.estimate,
        deciding.low,
        deciding.high,
        tuple(fit for statistic in statistics for fit in statistic.fits),
    )


def _deciding(statistics: Sequence[_Statistic]) -> _Statistic:
    """The statistic farthest out of its region among those with the verdict on all."""
    verdict = every(statistic.verdict for statistic in statistics)
    candidates = [statistic for statistic in statistics if statistic.verdict == verdict]
    return max(candidates, key=lambda statistic: statistic.distance)


def _conclude_groups(statistics: dict[Any, _Statistic], group: str | None, needed: str) -> Finding:
    """The finding over all groups that have enough points: how many hold, and the extremest."""
    if not statistics:
        return _too_few(needed)
    if group is None or len(statistics) == 1:
        return _conclude(list(statistics.values()))
    nouns, letter = ("widths", "d") if group == "d_model" else (f"values of {group}", group)
    counts = [
        (verdict, sum(statistic.verdict == verdict for statistic in statistics.values()))
        for verdict in (HOLDS, FAILS, UNDECIDED)
    ]
    told = ", ".join(
        f"{verdict} for {count}" + (f" of {len(statistics)} {nouns}" if verdict == HOLDS else "")
        for verdict, count in counts
        if count or verdict == HOLDS
    )
    deciding = _deciding(list(statistics.values()))
    value = next(value for value, statistic in statistics.items() if statistic is deciding)
    evidence = _sentence(told, f"{letter} = {value}: {deciding}", deciding.details)
    return _conclude(list(statistics.values()), evidence)


def _too_few(needed: str) -> Finding:
    return Finding(UNDECIDED, f"too few points: {needed}")


def _sentence(*parts: str) -> str:
    return "; ".join(part for part in parts if part)


def _number(value: float) -> str:
    return "n/a" if np.isnan(value) else f"{value + 0.0:.3g}"


def _estimate(estimate: float, low: float, high: float) -> str:
    if np.isnan(low):
        return _number(estimate)
    return f"{_number(estimate)} [{_number(low)}, {_number(high)}]"


def _told(values_B: np.ndarray, seeds: int) -> str:
    """An estimate and, with enough seeds, its interval."""
    statistic = _statistic("", values_B, POSITIVE, seeds)
    return _estimate(statistic.estimate, statistic.low, statistic.high)


def _region(region: Region) -> str:
    low, high = region
    if region == POSITIVE:
        return "above 0"
    if np.isinf(high):
        return f"at least {low:g}"
    return f"at most {high:g}" if np.isinf(low) else f"{low:g} to {high:g}"


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}" + ("" if n == 1 else "s")


def _above_best(criteria: dict[str, float]) -> str:
    """How far each model's AICc is above the best one's."""
    best = min((value for value in criteria.values() if not np.isnan(value)), default=np.nan)
    return "AICc above the best: " + ", ".join(
        f"{name} {_number(value - best)}" for name, value in criteria.items()
    )


def _aicc_of_runs(means: Means, fitted_X: np.ndarray, k: int) -> float:
    """AICc over runs: deviations from the means, and of the means from the fit."""
    runs_X = means.x("runs")
    rss = means.x("squares").sum() + (runs_X * (means.mean_X - fitted_X) ** 2).sum()
    return aicc(rss, int(runs_X.sum()), k, float(np.abs(means.mean_X).max()))


def _fitted(design_Xk: np.ndarray, y_X: np.ndarray) -> np.ndarray:
    return design_Xk @ least_squares(design_Xk, y_X[None])[0]


def _varies(y_X: np.ndarray) -> bool:
    return bool(np.ptp(y_X) > 1e-12)


def _dense(x_X: np.ndarray) -> np.ndarray:
    return np.linspace(x_X.min(), x_X.max(), 100)


def _ratio(numerator_B: np.ndarray, denominator_B: np.ndarray, otherwise: float) -> np.ndarray:
    """The ratio where the denominator is positive."""
    out_B = np.full_like(numerator_B, otherwise)
    return np.divide(numerator_B, denominator_B, where=denominator_B > 0, out=out_B)


def _grouped(table: pd.DataFrame, group: str, *columns: str) -> dict[Any, Means]:
    return bootstrap_means(table, [group, *columns]).by(group)


# --- Tests: growth --------------------------------------------------------------------------------


def linear_in_heads(group: str = "d_model") -> Test:
    """Accuracy grows linearly with the heads until it saturates, in every group.

    Decides on the slope at the most heads over that at the fewest, under a quadratic fit: 0 where
    accuracy does not grow, infinite where it starts flat. At least four unsaturated points.
    """

    def test(table: pd.DataFrame) -> Finding:
        groups = {
            # Without the first point above, which the fits of slopes take in: it bends already.
            value: means.where(unsaturated(means.mean_X) & (means.mean_X <= SATURATED))
            for value, means in _grouped(table, group, "n_heads").items()
        }
        statistics = {
            value: _straightness(means, value)
            for value, means in groups.items()
            if len(means.at) >= 4 and _varies(means.mean_X)
        }
        return _conclude_groups(statistics, group, "no group has four unsaturated ones that vary")

    return test


def _straightness(means: Means, group: Any) -> _Statistic:
    x_X = means.x("n_heads")
    line_B2 = least_squares(polynomial(x_X, 1), means.y_BX)
    _, b_B, c_B = least_squares(polynomial(x_X, 2), means.y_BX).T
    first_B, last_B = b_B + 2 * c_B * x_X[0], b_B + 2 * c_B * x_X[-1]
    # (last - first) / (last + first) stays finite where the first slope passes through zero; the
    # ratio is increasing in it, so the quantiles carry over.
    bend_B = _ratio(last_B - first_B, last_B + first_B, -1.0)
    ratio_B = _ratio(1 + bend_B, 1 - bend_B, np.inf)
    fitted_X = polynomial(x_X, 1) @ line_B2[0]
    residuals = ((means.mean_X - fitted_X) ** 2).sum()
    r_squared = 1 - residuals / ((means.mean_X - means.mean_X.mean()) ** 2).sum()
    from_first_X = x_X - x_X[0]
    scales = np.ptp(x_X) * np.logspace(-1.5, 2, 200)
    scale = profile(from_first_X, means.y_BX[:1], saturating, scales).best_B[0]
    curved_X = _fitted(saturating(from_first_X, scale), means.mean_X)
    difference = _aicc_of_runs(means, curved_X, 4) - _aicc_of_runs(means, fitted_X, 3)
    details = (
        f"{_count(len(x_X), 'point')}, slope {_told(line_B2[:, 1], means.seeds)} "
        f"per head, R² {r_squared:.4f}, AICc of a saturating curve minus the line's "
        f"{_number(difference)}"
    )
    fit = Fit("line", group, x_X, fitted_X)
    return _statistic("slope ratio", ratio_B, STRAIGHT, means.seeds, details, (fit,))


def power_law(x: str, low: float, high: float, exclude_last: bool = False) -> Test:
    """The exponent p of a + b x^p lies between low and high; it is 0 where there is no growth."""

    def test(table: pd.DataFrame) -> Finding:
        means = bootstrap_means(table, x)
        if exclude_last:
            means = means.where(np.arange(len(means.at)) < len(means.at) - 1)
        if len(means.at) < 4:
            return _too_few(f"{len(means.at)} values of {x}, four are needed")
        if not _varies(means.mean_X):
            return Finding(UNDECIDED, "all means are equal, so that no exponent is defined")
        x_X = means.x(x)
        exponent_B, curve = _power_fit(x_X, means.y_BX)
        unit_X = x_X / x_X.max()
        criteria = {
            "linear": _aicc_of_runs(means, _fitted(power(unit_X, 1), means.mean_X), 3),
            "quadratic": _aicc_of_runs(means, _fitted(power(unit_X, 2), means.mean_X), 3),
            "power law": _aicc_of_runs(means, curve(x_X)[0], 4),
        }
        fit = Fit(
            f"power law, exponent {exponent_B[0]:.2f}", None, _dense(x_X), curve(_dense(x_X))[0]
        )
        details = _sentence(f"{len(x_X)} values of {x}", _above_best(criteria))
        return _conclude(
            [_statistic("exponent", exponent_B, (low, high), means.seeds, details, (fit,))]
        )

    return test


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


def jump_at_last(x: str, threshold: float = 0.03) -> Test:
    """At the largest x accuracy lies above what the other points predict, by the threshold.

    They predict by a power law, or by a parabola where they are only four.
    """

    def test(table: pd.DataFrame) -> Finding:
        means = bootstrap_means(table, x)
        if len(means.at) < 5:
            return _too_few(f"{len(means.at)} values of {x}, five are needed")
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

        # No model can do better than predicted where that is more than everything.
        predicted_B = np.minimum(curve(x_X[-1:])[:, 0], 1)
        fit = Fit(f"{name} without the last point", None, _dense(x_X), curve(_dense(x_X))[0])
        details = (
            f"at {x} = {x_X[-1]:g} measured {_number(means.mean_X[-1])}, "
            f"predicted {_number(predicted_B[0])} by the {name} through {len(others_X)} others"
        )
        jump_B = means.y_BX[:, -1] - predicted_B
        region = (threshold, np.inf)
        return _conclude(
            [_statistic("measured minus predicted", jump_B, region, means.seeds, details, (fit,))]
        )

    return test


def broken_line(x: str, at: float, tolerance: float = 1.0) -> Test:
    """Growth slows down to at most half its slope, at a point known up to the tolerance."""

    def test(table: pd.DataFrame) -> Finding:
        means = bootstrap_means(table, x)
        if len(means.at) < 5:
            return _too_few(f"{len(means.at)} values of {x}, five are needed")
        if not _varies(means.mean_X):
            return Finding(UNDECIDED, "all means are equal, so that no break is defined")
        x_X = means.x(x)
        # Strictly inside, and at every point too, where exact data breaks most often.
        grid = np.union1d(np.linspace(x_X[1], x_X[-2], 301), x_X[1:-1])
        break_B, coefficients_B3, _ = profile(x_X, means.y_BX, broken, grid)
        _, before_B, change_B = coefficients_B3.T
        after_B = before_B + change_B
        # Where nothing grows before the break, nothing slows down at it.
        ratio_B = _ratio(after_B, before_B, np.inf)
        within = (at - tolerance, at + tolerance)
        statistics = [
            _statistic("break", break_B, within, means.seeds),
            _statistic("slope after over before", ratio_B, HALVED, means.seeds),
        ]
        fitted_X = broken(x_X, break_B[0]) @ coefficients_B3[0]
        straight_X = _fitted(polynomial(x_X, 1), means.mean_X)
        difference = _aicc_of_runs(means, straight_X, 3) - _aicc_of_runs(means, fitted_X, 5)
        before, after = (_told(slope_B, means.seeds) for slope_B in (before_B, after_B))
        details = (
            f"slopes {before} before and {after} after; AICc of a straight line minus the broken "
            f"one's {_number(difference)}"
        )
        corners = np.sort([x_X[0], break_B[0], x_X[-1]])
        drawn = broken(corners, break_B[0]) @ coefficients_B3[0]
        fit = Fit(f"broken line, break at {break_B[0]:.3g}", None, corners, drawn)
        # Both must lie in their regions; the first of those with the severest verdict decides.
        deciding = min(statistics, key=lambda statistic: SEVERITY.index(statistic.verdict))
        finding = _conclude([deciding], _sentence(*map(str, statistics), details))
        return dataclasses.replace(finding, fits=(fit,))

    return test


# --- Tests: slopes --------------------------------------------------------------------------------


def slopes(table: pd.DataFrame, group: str = "d_model") -> pd.DataFrame:
    """Slope of accuracy on the heads over unsaturated points, per variant, steps and group."""
    rows = []
    for label, of_variant in _by_variant(table):
        for steps in sorted(set(of_variant["steps"])):
            at_steps = of_variant[of_variant["steps"] == steps]
            for value, (slope_B, means) in _slopes(at_steps, group).items():
                slope = _statistic("slope", slope_B, POSITIVE, means.seeds)
                found = (slope.estimate, slope.low, slope.high, len(means.at))
                rows.append((label, steps, value, *found))
    columns = ["variant", "steps", group, "slope", "low", "high", "n_points"]
    return pd.DataFrame(rows, columns=columns)


def _slopes(table: pd.DataFrame, group: str) -> dict[Any, tuple[np.ndarray, Means]]:
    """Per group the slopes_B on the heads, NaN for a single point, and the points."""
    found = {}
    for value, means in _grouped(table, group, "n_heads").items():
        means = means.where(unsaturated(means.mean_X))
        line_B2 = least_squares(polynomial(means.x("n_heads"), 1), means.y_BX)
        found[value] = (
            line_B2[:, 1] if len(means.at) > 1 else np.full(len(line_B2), np.nan),
            means,
        )
    return found


def exponent_of_slopes(low: float = 2, high: float = 3) -> Test:
    """The slopes in the heads grow with the width d as a d^p + b, p between low and high."""

    def test(table: pd.DataFrame) -> Finding:
        found = {
            d_model: (slope_B, means.seeds)
            for d_model, (slope_B, means) in _slopes(table, "d_model").items()
            if len(means.at) > 1
        }
        if len(found) < 5:
            return _too_few(f"{_count(len(found), 'width')} with a slope, five are needed")
        d_X = np.array(list(found), dtype=float)
        slope_BX = np.stack([slope_B for slope_B, _ in found.values()], axis=1)
        seeds = min(seeds for _, seeds in found.values())
        if not _varies(slope_BX[0]):
            return Finding(UNDECIDED, "all slopes are equal, so that no exponent is defined")
        exponent_B, _ = _power_fit(d_X, slope_BX)
        unit_X, dense_X = d_X / d_X.max(), _dense(d_X)
        scale = float(np.abs(slope_BX[0]).max())
        criteria, left_out, fits = {}, {}, []
        for name, exponent in {"quadratic": 2, "cubic": 3}.items():
            design_X2 = power(unit_X, exponent)
            residual_X = slope_BX[0] - _fitted(design_X2, slope_BX[0])
            criteria[name] = aicc((residual_X**2).sum(), len(d_X), 3, scale)
            leverage_X = np.diag(design_X2 @ np.linalg.pinv(design_X2))
            left_out[name] = np.sqrt(np.mean((residual_X / (1 - leverage_X)) ** 2))
            coefficients_2 = least_squares(design_X2, slope_BX[:1])[0]
            drawn_X = power(dense_X / d_X.max(), exponent) @ coefficients_2
            fits.append(Fit(name, None, dense_X, drawn_X))
        errors = ", ".join(f"{name} {_number(error)}" for name, error in left_out.items())
        details = _sentence(
            f"{len(d_X)} widths", _above_best(criteria), f"leave-one-out error: {errors}"
        )
        return _conclude(
            [_statistic("exponent", exponent_B, (low, high), seeds, details, tuple(fits))]
        )

    return test


def equal_slopes(group: str) -> Test:
    """The slope of accuracy on the heads is the same at the last value of a column as at its first.

    The same means within a quarter of each other.
    """

    def test(table: pd.DataFrame) -> Finding:
        found = {value: x for value, x in _slopes(table, group).items() if len(x[1].at) > 1}
        if len(found) < 2:
            return _too_few(
                f"{_count(len(found), 'value')} of {group} with a slope, two are needed"
            )
        (first_B, _), (last_B, _) = found[min(found)], found[max(found)]
        seeds = min(means.seeds for _, means in found.values())
        details = f"{group} = {max(found)} over {min(found)}; slopes " + ", ".join(
            f"{_told(slope_B, seeds)} at {value}" for value, (slope_B, _) in found.items()
        )
        ratio_B = _ratio(last_B, first_B, np.inf)
        return _conclude([_statistic("ratio of slopes", ratio_B, STRAIGHT, seeds, details)])

    return test


def slope_over_bound(low: float, high: float, group: str = "d_model") -> Test:
    """Associations memorized per head and head dimension: the slope on H d_h, 1 in Corollary 2."""

    def test(table: pd.DataFrame) -> Finding:
        statistics = {}
        for value, means in _grouped(table, group, "n_heads", "d_head").items():
            means = means.where(unsaturated(means.mean_X))
            x_X = means.x("n_heads") * means.x("d_head")
            if len(set(x_X)) < 2:
                continue
            slope_B = least_squares(polynomial(x_X, 1), _memorized(means))[:, 1]
            fitted_X = _fitted(polynomial(x_X, 1), means.mean_X)
            fit = Fit("line", value, means.x("n_heads"), fitted_X)
            details = _count(len(x_X), "point")
            statistics[value] = _statistic(
                "slope over d_h", slope_B, (low, high), means.seeds, details, (fit,)
            )
        return _conclude_groups(statistics, group, "no group has two unsaturated ones")

    return test


def _memorized(means: Means) -> np.ndarray:
    """Associations known beyond guessing, of every row."""
    chance_X = 1 / means.x("vocab_size")
    return means.x("n_examples") * (means.y_BX - chance_X) / (1 - chance_X)


def above_bound(value: Callable[[Any, Any, Any], Any], name: str) -> Test:
    """Every configuration memorizes at least value(n_heads, d_head, d_model) associations.

    Decides on the smallest ratio of memorized to promised; its interval allows for the smallest
    of many looking small by chance.
    """

    def test(table: pd.DataFrame) -> Finding:
        means = bootstrap_means(table, ["context_length", "d_model", "d_head", "n_heads"])
        sizes = (means.x(column) for column in ("n_heads", "d_head", "d_model"))
        promised_X = np.minimum(value(*sizes), means.x("n_examples"))
        means, promised_X = means.where(promised_X > 0), promised_X[promised_X > 0]
        if not len(means.at):
            return _too_few("no configuration is promised anything")
        ratio_BX = _memorized(means) / promised_X
        low, high = _smallest(ratio_BX, means.x("runs"))
        worst = int(ratio_BX[0].argmin())
        sizes_text = ", ".join(
            f"{letter} = {means.at[column].iloc[worst]}" for letter, column in _LETTERS.items()
        )
        details = (
            f"{name} promises {_number(promised_X[worst])} at {sizes_text}, the worst of "
            f"{_count(len(means.at), 'configuration')}"
        )
        ratio = _Statistic(
            name="memorized over promised",
            estimate=float(ratio_BX[0, worst]),
            low=low,
            high=high,
            region=(1, np.inf),
            seeds=means.seeds,
            details=details,
        )
        return _conclude([ratio])

    return test


_LETTERS = {"S": "context_length", "d": "d_model", "d_h": "d_head", "H": "n_heads"}


def _smallest(values_BX: np.ndarray, runs_X: np.ndarray) -> tuple[float, float]:
    """95% interval of the smallest of many means, by Student's intervals of each.

    Its lower end needs no correction, since one of them is the smallest; its upper end takes
    Bonferroni's, since any of them may look it.
    """
    if runs_X.min() < MIN_SEEDS:
        return float("nan"), float("nan")
    error_X = values_BX[1:].std(axis=0)
    below, above = (
        scipy.stats.t.ppf(1 - 0.025 / tries, runs_X - 1) * error_X for tries in (1, len(runs_X))
    )
    return float((values_BX[0] - below).min()), float((values_BX[0] + above).min())


# --- Tests: one family against another ------------------------------------------------------------


def better_at_equal_parameters(
    first: str = "mlp",
    second: str = "attention_only",
    n_params: str = "n_params",
    group: str | None = "d_model",
) -> Test:
    """The first family is more accurate than the second with as many parameters.

    Decides on the mean difference over the first family's sizes, at which the second family's
    curve is interpolated; with group=None over 25 budgets, at which the best width of each family
    is taken. Where both know all there is to know, nothing is compared.
    """

    def test(table: pd.DataFrame) -> Finding:
        keys = ["architecture", group or "d_model", n_params]
        table = table[table["architecture"].isin([first, second])]
        families = bootstrap_means(table, keys).by("architecture")
        if set(families) != {first, second}:
            return _too_few(f"{first} and {second} are needed")
        one, other = families[first], families[second]
        if group is None:
            pairs, accuracies = {None: (one, other)}, _of_envelopes
        else:
            ones, others = one.by(group), other.by(group)
            pairs = {value: (ones[value], others[value]) for value in ones if value in others}
            accuracies = _of_curves
        statistics: dict[Any, _Statistic] = {}
        for value, pair in pairs.items():
            first_BI, second_BI = _not_all_known(*accuracies(*pair, n_params))
            if first_BI.shape[1]:
                seeds = min(means.seeds for means in pair)
                statistics[value] = _difference(first_BI - second_BI, seeds, first)
        return _conclude_groups(statistics, group, "no size is comparable and not saturated")

    return test


def _difference(difference_BI: np.ndarray, seeds: int, first: str) -> _Statistic:
    sizes = [_statistic("", difference_B, POSITIVE, seeds) for difference_B in difference_BI.T]
    above, below = sum(size.low > 0 for size in sizes), sum(size.high < 0 for size in sizes)
    details = f"of {_count(len(sizes), 'size')} {first} is above at {above}, below at {below}"
    return _statistic("mean difference", difference_BI.mean(axis=1), POSITIVE, seeds, details)


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

    For a claim across steps; a configuration counts where it ran with both numbers of steps.
    """

    def test(table: pd.DataFrame) -> Finding:
        table = table[table["architecture"].isin([first, second])]
        sizes = ["architecture", "d_model", "d_head", "n_heads", "d_mlp"]
        means = bootstrap_means(table, [*sizes, "steps"])
        budgets = sorted(set(means.at["steps"]))
        if len(budgets) != 2 or budgets[1] != 2 * budgets[0]:
            told = ", ".join(map(str, budgets)) or "none"
            return Finding(UNDECIDED, f"needs a number of steps and its double, has {told}")
        both = means.at.groupby(sizes)["steps"].transform("nunique") == 2
        means = means.where(both)
        sign_X = np.where(means.at["steps"] == budgets[1], 1.0, -1.0)
        family = means.at["architecture"].to_numpy()
        counts = {name: int((family == name).sum()) // 2 for name in (first, second)}
        if not all(counts.values()):
            return _too_few(f"{first} and {second} with both numbers of steps are needed")
        gains = {
            name: means.y_BX[:, family == name] @ sign_X[family == name] / count
            for name, count in counts.items()
        }
        details = f"from {budgets[0]} to {budgets[1]} steps " + ", ".join(
            f"{name} gains {_told(gain_B, means.seeds)} ({_count(counts[name], 'configuration')})"
            for name, gain_B in gains.items()
        )
        gain_B = gains[first] - gains[second]
        return _conclude(
            [_statistic("difference of gains", gain_B, POSITIVE, means.seeds, details)]
        )

    return test


# --- Tests: every single run ----------------------------------------------------------------------


def every_run(
    name: str,
    value: Callable[[pd.DataFrame], pd.Series],
    region: Region,
    where: Callable[[pd.DataFrame], pd.Series] | None = None,
) -> Test:
    """Without exception: a value of every run that did not diverge lies in the region.

    Args:
      name: of the value.
      value: from the rows to a number each.
      region: where it must lie.
      where: from the rows to a mask of those that the claim speaks of; all without it.
    """

    def test(table: pd.DataFrame) -> Finding:
        table = table[table["status"] == "ok"]
        if where is not None:
            table = table[where(table)]
        values = value(table).astype(float).dropna()
        if values.empty:
            return _too_few("no run that the claim speaks of")
        inside = values.between(*region)
        outside = np.maximum(region[0] - values.to_numpy(), values.to_numpy() - region[1])
        worst = float(values.iloc[int(outside.argmax())])
        evidence = f"{name}: {int(inside.sum())} of {_count(len(values), 'run')} in "
        evidence += f"{_region(region)}, worst {_number(worst)}"
        return Finding(
            HOLDS if inside.all() else FAILS, evidence, worst, values.min(), values.max()
        )

    return test
