"""One group of entries against another, table by table of labels, each by its best entry.

Shape letters: T label tables, X entries, B the estimate (row 0) and its replicates.
"""

import collections
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from memobench.analysis.statistics import bonferroni_factor, divide_or, intervals, replicates
from memobench.claims.claim import Finding, Test
from memobench.claims.evidence import (
    Region,
    Statistic,
    conclude,
    format_number,
    join_parts,
    report_too_few,
)
from memobench.core.run import Run
from memobench.store.rows import configuration, parse_list

# Entries by the names of groups.
Groups = Mapping[str, Sequence["Run"]]
# Bits are recorded with three digits, of 256 parameters or more.
RECORDED = 1e-3 / 256


@dataclasses.dataclass(frozen=True)
class Measure:
    """A measure of rows that is compared.

    Attributes:
      name: of the measure.
      values: from a row to its values, one for each of its label tables.
      most: the largest possible value.
      step: the least step of a value, by which equal values may differ; 0 where it is unknown.
    """

    name: str
    values: Callable[[Any], Any]
    most: float = math.inf
    step: float = 0.0


def bits_per_parameter(steps: int | None = None, count: str = "n_params") -> Measure:
    """Bits of the models of a `Capacity` over parameters, as the column `count` has them.

    Of the rung of so many steps, the last by default.
    """
    at = f" after {steps:,} steps" if steps else ""
    per = "active parameter" if count == "n_params_active" else "parameter"

    def values(row: Any) -> Any:
        bits_KxM, steps_K = (parse_list(row[name]) for name in ("rung_bits", "rung_steps"))
        bits_M = np.array(bits_KxM[steps_K.index(steps) if steps else -1], float)
        return bits_M.reshape(int(row["tables"]), -1).mean(axis=1) / row[count]

    return Measure(f"bits per {per}{at}", values, step=RECORDED)


def values_by_table(rows: pd.DataFrame, measure: Measure) -> np.ndarray:
    """The value_TxX of entries, rows that differ by more than seeds.

    Runs of one entry and table count with their mean. A training that diverged knows nothing; an
    entry whose runs all diverged is dropped.
    """
    trained = set[tuple[str, ...]]()
    found: Any = collections.defaultdict(lambda: collections.defaultdict(list))
    names = [name for name in configuration() if name in rows]
    for row in rows.to_dict("records"):
        # What a row leaves out is None where it was just measured, NaN where it was read.
        entry = tuple("" if pd.isna(row[name]) else str(row[name]) for name in names)
        value_T = np.zeros(1 if pd.isna(row.get("tables")) else int(row["tables"]))
        if row["status"] == "ok":
            trained.add(entry)
            value_T = measure.values(row)
        for k, value in enumerate(value_T):
            found[entry][int(row["task_seed"]) + k].append(value)
    kept = [
        {table: np.mean(values) for table, values in found[entry].items()}
        for entry in found
        if entry in trained
    ]
    value_TxX = pd.DataFrame(dict(enumerate(kept))).sort_index()
    # Only what all have learnt is compared: an entry of fewer tables must not vanish.
    return value_TxX.dropna(axis=0).to_numpy(float)


def ratio_of_best(
    first_BxX: np.ndarray, second_BxY: np.ndarray, n_tables: int, most: float = math.inf
) -> tuple[float, float, float]:
    """The ratio of the best means of two groups, and its 95% interval.

    Which entry is truly the best is not known, and of equals the one that looks best has been
    lucky. The best of X over the best of Y is at most the best of X over any of Y, and at least any
    of X over the best of Y. So the upper end takes for each x the least of its ratios' ends, and of
    all x the greatest: as any of Y may look best, it needs Bonferroni's correction for them. The
    lower end is its mirror image.

    Args:
      first_BxX: means of the entries of a group, with replicates (`statistics.replicates`).
      second_BxY: of the other.
      n_tables: of which they are means.
      most: what a mean can be.
    """
    otherwise = np.inf if second_BxY[0].max() > 0 else np.nan

    def ends(n: int) -> tuple[np.ndarray, np.ndarray]:
        """Ends of the intervals of ratios of two entries each, as wide as one of n intervals is."""
        groups = first_BxX, second_BxY
        widened = (
            mean_B[0] + bonferroni_factor(n, n_tables) * (mean_B - mean_B[0]) for mean_B in groups
        )
        over_BxX, under_BxY = (np.clip(mean_B, 0, most) for mean_B in widened)
        over, under = np.broadcast_arrays(over_BxX[:, :, None], under_BxY[:, None])
        return intervals(divide_or(over, under, otherwise), n_tables)

    low_XxY, high_XxY = ends(first_BxX.shape[1])[0], ends(second_BxY.shape[1])[1]
    best = divide_or(first_BxX[:1].max(axis=1), second_BxY[:1].max(axis=1), otherwise)
    return float(best[0]), float(low_XxY.max(axis=0).min()), float(high_XxY.min(axis=1).max())


def values_by_group(table: pd.DataFrame, groups: Groups, measure: Measure) -> dict[str, np.ndarray]:
    """The value_TxX of each group of which entries are in the table."""
    found = {}
    for name, runs in groups.items():
        rows = table[table["run_id"].isin([run.run_id for run in runs])]
        value_TxX = values_by_table(rows, measure) if len(rows) else np.zeros((0, 0))
        if value_TxX.size:
            found[name] = value_TxX
    return found


def compare_best(groups: Groups, first: str, second: str, region: Region, measure: Measure) -> Test:
    """The ratio of the means of two groups' best entries lies in the region.

    Both have learnt the same label tables, and means are over these.
    """

    def test(table: pd.DataFrame) -> Finding:
        found = values_by_group(table, {name: groups[name] for name in (first, second)}, measure)
        if len(found) < 2 or len(found[first]) != len(found[second]):
            return report_too_few(
                f"entries of {first} and {second} that are here and did not diverge"
            )
        n_tables, n_first = found[first].shape
        mean_BxX = replicates(np.concatenate([found[first], found[second]], axis=1), measure.step)
        first_BxX, second_BxY = mean_BxX[:, :n_first], mean_BxX[:, n_first:]
        if not (measure.step or (_has_spread(found[first]) and _has_spread(found[second]))):
            n_tables = 1  # As `Means.seeds` has it: equal values without a step show no spread.
        ratio, low, high = ratio_of_best(first_BxX, second_BxY, n_tables, measure.most)
        best = [mean_BxX[0].max() for mean_BxX in (first_BxX, second_BxY)]
        details, of = f"{' over '.join(map(format_number, best))} {measure.name}", "label table"
        if min(best) >= measure.most - measure.step:
            details = join_parts(details, "both are as much as can be: a harder task would tell")
            of = ""
        name = f"{first} over {second}"
        return conclude([Statistic(name, ratio, low, high, region, n_tables, details, of=of)])

    return test


def _has_spread(value_TxX: np.ndarray) -> bool:
    """True if tables of the best entry differ."""
    return bool(np.ptp(value_TxX[:, value_TxX.mean(axis=0).argmax()]) > 0)
