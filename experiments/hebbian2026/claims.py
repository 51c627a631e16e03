"""The least width of a memory that knows everything, from runs of many widths, seed by seed.

Among the widths tried a seed knows all from some width on; the least such width is taken as the
mean, in logarithms, of those between the last that fails and the next. Where widths do not agree
(a wider one fails) each change counts with its sign, which makes the mean over seeds Spearman and
Kärber's estimate of where half of the runs know all (Kärber 1931), whatever the shape of that
curve.

Shape letters: S seeds, X sizes of sets at widths of the stream, B the estimate and its replicates.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from memobench.analysis.statistics import least_squares, replicates
from memobench.claims.claim import Finding, Test
from memobench.claims.evidence import (
    Region,
    conclude,
    conclude_groups,
    report_too_few,
    statistic_of,
)
from memobench.core.run import Run

# Runs by the names of groups.
Groups = Mapping[str, Sequence[Run]]
# The stream's width, and the number of examples.
Size = tuple[int, int]


@dataclasses.dataclass(frozen=True)
class Least:
    """The least widths, in neurons, that know all.

    Attributes:
      log_S: of each seed, in logarithms; NaN where its narrowest memory knows all, or its widest
        does not.
      weights: of one neuron.
      tried: the widths.
      runs: of each width.
      successes: how many of them knew all.
    """

    log_S: pd.Series
    weights: int
    tried: tuple[int, ...]
    runs: tuple[int, ...]
    successes: tuple[int, ...]

    @property
    def known_share(self) -> float:
        """The share of all runs that knew all."""
        return sum(self.successes) / sum(self.runs)

    @property
    def is_complete(self) -> bool:
        """True if every seed's least width is among those tried."""
        return bool(self.log_S.notna().all())

    @property
    def step(self) -> float:
        """The distance of the widths tried around the mean, in logarithms."""
        k = int(np.searchsorted(self.tried, np.exp(self.log_S.mean())))
        k = min(max(k, 1), len(self.tried) - 1)
        return math.log(self.tried[k] / self.tried[k - 1])


def knows_all(rows: pd.DataFrame) -> pd.Series:
    """The mask of runs that know every example."""
    return rows["accuracy"] > 1 - 0.5 / rows["n_examples"]


def least_widths(rows: pd.DataFrame) -> dict[Size, Least]:
    """The least widths of one way to make weights, for each size."""
    rows = rows.assign(known=knows_all(rows))
    sizes: Any = rows.groupby(["d_model", "n_examples"])
    return {
        (int(d_model), int(n_examples)): Least(
            of_size.groupby("seed")[["d_mlp", "known"]].apply(_least_width),
            int(of_size["n_params_memory"].iloc[0] / of_size["d_mlp"].iloc[0]),
            tuple(sorted(set(of_size["d_mlp"].astype(int)))),
            tuple(of_size.groupby("d_mlp").size()),
            tuple(of_size.groupby("d_mlp")["known"].sum().astype(int)),
        )
        for (d_model, n_examples), of_size in sizes
    }


def _least_width(rows: pd.DataFrame) -> float:
    rows = rows.sort_values("d_mlp")
    known_W, width_W = rows["known"].to_numpy(float), rows["d_mlp"].to_numpy(float)
    if known_W[0] or not known_W[-1]:
        return math.nan
    between_W = (np.log(width_W[:-1] + 1) + np.log(width_W[1:])) / 2
    return float(np.diff(known_W) @ between_W)


def least_widths_by_group(table: pd.DataFrame, groups: Groups) -> dict[str, dict[Size, Least]]:
    """The least widths of each group that is in the table."""
    found = {}
    for name, runs in groups.items():
        rows = table[table["run_id"].isin([run.run_id for run in runs])]
        if len(rows):
            found[name] = least_widths(rows)
    return found


def log_weights(found: list[Least]) -> tuple[np.ndarray, int]:
    """The mean logarithm of weights with replicates, y_BX, and the fewest seeds.

    Seeds that agree vary as if one of them were off by one of the widths tried.
    """
    run_SxX = pd.concat([x.log_S for x in found], axis=1).to_numpy(float)
    step_X = np.array([x.step for x in found])
    y_BX = replicates(run_SxX, step_X) + np.log([x.weights for x in found])
    return y_BX, int(np.isfinite(run_SxX).sum(axis=0).min())


def ratio(groups: Groups, first: str, second: str, region: Region) -> Test:
    """The ratio of two groups' weights lies in the region, at every size that both have."""

    def test(table: pd.DataFrame) -> Finding:
        pair = least_widths_by_group(table, {name: groups[name] for name in (first, second)})
        of_first, of_second = (pair.get(name, {}) for name in (first, second))
        sizes = [x for x, of in of_first.items() if x in of_second]
        sizes = [x for x in sizes if of_first[x].is_complete and of_second[x].is_complete]
        statistics = {}
        for d_model, n in sizes:
            y_BX, seeds = log_weights([of[d_model, n] for of in (of_first, of_second)])
            name = f"{first} over {second}"
            ratio_B = np.exp(y_BX[:, 0] - y_BX[:, 1])
            # Seeds that agree tell widths apart no better: finer widths would.
            found = statistic_of(name, ratio_B, region, seeds)
            statistics[d_model, n] = dataclasses.replace(found, of="")
        decided = conclude_groups(statistics, "(d, F)", "no size at which both know all")
        if not statistics:
            return decided
        each = ", ".join(f"{x.estimate:.3g} (d = {d}, F = {n})" for (d, n), x in statistics.items())
        return dataclasses.replace(decided, evidence=f"{decided.evidence}; all: {each}")

    return test


def exponent(groups: Groups, name: str, region: Region) -> Test:
    """The slope of log W on log(F ln F) lies in the region, with a line for each stream's width."""

    def test(table: pd.DataFrame) -> Finding:
        found = least_widths_by_group(table, {name: groups[name]}).get(name, {})
        found = {size: of for size, of in found.items() if of.is_complete}
        d_X, n_X = np.array(list(found), float).reshape(-1, 2).T
        lines_Xk = (d_X[:, None] == np.unique(d_X)).astype(float)
        design_Xk = np.column_stack([np.log(n_X * np.log(n_X)), lines_Xk])
        if len(found) <= design_Xk.shape[1] or np.linalg.matrix_rank(design_Xk) < len(design_Xk.T):
            return report_too_few("three sizes at which all seeds know all")
        y_BX, seeds = log_weights(list(found.values()))
        slope_B = least_squares(design_Xk, y_BX)[:, 0]
        details = f"from {len(found)} sizes, F = {n_X.min():.0f} to {n_X.max():.0f}"
        return conclude([statistic_of("exponent of W in F ln F", slope_B, region, seeds, details)])

    return test
