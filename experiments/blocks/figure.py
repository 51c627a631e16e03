"""The measures of groups of entries, each by its best entry, side by side."""

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from memobench.analysis.statistics import replicates
from memobench.common import notation
from memobench.experiment import Drawing, Experiment
from memobench.experiments.blocks import claims as of
from memobench.report import tables
from memobench.report.drawing import subplots
from memobench.report.style import GREY, INDIGO

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclasses.dataclass(frozen=True, kw_only=True)
class Groups(Drawing):
    """A panel for each measure, a line of it for each group: the mean with its 95% interval."""

    groups: of.Groups
    measures: tuple[of.Measure, ...]

    def draw(self, experiment: "Experiment", preset: str, table: pd.DataFrame) -> "Figure":
        """See `Drawing`; the small points below are label tables."""
        names = self._names(table)
        size = (max(5.0 * len(self.measures), 8.0), 1.6 + 0.42 * len(names))
        figure, (axes,) = subplots(1, len(self.measures), size, sharey="row")
        for axis, measure in zip(axes, self.measures, strict=True):
            for name, value_TxX in of.values_by_group(table, self.groups, measure).items():
                y, (mean, low, high) = names.index(name), _mean_of_best(value_TxX, measure)
                value_T = value_TxX[:, value_TxX.mean(axis=0).argmax()]
                places = np.full(len(value_T), y + 0.25)
                axis.plot(value_T, places, ".", color=GREY, alpha=0.5, markersize=5)
                ends = [[mean - low], [high - mean]]
                axis.errorbar(mean, y, xerr=ends, fmt="o", color=INDIGO, capsize=3)
            axis.set_xlabel(measure.name)
            axis.set_xlim(left=0)
        axes[0].set_yticks(range(len(names)), names)
        axes[0].set_ylim(len(names) - 0.5, -0.5)
        figure.suptitle(notation.typeset(experiment.title))
        return figure

    def sections(self, table: pd.DataFrame) -> list[str]:
        """See `Drawing`: the same as numbers."""
        names = self._names(table)
        shown = pd.DataFrame({"group": names})
        for measure in self.measures:
            found = of.values_by_group(table, self.groups, measure)
            means = {name: _mean_of_best(value_TxX, measure) for name, value_TxX in found.items()}
            texts = {name: tables.interval(*of_mean, digits=2) for name, of_mean in means.items()}
            shown[measure.name] = [texts.get(name) for name in names]
        return [
            "## Groups",
            "Means over label tables of a group's best entry, shape or learning rate, with 95% "
            "intervals: Student's, with Bonferroni's correction below, as any entry may look best. "
            "A training that diverged knows nothing, and an entry of which all did is none.",
            tables.markdown(shown, {}),
        ]

    def _names(self, table: pd.DataFrame) -> list[str]:
        """The groups of which there are runs."""
        there = set(table["run_id"])
        return [name for name, runs in self.groups.items() if any(x.run_id in there for x in runs)]


def _mean_of_best(value_TxX: np.ndarray, measure: of.Measure) -> tuple[float, float, float]:
    """The mean of the best entry with its interval."""
    mean_BxX = replicates(value_TxX, measure.step)
    ones_Bx1 = np.ones_like(mean_BxX[:, :1])
    return of.ratio_of_best(mean_BxX, ones_Bx1, len(value_TxX), measure.most)
