"""What was memorized against a size, on logarithmic axes, with what others found."""

import pathlib

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns

from memobench import analysis, notation
from memobench.experiment import Scaling

SIZES = ["architecture", "d_model", "d_head", "n_heads", "n_layers", "d_mlp", "n_examples"]


def best(rows: pd.DataFrame, sizes: list[str], by: list[str]) -> pd.DataFrame:
    """Of every size the runs with those values of some columns that have the best mean `y`."""
    sizes = list(dict.fromkeys(sizes))
    means = rows.groupby([*sizes, *by], dropna=False)["y"].mean().reset_index()
    winners = means.loc[means.groupby(sizes, dropna=False)["y"].idxmax(), [*sizes, *by]]
    return rows.merge(winners, on=[*sizes, *by])


def draw(title: str, shown: Scaling, known: pd.DataFrame, path: pathlib.Path) -> None:
    """Writes the figure of a table of runs as a PNG: means over seeds, 95% intervals, guides."""
    sns.set_theme(context="notebook", style="whitegrid")
    rows = known.assign(y=pd.to_numeric(known[shown.y])).dropna(subset=["y"])
    if shown.best_of:
        rows = best(rows, [*SIZES, shown.x, shown.hue], list(shown.best_of))
    figure, axis = plt.subplots(figsize=(7.5, 5.5), layout="constrained")
    hues = sorted(set(rows[shown.hue]))
    palette = sns.color_palette("colorblind", len(hues))
    for color, marker, hue in zip(palette, "osD^vPX*" * len(hues), hues, strict=False):
        groups = rows[rows[shown.hue] == hue].groupby(shown.x)["y"]
        half = groups.agg(analysis.half_width)
        label = hue if shown.hue == "architecture" else f"{notation.name(shown.hue)}: {hue}"
        axis.errorbar(
            groups.mean().index,
            groups.mean(),
            yerr=half,
            color=color,
            marker=marker,
            linestyle="",
            capsize=3,
            label=label,
        )
    x = np.geomspace(rows[shown.x].min() * 0.9, rows[shown.x].max() * 1.1, 100)
    for style, (name, guide) in zip(("--", ":", "-.", "-"), shown.guides, strict=False):
        axis.plot(x, guide(x), color="black", linewidth=1, linestyle=style, label=name)
    axis.set_xscale("log", base=2)
    axis.set_yscale("log", base=2)
    for side in (axis.xaxis, axis.yaxis):
        side.set_major_formatter(matplotlib.ticker.StrMethodFormatter("{x:,.0f}"))
    axis.set_xlabel(notation.name(shown.x))
    axis.set_ylabel(notation.name(shown.y))
    axis.set_title(title)
    axis.legend(fontsize="small")
    figure.savefig(path, dpi=110)
    plt.close(figure)
