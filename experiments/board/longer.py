"""board/longer: attention over MLP in designs of 4,096 steps, after 16,384.

The designs of most steps of `board/design`, trained four times as long: each is compared with
itself. Sets are those of there, without the smallest, of which nobody knows most, and the largest.

Expected: all sides know more, and attention over MLP stays. (No change can be told from none.)

    memobench run board/longer
    memobench report board/longer
"""

import dataclasses
import functools
import math
import numbers
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from memobench.analysis.seeds import half_width
from memobench.core.run import Run
from memobench.experiment import Drawing, Experiment
from memobench.experiments.board import design
from memobench.methods.thresholds import Estimate
from memobench.report import tables
from memobench.report.drawing import subplots
from memobench.report.style import styles_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FACTOR = 4
# Of sets of equal frequencies, as `design.LOADS`.
_LOADS = (2.5, 3.5, 5.0)
# The sides whose bits per parameter are shown, by what of COMPARED is added to those of the MLP.
_BITS = {"MLP": "", "attention alone": "attention alone", "attention + MLP": "attention + MLP"}

_NAMES = (*(f"{x} / MLP" for x in design.COMPARED), *(f"{x}, bits per parameter" for x in _BITS))


def runs(budgets: Iterable[int]) -> Iterator[Run]:
    """Every main family in every design of most steps, with as many steps and with more."""
    for budget in budgets:
        every = design.designs(budget)
        most = max(of.steps for of in every)
        for of in (x for x in every if x.steps == most):
            loads = (design.ZIPF_LOAD,) if of.zipf_exponent else _LOADS
            for steps in (most, _FACTOR * most):
                yield from design.runs_of(dataclasses.replace(of, steps=steps), loads)


def changes(table: pd.DataFrame) -> pd.DataFrame:
    """The compared values at each number of steps, as logarithms.

    Returns:
      A row for each budget, design without its steps, and name of what is compared, with a column
      for each number of steps; designs in which a training failed are left out.
    """
    log_ratio = design.ratios(table)
    if log_ratio.empty:
        return pd.DataFrame(columns=["budget", "name"])
    rest = ["budget", *(x for x in design.CHOICES if x != "steps")]
    found = []
    for name in design.COMPARED:
        found.append(log_ratio.assign(name=f"{name} / MLP", value=log_ratio[name]))
    for side, over in _BITS.items():
        bits = log_ratio["bits"] + (log_ratio[over] if over else 0)
        found.append(log_ratio.assign(name=f"{side}, bits per parameter", value=bits))
    rows = pd.concat(found, ignore_index=True)
    wide = rows.pivot(index=[*rest, "name"], columns="steps", values="value").dropna()
    # Of runs that are not all there, one number of steps may be.
    return wide.reset_index() if wide.shape[1] > 1 else wide.reset_index().head(0)


def steps_of(found: pd.DataFrame) -> list[int]:
    """The numbers of steps of `changes`, the least first."""
    return sorted(int(x) for x in found.columns if isinstance(x, numbers.Integral))


def summarize(found: pd.DataFrame) -> pd.DataFrame:
    """Geometric means over designs at each number of steps, and of the change, with intervals.

    Args:
      found: `changes`.

    Returns:
      Columns budget, name, designs, one of each number of steps, and `change`: texts.
    """
    least, *_, most = steps_of(found)
    rows = []
    groups = dict(iter(found.groupby(["budget", "name"])))
    for budget, name in sorted(groups, key=lambda group: (group[0], _NAMES.index(group[1]))):
        of = groups[budget, name]
        texts = {f"{steps:,} steps": _interval(of[steps]) for steps in (least, most)}
        row = {"budget": f"{budget:,}", "": name, "designs": len(of)}
        rows.append(row | texts | {"change": _interval(of[most] - of[least])})
    return pd.DataFrame(rows)


def estimate(log_D: pd.Series) -> Estimate:
    """The geometric mean with Student's interval over designs."""
    middle, half = log_D.mean(), half_width(log_D)
    return Estimate(*map(math.exp, (middle, middle - half, middle + half)))


