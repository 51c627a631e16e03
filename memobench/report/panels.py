"""Small multiples of means over seeds with 95% intervals, a panel for each pair of axes."""

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from memobench import claims
from memobench.analysis import seeds as analysis
from memobench.common import notation
from memobench.constructions.base import WEIGHTS
from memobench.experiment import Drawing, Experiment
from memobench.report.drawing import (
    arms,
    key,
    legend,
    possible_range,
    subplots,
    whole_numbers,
)
from memobench.report.style import Style, styles_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


LOGARITHMIC = ("n_examples", "condition", "largest_weight", "margin")
# Panels beside each other; where there are more, as many as these in a row.
_MOST_COLUMNS, _WRAPPED_COLUMNS = 4, 3
# More values of x than these do not all have a label on a logarithmic axis.
_MOST_TICKS = 6


@dataclasses.dataclass(frozen=True, kw_only=True)
class Panels(Drawing):
    """Small multiples, a row of panels for each of `y`, a column for each of `x`.

    Of several `x` each column shows the runs that share the most frequent values of the others.
    With `column`, one `x` has a column of panels for every value of that column instead. `hue`
    tells lines apart; without `lines` only the points of single runs are drawn. Columns named
    `logarithmic` have such axes, as LOGARITHMIC always have.
    """

    x: tuple[str, ...]
    y: tuple[str, ...]
    hue: str
    column: str | None = None
    lines: bool = True
    logarithmic: tuple[str, ...] = ()

    def draw(self, experiment: "Experiment", preset: str, table: pd.DataFrame) -> "Figure":
        """See `Drawing`."""
        runs = table[table["status"] == "ok"].assign(
            bits_per_parameter=table["bits"] / table["n_params"],
            items_known=analysis.count_known(table),
            made=weight_origin(table),
        )
        logarithmic = (*LOGARITHMIC, *self.logarithmic)
        if (none := runs[self.hue].isna()).any():  # Runs without a value have a line too.
            runs = runs.assign(**{self.hue: runs[self.hue].map(str).mask(none, "none")})
        hues = _sort_values(runs[self.hue])
        styles = styles_of(hues)
        columns = list(_columns(self, runs))
        many = len(columns) > _MOST_COLUMNS
        figure, axes = _wrapped_layout(self, columns) if many else _wide_layout(self, columns)
        for of_y, y in zip(axes, self.y, strict=True):
            for axis, (_, x, chosen) in zip(of_y, columns, strict=True):
                for hue in hues:
                    of_hue = chosen[chosen[self.hue] == hue]
                    (_line if self.lines else _points)(axis, of_hue, x, y, styles[hue])
                if y == "memorized":
                    _draw_promised(axis, chosen, x)
                if x == "load":
                    axis.axvline(1, color="black", linestyle=":", linewidth=1)
                _scale_x(axis, x, chosen[x], x in logarithmic)
                if y in logarithmic:
                    _logarithms(axis, pd.to_numeric(runs[y]))
        figure.suptitle(notation.typeset(experiment.title))
        handles = [key(notation.words(hue), **styles[hue].for_line()) for hue in hues]
        if "memorized" in self.y:
            handles.append(key("proven", linestyle="--"))
        # Only now, as panels of a row share their axis.
        for of_y, y in zip(axes, self.y, strict=True):
            for axis in of_y if y not in logarithmic else ():
                axis.set_ylim(bottom=0)
        legend(figure, handles)
        return figure


def _wide_layout(shown: Panels, columns: list[Any]) -> tuple["Figure", np.ndarray]:
    """Panels by y and column; a row of them for each y."""
    size = (max(3.6 * len(columns), 8), 3.2 * len(shown.y) + 1.6)
    figure, axes = subplots(len(shown.y), len(columns), size, sharex="col", sharey="row")
    for axis, y in zip(axes[:, 0], shown.y, strict=True):
        axis.set_ylabel(notation.name(y))
    for top, bottom, (title, x, _) in zip(axes[0], axes[-1], columns, strict=True):
        top.set_title(title, fontsize="small")
        bottom.set_xlabel(notation.name(x))
    return figure, axes


