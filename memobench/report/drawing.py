"""The base of all kinds of figures, and what they share.

A kind of figure is one class in one file: a frozen dataclass whose fields say what is shown, with
the code that draws it. Experiments hold figures and load quickly: matplotlib is imported where
something is drawn.
"""

import itertools
import pathlib
from collections.abc import Iterable, Sequence
from numbers import Number
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import pandas as pd

from memobench.common import notation

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D


MARKERS = "osD^vPX*<>"
# As wide as a page shows them, where letters of a figure have the size of those around it.
PAGE_INCHES, _DPI = 10.0, 120
# What is the same has the same place in the palette in all figures.
_PLACES = {
    "attention only": 0,
    "attention-only, full heads": 0,
    "attention-only, compressed heads": 9,
    "attention-only, full heads, 2 layers": 4,
    "MLP": 1,
    "MLP (relu)": 8,
    "MLP, 2 layers": 3,
    "attention + MLP": 2,
    "one next token": 7,
    "equally likely next tokens": 3,
    "power law": 2,
    "Dirichlet": 4,
}
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


def palette(n: int, name: str = "colorblind") -> list[Any]:
    """So many colors that a reader can tell apart."""
    import seaborn as sns

    return sns.color_palette(name, n)


def colors_of(values: Iterable[Any]) -> dict[Any, Any]:
    """A color for each distinct value, the same in all figures; numbers are from light to dark.

    >>> colors_of(["mlp", "x"])["mlp"] == colors_of(["MLP", "attention_only"])["MLP"]
    True
    """
    distinct = sorted(set(values), key=lambda x: (isinstance(x, str), x))
    numbers = [isinstance(x, Number) and not isinstance(x, bool) for x in distinct]
    if len(distinct) > 1 and all(numbers):
        # The lightest is too light on white.
        return dict(zip(distinct, palette(len(distinct) + 1, "viridis_r")[1:], strict=True))
    places = {x: _PLACES.get(notation.words(x)) for x in distinct}
    several = palette(10) + palette(10, "dark")
    free = itertools.cycle(i for i in range(len(several)) if i not in places.values())
    return {x: several[next(free) if place is None else place] for x, place in places.items()}


def possible_range(column: str, table: pd.DataFrame) -> tuple[float, Any]:
    """The least and the largest possible mean of a column, a number or one for each row."""
    most = _MOST.get(column)
    return 0.0, table["n_examples"] if most == "examples" else 1.0 if most else np.inf


def arms(mean: Any, half: Any, least: Any = -np.inf, most: Any = np.inf) -> np.ndarray:
    """Both arms of error bars that end at what is possible; none without an interval."""
    mean, half = np.asarray(mean, float), np.nan_to_num(np.asarray(half, float))
    low, high = mean - np.asarray(least, float), np.asarray(most, float) - mean
    return np.stack([np.clip(half, 0, np.maximum(x, 0)) for x in (low, high)])


def draw_labelled_lines(
    axis: "Axes", lines: dict[str, list[Any]], looks: dict[str, tuple[int, str]]
) -> None:
    """Draws lines over a logarithmic axis, each with its name at its right end, not in a legend.

    Args:
      axis: to draw on.
      lines: of each name the points: x, y, and the low and high end of y's interval.
      looks: of each name its place in the palette, and its marker and line as one format.
    """
    colors, ends, every_x = palette(10), [], set()
    for name, points in lines.items():
        shown = sorted(point for point in points if not np.isnan(point[1]))
        if not shown:
            continue
        x, y, low, high = np.array(shown).T
        place, style = looks[name]
        error = np.nan_to_num([y - low, high - y])
        axis.errorbar(x, y, yerr=error, fmt=style, color=colors[place], capsize=2)
        ends.append([y[-1], x[-1], name, colors[place]])
        every_x |= set(2.0 ** np.round(np.log2(x)))
    axis.set_xscale("log", base=2)
    axis.set_xticks(sorted(every_x), [f"{n:,.0f}" for n in sorted(every_x)], fontsize="x-small")
    axis.minorticks_off()
    axis.set_ylim(0)
    # Names that would overlap move up, the lowest first.
    height, least = 0.055 * axis.get_ylim()[1], -np.inf
    for y, x, name, color in sorted(ends):
        least = max(y, least + height)
        axis.annotate(name, (x * 1.12, least), color=color, va="center", fontsize="small")


def key(label: str, **style: Any) -> "Line2D":
    """An entry of a legend; black unless its style says otherwise."""
    from matplotlib.lines import Line2D

    return Line2D([], [], label=notation.typeset(label), **{"color": "black", **style})


def legend(figure: "Figure", handles: Sequence[Any], columns: int = 3) -> None:
    """A legend below all panels."""
    figure.legend(
        handles=handles, loc="outside lower center", ncols=columns, frameon=False, fontsize="small"
    )


def whole_numbers(axis: "Axes") -> None:
    """Ticks of x at whole numbers, as few as leave room for their digits."""
    from matplotlib.ticker import MaxNLocator

    most = 5 if axis.get_xlim()[1] >= 1e3 else 7
    axis.xaxis.set_major_locator(MaxNLocator(most, integer=True))