def _interval(log_D: pd.Series) -> str:
    return tables.interval(*estimate(log_D), digits=2)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Changes(Drawing):
    """Ratios to the MLP against steps: a line for each design, and their mean."""

    def draw(self, experiment: Experiment, preset: str, table: pd.DataFrame) -> "Figure":
        """See `Drawing`."""
        found = changes(table)
        budgets = sorted(set(found["budget"]))
        styles = styles_of(design.COMPARED)
        n_rows, n_columns = max(1, len(budgets)), len(design.COMPARED)
        size = (4.5 * n_columns, 1 + 4.5 * n_rows)
        figure, axes = subplots(n_rows, n_columns, size, sharex=True, sharey="row")
        for row, budget in zip(axes, budgets, strict=False):
            for axis, name in zip(row, design.COMPARED, strict=True):
                of = found[(found["budget"] == budget) & (found["name"] == f"{name} / MLP")]
                steps = steps_of(found)
                ratio_DxK = np.exp(of[steps].to_numpy(float))
                color = styles[name].color
                axis.plot(steps, ratio_DxK.T, color=color, alpha=0.35, linewidth=1)
                middle_K = np.exp(of[steps].mean())
                half_K = [half_width(of[x]) for x in steps]
                arms = middle_K * (1 - np.exp(-np.array(half_K)))
                others = middle_K * (np.exp(half_K) - 1)
                style = styles[name].for_points()
                axis.errorbar(steps, middle_K, yerr=[arms, others], **style, linewidth=3, capsize=4)
                axis.axhline(1, color="black", linewidth=1)
                axis.set_xscale("log")
                axis.set_xticks(steps, [f"{x:,}" for x in steps])
                axis.minorticks_off()
                axis.margins(x=0.2)
            row[0].set_ylabel(f"bits over the MLP's, {budget:,} parameters")
        for axis, name in zip(axes[0], design.COMPARED, strict=True):
            axis.set_title(name)
        for axis in axes[-1]:
            axis.set_xlabel("steps")
        figure.suptitle(f"{experiment.title}; thin lines are single designs")
        return figure

    def answer(self, table: pd.DataFrame) -> str:
        """See `Drawing`: the change of attention over MLP, and of the MLP's bits."""
        found = changes(table)
        said = []
        for budget, of in found.groupby("budget"):
            least, *_, most = steps_of(found)
            by_name = dict(iter(of.groupby("name")))
            wanted = "attention alone / MLP", "MLP, bits per parameter"
            if not by_name.keys() >= set(wanted):
                continue
            ratio, bits = (by_name[name] for name in wanted)
            before, after, change, more = map(
                _interval,
                (ratio[least], ratio[most], ratio[most] - ratio[least], bits[most] - bits[least]),
            )
            said.append(
                f"At {budget:,} parameters, in {len(ratio)} designs, attention alone holds "
                f"{before} times the bits of the MLP after {least:,} steps and {after} times after "
                f"{most:,}, {change} times as much; the MLP itself knows {more} times as many bits."
            )
        return " ".join(said)

    def sections(self, table: pd.DataFrame) -> list[str]:
        """See `Drawing`: all that changes."""
        found = changes(table)
        if found.empty:
            return []
        return [
            "## More steps",
            self.answer(table),
            tables.markdown(summarize(found), {}),
            "Geometric means over designs, each family at its best size of set and learning rate, "
            "chosen anew for each number of steps, as in `board/design`. Intervals are Student's "
            "over designs: those of a change are over its designs' own changes. Designs in which a "
            "training failed are left out.",
        ]


EXPERIMENT = Experiment(
    name="board/longer",
    title="Bits over the MLP's after more steps",
    presets={
        "quick": functools.partial(runs, (512,)),
        "full": functools.partial(runs, (512, 1024)),
    },
    of_full="512 parameters of 512 and 1,024",
    figure=Changes(),
)
