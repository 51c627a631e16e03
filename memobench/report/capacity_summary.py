"""Figures of typical capacities of families, and of attention over MLP, against parameters."""

import dataclasses
import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from memobench.board import capacity_summary
from memobench.common import notation
from memobench.core.architecture import read_family
from memobench.experiment import Drawing, Experiment
from memobench.report import answer, tables
from memobench.report.drawing import (
    key,
    legend,
    subplots,
    whole_numbers,
)
from memobench.report.names import display_name, name_entry
from memobench.report.style import styles_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


DEFINITION = """\
Every entry is the shape of its family that knew most bits at its budget in the short search of
`board/shapes`, whose four label tables rarely tell it from the next, or that knew most of those
measured as entries. **Bits** are those of an overfull set (T log2 N minus the negative
log-likelihood in bits, at least 0; as many associations as parameters), means over label tables,
each with one or more *initial weights* of its own, after a stated number of steps of the exact
gradient, with Student's 95% interval of the means of tables. **Degrees of freedom** are the
dimensions of the set of functions that the weights can have, the rank of the Jacobian of
log-probabilities: fewer than parameters; – where they differ between weights. The **learning rate**
of each number of steps is chosen by pilots, whose initial weights do not count; *edge* says that it
is the least or the largest of those tried. The **gain** is bits over those after a quarter of the
steps, on the same tables and initial weights: an entry whose gain is above 1 has not shown what
more steps would know. **Associations** are those known beyond guessing. **Half know** is the number
of associations of which half of the trainings come to know 99% at a learning rate of their own, the
**rate of sets**. Pilots, which do not count, chose it and may not have found the best; the 95%
interval is credible where trainings fail or not by the size alone. **Ranks** are of bits per
parameter: entries that cannot be told apart at 95%, after Holm's correction for all pairs of a
table, share a range.
"""
# What pages call bits over degrees of freedom.
PER_FREEDOM = "bits / degree of freedom"
# Panels of a row.
_MOST_COLUMNS = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Typical(Drawing):
    """Bits and thresholds per parameter of every family, and attention over MLP.

    Attributes:
      families: what a figure shows, by presets; of others the main families.
    """

    families: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def draw(self, experiment: "Experiment", preset: str, table: pd.DataFrame) -> "Figure":
        """See `Drawing`: of the exact gradient, with 95% intervals."""
        found = capacity_summary.summarize(table)
        found = found[found["protocol"] == "exact"]
        found = found.assign(name=list(map(display_name, found["model"]))).sort_values("budget")
        # The family of most bits per parameter at the largest budget comes first.
        last = found.groupby("name").last()
        order = (last["bits"] / last["n_params"]).sort_values(ascending=False).index
        budgets = sorted(set(found["budget"]))
        contests = capacity_summary.contests(table)
        size = (13, max(2.2 + 0.13 * len(order) * (len(budgets) + 1), 4.5))
        widths = (1, 1, 1.2) if contests else (1, 1)
        figure, ((bits, half, *over),) = subplots(1, len(widths), size, width_ratios=widths)
        first = ("bits", "overfull sets", "bits per parameter")
        second = ("half_99", "sets that fit", "associations per parameter\nthat half know to 99%")
        if "half_99" not in found:
            second = ("accuracy", "associations", "share of all associations\nthat is known")
        for axis, (column, title, label) in ((bits, first), (half, second)):
            _draw_families(axis, found, column, list(order), budgets)
            axis.set_title(title)
            axis.set_xlabel(label)
        half.set_yticklabels([])
        for axis in over:
            _ratios(axis, contests)
        figure.suptitle(f"{experiment.title}: {self.families.get(preset, 'main families')}")
        if len(budgets) > 1:
            ends = f"{budgets[0]:,} parameters (top) to {budgets[-1]:,} (bottom)"
            said = f"Each row from {ends}, empty where none was measured; 95% intervals"
            figure.supxlabel(said, fontsize="small")
        return figure

    def answer(self, table: pd.DataFrame) -> str:
        """See `Drawing`: attention or MLP, where both were measured."""
        return answer.answer(table) if capacity_summary.contests(table) else ""

    def sections(self, table: pd.DataFrame) -> list[str]:
        """See `Drawing`: the answer in a sentence, and a table of every set."""
        found = capacity_summary.summarize(table)
        if found.empty:
            return []
        said = self.answer(table)
        parts = ["## Attention against MLP in these runs", said] if said else []
        parts += ["## Entries", DEFINITION]
        for _, rows in found.groupby(["budget", *capacity_summary.SET], dropna=False):
            row = rows.iloc[0]
            parts += [
                f"### {row['budget']:,} parameters, N = {int(row['vocab_size'])}, "
                f"{row['protocol']} protocol, {int(row['steps']):,} steps",
                tables.markdown(reader_table(rows), {}),
            ]
        return [*parts, *_power_laws(table)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shapes(Drawing):
    """Bits per parameter of every shape against its width, a panel for each budget."""

    def draw(self, experiment: "Experiment", preset: str, table: pd.DataFrame) -> "Figure":
        """See `Drawing`; of shapes of one budget and width the best is on the line."""
        runs: list[Any] = table[table["status"] == "ok"].to_dict("records")
        known = pd.DataFrame(
            {
                "family": [display_name(run) for run in runs],
                "budget": [capacity_summary.budget(int(run["n_params"])) for run in runs],
                "width": [run["d_model"] for run in runs],
                "bits": [run["bits"] / run["n_params"] for run in runs],
            }
        )
        families = sorted(set(known["family"]))
        n_panels = max(len(families), 1)
        n_rows, n_columns = math.ceil(n_panels / _MOST_COLUMNS), min(n_panels, _MOST_COLUMNS)
        size = (12, 1.6 + 2.8 * n_rows)
        figure, axes_RxC = subplots(n_rows, n_columns, size, sharex=True, sharey=True)
        budgets, colors = styles_of(known["budget"]), styles_of(families)
        for axis in axes_RxC.flat[len(families) :]:
            axis.remove()
        for axis, family in zip(axes_RxC.flat, families, strict=False):
            for budget, style in budgets.items():
                shapes = known[(known["budget"] == budget) & (known["family"] == family)]
                best = shapes.groupby("width")["bits"].max()
                axis.plot(best.index, best, color=style.color, linewidth=1)
                points = {**style.for_points(), "markersize": 4, "linestyle": ""}
                axis.plot(shapes["width"], shapes["bits"], **points)
            title = textwrap.fill(family, 38)
            axis.set_title(title, fontsize="small", color=colors[family].color)
            whole_numbers(axis)
        for axis in axes_RxC.flat[max(n_panels - n_columns, 0) : n_panels]:
            axis.set_xlabel("width d")
            axis.tick_params(labelbottom=True)
        for axis in axes_RxC[:, 0]:
            axis.set_ylabel("bits per parameter")
            axis.set_ylim(0)
        handles = [
            key(f"{budget:,} parameters", **style.for_line()) for budget, style in budgets.items()
        ]
        figure.suptitle(notation.typeset(experiment.title))
        legend(figure, handles)
        return figure


def laws(table: pd.DataFrame) -> pd.DataFrame:
    """The table for pages of the power law of every family that has one, by its bits."""
    found = capacity_summary.power_laws(table)
    if found.empty:
        return found
    most = found["bits"].map(max).sort_values(ascending=False)
    found = found.loc[most.index].reset_index(drop=True)
    runs: list[Any] = capacity_summary.capacity_runs(table).to_dict("records")
    names = {read_family(run): display_name(run) for run in runs}
    shown: dict[str, Any] = {"family": found["family"].map(names), "budgets": found["budgets"]}
    for label, name in (("exponent", "exponent"), ("all pairs over half", "all_pairs")):
        if name in found:
            ends = (found[name], found[f"{name}_low"], found[f"{name}_high"])
            shown[label] = [tables.interval(*each, digits=3) for each in zip(*ends, strict=True)]
    shown["p of the law"] = [f"{p:.2g}" if p >= 1e-3 else "< 0.001" for p in found["p_value"]]
    return pd.DataFrame(shown)


def _power_laws(table: pd.DataFrame) -> list[str]:
    shown = laws(table)
    if shown.empty:
        return []
    return [
        "## Power laws",
        "Bits as a power of parameters, by the exact gradient: an exponent of 1 is as many bits "
        "per parameter at every budget. Sets of every second budget are all pairs of their tokens, "
        "others half of them: *all pairs over half* is what multiplies bits where they are all. "
        "Least squares in logarithms, every budget alike, with 95% intervals. *p* is the chance of "
        "deviations from the law as large as these if it were true, by the variances of means: "
        f"where it is below {capacity_summary.REJECTED} the law is rejected, and the exponent a "
        "summary without an interval. The family of most bits comes first.",
        tables.markdown(shown, {}),
    ]


def _draw_families(
    axis: "Axes", found: pd.DataFrame, column: str, names: list[str], budgets: Sequence[int]
) -> None:
    """Draws estimates with intervals, per parameter unless they are shares.

    Every family has a row, and in it every budget a line, the least on top.
    """
    for name, style in styles_of(names).items():
        of_name = found[found["name"] == name].dropna(subset=[column])
        per = 1 if column == "accuracy" else of_name["n_params"]
        value, low, high = (
            (of_name[x] / per).to_numpy(float) for x in (column, f"{column}_low", f"{column}_high")
        )
        lines = of_name["budget"].map(budgets.index).to_numpy()
        y = names.index(name) + (lines + 1) / (len(budgets) + 1) - 0.5
        ends = [value - low, high - value]
        axis.errorbar(value, y, xerr=ends, capsize=2, linewidth=1, markersize=5, **style.for_line())
    axis.set_yticks(range(len(names)), names, fontsize="small")
    axis.set_ylim(max(len(names), 1) - 0.5, -0.5)
    axis.set_xlim(left=0)
    axis.grid(visible=False, axis="y")
    for edge in range(1, len(names)):
        axis.axhline(edge - 0.5, color="0.8", linewidth=0.8, zorder=0)


def _ratios(axis: "Axes", contests: Sequence[capacity_summary.Contest]) -> None:
    attention, mlp, _ = capacity_summary.SIDES
    ratios = [(x.budget, capacity_summary.ratio(x.best[attention], x.best[mlp])) for x in contests]
    all_steps = sorted({steps for _, of_budget in ratios for steps, _ in of_budget})
    for place, (steps, style) in enumerate(styles_of(all_steps).items()):
        at = [(b, over) for b, of_budget in ratios for n, over in of_budget if n == steps]
        value, low, high = np.array([over for _, over in at]).T
        x = np.array([budget for budget, _ in at]) * 1.02 ** (place - (len(all_steps) - 1) / 2)
        axis.errorbar(
            x,
            value,
            yerr=[value - low, high - value],
            capsize=2,
            **style.for_line(),
            label=f"{steps:,} steps",
        )
    axis.axhline(1, color="black", linewidth=1, linestyle=":")
    heads = {heads for x in contests for side, heads in x.forms if side == attention}
    by = "each by its best form" if "narrow" in heads else "without narrow heads"
    axis.set_title(f"bits, attention alone over\nMLP, {by}")
    axis.set_ylim(0, max(1.3, 1.05 * axis.get_ylim()[1]))
    _parameters(axis, [budget for budget, _ in ratios])
    axis.legend(fontsize="small")


def _parameters(axis: "Axes", budgets: Sequence[int]) -> None:
    axis.set_xscale("log", base=2)
    axis.set_xticks(budgets, [f"{n:,}" for n in budgets], fontsize="x-small")
    axis.minorticks_off()
    axis.margins(x=0.1)
    axis.set_xlabel("parameters, all counted")


def reader_table(rows: pd.DataFrame) -> pd.DataFrame:
    """The table of a set's entries for readers."""

    def interval(name: str, digits: int, per: Any = 1.0) -> list[str]:
        if name not in rows:
            return ["–"] * len(rows)
        ends = (rows[x] / per for x in (name, f"{name}_low", f"{name}_high"))
        each = zip(*ends, strict=True)
        return [tables.interval(value, low, high, digits) for value, low, high in each]

    def format_plain(name: str, shown: Any) -> list[str]:
        given = rows[name] if name in rows else [None] * len(rows)
        return ["–" if pd.isna(value) else shown(value) for value in given]

    ranks = zip(rows["rank_low"], rows["rank_high"], strict=True)
    return pd.DataFrame(
        {
            "rank": [str(a) if a == b else f"{a}–{b}" for a, b in ranks],
            "entry": list(map(name_entry, rows["model"], rows["entry"])),
            "parameters": rows["n_params"],
            "bits / parameter": interval("bits", 3, rows["n_params"]),
            PER_FREEDOM: interval("bits", 3, rows["degrees_of_freedom"]),
            "bits": interval("bits", 0),
            "gain": interval("gain", 3),
            "bits / parameter after fewer steps": [
                ", ".join(f"{steps:,}: {bits / n:.3f}" for steps, bits in earlier) or "–"
                for earlier, n in zip(rows["earlier"], rows["n_params"], strict=True)
            ],
            "best bits": format_plain("best_bits", lambda x: f"{x:,.0f}"),
            "associations": interval("memorized", 0),
            "half know": interval("half_99", 0),
            "largest known": format_plain("best_complete", lambda x: f"{x:,.0f}" if x else "–"),
            "learning rate": [
                f"{rate:.3g}" + " (edge)" * edge
                for rate, edge in zip(rows["rate"], rows["edge_of_rates"], strict=True)
            ],
            "rate of sets": format_plain("rate_of_sets", lambda x: f"{x:.3g}"),
            "tables": rows["tables"],
            "initial weights": rows["inits"],
        }
    )
