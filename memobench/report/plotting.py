"""A picture of any table of results, means over seeds with 95% intervals, a line for each hue."""

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from memobench.analysis import estimates
from memobench.analysis import seeds as analysis
from memobench.common import notation
from memobench.common.errors import require, short_repr, suggest
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
    require(
        isinstance(table, pd.DataFrame),
        f"table must be a table, such as memobench.load_results(FOLDER), got {short_repr(table)}.",
    )
    for argument, column in (("y", y), ("x", x), ("hue", hue)):
        require(
            isinstance(column, str),
            f"{argument} must be a name of a column, got {short_repr(column)}.",
        )
    lacking = [name for name in _NEEDED if name not in table]
    require(
        not lacking,
        f"the table lacks {', '.join(lacking)}; give whole rows of memobench.load_results(FOLDER)",
    )
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


def _points(table: pd.DataFrame, x: str, y: str, hue: str) -> pd.DataFrame:
    """A row for each configuration, with x, hue, y and both arms of its interval."""
    measure = y.removesuffix(_PER_PARAMETER)
    specs = [*configuration(), "family"]
    for name in (x, hue):
        fix = suggest(name, [*analysis.distinguishing_columns(table, _USUAL), "family"], 0.6)
        known = name in all_columns() or name not in table
        foreign = "" if known else ", or its kind's file was not loaded"
        require(name in specs, f"{name!r} does not tell configurations apart{foreign}{fix}")
    require(y not in specs, f"y must be a measure, got {y!r}, which tells configurations apart.")
    require(
        measure in table, f"{measure!r} is not a column here{suggest(measure, measures(), 0.6)}"
    )
    rows = table[table["status"] == "ok"]
    rows = rows.assign(**{measure: pd.to_numeric(rows[measure], errors="coerce")})
    none = f"no row has numbers in {x!r} and {measure!r}. Choose other columns."
    require(rows[measure].notna().any(), none)
    found = _means_and_intervals(rows, measure)
    if "family" in (x, hue):
        of: list[Any] = found.to_dict("records")
        found["family"] = [display_name(row) for row in of]
    found = found.dropna(subset=[x, hue, measure])
    require(len(found), none)
    per = found["n_params"] if y != measure else 1
    least, most = possible_range(measure, found)
    down, up = arms(found[measure], found[f"{measure}_interval"], least, most) / np.asarray(per)
    return pd.DataFrame(
        {"x": found[x], "hue": found[hue], "y": found[measure] / per, "down": down, "up": up}
    )


def _means_and_intervals(rows: pd.DataFrame, measure: str) -> pd.DataFrame:
    """Means over seeds; rows that are means over label tables have the interval of those."""
    each = [means_of_tables(row, measure) for row in list[Any](rows.to_dict("records"))]
    several = np.array([value_T is not None for value_T in each], bool)
    of_tables = [
        estimates.estimate_mean(value_T[:, None]) for value_T in each if value_T is not None
    ]
    half = [(estimate.high - estimate.low) / 2 for estimate in of_tables]
    own = rows[several].assign(**{f"{measure}_interval": half})
    others = rows[~several]
    return pd.concat([analysis.mean_over_seeds(others, (measure,)) if len(others) else others, own])
