"""Means over seeds and their Student's intervals, and what theory says of rows. Pure functions."""

import functools
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd
import scipy.special

from memobench import theory
from memobench.analysis import theorems
from memobench.analysis.grouping import group_rows, split_groups
from memobench.common.errors import UserError
from memobench.core.architecture import Architecture
from memobench.core.task import Task
from memobench.store.rows import configuration, task_columns

CONFIDENCE = 0.95
# Accuracies are shares: they change in steps of at least one example.
_SHARES = ("accuracy", "accuracy_protocol")


def count_known(table: pd.DataFrame) -> pd.Series:
    """The number of known examples among those that a construction aims at."""
    # Without a number, constructions aim at all.
    aimed = pd.to_numeric(table["n_aimed"]).fillna(table["n_examples"])
    return pd.to_numeric(table["aimed_accuracy"]) * aimed


def half_width(values: pd.Series) -> float:
    """Half of Student's 95% interval of the mean; NaN for fewer than two values or equal ones.

    >>> round(half_width(pd.Series([1.0, 2.0, 3.0])), 3)
    2.484
    """
    values = values.dropna()
    differ = values.nunique() > 1  # Rounding gives equal values a spread.
    return float(_half_width(values.std(ddof=1) if differ else 0.0, len(values)))


def _half_width(deviation: Any, count: Any, least_step: Any = 0.0) -> Any:
    """Half of Student's interval of means; equal runs vary as if one were off by the least step."""
    count = np.where(np.asarray(count) > 1, count, np.nan)
    deviation = np.maximum(deviation, least_step / np.sqrt(count))
    return student_factor(count) * np.where(deviation > 0, deviation, np.nan)


def student_factor(count: Any) -> Any:
    """Half of Student's 95% interval of a mean, over the standard deviation of so many values."""
    return scipy.special.stdtrit(count - 1, 0.5 + CONFIDENCE / 2) / np.sqrt(count)


def mean_over_seeds(
    table: pd.DataFrame, measures: tuple[str, ...] = ("accuracy", "accuracy_protocol")
) -> pd.DataFrame:
    """A row for each configuration, with the mean and interval of each measure over its seeds.

    Diverged runs have no measures and are not in the means; `seeds` counts the runs that are, and
    `diverged` those that are not.

    Raises:
      UserError: runs of one seed differ in nothing that is known here. A kind whose file was not
        loaded has columns of its own.
    """
    # No function is called group by group: with many configurations that would take hours.
    group_R = group_rows(table, configuration())
    _require_seeds(table, group_R)
    if "run_id" in table:
        # Folders may share runs. The first stays, so that groups keep their order.
        known = pd.DataFrame({"group": group_R, "run_id": table["run_id"].to_numpy()})
        is_again_R = known.duplicated().to_numpy() & table["run_id"].notna().to_numpy()
        table, group_R = table[~is_again_R], group_R[~is_again_R]
    counted = {
        name: (table["status"] == status).astype(int)
        for name, status in (("seeds", "ok"), ("diverged", "diverged"))
    }
    groups = table.assign(**counted).groupby(group_R)
    columns: dict[str, Any] = {name: groups[name].sum() for name in counted}
    for measure in measures:
        of_measure = groups[measure]
        columns[measure] = of_measure.mean()
        least_step = 1 / groups["n_examples"].max() if measure in _SHARES else 0.0
        deviation = of_measure.std(ddof=1).where(of_measure.nunique() > 1, 0.0)
        half = _half_width(deviation, of_measure.count(), least_step)
        columns[f"{measure}_interval"] = half
    if "device" in table:
        devices = pd.DataFrame({"group": group_R, "device": table["device"]})
        listed = devices.drop_duplicates().groupby("group")["device"]
        columns["device"] = [_join_distinct(found) for _, found in listed]
    keys = table[configuration()][~pd.Series(group_R).duplicated().to_numpy()]
    means = pd.concat([keys.reset_index(drop=True), pd.DataFrame(columns)], axis=1)
    return means.sort_values(ORDER, ignore_index=True)


