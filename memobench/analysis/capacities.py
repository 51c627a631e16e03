"""Capacities found by searches: means over seeds, and gains by more steps."""

import math
from typing import Any

import numpy as np
import pandas as pd

from memobench.analysis import theorems
from memobench.analysis.freedom import add_freedom
from memobench.analysis.grouping import add_keys
from memobench.analysis.seeds import half_width
from memobench.methods.bisection import GAIN
from memobench.store.rows import configuration

CAPACITIES = ("complete_99", "complete_100", "memorized", "bits", "accuracy")
CONVERGED, NOT_CONVERGED, LOWER_BOUND = "converged", "not converged", "lower bound"


def summarize(table: pd.DataFrame) -> pd.DataFrame:
    """Capacities of searched runs, means over seeds, with halves of their 95% intervals.

    Returns:
      One row per configuration. Columns, beside CAPACITIES:
        gain_99, gain_known, gain_bits: the share by which the last doubling of the steps raised the
          sums over seeds of `complete_99`, of what is known of all examples and of its bits.
        verdict: `converged` if all gains are less than GAIN, `lower bound` if some run used up its
          set, else `not converged`.
        rate_at_edge: the share of seeds whose best learning rate is the least or the largest that
          was tried, NaN where only one was tried.
        seconds: of one run.
    """
    table = add_freedom(table)
    keys, ok = [*configuration(), "degrees_of_freedom"], table["status"] == "ok"
    measured = ("complete_99", "complete_100", "bits", "final_steps", "degrees_of_freedom")
    numbers = {name: pd.to_numeric(table[name]) for name in measured}
    numbers["known"] = pd.to_numeric(table["best_accuracy"]) * table["n_examples"]
    for name, now in _GAINS.items():
        before = pd.to_numeric(table[f"previous_{name}"]).where(ok)
        numbers[f"previous_{name}"] = before
        # Seeds whose steps were never doubled say nothing about the gain.
        numbers[f"last_{name}"] = numbers[now].where(before.notna())
    for name in ("complete_99", "complete_100"):
        numbers[name] = numbers[name].where(ok)
    numbers["rate_at_edge"] = _is_at_edge(table)
    numbers["seconds"] = table["run_seconds"] / table["pack_size"]
    numbers["proven"] = pd.Series(theorems.promised_examples(table), index=table.index)
    groups = table.assign(**numbers).groupby(keys, dropna=False, sort=False)
    columns: dict[str, Any] = {
        "seeds": groups["status"].agg(lambda status: int((status == "ok").sum())),
        "diverged": groups["status"].agg(lambda status: int((status == "diverged").sum())),
        **{f"gain_{name}": _gain(groups, name) for name in _GAINS},
        "rate_at_edge": groups["rate_at_edge"].mean(),
        "bounds": groups["lower_bound"].agg(lambda x: x.eq(True).any()),
        "final_steps": groups["final_steps"].max().astype(int),
        "seconds": groups["seconds"].mean(),
        "proven": groups["proven"].max(),
    }
    for measure in CAPACITIES:
        columns[measure] = groups[measure].mean()
        columns[f"{measure}_interval"] = groups[measure].agg(half_width)
    found = add_keys(pd.DataFrame(columns))
    gains = found[[f"gain_{name}" for name in _GAINS]]
    # Tasks without bits have no gain in bits.
    gained = gains.fillna({"gain_bits": 0.0}).lt(GAIN).all(axis=1) & (found["diverged"] == 0)
    found["verdict"] = np.select(
        [found.pop("bounds"), gained], [LOWER_BOUND, CONVERGED], NOT_CONVERGED
    )
    found["complete_99_over_proven"] = found["complete_99"] / found["proven"]
    return found


# What a doubling of steps may raise, and the column with its value afterwards.
_GAINS = {"99": "complete_99", "known": "known", "bits": "bits"}


def _gain(groups: Any, name: str) -> pd.Series:
    now, before = (groups[f"{x}_{name}"].sum(min_count=1) for x in ("last", "previous"))
    return (now / before - 1).where((now > 0) | (before > 0), before.abs())


def _is_at_edge(table: pd.DataFrame) -> pd.Series:
    """1 where a search's best rate is the least or largest of several, 0 where it is between."""

    def is_edge(factors: Any, best: Any) -> float:
        tried = [float(x) for x in factors.split()] if isinstance(factors, str) else []
        if len(tried) < 2 or pd.isna(best):
            return np.nan
        # Tables list it with six digits.
        return float(any(math.isclose(best, end, rel_tol=1e-5) for end in (min(tried), max(tried))))

    pairs = zip(table["rate_factors"], table["rate_factor"], strict=True)
    return pd.Series([is_edge(*pair) for pair in pairs], index=table.index, dtype=float)
