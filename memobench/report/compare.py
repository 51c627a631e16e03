"""A user's runs beside the published ones of the same configuration, with differences."""

import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pandas as pd

from memobench.analysis import seeds as analysis
from memobench.analysis import statistics
from memobench.methods.capacity import means_of_tables
from memobench.report import tables
from memobench.report.experiment import CONFIGURATION_COLUMNS
from memobench.store.rows import configuration

# With the places that are shown of them.
MEASURES = {"accuracy": 3, "accuracy_protocol": 3, "bits": 1, "loss": 4}


# The rows of each configuration, by its cells.
_Groups = dict[tuple[Any, ...], list[Any]]


def compare(
    mine: pd.DataFrame, published: Iterable[tuple[str, pd.DataFrame]]
) -> Iterator[tuple[str, pd.DataFrame]]:
    """The name of each published table, with a row for each measure of configurations of both.

    Runs of equal seeds are the same run and are compared pairwise. Columns, beside those of
    configurations:
      measure: its name.
      seeds, seeds_published: label tables, where a run is a mean over them.
      mine, published, difference: of means over seeds, each with `_low` and `_high`, the 95%
        interval.
    """
    own = _group_by_configuration(mine)
    for name, table in published:
        yield name, _compare_groups(own, _group_by_configuration(table))


def _group_by_configuration(table: pd.DataFrame) -> _Groups:
    columns, found = configuration(), _Groups()
    known: Any = table[table["status"] == "ok"].astype(object)
    for row in known.where(known.notna(), None).to_dict("records"):
        found.setdefault(tuple(row[name] for name in columns), []).append(row)
    return found


def _compare_groups(own: _Groups, others: _Groups) -> pd.DataFrame:
    columns = configuration()
    compared = [
        dict(zip(columns, key, strict=True)) | {"measure": measure} | difference
        for key in own
        if key in others
        for measure in MEASURES
        # Other protocols report the accuracy itself.
        if measure != "accuracy_protocol" or own[key][0]["protocol"] == "published"
        if (difference := _difference(own[key], others[key], measure))
    ]
    return pd.DataFrame(compared)


def _difference(own: list[Any], others: list[Any], measure: str) -> dict[str, Any]:
    """Means, their intervals and the difference of a measure; nothing where it was not measured."""
    found = [_values(rows, measure) for rows in (own, others)]
    if not all(found):
        return {}
    seeds = sorted(set().union(*found))
    run_Sx2 = np.array([[values.get(seed, np.nan) for values in found] for seed in seeds])
    # The same runs, equal on both sides, differ by nothing; of others a whole example may.
    is_share = measure.startswith("accuracy") and found[0].keys() != found[1].keys()
    mean_Bx2 = statistics.replicates(run_Sx2, is_share / own[0]["n_examples"])
    of_each = {
        "mine": (mean_Bx2[:, 0], len(found[0])),
        "published": (mean_Bx2[:, 1], len(found[1])),
        "difference": (mean_Bx2[:, 0] - mean_Bx2[:, 1], min(map(len, found))),
    }
    shown: dict[str, Any] = {"seeds": len(found[0]), "seeds_published": len(found[1])}
    for name, (value_B, n) in of_each.items():
        low, high = statistics.interval(value_B, n)
        shown |= {name: float(value_B[0]), f"{name}_low": low, f"{name}_high": high}
    return shown


def _values(rows: list[Any], measure: str) -> dict[Any, float]:
    """The measure of every seed, or of every label table of a capacity."""
    found: dict[Any, float] = {}
    for row in rows:
        if (value_T := means_of_tables(row, measure)) is not None:
            found |= {(row["seed"], row["task_seed"] + k): x for k, x in enumerate(value_T)}
        elif row[measure] is not None:
            found[row["seed"], row["task_seed"]] = float(row[measure])
    return found


def page(compared: Iterable[tuple[str, pd.DataFrame]]) -> str:
    """Experiments with the tables of `compare` as text for a terminal, and verdicts at the end."""
    parts = [
        "Means over seeds, or label tables of a capacity, and yours less the published, with\n"
        "Student's 95% interval where there are three or more. Equal seeds are compared pairwise.\n"
    ]
    verdicts, told = [], dict[str, pd.DataFrame]()
    for name, rows in compared:
        same = next((known for known, x in told.items() if x.equals(rows)), None)
        if same is None:
            told[name] = rows
            parts += [name, _reader_table(rows).to_string(index=False, na_rep="–"), ""]
        verdicts.append(f"{name}: {_verdict(rows) if same is None else f'as {same}'}.")
    return "\n".join([*parts, *verdicts])


def _verdict(rows: pd.DataFrame) -> str:
    low, high = rows["difference_low"], rows["difference_high"]
    n_decided, n_apart = int(low.notna().sum()), int(((low > 0) | (high < 0)).sum())
    if n_decided:
        return (
            f"{n_apart} of {n_decided} differences with an interval exclude 0; of equal means "
            f"about {n_decided / 20:.0f} would"
        )
    seeds = f"({rows['seeds'].max()} of yours, {rows['seeds_published'].max()} published)"
    bits = rows[rows["measure"] == "bits"]
    share = (bits["difference"] / bits["published"]).abs().max()
    most = f"; bits differ by {share:.1%} at most" * bool(share >= 0)
    return f"too few seeds for intervals {seeds}{most}"


def _reader_table(rows: pd.DataFrame) -> pd.DataFrame:
    """As few columns of configurations as tell them apart, each once, and the measures."""
    first = rows.drop_duplicates(configuration())
    kept = [name for name in CONFIGURATION_COLUMNS if name in rows]
    names = analysis.distinguishing_columns(
        first, [name for name in kept if name in configuration()]
    )
    for name in reversed(names):
        others = [x for x in names if x != name]
        if others and not first.duplicated(others).any():
            names = others
    rows = rows.sort_values(names, kind="stable")
    shown = rows[names].astype(object).mask(rows.duplicated(names), "")
    shown["measure"] = rows["measure"]
    records: list[Any] = rows.to_dict("records")
    for name, title in (("mine", "yours"), ("published", "published"), ("difference",) * 2):
        shown[title] = [_interval(row, name) for row in records]
    return shown


def _interval(row: Any, name: str) -> str:
    """A mean or the difference, with an interval where no other one says more."""
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    if name != "difference" and not math.isnan(row["difference_low"]):
        low = high = math.nan
    return tables.interval(row[name], low, high, MEASURES[row["measure"]])