def _wrapped_layout(shown: Panels, columns: list[Any]) -> tuple["Figure", np.ndarray]:
    """Panels by y and column; of each y several rows of as many as a page shows side by side."""
    n_rows = -(-len(columns) // _WRAPPED_COLUMNS)
    size = (12, 2.6 * n_rows * len(shown.y) + 1.6)
    figure, axes_RxC = subplots(n_rows * len(shown.y), _WRAPPED_COLUMNS, size)
    axes_YxP = axes_RxC.reshape(len(shown.y), -1)
    for of_y, y in zip(axes_YxP, shown.y, strict=True):
        for place, axis in enumerate(of_y):
            if place >= len(columns):
                axis.remove()
                continue
            title, x, _ = columns[place]
            axis.set_title(title, fontsize="small")
            axis.set_xlabel(notation.name(x) if place >= len(columns) - _WRAPPED_COLUMNS else "")
            if shown.column and place:
                axis.sharex(of_y[0])
            if place % _WRAPPED_COLUMNS == 0:
                axis.set_ylabel(notation.name(y))
    return figure, axes_YxP[:, : len(columns)]


def weight_origin(known: pd.DataFrame) -> pd.Series:
    """The way in which weights came about; beside constructions training is from scratch."""
    return claims.variant(known).replace(claims.VARIANTS["exact", "full"], claims.EXACT)


def _columns(shown: Panels, runs: pd.DataFrame) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """The title of each column of panels, its x, and its runs."""
    if shown.column is not None:
        for value in _sort_values(runs[shown.column]):
            yield notation.label(shown.column, value), shown.x[0], runs[runs[shown.column] == value]
        return
    usual = {x: runs[x].mode().iloc[0] for x in shown.x}
    for x in shown.x:
        others = [other for other in shown.x if other != x]
        is_usual = (runs[others] == pd.Series(usual)[others]).all(axis=1)
        yield notation.typeset(notation.sizes(usual, others)), x, runs[is_usual]


def _sort_values(values: pd.Series) -> list[Any]:
    """Distinct values, precisions from the finest, ways of making weights as reports list them."""
    known = [*WEIGHTS, *claims.MADE]
    place = {value: i for i, value in enumerate(known)}
    return sorted(set(values.dropna()), key=lambda value: (place.get(value, len(known)), value))


def _line(axis: "Axes", runs: pd.DataFrame, x: str, y: str, style: Style) -> None:
    groups = runs.assign(y=pd.to_numeric(runs[y])).groupby(x)
    mean, half = groups["y"].mean(), groups["y"].agg(analysis.half_width)
    ends = arms(mean, half, *possible_range(y, groups[["n_examples"]].max()))
    sizes: dict[str, Any] = {"capsize": 2, "linewidth": 1.3, "markersize": 5}
    axis.errorbar(mean.index, mean, yerr=ends, **sizes, **style.for_line())


def _points(axis: "Axes", runs: pd.DataFrame, x: str, y: str, style: Style) -> None:
    y_values = pd.to_numeric(runs[y])
    axis.plot(runs[x], y_values, linestyle="", alpha=0.6, markersize=5, **style.for_points())


def _draw_promised(axis: "Axes", runs: pd.DataFrame, x: str) -> None:
    line = runs.drop_duplicates(x).sort_values(x)
    # On top, as the construction reaches just that.
    axis.plot(line[x], line["promised"], color="black", linestyle="--", linewidth=1, zorder=3)


def _scale_x(axis: "Axes", x: str, values: pd.Series, logarithmic: bool) -> None:
    if logarithmic:
        axis.set_xscale("log")
        measured = sorted(set(values))
        if len(measured) <= _MOST_TICKS:
            axis.set_xticks(measured, [f"{value:,.0f}" for value in measured])
            axis.minorticks_off()
    elif x != "load":
        whole_numbers(axis)


def _logarithms(axis: "Axes", values: pd.Series) -> None:
    # Margins of what is not known are negative.
    if (values <= 0).any():
        axis.set_yscale("symlog", linthresh=values[values > 0].min())
    else:
        axis.set_yscale("log")
