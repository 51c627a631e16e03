"""Any table of results as means over seeds with 95% intervals, and a picture of these."""

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from memobench.analysis import seeds as analysis
from memobench.analysis import statistics
from memobench.common import notation
from memobench.common.errors import require, short_repr, suggest
from memobench.core.architecture import read_family
from memobench.methods.capacity import means_of_tables
from memobench.report.drawing import arms, possible_range, subplots
from memobench.report.names import display_name
from memobench.report.style import styles_of
from memobench.store.rows import all_columns, configuration, measures

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PER_PARAMETER = "_per_parameter"
# What messages name of a table, beside what tells its rows apart.
_USUAL = ("n_params", "architecture", "d_model", "n_heads", "protocol")
# Without these rows are no configurations.
_NEEDED = (*_USUAL, "status", "method", "task", "n_examples", "seed")


def summarize(
    table: pd.DataFrame, y: str = "bits", x: str | None = None, hue: str | None = None
) -> pd.DataFrame:
    """The means of a measure over seeds, with their 95% intervals, a row for each configuration.

    Capacities are means over label tables already, and have the intervals over these.

    Args:
      table: of `memobench.run`, `memobench.load_results` or `memobench.published`.
      y: a column of numbers, or "bits_per_parameter" and the like.
      x: a column that comes first, as `plot` takes it.
      hue: the next one.

    Returns:
      x, hue, what else tells the configurations apart, `family`, `seeds` (NaN for capacities), y,
      and both ends of its interval: y with `_low` and `_high`, NaN for a single seed.

    Raises UserError for a column that the table lacks, or that has no numbers.

    >>> import memobench
    >>> means = summarize(memobench.published("dana2025/heads", "paper"), "accuracy")
    >>> list(means)[-4:]
    ['seeds', 'accuracy', 'accuracy_low', 'accuracy_high']
    """
    first = {name: column for name, column in (("x", x), ("hue", hue)) if column is not None}
    _require_rows(table, y=y, **first)
    _require_specs(table, *first.values())
    found = _estimate(table, y)
    rows: list[Any] = found.to_dict("records")
    found["family"] = list(map(read_family, rows))
    shown = analysis.distinguishing_columns(found, _USUAL)
    names = [*first.values(), *shown, "family", "seeds", y, f"{y}_low", f"{y}_high"]
    return found.reset_index(drop=True).reindex(columns=list(dict.fromkeys(names)))


def plot(
    table: pd.DataFrame,
    y: str = "accuracy",
    x: str = "n_params",
    hue: str = "architecture",
    axis: "Axes | None" = None,
) -> "Axes":
    """Draws a measure against a size, as means over seeds with bars of 95%, a color for each hue.

    What has several values beside x and hue (learning rates, tasks) is drawn as points without a
    line, so select rows of the table first. Capacities have the intervals over label tables.

    Args:
      table: of `memobench.run`, `memobench.load_results` or `memobench.published`.
      y: a column of numbers, or "bits_per_parameter" and the like.
      x: a column; numbers of parameters are on a logarithmic axis.
      hue: a column, or "family": architectures alike in all but sizes.
      axis: to draw into; by default one of a new figure.

    Returns:
      The axes; their `figure.savefig("NAME.png")` writes them.

    Raises UserError for a column that the table lacks, or that has no numbers.

    >>> import memobench
    >>> axes = plot(memobench.published("dana2025/heads", "paper"), x="n_heads", hue="d_model")
    >>> axes.get_xlabel(), axes.get_ylabel()
    ('heads H', 'accuracy')
    """
    _require_rows(table, x=x, y=y, hue=hue)
    points = _points(table, x, y, hue)
    if axis is None:
        _, ((axis,),) = subplots(1, 1, (8.5, 4.5))
    for value, style in styles_of(points["hue"]).items():
        line = points[points["hue"] == value].sort_values("x")
        axis.errorbar(
            line["x"],
            line["y"],
            yerr=[line["down"], line["up"]],
            markersize=5,
            **style.for_line() if line["x"].is_unique else {**style.for_points(), "linestyle": ""},
            capsize=3,
            label=notation.label(hue, value),
        )
    if x.startswith("n_params"):
        axis.set_xscale("log", base=2)
        axis.xaxis.set_major_formatter("{x:,.0f}")
    axis.set_xlabel(notation.name(x))
    axis.set_ylabel(notation.name(y))
    if possible_range(y.removesuffix(_PER_PARAMETER), table)[1] is not np.inf:
        axis.set_ylim(bottom=0)
    axis.legend(fontsize="small", loc="center left", bbox_to_anchor=(1.01, 0.5))
    return axis


