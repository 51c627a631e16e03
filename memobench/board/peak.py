"""Capacity as the maximum over set sizes, with an interval that covers the choice of the size.

A set that is too small holds few bits, and on one that is too large training settles for fewer than
the model can hold. The most lies between, at a size that differs from model to model.

Shape letters: J set sizes, T label tables.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import scipy.stats

from memobench.analysis.statistics import CONFIDENCE
from memobench.board import capacity_summary
from memobench.common.errors import require
from memobench.methods.thresholds import Estimate

# With fewer sizes nothing lies between a set that is too small and one that is too large.
LEAST_SIZES = 3
# With fewer label tables half of them say nothing of their spread.
LEAST_TABLES = 4


class Peak(NamedTuple):
    """The most over set sizes.

    Attributes:
      estimate: of it.
      place: of the size at which all tables have the most.
      value_T: of each table at the size that the other half of them chose, float64.
    """

    estimate: Estimate
    place: int
    value_T: np.ndarray


def peak(value_JxT: np.ndarray) -> Peak:
    """The most over set sizes of means over label tables, with a 95% interval.

    Half of the tables choose the size at which the other half is measured, and the reverse: the
    estimate is their mean, and its lower limit Student's. That a size was chosen which is not the
    best can only make it too low. The upper limit is the highest of all sizes, of which one is that
    of the best size, whichever it is.

    Args:
      value_JxT: of every set size and label table, (J, T); tables are the same for all sizes.

    Raises UserError for fewer than LEAST_SIZES sizes or LEAST_TABLES tables.

    >>> found = peak(np.array([[1.0, 1.1, 0.9, 1.0], [2.0, 2.1, 1.9, 2.0], [1.5, 1.6, 1.4, 1.5]]))
    >>> found.place, round(found.estimate.value, 2)
    (1, 2.0)
    """
    n_sizes, n_tables = value_JxT.shape
    require(
        n_sizes >= LEAST_SIZES,
        f"a peak must have {LEAST_SIZES} set sizes, got {n_sizes}. Measure others.",
    )
    require(
        n_tables >= LEAST_TABLES,
        f"a peak must have {LEAST_TABLES} label tables, got {n_tables}. Set tables={LEAST_TABLES}.",
    )
    is_odd_T = np.arange(n_tables) % 2 == 1
    places = [int(value_JxT[:, half_T].mean(axis=1).argmax()) for half_T in (is_odd_T, ~is_odd_T)]
    held_T = np.where(is_odd_T, value_JxT[places[1]], value_JxT[places[0]])
    value, low = held_T.mean(), held_T.mean() - _half_width(held_T)
    high = max(value, (value_JxT.mean(axis=1) + _half_width(value_JxT)).max())
    estimate = Estimate(float(value), float(low), float(high))
    return Peak(estimate, int(value_JxT.mean(axis=1).argmax()), held_T)


def ratio(estimate: Estimate, other: Estimate) -> Estimate:
    """One positive number over another, with the interval that follows from theirs.

    In logarithms, by the method of variance estimates recovery (Zou & Donner 2008), as if the two
    were independent; of equal label tables it is too wide rather than too narrow.

    >>> ratio(Estimate(2.0, 1.9, 2.1), Estimate(1.0, 1.0, 1.0))
    Estimate(value=2.0, low=1.9, high=2.1)
    """
    value, low, high = np.log(np.maximum(estimate, 1e-9))
    by, by_low, by_high = np.log(np.maximum(other, 1e-9))
    over = value - by
    ends = (
        over - math.hypot(value - low, by_high - by),
        over + math.hypot(high - value, by - by_low),
    )
    return Estimate(*(float(round(np.exp(x), 12)) for x in (over, *ends)))


def peaks(table: pd.DataFrame) -> pd.DataFrame:
    """A row for every architecture that was measured at several set sizes, the most bits first.

    Args:
      table: runs of Capacities; others are left out.

    Returns:
      Columns: budget, family, entry, side and heads (`Architecture.side`), n_params,
      vocab_size, steps, tables; `bits`, the peak, with `bits_low` and
      `bits_high`; `n_examples` and `known`, the size of set there and the share that is known of
      it; `sizes`, `means` and `errors`, lists of all sizes, their mean bits and half intervals;
      rank_low and rank_high, of the peaks per parameter within a budget, as those of the board.

    Raises UserError where the label tables of an architecture's sizes are not the same.
    """
    found = [_row(runs) for runs in _split_entries(table)]
    columns = ["budget", "family", "entry", "bits"]
    if not found:
        return pd.DataFrame(columns=columns)
    budgets = pd.DataFrame(found).groupby("budget", sort=True)
    ranked = [capacity_summary.rank_entries(of_budget) for _, of_budget in budgets]
    return pd.concat(ranked, ignore_index=True).drop(columns="bits_T")


def _split_entries(table: pd.DataFrame) -> Iterator[list[Any]]:
    """The runs of each architecture by size of set, where it has several."""
    entries: dict[Any, dict[int, Any]] = {}
    for run in capacity_summary.capacity_runs(table).to_dict("records"):
        architecture = capacity_summary.architecture(run)
        if architecture is not None:
            of = architecture, run["vocab_size"], run["protocol"], run["steps"]
            entries.setdefault(of, {})[int(run["n_examples"])] = run
    for (architecture, *_), by_size in entries.items():
        runs = [by_size[size] for size in sorted(by_size)]
        if len(runs) >= LEAST_SIZES:
            paired = {(run["tables"], run["task_seed"]) for run in runs}
            require(
                len(paired) == 1,
                f"the set sizes of {architecture.full_name} must have the same label tables, got "
                f"tables and task_seed of {sorted(paired)}. Measure them with the same.",
            )
            yield runs


def _row(runs: list[Any]) -> dict[str, Any]:
    bits_JxT = np.array(
        [capacity_summary.models(run, "rung_bits")[-1].mean(axis=1) for run in runs]
    )
    found = peak(bits_JxT)
    best = runs[found.place]
    architecture = capacity_summary.architecture(best)
    assert architecture is not None
    side, heads = architecture.side
    known = capacity_summary.models(best, "rung_known")[-1].mean() / best["n_examples"]
    names = ("n_params", "vocab_size", "steps", "tables", "n_examples")
    return {
        "budget": capacity_summary.budget(int(best["n_params"])),
        "family": capacity_summary.family(best),
        "entry": " ".join(architecture.shown_sizes),
        "side": side,
        "heads": heads,
        **{name: int(best[name]) for name in names},
        **dict(zip(("bits", "bits_low", "bits_high"), found.estimate, strict=True)),
        "bits_T": found.value_T / int(best["n_params"]),
        "known": float(known),
        "sizes": [int(run["n_examples"]) for run in runs],
        "means": bits_JxT.mean(axis=1).tolist(),
        "errors": _half_width(bits_JxT).tolist(),
    }


def _half_width(value_T: np.ndarray) -> Any:
    """Half of Student's 95% interval of the mean over tables, the last axis."""
    n_tables = value_T.shape[-1]
    quantile = scipy.stats.t.ppf(0.5 + CONFIDENCE / 2, n_tables - 1)
    return quantile * value_T.std(axis=-1, ddof=1) / math.sqrt(n_tables)
