"""Claims on what every configuration, or every run, memorizes."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from memobench.analysis.statistics import (
    bootstrap_means,
    count_memorized,
    one_example,
    share_interval,
)
from memobench.claims.claim import FAILS, HOLDS, Finding, Test
from memobench.claims.evidence import (
    Region,
    conclude,
    format_number,
    region_text,
    report_too_few,
    smallest_mean,
)
from memobench.common import notation
from memobench.common.notation import pluralize


def above_bound(value: Callable[[Any], Any], name: str) -> Test:
    """Every configuration memorizes at least value(sizes) examples, or all there are.

    On all sequences and with the final weights, under every protocol. Decides on the smallest ratio
    of memorized to promised; its interval allows for the smallest of many being small by chance.
    """

    def test(table: pd.DataFrame) -> Finding:
        keys = ["n_examples", "context_length", "d_model", "d_head", "n_heads"]
        means = bootstrap_means(table, keys, lambda table: table["accuracy"], one_example)
        promised_X = np.minimum(value(means.at).to_numpy(dtype=float), means.x("n_examples"))
        means, promised_X = means.where(promised_X > 0), promised_X[promised_X > 0]
        if not len(means.at):
            return report_too_few("no configuration is promised anything")
        ratio_BX = count_memorized(means) / promised_X
        worst = int(ratio_BX[0].argmin())
        sizes = notation.sizes(means.at[keys].astype(object).iloc[worst], keys)
        details = (
            f"{name} promises {format_number(promised_X[worst])} at {sizes}, the worst of "
            f"{pluralize(len(means.at), 'configuration')}"
        )
        # No set has more to memorize than its examples.
        possible = (-np.inf, float((means.x("n_examples") / promised_X).min()))
        ratio = smallest_mean(
            "memorized over promised", ratio_BX, (1, np.inf), means.seeds, details, possible
        )
        return conclude([ratio])

    return test


def every_run(
    name: str,
    value: Callable[[pd.DataFrame], pd.Series],
    region: Region,
    where: Callable[[pd.DataFrame], pd.Series] | None = None,
) -> Test:
    """A value lies in the region for every run that did not diverge, without exception.

    A construction that could not be made is such an exception.

    Args:
      name: of the value.
      value: from the rows to a number each.
      region: where it must lie.
      where: from the rows to a mask of those that the claim is about; by default all.
    """

    def test(table: pd.DataFrame) -> Finding:
        if where is not None:
            table = table[where(table)]
        ok = table["status"] == "ok"
        n_unmade = int((~ok & table["theorem"].notna()).sum()) if "theorem" in table else 0
        table = table[ok]
        values = value(table).astype(float).dropna()
        if n_unmade:
            made = f"{n_unmade} of {pluralize(n_unmade + len(values), 'run')} could not be made"
            return Finding(FAILS, f"{name}: {made}")
        if values.empty:
            return report_too_few("no run that the claim speaks of")
        inside = values.between(*region)
        outside = np.maximum(region[0] - values.to_numpy(), values.to_numpy() - region[1])
        worst = float(values.iloc[int(outside.argmax())])
        low, high = share_interval(int(inside.sum()), len(values))
        evidence = (
            f"{name}: {int(inside.sum())} of {pluralize(len(values), 'run')} in "
            f"{region_text(region)} ({low:.0%} to {high:.0%} of all such runs), "
            f"worst {format_number(worst)}"
        )
        seeds = int(table.loc[values.index, "seed"].nunique())
        return Finding(HOLDS if inside.all() else FAILS, evidence, worst, seeds=seeds)

    return test