def _require_seeds(table: pd.DataFrame, group_R: np.ndarray) -> None:
    if not {"run_id", "seed", "task_seed"} <= set(table):
        return
    alone_R = split_groups(split_groups(group_R, table["seed"]), table["task_seed"])
    runs = pd.DataFrame({"alone": alone_R, "run_id": table["run_id"].to_numpy()}).drop_duplicates()
    twice = runs[runs.duplicated("alone", keep=False)].sort_values("alone")["run_id"].tolist()
    if twice:
        raise UserError(
            f"runs {twice[0]} and {twice[1]} differ in nothing that is known here, not even in "
            "their seeds; load the file of their kinds first: import it, or --plugin=FILE"
        )


# The columns by which configurations are sorted.
ORDER = ["task", "vocab_size", "contexts", "n_classes", "n_examples", "architecture", "heads"]
ORDER += ["protocol", "steps", "d_model", "n_params"]


def distinguishing_columns(table: pd.DataFrame, always: Iterable[str]) -> list[str]:
    """The columns that tell the rows of a table apart, those in `always` first.

    Those in `always` that are not empty; then every other column of configurations in which rows
    differ that would look alike without it.
    """
    shown = [name for name in always if table[name].notna().any()]
    group_R = group_rows(table, shown)
    for name in configuration():
        if name not in shown and name in table:
            finer_R = split_groups(group_R, table[name])
            if finer_R.max(initial=0) > group_R.max(initial=0):
                shown.append(name)
                group_R = finer_R
    return shown


# The share of the sequences' mass that T_eps may leave out.
EPS = 0.1


def add_theory(table: pd.DataFrame) -> pd.DataFrame:
    """The table with what theory says about its rows, runs or means, in further columns.

    Returns:
      The table with these columns more:
        promised: the examples that some weights of these sizes are proven to memorize
          (`theorems.lower_bounds`), NaN where no theorem is about them; for a construction, what
          its own theorem promises.
        load: examples over promised.
        proven_ratio: memorized over promised, where the table has `memorized`.
        t_eps: T_eps of the task's prior for EPS.
        floor: the loss of the best sequence encoder of the same width on the same task, NaN where
          the table has no optimised one.
        certified_floor: the same among those for which `theory.is_certified` is true; no run may be
          below it.

    Raises:
      theory.Violation: a run is beyond what is possible.
    """
    promised = pd.Series(theorems.promised_examples(table), index=table.index)
    if "promises" in table:
        promised = pd.to_numeric(table["promises"]).fillna(promised)
    priors = zip(table["n_examples"], table["zipf_exponent"], strict=True)
    t_eps = [theory.t_eps(n, None if pd.isna(zipf) else zipf, EPS) for n, zipf in priors]
    known = add_floors(table).assign(
        promised=promised,
        load=table["n_examples"] / promised,
        t_eps=t_eps,
    )
    if "memorized" in table:
        known["proven_ratio"] = table["memorized"] / promised
    if "run_id" in table:
        theorems.check(known)
    return known


def add_floors(table: pd.DataFrame) -> pd.DataFrame:
    """The table with the columns `floor` and `certified_floor`; see `add_theory`."""
    kinds = [name for name, kind in Architecture.kinds().items() if kind.is_floor]
    searched = table["architecture"].isin(kinds) & (table["protocol"] == "optimal")
    optima = np.flatnonzero(searched & table["loss"].notna())
    if not len(optima):
        return table.assign(floor=np.nan, certified_floor=np.nan)
    keys = [name for name in (*task_columns(), "task_seed", "d_model") if name in table]
    cells = (table[name].astype(object).where(table[name].notna(), None) for name in keys)
    identity = list(zip(*cells, strict=True))
    floors: dict[str, dict[tuple, float]] = {"floor": {}, "certified_floor": {}}
    for i in optima:
        row = table.iloc[i]
        for name in floors if theory.is_certified(row) else ("floor",):
            least = floors[name].get(identity[i], np.inf)
            floors[name][identity[i]] = min(row["loss"], least)
    return table.assign(
        **{name: [found.get(x, np.nan) for x in identity] for name, found in floors.items()}
    )


