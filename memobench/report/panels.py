"""Small multiples: means over seeds with 95% intervals, a panel for each pair of axes."""

import pathlib
from collections.abc import Iterator
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from memobench import analysis, claims, notation
from memobench.experiment import Panels
from memobench.methods.construction import WEIGHTS

LOGARITHMIC = ("n_examples", "condition", "largest_weight", "margin")
_MARKERS = "osD^vPX*<>"


def draw(title: str, shown: Panels, known: pd.DataFrame, path: pathlib.Path) -> None:
    """Writes the panels of runs, a table from `analysis.with_theory`, as a PNG."""
    sns.set_theme(context="notebook", style="whitegrid")
    runs = known[known["status"] == "ok"].assign(
        bits_per_parameter=known["bits"] / known["n_params"], made=made(known)
    )
    hues = _in_order(runs[shown.hue])
    colors = dict(zip(hues, sns.color_palette("colorblind", len(hues)), strict=True))
    markers = {hue: _MARKERS[i % len(_MARKERS)] for i, hue in enumerate(hues)}
    columns = list(_columns(shown, runs))
    figure, axes = plt.subplots(
        len(shown.y),
        len(columns),
        figsize=(max(3.6 * len(columns), 8), 3.2 * len(shown.y) + 1.6),
        squeeze=False,
        sharex="col",
        sharey="row",
        layout="constrained",
    )
    for row, y in zip(axes, shown.y, strict=True):
        for axis, (_, x, chosen) in zip(row, columns, strict=True):
            for hue, of_hue in chosen.groupby(shown.hue):
                style = {"color": colors[hue], "marker": markers[hue], "markersize": 5}
                (_line if shown.lines else _points)(axis, of_hue, x, y, style)
            if y == "memorized":
                _promised(axis, chosen, x)
            if x == "load":
                axis.axvline(1, color="black", linestyle=":", linewidth=1)
            _scale(axis, x, y)
        row[0].set_ylabel(notation.name(y))
    for top, bottom, (told, x, _) in zip(axes[0], axes[-1], columns, strict=True):
        top.set_title(told, fontsize="small")
        bottom.set_xlabel(notation.name(x))
    figure.suptitle(title)
    handles = [
        Line2D([], [], color=colors[hue], marker=markers[hue], label=str(hue)) for hue in hues
    ]
    if "memorized" in shown.y:
        handles.append(Line2D([], [], color="black", linestyle="--", label="proven"))
    figure.legend(
        handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize="small"
    )
    figure.savefig(path, dpi=130)
    plt.close(figure)


def made(known: pd.DataFrame) -> pd.Series:
    """How weights came about; beside constructions the exact gradient starts from scratch."""
    return claims.variant(known).replace(claims.VARIANTS["exact", "full"], claims.EXACT)


def _columns(shown: Panels, runs: pd.DataFrame) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """What each column of panels is called, its x, and its runs."""
    if shown.column is not None:
        for value in _in_order(runs[shown.column]):
            yield str(value), shown.x[0], runs[runs[shown.column] == value]
        return
    usual = {x: runs[x].mode().iloc[0] for x in shown.x}
    for x in shown.x:
        others = [other for other in shown.x if other != x]
        chosen = runs[np.logical_and.reduce([runs[o] == usual[o] for o in others], axis=0)]
        yield notation.sizes(usual, others), x, chosen if others else runs


def _in_order(values: pd.Series) -> list[Any]:
    """Distinct values: precisions from the finest, ways of making weights as reports list them."""
    known = [*WEIGHTS, *claims.MADE]
    place = {value: i for i, value in enumerate(known)}
    return sorted(set(values.dropna()), key=lambda value: (place.get(value, len(known)), value))


def _line(axis: plt.Axes, runs: pd.DataFrame, x: str, y: str, style: dict[str, Any]) -> None:
    groups = runs.assign(y=pd.to_numeric(runs[y])).groupby(x)["y"]
    half = groups.agg(analysis.half_width).fillna(0)
    axis.errorbar(groups.mean().index, groups.mean(), yerr=half, capsize=2, linewidth=1.3, **style)


def _points(axis: plt.Axes, runs: pd.DataFrame, x: str, y: str, style: dict[str, Any]) -> None:
    axis.plot(runs[x], pd.to_numeric(runs[y]), linestyle="", alpha=0.6, **style)


def _promised(axis: plt.Axes, runs: pd.DataFrame, x: str) -> None:
    line = runs.drop_duplicates(x).sort_values(x)
    axis.plot(line[x], line["promised"], color="black", linestyle="--", linewidth=1, zorder=1)


def _scale(axis: plt.Axes, x: str, y: str) -> None:
    if x in LOGARITHMIC:
        axis.set_xscale("log")
    elif x != "load":
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    if y in LOGARITHMIC:
        axis.set_yscale("log")
    else:
        axis.set_ylim(bottom=0)
