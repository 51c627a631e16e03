"""The base of all kinds of figures, and what they share.

A kind of figure is one class in one file: a frozen dataclass whose fields say what is shown, with
the code that draws it. Experiments hold figures and load quickly: matplotlib is imported where
something is drawn.
"""

import pathlib
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import pandas as pd
from scipy.optimize import isotonic_regression

from memobench.common import notation
from memobench.report.style import styles_of
from memobench.store.rows import all_columns

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D


# As wide as a page shows them, where letters of a figure have the size of those around it.
PAGE_INCHES, _DPI = 10.0, 120
# The height of a name at the end of a line, as a share of its panel.
_NAME_HEIGHT = 0.055
# The width of a legend's character in inches; a column has 0.65 inches beside its longest label.
_CHARACTER = 0.1
# Rows of a legend for which figures have room, and the height of one in inches.
_LEGEND_ROWS, _LEGEND_ROW = 8, 0.19
# What a mean and its interval can be, whatever Student's says of it; `examples` are the table's.
_MOST = {
    **dict.fromkeys(("accuracy", "accuracy_protocol", "best_accuracy"), "1"),
    **dict.fromkeys(
        ("memorized", "known", "items_known", "complete_99", "complete_100"), "examples"
    ),
}


def subplots(
    n_rows: int,
    n_columns: int,
    size: tuple[float, float],
    style: str = "whitegrid",
    **settings: Any,
) -> tuple["Figure", np.ndarray]:
    """A figure of so many inches, and an array of its axes, always of rows and columns.

    Letters grow with the width, as pages show wider figures at the same width.
    """
    import seaborn as sns
    from matplotlib.figure import Figure

    sns.set_theme(context="notebook", style=style, font_scale=max(1.0, size[0] / PAGE_INCHES))
    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.subplots(n_rows, n_columns, squeeze=False, **settings)


def save(figure: "Figure", to: pathlib.Path | BinaryIO) -> None:
    """Writes a figure as a PNG, to a path or into an open file."""
    figure.savefig(to, dpi=_DPI)


def possible_range(column: str, table: pd.DataFrame) -> tuple[float, Any]:
    """The least and the largest possible mean of a column, a number or one for each row."""
    most = _MOST.get(column)
    highest = table["n_examples"] if most == "examples" else 1.0 if most else np.inf
    declared = all_columns().get(column.removesuffix("_per_parameter"))
    # Of columns that nobody declares those of shares and examples begin at 0.
    least = declared.domain.least if declared else 0.0 if most else -np.inf
    return least, highest


def arms(mean: Any, half: Any, least: Any = -np.inf, most: Any = np.inf) -> np.ndarray:
    """Both arms of error bars that end at what is possible; none without an interval."""
    mean, half = np.asarray(mean, float), np.nan_to_num(np.asarray(half, float))
    low, high = mean - np.asarray(least, float), np.asarray(most, float) - mean
    return np.stack([np.clip(half, 0, np.maximum(x, 0)) for x in (low, high)])


def draw_labelled_lines(
    axis: "Axes", lines: dict[str, list[Any]], most: float | None = None
) -> None:
    """Draws lines over a logarithmic axis, each with its name at its right, not in a legend.

    Args:
      axis: to draw on.
      lines: of each name, which has a declared style, the points: x, y, and the low and high end
        of y's interval.
      most: y at the top.
    """
    known = {
        name: sorted(point for point in points if not np.isnan(point[1]))
        for name, points in lines.items()
    }
    ticks = sorted({2 ** round(np.log2(x)) for points in known.values() for x, *_ in points})
    ends = []
    for name, style in styles_of(name for name in lines if known[name]).items():
        x, y, low, high = np.array(known[name]).T
        error = np.nan_to_num([y - low, high - y])
        axis.errorbar(x, y, yerr=error, capsize=2, **style.for_line())
        last = 2 ** round(np.log2(x[-1]))
        said = name if last == ticks[-1] else f"{name}, to {last:,} only"
        # After a comma is a line of its own.
        ends.append((y[-1], said.replace(", ", ",\n"), style.color))
    axis.set_xscale("log", base=2)
    axis.set_xticks(ticks, [f"{n:,}" for n in ticks], fontsize="x-small")
    axis.minorticks_off()
    axis.set_ylim(0, most)
    # Names are as near to the ends as they can be without overlapping.
    ends.sort()
    heights = np.array([_NAME_HEIGHT * (1 + name.count("\n")) for _, name, _ in ends])
    offsets = np.cumsum(heights) - heights / 2
    ends_y = np.array([y for y, *_ in ends]) / axis.get_ylim()[1]
    places = isotonic_regression(ends_y - offsets).x + offsets if ends else []
    for place, (_, name, color) in zip(places, ends, strict=True):
        axis.annotate(
            name,
            (1, place),
            xytext=(5, 0),
            xycoords="axes fraction",
            textcoords="offset points",
            color=color,
            va="center",
            fontsize="small",
            linespacing=1,
        )


def key(label: str, **style: Any) -> "Line2D":
    """An entry of a legend; black unless its style says otherwise."""
    from matplotlib.lines import Line2D

    return Line2D([], [], label=notation.typeset(label), **{"color": "black", **style})


def legend(
    figure: "Figure", handles: Sequence[Any], columns: int = 3, where: str = "lower center"
) -> None:
    """A legend beside all panels, below them unless it says otherwise.

    It has so many columns, or fewer where the figure is not wide enough for them; the figure grows
    by the rows that there are over _LEGEND_ROWS.
    """
    place: Any = f"outside {where}"
    length_of = [
        max(len(re.sub("[$_{}]", "", line)) for line in each.get_label().split("\n"))
        for each in handles
    ]

    def width(columns: int) -> float:
        rows = max(1, -(-len(handles) // columns))
        longest = [max(length_of[i : i + rows]) for i in range(0, len(handles), rows)]
        return sum(0.65 + _CHARACTER * length for length in longest)

    while columns > 1 and width(columns) > figure.get_figwidth():
        columns -= 1
    more = max(0, -(-len(handles) // columns) - _LEGEND_ROWS)
    figure.set_figheight(figure.get_figheight() + _LEGEND_ROW * more)
    figure.legend(handles=handles, loc=place, ncols=columns, frameon=False, fontsize="small")


def whole_numbers(axis: "Axes") -> None:
    """Ticks of x at whole numbers, as few as leave room for their digits."""
    from matplotlib.ticker import MaxNLocator

    most = 5 if axis.get_xlim()[1] >= 1e3 else 7
    axis.xaxis.set_major_locator(MaxNLocator(most, integer=True))
