"""The base of all kinds of figures, and what they share.

A kind of figure is one class in one file: a frozen dataclass whose fields say what is shown, with
the code that draws it. Experiments hold figures and load quickly: matplotlib is imported where
something is drawn.
"""

import dataclasses
import pathlib
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    from memobench.experiment import Experiment


@dataclasses.dataclass(frozen=True, kw_only=True)
class Drawing:
    """Base of all kinds of figures: what the figure of an experiment shows."""

    def draw(
        self, experiment: "Experiment", preset: str, table: pd.DataFrame, path: pathlib.Path
    ) -> None:
        """Writes the figure of a preset's runs, a table from `analysis.with_theory`, as a PNG."""
        raise NotImplementedError

    def sections(self, table: pd.DataFrame) -> list[str]:
        """Paragraphs of Markdown that the experiment's page has beside its own; none by default."""
        return []

    def answer(self, table: pd.DataFrame) -> str:
        """What the runs answer, in a sentence or two with intervals; "" where they do not."""
        return ""


def subplots(
    n_rows: int,
    n_columns: int,
    size: tuple[float, float],
    style: str = "whitegrid",
    **settings: Any,
) -> tuple["Figure", np.ndarray]:
    """A figure of so many inches, and an array of its axes, always of rows and columns."""
    import seaborn as sns
    from matplotlib.figure import Figure

    sns.set_theme(context="notebook", style=style)
    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.subplots(n_rows, n_columns, squeeze=False, **settings)


def palette(n: int, name: str = "colorblind") -> list[Any]:
    """So many colors that a reader can tell apart."""
    import seaborn as sns

    return sns.color_palette(name, n)


def bars(mean: Any, half: Any) -> np.ndarray:
    """Both arms of error bars that end at 0."""
    return np.stack([np.clip(half, 0, np.maximum(mean, 0)), half])


def key(label: str, **style: Any) -> "Line2D":
    """An entry of a legend; black unless its style says otherwise."""
    from matplotlib.lines import Line2D

    return Line2D([], [], label=label, **{"color": "black", **style})


def whole_numbers(axis: "Axes") -> None:
    """Ticks of x at whole numbers."""
    from matplotlib.ticker import MaxNLocator

    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
