"""Capacity as the maximum over set sizes, with an interval that covers the choice of the size.

A set that is too small holds few bits, and on one that is too large training settles for fewer than
the model can hold. The most lies between, at a size that differs from model to model, and so does
the best learning rate.

The board ranks by it, of runs of one grid: the task and the method of each budget, and at least so
many label tables.

Shape letters: J set sizes, R learning rates, T label tables.
"""

import math
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from memobench.analysis.statistics import half_widths
from memobench.board import capacity_summary, families
from memobench.common.errors import name_place, require
from memobench.core.architecture import Architecture, read_family
from memobench.core.cells import from_cells
from memobench.core.run import Run
from memobench.methods.peak import Peak
from memobench.methods.thresholds import Estimate, count_failed
from memobench.methods.training import Training
from memobench.store.rows import parse_list
from memobench.tasks.associations import Associations

# How every model of the board is trained.
TRAINING = Training(protocol="exact", batch_size=None)
# Sizes of sets over parameters, as far as there are so many pairs of tokens.
SHARES = (0.375, 0.5, 0.625, 0.75, 1.0, 1.25)
RATE_FACTORS = (1.0, 2.0, 5.0, 10.0)
# Label tables of each budget, of seeds 0, 1, .., which nobody chooses.
TABLES = dict.fromkeys(families.VOCAB_SIZES, 6)
TABLES |= {256: 24, 512: 16, 1024: 12, 2048: 10, 4096: 8, 8192: 4}

# With fewer sizes nothing lies between a set that is too small and one that is too large.
LEAST_SIZES = 3
# With fewer label tables half of them say nothing of their spread.
LEAST_TABLES = 4


def sizes(budget: int) -> list[int]:
    """The examples of each set of a budget, rising.

    >>> sizes(256)
    [96, 128, 160, 192, 256]
    """
    most = families.task(budget).vocab_size ** 2
    return [n for share in SHARES if (n := round(share * budget)) <= most]


def task(budget: int, seed: int = 0) -> Associations:
    """The largest set of a budget; the others are its first examples.

    Raises UserError for a budget that the board does not have.
    """
    return families.task(budget, seed).replace(n_sequences=sizes(budget)[-1])


def method(budget: int) -> Peak:
    """The grid of a budget.

    Raises UserError for a budget that the board does not have.
    """
    of_budget = sizes(budget)
    return Peak(
        training=TRAINING,
        shares=tuple(size / of_budget[-1] for size in of_budget),
        rate_factors=RATE_FACTORS,
        tables=TABLES[budget],
    )


class PeakEstimate(NamedTuple):
    """The most over set sizes and learning rates.

    Attributes:
      estimate: of it.
      size: the place of the size at which all tables have the most.
      rate: the place of the learning rate with which all tables have the most over sizes or, if
        it was chosen jointly, at that size.
      value_JxT: of each size and table, at the learning rate that the other half of tables chose.
      value_T: of each table at the size and learning rate that the other half of them chose.
    """

    estimate: Estimate
    size: int
    rate: int
    value_JxT: np.ndarray
    value_T: np.ndarray


def peak(value_JxRxT: np.ndarray, jointly: bool = False) -> PeakEstimate:
    """The most over set sizes and learning rates of means over label tables, with a 95% interval.

    Half of the tables choose the learning rate that is best over all sizes, and then the size, at
    which the other half is measured, and the reverse: the estimate is their mean, and its lower
    limit Student's. That a choice was not the best can only make it too low. The upper limit is the
    highest of all sizes and rates, of which one is that of the best, whichever it is.

    Args:
      value_JxRxT: of every set size, learning rate and label table; tables are the same for all.
      jointly: whether half of the tables choose the best pair of size and rate instead, which
        depends more on chance.

    Raises UserError for fewer than LEAST_SIZES sizes or LEAST_TABLES tables.

    >>> value_JxT = np.array([[1.0, 1.1, 0.9, 1.0], [2.0, 2.1, 1.9, 2.0], [1.5, 1.6, 1.4, 1.5]])
    >>> found = peak(value_JxT[:, None])
    >>> found.size, round(found.estimate.value, 2)
    (1, 2.0)
    """
    n_sizes, _, n_tables = value_JxRxT.shape
    require(
        n_sizes >= LEAST_SIZES,
        f"a peak must have {LEAST_SIZES} set sizes, got {n_sizes}. Measure others.",
    )
    require(
        n_tables >= LEAST_TABLES,
        f"a peak must have {LEAST_TABLES} label tables, got {n_tables}. Measure {LEAST_TABLES}.",
    )
    is_odd_T = np.arange(n_tables) % 2 == 1
    value_JxT = np.empty((n_sizes, n_tables))
    value_T = np.empty(n_tables)
    for half_T in (is_odd_T, ~is_odd_T):
        size, rate = _choose(value_JxRxT[:, :, ~half_T], jointly)
        value_JxT[:, half_T] = value_JxRxT[:, rate, half_T]
        value_T[half_T] = value_JxRxT[size, rate, half_T]
    value, low = value_T.mean(), value_T.mean() - half_widths(value_T)
    high = max(value, (value_JxRxT.mean(axis=-1) + half_widths(value_JxRxT)).max())
    estimate = Estimate(float(value), float(low), float(high))
    return PeakEstimate(estimate, *_choose(value_JxRxT, jointly), value_JxT, value_T)


