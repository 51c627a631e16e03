"""A figure of what was memorized against a size, with what others found."""

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from memobench.analysis import seeds as analysis
from memobench.common import notation
from memobench.experiment import Drawing, Experiment
from memobench.report.drawing import arms, key, legend, possible_range, subplots
from memobench.report.style import styles_of
from memobench.store.rows import configuration

if TYPE_CHECKING:
    from matplotlib.figure import Figure


# Above a point: the set was too small to measure more.
_ARROW: Any = {"marker": "$↑$", "markersize": 12}


def select_best(rows: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """The runs of every configuration at those values of some columns with the best mean `y`."""
    others = [name for name in configuration() if name in rows and name not in by]
    of_size = rows.groupby(others, dropna=False).ngroup()
    of_both = rows.groupby([*others, *by], dropna=False).ngroup()
    means = rows["y"].groupby(of_both).mean()
    winners = means.groupby(of_size.groupby(of_both).first()).idxmax()
    return rows[of_both.isin(winners)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scaling(Drawing):
    """A measure of memorization against a size, on logarithmic axes, with guides by others.

    Attributes:
      x: the column of the size.
      y: the column of the measure, of an overfull set or the largest memorized completely.
      hue: the column that tells lines apart.
      per: the column by which `y` is divided, on a linear axis.
      rows: from the table to the rows that are shown, by default all.
      best_of: columns, the learning rate's, of whose values the one with the best mean is shown.
      guides: a name and y as a function of x each.
    """

    x: str
    y: str
    hue: str = "architecture"
    per: str | None = None
    rows: Callable[[pd.DataFrame], pd.DataFrame] = pd.DataFrame
    best_of: tuple[str, ...] = ()
    guides: tuple[tuple[str, Callable[[Any], Any]], ...] = ()

    def draw(self, experiment: "Experiment", preset: str, table: pd.DataFrame) -> "Figure":
        """See `Drawing`: means over seeds, 95% intervals, guides; arrows at lower bounds."""
        from matplotlib.ticker import StrMethodFormatter

        shown = self.rows(table)
        rows = shown.assign(y=pd.to_numeric(shown[self.y])).dropna(subset=["y"])
        if self.per:
            rows["y"] /= rows[self.per]
        if self.best_of:
            rows = select_best(rows, list(self.best_of))
        # On a logarithmic axis nothing reaches zero: what would ends at the panel's edge.
        means = rows.groupby([self.hue, self.x], dropna=False)["y"].mean()
        least = 0.7 * means[means > 0].min()
        figure, ((axis,),) = subplots(1, 1, (8, 6))
        for hue, style in styles_of(rows[self.hue]).items():
            groups = rows[rows[self.hue] == hue].groupby(self.x)
            mean, half = groups["y"].mean(), groups["y"].agg(analysis.half_width)
            _, most = possible_range(self.y, groups[["n_examples"]].max())
            axis.errorbar(
                mean.index,
                mean.clip(lower=least),
                yerr=arms(mean.clip(lower=least), half, least, most),
                linestyle="",
                capsize=3,
                label=notation.label(self.hue, hue),
                **style.for_points(),
            )
            bound = mean[groups["lower_bound"].agg(lambda of_size: of_size.eq(True).any())]
            axis.plot(bound.index, 1.12 * bound, color=style.color, linestyle="", **_ARROW)
        # Also where nothing was measured, so that an interrupted sweep has a figure.
        x = np.geomspace(table[self.x].min() * 0.9, table[self.x].max() * 1.1, 100)
        for dash, (name, guide) in zip(("--", ":", "-.", "-"), self.guides, strict=False):
            axis.plot(x, guide(x), color="black", linewidth=1, linestyle=dash, label=name)
        axis.set_xscale("log", base=2)
        axis.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        if self.per:
            axis.set_ylim(bottom=0)
        else:
            axis.set_yscale("log", base=2)
            axis.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        axis.set_xlabel(notation.name(self.x))
        per = f", divided by {notation.name(self.per)}" if self.per else ""
        axis.set_ylabel(notation.name(self.y) + per)
        axis.set_title(notation.typeset(experiment.title))
        handles = axis.get_legend_handles_labels()[0]
        if rows["lower_bound"].eq(True).any():
            handles.append(key("lower bound", linestyle="", **_ARROW))
        legend(figure, handles, columns=2)
        return figure
