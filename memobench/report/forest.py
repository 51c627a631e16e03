"""A forest plot of the board: every entry's capacities per parameter, with 95% intervals."""

import dataclasses
import pathlib
from typing import TYPE_CHECKING, Any

import pandas as pd

from memobench import board
from memobench.report.drawing import Drawing, bars, key, palette, subplots
from memobench.table import analysis

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from memobench.experiment import Experiment

MEASURES = {
    "complete_99": "(a) largest set memorized to 99%, per parameter",
    "memorized": "(b) most of an overfull set, per parameter",
    "bits": "(c) bits per parameter",
}
SETTLED = (analysis.CONVERGED, analysis.PROVEN)
_MARKERS = dict(zip(board.TRACKS, "osD", strict=True))
_BETWEEN = 0.22


@dataclasses.dataclass(frozen=True, kw_only=True)
class Forest(Drawing):
    """Of searches and constructions: each entry's capacities per parameter with its interval."""

    def draw(
        self, experiment: "Experiment", preset: str, table: pd.DataFrame, path: pathlib.Path
    ) -> None:
        """See `Drawing`; a row of panels for each vocabulary size."""
        rows = board.build(table).assign(entry=lambda x: x.apply(board.entry, axis=1))
        colors = dict(zip(board.TRACKS, palette(3), strict=True))
        vocab_sizes = sorted(set(rows["vocab_size"]))
        entries = {n: _in_order(rows[rows["vocab_size"] == n]) for n in vocab_sizes}
        heights = [max(len(entries[n]), 1) for n in vocab_sizes]
        figure, axes = subplots(
            max(len(vocab_sizes), 1),
            len(MEASURES),
            (15, 0.42 * sum(heights) + 2.2),
            sharex="col",
            sharey="row",
            gridspec_kw={"height_ratios": heights or [1]},
        )
        for axes_of_row, vocab_size in zip(axes, vocab_sizes, strict=False):
            of_size = rows[rows["vocab_size"] == vocab_size]
            for axis, measure in zip(axes_of_row, MEASURES, strict=True):
                _panel(axis, of_size, measure, entries[vocab_size], colors)
            axes_of_row[0].set_ylabel(f"N = {vocab_size}")
            axes_of_row[0].set_yticks(range(len(entries[vocab_size])), entries[vocab_size])
            axes_of_row[0].set_ylim(len(entries[vocab_size]) - 0.5, -0.5)
        for axis, label in zip(axes[-1], MEASURES.values(), strict=True):
            axis.set_xlabel(label, fontsize="small")
            # What autoscaling leaves free is a share of the spread, which may be next to nothing.
            axis.set_xlim(0, 1.03 * axis.get_xlim()[1])
        few = f" (no entry has {board.LEAST_SEEDS} seeds yet)" if rows.empty else ""
        figure.suptitle(experiment.title + few)
        shown = [track for track in board.TRACKS if (rows["track"] == track).any()]
        handles = [
            key(track, color=colors[track], marker=_MARKERS[track], linestyle="") for track in shown
        ]
        if (~rows["verdict"].isin(SETTLED)).any():
            look = {"color": "gray", "marker": "o", "linestyle": "", "markerfacecolor": "white"}
            handles.append(key("not converged, or a lower bound", **look))
        figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False)
        figure.savefig(path, dpi=110)


def _in_order(rows: pd.DataFrame) -> list[str]:
    """Entries, the best of the exact track first."""
    best = rows.assign(own=(rows["track"] == board.EXACT))
    best = best.sort_values(["own", "complete_99_per_parameter"], ascending=False)
    return list(dict.fromkeys(best["entry"]))


def _panel(
    axis: "Axes", rows: pd.DataFrame, measure: str, entries: list[str], colors: dict[str, Any]
) -> None:
    tracks = [track for track in board.TRACKS if (rows["track"] == track).any()]
    for i, track in enumerate(tracks):
        for row in rows[rows["track"] == track].to_dict("records"):
            settled = row["verdict"] in SETTLED
            mean, half = (row[x] / row["n_params"] for x in (measure, f"{measure}_interval"))
            axis.errorbar(
                mean,
                entries.index(row["entry"]) + _BETWEEN * (i - (len(tracks) - 1) / 2),
                xerr=bars([mean], [half]),
                color=colors[track],
                marker=_MARKERS[track],
                markersize=5,
                markerfacecolor=colors[track] if settled else "white",
                capsize=2,
                linewidth=1.2,
            )
    axis.grid(axis="y", alpha=0.3)
