"""Capacity of attention and MLP per parameter against exposures, as figure and table."""

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from memobench.claims import interval
from memobench.common import notation
from memobench.experiment import Drawing, Experiment
from memobench.experiments.capacity import exposure_claims as exposure
from memobench.report import tables
from memobench.report.drawing import legend, subplots
from memobench.report.names import display_name
from memobench.report.style import styles_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


MEASURES = {
    "memorized": "memorized associations\nper parameter",
    "bits": "bits per parameter",
}
EQUAL: dict[str, Any] = {"color": "0.5", "alpha": 0.25, "label": "equal within a tenth"}
ONE = {"color": "black", "linewidth": 1, "linestyle": ":"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Exposure(Drawing):
    """Capacity of families per parameter against exposures of each fact, and its ratio."""

    def draw(self, experiment: "Experiment", preset: str, table: pd.DataFrame) -> "Figure":
        """See `Drawing`: each measure by exposures, and below it attention over MLP."""
        figure, axes = subplots(
            2,
            len(MEASURES),
            (12, 7.5),
            sharex=True,
            gridspec_kw={"height_ratios": [2, 1]},
        )
        for (top, bottom), measure in zip(axes.T, MEASURES, strict=True):
            _curves(top, table, measure)
            top.set_ylabel(MEASURES[measure])
            found = exposure.ratios(_select_full(table), measure)
            at = sorted(found)
            low, high = np.array([interval(*found[n]) for n in at]).reshape(-1, 2).T
            middle = np.array([found[n][0][0] for n in at])
            spread = [middle - low, high - middle]
            bottom.errorbar(at, middle, yerr=spread, color="black", marker="o", capsize=3)
            bottom.axhspan(1 / 1.1, 1.1, **EQUAL)
            bottom.axhline(1, **ONE)
            bottom.set_ylim(0, max([1.2, *(high[np.isfinite(high)] * 1.05)]))
            bottom.set_ylabel("attention over MLP,\nbest wide or narrow", fontsize="small")
            bottom.set_xlabel("exposures of each fact")
            bottom.set_xscale("log", base=2)
            bottom.set_xticks(at, [f"{n:,}" for n in at])
        handles = [x for axis in axes[:, 0] for x in axis.get_legend_handles_labels()[0]]
        figure.suptitle(notation.typeset(experiment.title))
        legend(figure, handles, columns=4)
        return figure

    def sections(self, table: pd.DataFrame) -> list[str]:
        """See `Drawing`: attention over MLP at every exposure, with what that decides."""
        rows = []
        for measure in MEASURES:
            for seen, (ratio_B, seeds) in sorted(
                exposure.ratios(_select_full(table), measure).items()
            ):
                low, high = interval(ratio_B, seeds)
                rows.append(
                    {
                        "measure": measure,
                        "exposures": seen,
                        "attention / MLP": float(ratio_B[0]),
                        "low": low,
                        "high": high,
                        "says": _verdict(low, high),
                    }
                )
        return [
            "## Attention over MLP",
            "Full heads, wide or narrow, at equal parameters: the best form of each at its best "
            "learning rate; 95% intervals (Student's, over seeds). *Equal* means within a tenth.",
            tables.markdown(
                pd.DataFrame(rows), dict.fromkeys(("attention / MLP", "low", "high"), 2)
            ),
        ]


def _select_full(known: pd.DataFrame) -> pd.DataFrame:
    return known[known["heads"] == "full"]


def _curves(axis: "Axes", known: pd.DataFrame, measure: str) -> None:
    means = exposure.best_rate(exposure.means_per_parameter(known, measure))
    families = means.at.apply(display_name, axis=1)
    for name, style in styles_of(families).items():
        chosen = means.where((families == name).to_numpy())
        order = np.argsort(chosen.x("exposures"))
        y = chosen.mean_X[order]
        each = zip(chosen.y_BX.T, chosen.at["runs"], strict=True)
        low, high = np.array([interval(y_B, seeds) for y_B, seeds in each])[order].T.clip(min=0)
        axis.errorbar(
            chosen.x("exposures")[order],
            y,
            yerr=[y - low, high - y],
            capsize=2,
            label=name,
            **style.for_line(),
        )
    axis.set_ylim(bottom=0)


def _verdict(low: float, high: float) -> str:
    if 1 / 1.1 <= low and high <= 1.1:
        return "equal"
    if high < 1:
        return "MLP ahead"
    return "attention ahead" if low > 1 else "undecided"