def _require_rows(table: Any, **columns: Any) -> None:
    """Raises UserError for what is not whole rows of results, or not names of columns."""
    require(
        isinstance(table, pd.DataFrame),
        f"table must be a table, such as memobench.load_results(FOLDER), got {short_repr(table)}.",
    )
    for argument, column in columns.items():
        require(
            isinstance(column, str),
            f"{argument} must be a name of a column, got {short_repr(column)}.",
        )
    lacking = [name for name in _NEEDED if name not in table]
    require(
        not lacking,
        f"the table lacks {', '.join(lacking)}; give whole rows of memobench.load_results(FOLDER)",
    )


def _require_specs(table: pd.DataFrame, *names: str) -> None:
    """Raises UserError for a column that does not tell configurations apart."""
    specs = [*configuration(), "family"]
    for name in names:
        fix = suggest(name, [*analysis.distinguishing_columns(table, _USUAL), "family"], 0.6)
        known = name in all_columns() or name not in table
        foreign = "" if known else ", or its kind's file was not loaded"
        require(name in specs, f"{name!r} does not tell configurations apart{foreign}{fix}")


def _points(table: pd.DataFrame, x: str, y: str, hue: str) -> pd.DataFrame:
    """A row for each configuration, with x, hue, y and both arms of its interval."""
    _require_specs(table, x, hue)
    found = _estimate(table, y)
    if "family" in (x, hue):
        of: list[Any] = found.to_dict("records")
        found["family"] = [display_name(row) for row in of]
    found = found.dropna(subset=[x, hue, y])
    require(len(found), _no_numbers(x, y))
    return pd.DataFrame(
        {
            "x": found[x],
            "hue": found[hue],
            "y": found[y],
            "down": (found[y] - found[f"{y}_low"]).fillna(0),
            "up": (found[f"{y}_high"] - found[y]).fillna(0),
        }
    )


def _no_numbers(*columns: str) -> str:
    named = " and ".join(repr(name.removesuffix(_PER_PARAMETER)) for name in columns)
    return f"no row has numbers in {named}. Choose other columns."


def _estimate(table: pd.DataFrame, y: str) -> pd.DataFrame:
    """A row for each configuration, with y and both ends of its interval."""
    _require_rows(table, y=y)
    # A column of the user's own is taken as it is.
    measure = y if y in table else y.removesuffix(_PER_PARAMETER)
    specs = [*configuration(), "family"]
    require(y not in specs, f"y must be a measure, got {y!r}, which tells configurations apart.")
    require(
        measure in table, f"{measure!r} is not a column here{suggest(measure, measures(), 0.6)}"
    )
    rows = table[table["status"] == "ok"]
    rows = rows.assign(**{measure: pd.to_numeric(rows[measure], errors="coerce")})
    require(rows[measure].notna().any(), _no_numbers(measure))
    found = _means_and_intervals(rows, measure)
    per = found["n_params"] if y != measure else 1
    least, most = possible_range(measure, found)
    down, up = arms(found[measure], found[f"{measure}_interval"], least, most)
    mean = found[measure] / per
    # Without an interval both ends are unknown.
    end = mean.where(found[f"{measure}_interval"].notna())
    return found.assign(**{y: mean, f"{y}_low": end - down / per, f"{y}_high": end + up / per})


def _means_and_intervals(rows: pd.DataFrame, measure: str) -> pd.DataFrame:
    """Means over seeds; rows that are means over label tables have the interval of those."""
    each = [means_of_tables(row, measure) for row in list[Any](rows.to_dict("records"))]
    several = np.array([value_T is not None for value_T in each], bool)
    of_tables = [
        statistics.estimate_mean(value_T[:, None]) for value_T in each if value_T is not None
    ]
    half = [(estimate.high - estimate.low) / 2 for estimate in of_tables]
    own = rows[several].assign(**{f"{measure}_interval": half})
    others = rows[~several]
    return pd.concat([analysis.mean_over_seeds(others, (measure,)) if len(others) else others, own])