def bounds(known: pd.DataFrame) -> pd.DataFrame:
    """A row for each theorem about the runs of a table from `add_theory`.

    `least` and `most` are the extremes of memorized over proven, or of measured over the limit for
    a theorem that sets one. A bound of one example does not count: guessing spreads more than that.
    """
    rows: list[tuple[str, Any, Any, Any]] = []
    for bound in theorems.lower_bounds():
        value = bound.value(known)
        applies = bound.applies(known) & known["memorized"].notna() & (value > 1)
        rows.append(("memorizes", bound, applies, known["memorized"] / value))
    for limit in theorems.upper_bounds():
        if limit is not theory.PROPOSITION_1:
            with theorems.name_columns(limit):
                measured = pd.to_numeric(limit.measure(known), errors="coerce")
                share = measured / limit.value(known)
                rows.append(("at most", limit, limit.applies(known), share))
    return pd.DataFrame(
        {
            "says": says,
            "theorem": theorem.name,
            "source": theorem.source,
            "assumptions": theorem.assumptions or "none",
            "runs": int(applies.sum()),
            "least": share[applies].min(),
            "most": share[applies].max(),
        }
        for says, theorem, applies, share in rows
        if applies.any()
    )


def chance(table: pd.DataFrame) -> pd.Series:
    """The accuracy of guessing, for every row; NaN for tasks that are not registered here."""
    names = [name for name in task_columns() if name in table]
    chances = map(chance_of_row, table[names].to_dict("records"))
    return pd.Series(list(chances), index=table.index, dtype=float)


def chance_of_row(row: Mapping[Any, Any]) -> float:
    """As `chance`, for a row alone."""
    names = tuple(name for name in task_columns() if name in row)
    return _chance(names, tuple(_to_python(row[name]) for name in names))


def _to_python(cell: Any) -> Any:
    return None if pd.isna(cell) else cell


@functools.lru_cache(maxsize=4096)
def _chance(names: tuple[str, ...], cells: tuple[Any, ...]) -> float:
    row = dict(zip(names, cells, strict=True)) | {"task_seed": 0}
    try:
        return Task.from_row(row).chance
    except UserError:
        return float("nan")


def cost(table: pd.DataFrame) -> pd.DataFrame:
    """Runs and seconds per protocol, heads and number of steps.

    A pack's seconds are divided evenly among its runs; packs side by side each count in full.
    """
    each = table.assign(
        compile_s=table["compile_seconds"] / table["pack_size"],
        run_s=table["run_seconds"] / table["pack_size"],
    )
    keys = ["protocol", "heads", "n_layers", "architecture", "steps"]
    return each.groupby(keys, as_index=False, dropna=False).agg(
        runs=("run_id", "size"),
        compile_s=("compile_s", "sum"),
        run_s=("run_s", "sum"),
        device=("device", _join_distinct),
    )


def _join_distinct(values: Any) -> Any:
    return "; ".join(sorted(set(values)))


def compare_published(summary: pd.DataFrame, published: pd.DataFrame) -> pd.DataFrame:
    """The published protocol's accuracies beside the published figures, matched on their sizes.

    Args:
      summary: from `mean_over_seeds`.
      published: sizes in our column names, `published` (accuracy) and `published_steps`.

    Returns:
      One row per matched configuration with `published`, `ours`, `interval` and `difference`,
      which is NaN where ours took another number of steps and cannot be compared.
    """
    ours = summary[summary["protocol"] == "published"]
    sizes = [column for column in published.columns if not column.startswith("published")]
    matched = published.merge(ours, on=sizes, how="inner")
    difference = matched["accuracy_protocol"] - matched["published"]
    return pd.DataFrame(
        {
            **{column: matched[column] for column in sizes},
            "n_params": matched["n_params"],
            "published": matched["published"],
            "ours": matched["accuracy_protocol"],
            "interval": matched["accuracy_protocol_interval"],
            "difference": difference.where(matched["steps"] == matched["published_steps"]),
            "published_steps": matched["published_steps"],
            "steps": matched["steps"],
            "seeds": matched["seeds"],
            "diverged": matched["diverged"],
        }
    )


def predicted_accuracy(memorized: pd.Series, summary: pd.DataFrame) -> pd.Series:
    """The accuracy of models that know `memorized` associations and guess the rest, at most 1."""
    by_guessing = chance(summary)
    return by_guessing + (1 - by_guessing) * (memorized / summary["n_examples"]).clip(0, 1)
