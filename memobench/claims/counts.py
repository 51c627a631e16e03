"""How much every configuration, or every run, memorizes."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import scipy.stats

from memobench.claims.claim import FAILS, HOLDS, Finding, Test
from memobench.claims.evidence import (
    MIN_SEEDS,
    Region,
    Statistic,
    conclude,
    plural,
    region_text,
    rounded,
    too_few,
)
from memobench.claims.statistics import bootstrap_means, memorized


def above_bound(value: Callable[[Any, Any, Any], Any], name: str) -> Test:
    """Every configuration memorizes at least value(n_heads, d_head, d_model) associations.

    Of all sequences at the final weights, whatever the protocol. Decides on the smallest ratio of
    memorized to promised; its interval allows for the smallest of many looking small by chance.
    """

    def test(table: pd.DataFrame) -> Finding:
        keys = ["context_length", "d_model", "d_head", "n_heads"]
        means = bootstrap_means(table, keys, value=lambda table: table["accuracy"])
        sizes = (means.x(column) for column in ("n_heads", "d_head", "d_model"))
        promised_X = np.minimum(value(*sizes), means.x("n_examples"))
        means, promised_X = means.where(promised_X > 0), promised_X[promised_X > 0]
        if not len(means.at):
            return too_few("no configuration is promised anything")
        ratio_BX = memorized(means) / promised_X
        low, high = _smallest(ratio_BX, means.x("runs"))
        worst = int(ratio_BX[0].argmin())
        sizes_text = ", ".join(
            f"{letter} = {means.at[column].iloc[worst]}" for letter, column in _LETTERS.items()
        )
        details = (
            f"{name} promises {rounded(promised_X[worst])} at {sizes_text}, the worst of "
            f"{plural(len(means.at), 'configuration')}"
        )
        ratio = Statistic(
            name="memorized over promised",
            estimate=float(ratio_BX[0, worst]),
            low=low,
            high=high,
            region=(1, np.inf),
            seeds=means.seeds,
            details=details,
        )
        return conclude([ratio])

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
            return too_few("no run that the claim speaks of")
        inside = values.between(*region)
        outside = np.maximum(region[0] - values.to_numpy(), values.to_numpy() - region[1])
        worst = float(values.iloc[int(outside.argmax())])
        evidence = f"{name}: {int(inside.sum())} of {plural(len(values), 'run')} in "
        evidence += f"{region_text(region)}, worst {rounded(worst)}"
        return Finding(
            HOLDS if inside.all() else FAILS, evidence, worst, values.min(), values.max()
        )

    return test
