"""Figures of typical capacities of families, and of attention over MLP, against parameters."""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from memobench.board import capacity_summary
from memobench.board.families import TOLERANCE
from memobench.common import notation
from memobench.experiment import Drawing, Experiment
from memobench.report import answer, tables
from memobench.report.drawing import (
    MARKERS,
    colors_of,
    key,
    legend,
    palette,
    subplots,
    whole_numbers,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


DEFINITION = """\
Every entry is the shape of its family that knew most bits at its budget in the short search of
`board/shapes`, whose four label tables rarely tell it from the next, or that knew most of those
measured as entries. **Bits** are those of an overfull set (T log2 N minus the negative
log-likelihood in bits, at least 0; as many associations as parameters), means over label tables,
each with one or more *initial weights* of its own, after a stated number of steps of the exact
gradient, with Student's 95% interval of the means of tables. **Degrees
of freedom** are the dimensions of the set of functions that the weights can have, the rank of the
Jacobian of log-probabilities: fewer than parameters; – where they differ between weights. The
**learning rate** of each number of steps is chosen by pilots, whose initial weights do not count;
*edge* says that it is the least or the largest of those tried. The **limit** is L in L -
a·steps^-p, fitted to three numbers of steps; an entry has *converged* where its last is within 2%
of the limit's whole interval, and not where it is farther from all of it. There is none, and
*converged* is undecided, where four times the steps know significantly less, or so much more that
bits may grow without a limit; where the latter cannot be excluded the interval ends at ∞.
**Associations** are those known beyond guessing. **Half know** is the number of associations of
which half of the trainings come to know 99% at a learning rate of their own, the **rate of sets**.
Pilots, which do not count, chose it and may not have found the best; the 95% interval is credible
where trainings fail or not by the size alone. **Ranks** are of bits per parameter: entries that
cannot be told apart at 95%, after Holm's correction for all pairs of a table, share a range.
"""
# What pages call bits over degrees of freedom.
PER_FREEDOM = "bits / degree of freedom"
# Panels of a row.
_MOST_COLUMNS = 3
# Letters of a name of which a page shows three side by side.
_LONG = 38


@dataclasses.dataclass(frozen=True, kw_only=True)
class Typical(Drawing):
    """Bits and thresholds per parameter of every family, and attention over MLP."""

    def draw(self, experiment: "Experiment", preset: str, table: pd.DataFrame) -> "Figure":
        """See `Drawing`: of the exact gradient, with 95% intervals."""
        found = capacity_summary.summarize(table)
        found = found[found["protocol"] == "exact"]
        families = list(dict.fromkeys(found["family"]))
        colors, markers = colors_of(families), itertools.cycle(MARKERS)
        looks = {x: {"color": colors[x], "marker": next(markers)} for x in families}
        contests = capacity_summary.contests(table)
        figure, ((bits, half, *over),) = subplots(1, 3 if contests else 2, (13, 6))
        second = ("half_99", "sets that fit", "associations per parameter\nthat half know to 99%")
        if "half_99" not in found:
            second = ("accuracy", "associations", "share of all associations\nthat is known")
        first = ("bits", "overfull sets", "bits per parameter")
        for axis, (name, title, label) in ((bits, first), (half, second)):
            for i, family in enumerate(families):
                aside = (2 * i + 1 - len(families)) / len(families)
                _points(axis, found[found["family"] == family], name, looks[family], aside)
            axis.set_title(title)
            axis.set_ylabel(label)
            axis.set_ylim(0)
            _parameters(axis, sorted(set(found["budget"])))
        for axis in over:
            _ratios(axis, contests)
        figure.suptitle(notation.typeset(experiment.title))
        laws = capacity_summary.power_laws(table).to_dict("records")
        kept = [law for law in laws if law["p_value"] >= capacity_summary.REJECTED]
        for law in kept:
            n_X = np.array(law["n_params"])
            # On top, for a law that is not rejected hides behind what it was fitted to.
            bits.plot(n_X, np.array(law["bits"]) / n_X, "--", color="black", linewidth=1, zorder=5)
        handles = [key(family, **looks[family]) for family in families]
        handles += [key("power law, not rejected", color="black", linestyle="--")] if kept else []
        _add_legend(figure, handles)
        return figure

    def answer(self, table: pd.DataFrame) -> str:
        """See `Drawing`: attention or MLP, where both were measured."""
        return answer.answer(table) if answer.has_answer(table) else ""

    def sections(self, table: pd.DataFrame) -> list[str]:
        """See `Drawing`: the answer in a sentence, and a table of every set."""
        found = capacity_summary.summarize(table)
        if found.empty:
            return []
        said = self.answer(table)
        parts = ["## The answer", said] if said else []
        parts += ["## Entries", DEFINITION]
        for (budget, protocol), rows in found.groupby(["budget", "protocol"]):
            steps = f"{int(rows['steps'].iloc[0]):,}"
            parts += [
                f"### {budget:,} parameters, N = {int(rows['vocab_size'].iloc[0])}, {protocol} "
                f"protocol, {steps} steps",
                tables.markdown(reader_table(rows), {}),
            ]
        return [*parts, *_power_laws(table)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shapes(Drawing):
    """Bits per parameter of every shape against its width, a panel for each budget."""

    def draw(self, experiment: "Experiment", preset: str, table: pd.DataFrame) -> "Figure":
        """See `Drawing`; of shapes of one family and width the best is on the line."""
        runs: list[Any] = table[table["status"] == "ok"].to_dict("records")
        known = pd.DataFrame(
            {
                "family": [capacity_summary.family(run) for run in runs],
                "budget": [capacity_summary.budget(int(run["n_params"])) for run in runs],
                "width": [run["d_model"] for run in runs],
                "bits": [run["bits"] / run["n_params"] for run in runs],
            }
        )
        budgets, families = sorted(set(known["budget"])), sorted(set(known["family"]))
        n_panels = max(len(budgets), 1)
        n_rows, n_columns = math.ceil(n_panels / _MOST_COLUMNS), min(n_panels, _MOST_COLUMNS)
        figure, axes_RxC = subplots(n_rows, n_columns, (12, 2 + 4 * n_rows), sharey=True)
        looks = colors_of(families)
        for axis in axes_RxC.flat[len(budgets) :]:
            axis.remove()
        for axis, budget in zip(axes_RxC.flat, budgets, strict=False):
            for family, marker in zip(families, MARKERS * len(families), strict=False):
                shapes = known[(known["budget"] == budget) & (known["family"] == family)]
                best = shapes.groupby("width")["bits"].max()
                axis.plot(best.index, best, color=looks[family], linewidth=1)
                axis.plot(
                    shapes["width"], shapes["bits"], marker, color=looks[family], markersize=5
                )
            axis.set_title(f"{budget:,} parameters")
            axis.set_xlabel("width d")
            whole_numbers(axis)
        for axis in axes_RxC[:, 0]:
            axis.set_ylabel("bits per parameter")
            axis.set_ylim(0)
        handles = [
            key(family, color=looks[family], marker=marker)
            for family, marker in zip(families, MARKERS * len(families), strict=False)
        ]
        figure.suptitle(notation.typeset(experiment.title))
        _add_legend(figure, handles)
        return figure


def _add_legend(figure: "Figure", handles: Sequence[Any]) -> None:
    """Draws the legend, in two columns where names of families are long."""
    long = any(len(handle.get_label()) > _LONG for handle in handles)
    legend(figure, handles, columns=2 if long else 3)


def laws(table: pd.DataFrame) -> pd.DataFrame:
    """The table for pages of the power law of every family that has one, by its bits."""
    found = capacity_summary.power_laws(table)
    if found.empty:
        return found
    most = found["bits"].map(max).sort_values(ascending=False)
    found = found.loc[most.index].reset_index(drop=True)
    shown: dict[str, Any] = {"family": found["family"], "budgets": found["budgets"]}
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


def _points(axis: "Axes", rows: pd.DataFrame, name: str, look: Any, aside: float) -> None:
    """Draws estimates with intervals over budgets, per parameter unless they are shares."""
    rows = rows.dropna(subset=[name]).sort_values("n_params")
    per = 1 if name == "accuracy" else rows["n_params"]
    value, low, high = (
        (rows[x] / per).to_numpy(float) for x in (name, f"{name}_low", f"{name}_high")
    )
    # Side by side, where families would hide each other: no farther than budgets are met.
    x = rows["budget"] * (1 + TOLERANCE) ** aside
    axis.errorbar(x, value, yerr=[value - low, high - value], capsize=2, linewidth=1, **look)


def _ratios(axis: "Axes", contests: Sequence[capacity_summary.Contest]) -> None:
    attention, mlp, _ = capacity_summary.SIDES
    ratios = [(x.budget, capacity_summary.ratio(x.best[attention], x.best[mlp])) for x in contests]
    all_steps = sorted({steps for _, of_budget in ratios for steps, _ in of_budget})
    for place, (steps, color) in enumerate(
        zip(all_steps, palette(len(all_steps), "viridis"), strict=True)
    ):
        at = [(b, over) for b, of_budget in ratios for n, over in of_budget if n == steps]
        value, low, high = np.array([over for _, over in at]).T
        x = np.array([budget for budget, _ in at]) * 1.02 ** (place - (len(all_steps) - 1) / 2)
        axis.errorbar(
            x,
            value,
            yerr=[value - low, high - value],
            color=color,
            marker="o",
            capsize=2,
            label=f"{steps:,} steps",
        )
    axis.axhline(1, color="black", linewidth=1, linestyle=":")
    axis.set_title("attention alone over MLP, best forms here")
    axis.set_ylabel("ratio of bits per parameter")
    axis.set_ylim(0, 1.3)
    _parameters(axis, [budget for budget, _ in ratios])
    axis.legend(fontsize="small", title="exposures", title_fontsize="small")


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
            "entry": rows["family"] + " (" + rows["entry"] + ")",
            "parameters": rows["n_params"],
            "bits / parameter": interval("bits", 3, rows["n_params"]),
            PER_FREEDOM: interval("bits", 3, rows["degrees_of_freedom"]),
            "bits": interval("bits", 0),
            "limit": interval("limit", 0),
            "converged": format_plain("converged", str),
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
