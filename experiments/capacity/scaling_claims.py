"""Claims on power laws of what was memorized in a size, their constants and exponents."""

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from memobench.analysis.statistics import (
    Means,
    bootstrap_means,
    divide_or,
    interval,
    least_squares,
    power,
    profile,
)
from memobench.claims.claim import Finding, Test
from memobench.claims.evidence import (
    Region,
    Statistic,
    conclude,
    conclude_groups,
    format_estimate,
    format_number,
    report_too_few,
    statistic_of,
)

Value = Callable[[pd.DataFrame], pd.Series]
# Exponents of steps by which a limit may be approached. Slower approaches cannot be told from
# growth without a limit by a few numbers of steps.
APPROACHES = np.geomspace(0.15, 3, 40)


def constant(
    name: str,
    value: Value,
    region: Region,
    size: str,
    others: Sequence[str] = (),
    possible: Region = (-np.inf, np.inf),
    step: Value | None = None,
) -> Test:
    """The mean over sizes of a value, itself a mean over seeds, lies in the region.

    Args:
      name: of the value.
      value: from the rows to a number each.
      region: where it must lie.
      size: the column that tells sizes apart.
      others: columns that differ with it; the first one is shown where sizes are equal.
      possible: the least and the largest value that are possible.
      step: from the rows to the least step of the value, by which equal runs may differ.
    """

    def test(table: pd.DataFrame) -> Finding:
        table = _drop_exhausted(table, [size, *others])
        means = bootstrap_means(table, [size, *others], value, step)
        if not len(means.at):
            return report_too_few("no run whose set was large enough")
        # The first of the others tells apart what the size does not.
        shown = [size] if means.at[size].is_unique else [size, *others[:1]]
        pairs = zip(means.mean_X, means.at[shown].to_dict("records"), strict=True)
        each = ", ".join(
            f"{format_number(mean)} ({', '.join(f'{name} = {x}' for name, x in at.items())})"
            for mean, at in pairs
        )
        mean_B = np.clip(means.y_BX.mean(axis=1), *possible)
        return conclude([statistic_of(name, mean_B, region, means.seeds, f"means {each}")])

    return test


