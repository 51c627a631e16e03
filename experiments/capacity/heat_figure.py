"""A heat map of a measure by two sizes, with a line that others found."""

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from memobench.common import notation
from memobench.experiment import Drawing, Experiment
from memobench.report.drawing import subplots

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclasses.dataclass(frozen=True, kw_only=True)
class Heat(Drawing):
    """The mean over seeds of a share, `value`, for every pair of sizes `x` and `y`.

    Attributes:
      x: the column along the horizontal axis.
      y: the column along the vertical axis.
      value: the column of the share.
      line: a name, y as a function of x, and the least x for which it is drawn.
    """

    x: str
    y: str
    value: str
    line: tuple[str, Callable[[float], float], float]

    def draw(self, experiment: "Experiment", preset: str, table: pd.DataFrame) -> "Figure":
        """See `Drawing`."""
        figure: Any = self.cells(table, experiment.title).figure
        return figure

    def cells(self, table: pd.DataFrame, title: str) -> "Axes":
        """The axes of the figure, with sizes equally spaced; the line goes between cells."""
        import seaborn as sns

        mean = table.pivot_table(index=self.y, columns=self.x, values=self.value, dropna=True)
        mean = mean.sort_index().sort_index(axis=1)
        size = (2.5 + 0.62 * len(mean.columns), 2 + 0.42 * len(mean.index))
        figure, ((axis,),) = subplots(1, 1, (max(size[0], 7.0), max(size[1], 4.5)), style="white")
        sns.heatmap(
            100 * mean,
            ax=axis,
            annot=True,
            fmt=".1f",
            cmap="viridis",
            vmin=50,
            vmax=100,
            annot_kws={"fontsize": "x-small"},
            cbar_kws={"label": f"{notation.name(self.value)}, %", "extend": "min"},
        )
        name, y_of, least = self.line
        sizes = mean.columns.to_numpy(float)
        below = [(mean.index < y_of(x)).sum() for x in sizes if x >= least]
        edges = len(sizes) - np.arange(len(below), -1, -1)
        axis.stairs(
            below, edges, baseline=None, color="red", linewidth=2, label=notation.typeset(name)
        )
        axis.invert_yaxis()
        axis.set_xlabel(notation.name(self.x))
        axis.set_ylabel(notation.name(self.y))
        axis.set_title(notation.typeset(title))
        figure.legend(loc="outside lower center", fontsize="small")
        return axis
