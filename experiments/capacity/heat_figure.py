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
        """The axes of the figure, with sizes equally spaced and the line linear between them."""
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
            # Above the line, where it crosses a cell.
            annot_kws={"fontsize": "x-small", "va": "bottom"},
            cbar_kws={"label": f"{notation.name(self.value)}, %"},
        )
        name, y_of, least = self.line
        sizes = mean.columns.to_numpy(float)
        x = np.linspace(max(least, sizes[0]), sizes[-1], 200)
        y = np.array([y_of(each) for each in x])
        inside = (y >= mean.index.min()) & (y <= mean.index.max())
        axis.plot(
            _place(x[inside], mean.columns), _place(y[inside], mean.index), color="red", label=name
        )
        axis.invert_yaxis()
        axis.set_xlabel(notation.name(self.x))
        axis.set_ylabel(notation.name(self.y))
        axis.set_title(notation.typeset(title))
        figure.legend(loc="outside lower center", fontsize="small")
        return axis


def _place(values: np.ndarray, sizes: pd.Index) -> np.ndarray:
    """The places of values on an axis whose cells are centred at sizes."""
    return np.interp(values, sizes.to_numpy(float), np.arange(len(sizes)) + 0.5)