def _drop_exhausted(table: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """The rows without sizes at which a search used up its set, whose size it then measured."""
    used_up = table.assign(used_up=table["lower_bound"].eq(True))
    return table[~used_up.groupby(keys, dropna=False)["used_up"].transform("any")]


def exponent(
    name: str,
    x: Value,
    y: Value,
    region: Region,
    keys: Sequence[str],
    step: Value | None = None,
) -> Test:
    """The slope of log y on log x, fitted to the means over seeds, lies in the region.

    Args:
      name: of the slope.
      x: from the rows to a number each.
      y: from the rows to a number each.
      region: where the slope must lie.
      keys: the columns by which configurations differ.
      step: from the rows to the least step of y, by which equal runs may differ.
    """

    def test(table: pd.DataFrame) -> Finding:
        table = _drop_exhausted(table, list(keys))
        table = table[y(table) > 0]
        means = bootstrap_means(
            table,
            keys,
            value=lambda rows: y(rows).map(math.log),
            step=step and (lambda rows: (1 + step(rows) / y(rows)).map(math.log)),
        )
        x_X = np.log(x(means.at).to_numpy(dtype=float)) if len(means.at) else np.zeros(0)
        if len(set(x_X)) < 3:
            return report_too_few("three sizes")
        design_Xk = np.stack([np.ones_like(x_X), x_X], axis=1)
        slope_B = least_squares(design_Xk, means.y_BX)[:, 1]
        residual = means.mean_X - design_Xk @ least_squares(design_Xk, means.y_BX[:1])[0]
        details = f"largest deviation from the line {np.exp(np.abs(residual).max()) - 1:.0%}"
        return conclude([statistic_of(name, slope_B, region, means.seeds, details)])

    return test


def limit(name: str, value: Value, region: Region) -> Test:
    """The limit of the mean over seeds with more steps, L of L - a steps^-p, lies in the region.

    In every size of model and set, each number of steps at the learning rate of the best mean; five
    numbers of steps at least. Where it grows as if without a limit, that is at least what was
    reached. Where the most steps do not give the most it has no limit: rates are too far apart.

    Args:
      name: of the value.
      value: from the rows to a number each.
      region: where it must lie.
    """

    def test(table: pd.DataFrame) -> Finding:
        sets = ["n_params", "n_examples"]
        means = bootstrap_means(table, [*sets, "steps", "epochs", *_RATES], value)
        best = means.select_best([*sets, "steps"])
        statistics = {}
        for (n_params, n_examples), of_set in best.at.groupby(sets):
            at = best.where(best.at.index.isin(of_set.index))
            if len(at.at) < 5:
                continue
            limit_B = fit_limit(at.at["steps"].tolist(), at.y_BX)
            reached = format_estimate(at.y_BX[:, -1], at.seeds)
            details = f"{reached} after {at.at['steps'].iloc[-1]:,} steps"
            found = statistic_of(name, limit_B, region, at.seeds, details)
            if at.mean_X[-1] < at.mean_X.max():
                details += f", fewer than the {format_number(at.mean_X.max())} of fewer steps"
                found = Statistic(name, math.nan, math.nan, math.nan, region, at.seeds, details)
            elif math.isinf(limit_B[0]):
                low, _ = interval(at.y_BX[:, -1], at.seeds)
                found = dataclasses.replace(found, low=low)
            statistics[f"{n_params:,}, of {n_examples:,} sequences"] = found
        return conclude_groups(statistics, "n_params", "five numbers of steps")

    return test


_SIZES = ["n_heads", "d_mlp", "d_model", "d_head", "n_params", "n_params_memory"]
_RATES = ["learning_rate", "final_learning_rate"]
# Where nearly all facts are known, more parameters cannot help.
_UNSATURATED = 0.95


def _facts(table: pd.DataFrame) -> Means:
    """Facts known for every size at its best learning rate, where these are not nearly all."""
    means = bootstrap_means(table, [*_SIZES, *_RATES], value=lambda rows: rows["memorized"])
    best = means.select_best(_SIZES)
    return best.where(best.mean_X < _UNSATURATED * best.x("n_examples"))


def exchange(region: Region) -> Test:
    """The ratio of the facts that a parameter of attention adds to those that one of the MLP adds.

    By least squares on both, for one layer: 4 H d_h d parameters of attention, 2 m d of the MLP.
    """

    def test(table: pd.DataFrame) -> Finding:
        means = _facts(table)
        mlp_X = 2 * means.x("d_mlp") * means.x("d_model")
        attention_X = 4 * means.x("n_heads") * means.x("d_head") * means.x("d_model")
        design_Xk = np.stack([np.ones_like(mlp_X), mlp_X, attention_X], axis=1)
        if np.linalg.matrix_rank(design_Xk) < 3 or len(mlp_X) < 4:
            return report_too_few(
                "four sizes of which heads and neurons differ, facts not all known"
            )
        _, by_mlp_B, by_attention_B = least_squares(design_Xk, means.y_BX).T
        details = (
            f"facts per parameter {format_number(by_mlp_B[0])} of the MLP, "
            f"{format_number(by_attention_B[0])} of attention, from {len(mlp_X)} sizes"
        )
        # Where neurons add nothing, an attention parameter is worth any number of theirs.
        ratio_B = divide_or(by_attention_B, by_mlp_B, np.inf)
        return conclude([statistic_of("attention over MLP", ratio_B, region, means.seeds, details)])

    return test


def fit_limit(steps_K: Sequence[int], y_BxK: np.ndarray) -> np.ndarray:
    """The limit L that each row approaches as L - a steps^-p, limit_B.

    Infinite where p is the least of APPROACHES: then it grows as if without a limit.
    """
    share_K = np.asarray(steps_K, float) / steps_K[-1]
    fitted = profile(share_K, y_BxK, lambda x, p: power(x, -p), APPROACHES)
    limit_B = np.where(fitted.best_B > APPROACHES[0], fitted.coefficients_Bk[:, 0], np.inf)
    # What does not grow has reached its limit.
    return np.where(fitted.coefficients_Bk[:, 1] < 0, limit_B, y_BxK[:, -1])