def _choose(value_JxRxT: np.ndarray, jointly: bool) -> tuple[int, int]:
    """The learning rate that is best over all sizes and the size with it; or the best pair."""
    mean_JxR = value_JxRxT.mean(axis=-1)
    score_R = mean_JxR.max(axis=0) if jointly else mean_JxR.sum(axis=0)
    rate = int(score_R.argmax())
    return int(mean_JxR[:, rate].argmax()), rate


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


def peaks(table: pd.DataFrame, jointly: bool = False) -> pd.DataFrame:
    """A row for every run of a Peak, the most bits per parameter first.

    Args:
      table: of runs; those of other methods are left out.
      jointly: see `peak`.

    Returns:
      Columns: run_id; by, the submitter, if the table has it; budget, family, entry; model, the
      architecture; side and heads (`Architecture.side`), n_params, vocab_size, steps, tables,
      task_seed; bits, the peak per parameter, with bits_low and bits_high; n_examples,
      learning_rate and known, the size of set and the rate there and the share that is known of it;
      failed, the trainings there that know less than FAILING of their median; sizes, means and
      errors, lists of all sizes, their mean bits per parameter and half intervals; of_budget, the
      mean of a set as large as the budget, NaN where none was; rank_low and rank_high within a
      budget, as those of the board.

    Raises UserError for a row whose lists are not those of its run.
    """
    runs = table[(table["method"] == Peak.name) & (table["status"] == "ok")]
    made = [(run, capacity_summary.architecture(run)) for run in runs.to_dict("records")]
    found = [_row(run, shape, jointly) for run, shape in made if shape is not None]
    if not found:
        return pd.DataFrame(columns=["budget", "family", "entry", "model", "bits"])
    budgets = pd.DataFrame(found).groupby("budget", sort=True)
    ranked = [capacity_summary.rank_entries(of_budget) for _, of_budget in budgets]
    return pd.concat(ranked, ignore_index=True).drop(columns="bits_T")


def read_grid(row: Any) -> tuple[Run, np.ndarray, np.ndarray]:
    """The run of a row of a Peak, and what its trainings know.

    Args:
      row: of a table of runs.

    Returns:
      The run; bits_JxRxT and known_JxRxT, bits and associations known.

    Raises UserError for a row whose lists are not those of its run.
    """
    run = from_cells(row)
    method: Any = run.method
    lists = {name: parse_list(row[name]) for name in method.row_columns()}
    with name_place(f"run {row['run_id']}"):
        method.check_lists(run, lists)
    bits_JxRxT, known_JxRxT = (np.array(value, float) for value in lists.values())
    return run, bits_JxRxT, known_JxRxT


def _row(run: Any, architecture: Architecture, jointly: bool) -> dict[str, Any]:
    made, bits_JxRxT, known_JxRxT = read_grid(run)
    of_run: Any = made.method
    found = peak(bits_JxRxT / run["n_params"], jointly)
    size_J, means_J = of_run.sizes(made), found.value_JxT.mean(axis=-1).tolist()
    budget = capacity_summary.budget(int(run["n_params"]))
    side, heads = architecture.side
    return {
        "run_id": run["run_id"],
        "by": run.get("by"),
        "budget": budget,
        "family": read_family(run),
        "entry": " ".join(architecture.shown_sizes),
        "model": architecture,
        "side": side,
        "heads": heads,
        **{
            name: int(run[name])
            for name in ("n_params", "vocab_size", "steps", "tables", "task_seed")
        },
        **dict(zip(("bits", "bits_low", "bits_high"), found.estimate, strict=True)),
        "bits_T": found.value_T,
        "n_examples": size_J[found.size],
        "learning_rate": of_run.training.learning_rate * of_run.rate_factors[found.rate],
        "known": known_JxRxT[found.size, found.rate].mean() / size_J[found.size],
        "failed": count_failed(bits_JxRxT[found.size, found.rate]),
        "sizes": size_J,
        "means": means_J,
        "errors": half_widths(found.value_JxT).tolist(),
        "of_budget": dict(zip(size_J, means_J, strict=True)).get(budget, math.nan),
    }
