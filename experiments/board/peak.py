"""board/peak: capacity as the maximum over set sizes, attention against MLP.

`board/typical` measures all entries on sets of as many associations as parameters, more than any
model holds: there training settles for fewer bits than at its best size. Here the six main families
learn sets of up to six sizes at four learning rates, every setting on the same label tables, and
the most is their capacity, by which the board ranks. Shapes are those of `board/typical`, which
were chosen on sets as large as the budget. Preset `entries` has all other families.

Expected: the most lies where some 95% are known, at half to three quarters of the parameters, and
attention alone gains more by it than the MLP.

    memobench run board/peak --preset=quick
    memobench report board/peak --preset=quick
    memobench leaderboard
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pandas as pd

from memobench.board import capacity_summary, peak
from memobench.board import table as board
from memobench.board.peak import peaks, ratio
from memobench.core.architecture import Architecture
from memobench.core.run import Run
from memobench.experiment import Drawing, Experiment
from memobench.experiments.board import shapes
from memobench.methods.thresholds import FAILING, Estimate
from memobench.report import tables
from memobench.report.drawing import key, legend, subplots
from memobench.report.names import display_name, name_entry
from memobench.report.style import styles_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PRESETS = {
    "quick": (256, 512),
    "full": (256, 512, 1024),
    "large": (256, 512, 1024, 2048, 4096),
}
# At which all other families of the board are measured as well.
ENTRIES = (256, 512, 1024)


def main_shapes(budget: int) -> Iterator[Architecture]:
    """One layer, with wide and with narrow heads: the six main families."""
    found = [*shapes.standard(budget), *shapes.standard(budget, "narrow")]
    for shape in found:
        side, heads = shape.side
        plain = getattr(shape, "activation", "gelu") == "gelu" and shape.shared_cells()
        if side and heads in ("full", "narrow") and plain and plain["n_layers"] == 1:
            yield shape


def entries(budget: int) -> Iterator[Architecture]:
    """The shapes that stand for all other families of the board."""
    main = set(main_shapes(budget))
    for of in shapes.SHAPES:
        yield from (shape for shape in shapes.standard(budget, of) if shape not in main)


def runs(
    budgets: Iterable[int], of: Callable[[int], Iterable[Architecture]] = main_shapes
) -> Iterator[Run]:
    """Shapes of each budget on sets of every size, at every learning rate."""
    for budget in budgets:
        for shape in of(budget):
            yield board.run(shape, budget)


def _entry() -> Iterator[Run]:
    """The cheapest run that the board ranks, of the family that knows most."""
    for shape in shapes.standard(256, "narrow"):
        if shape.side[0] == capacity_summary.SIDES[2]:
            fewest = peak.method(256).replace(tables=peak.LEAST_TABLES)
            yield dataclasses.replace(board.run(shape, 256), method=fewest)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Peaks(Drawing):
    """Bits per parameter against the size of the set, a panel for each budget."""

    def draw(self, experiment: Experiment, preset: str, table: pd.DataFrame) -> "Figure":
        """See `Drawing`; a ring is at the best size of each."""
        found = peaks(table)
        budgets = sorted(set(found["budget"])) or [0]
        styles = styles_of(map(display_name, found["model"]))
        # A legend of many families takes room.
        size = 2 + 5 * len(budgets), max(5, 2 + 0.5 * len(styles))
        figure, (axes,) = subplots(1, len(budgets), size, sharey=True)
        for axis, budget in zip(axes, budgets, strict=True):
            for row in found[found["budget"] == budget].to_dict("records"):
                x = [size / row["n_params"] for size in row["sizes"]]
                axis.errorbar(
                    x,
                    row["means"],
                    yerr=row["errors"],
                    markersize=4,
                    capsize=2,
                    **styles[display_name(row["model"])].for_line(),
                )
                top = row["sizes"].index(row["n_examples"])
                ring = {"markersize": 13, "fillstyle": "none", "color": "black"}
                axis.plot(x[top], row["means"][top], "o", **ring)
            axis.set_title(f"{budget:,} parameters")
            axis.set_xlabel("associations of the set / parameters")
        axes[0].set_ylabel("bits per parameter")
        axes[0].set_ylim(min([1.0, *map(min, found["means"])]) if len(found) else 0.0)
        legend(figure, [key(name, **style.for_line()) for name, style in styles.items()])
        figure.suptitle(experiment.title)
        return figure

    def answer(self, table: pd.DataFrame) -> str:
        """See `Drawing`: attention over MLP at their best sizes of sets, at the largest budget."""
        return " ".join(ratios(peaks(table))[-1:])

    def sections(self, table: pd.DataFrame) -> list[str]:
        """See `Drawing`: the ratios, and every entry's peak."""
        found = peaks(table)
        if found.empty:
            return []
        rate = peak.TRAINING.learning_rate
        rates = ", ".join(f"{rate * factor:g}" for factor in peak.RATE_FACTORS)
        lines = [f"- {line}" for line in ratios(found)]
        return [
            *(["## Attention alone and MLP at the peak", "\n".join(lines)] if lines else []),
            "## Peaks",
            f"Each entry learns each set at learning rates {rates}. Half of the label tables "
            "choose the rate and the size at which the other half is measured, and the reverse; a "
            "ring in the figure is at the size that all choose. The interval (95%) covers that "
            "choice; it does not cover the choice of shapes or of steps. *Edge*: the largest set "
            "is the best one, so that the peak may lie beyond. *Failed* trainings know less than "
            f"{FAILING:.0%} of their median; they count. Entries that cannot be told apart share a "
            "range of ranks, as on the board.",
            tables.markdown(_format(found), {}),
        ]


def _estimate(row: Any) -> Estimate:
    return Estimate(row["bits"], row["bits_low"], row["bits_high"])


def _find_best(rows: pd.DataFrame, side: str) -> dict[str, Any] | None:
    """The row of most bits of a side; None where it has none."""
    of_side: list[Any] = rows[rows["side"] == side].to_dict("records")
    return max(of_side, key=lambda row: row["bits"], default=None)


def ratios(found: pd.DataFrame) -> list[str]:
    """Attention over MLP at each budget that has narrow heads, by the best form of each."""
    lines = []
    attention, mlp, _ = capacity_summary.SIDES
    for budget, rows in found.groupby("budget"):
        own, other = _find_best(rows, attention), _find_best(rows, mlp)
        if own is None or other is None or "narrow" not in set(rows["heads"]):
            continue
        at_budget = [rows["of_budget"][rows["side"] == side].max() for side in (attention, mlp)]
        line = (
            f"At {budget:,} parameters the best attention alone holds "
            f"{_format_ratio(own, other)} times the bits of the best MLP, each at its best size of "
            f"set; on sets of {budget:,} {at_budget[0] / at_budget[1]:.2f} times"
        )
        wide = _find_best(rows[rows["heads"] == "full"], attention)
        if wide is not None:
            line += f". With wide heads it holds {_format_ratio(wide, other)} times"
        lines.append(f"{line}.")
    return lines


def _format_ratio(row: Any, other: Any) -> str:
    return tables.interval(*ratio(_estimate(row), _estimate(other)), digits=2)


def headline(found: pd.DataFrame) -> str:
    """The range over budgets of attention over MLP, each at its best size of set, in a clause."""
    attention, mlp, _ = capacity_summary.SIDES
    over: dict[Any, float] = {}
    for budget, rows in found.groupby("budget"):
        own, other = _find_best(rows, attention), _find_best(rows, mlp)
        if own is not None and other is not None:
            over[budget] = own["bits"] / other["bits"]
    least, most = min(over.values()), max(over.values())
    return (
        f"Each at its best set size, attention alone knows {least:.2f} to {most:.2f} times the "
        f"MLP's bits ({min(over):,} to {max(over):,} parameters)"
    )


def _format(found: pd.DataFrame) -> pd.DataFrame:
    rows = found.to_dict("records")
    return pd.DataFrame(
        {
            "budget": [f"{row['budget']:,}" for row in rows],
            "rank": [board.COLUMNS["rank"].text(row) for row in rows],
            "entry": [name_entry(row["model"], row["entry"]) for row in rows],
            "bits / parameter at the peak": [
                tables.interval(*_estimate(row), digits=3) for row in rows
            ],
            "set size there": [
                f"{row['n_examples']:,}" + " (edge)" * (row["n_examples"] == row["sizes"][-1])
                for row in rows
            ],
            "over parameters": [f"{row['n_examples'] / row['n_params']:.2f}" for row in rows],
            "learning rate": [f"{row['learning_rate']:g}" for row in rows],
            "known there": [f"{row['known']:.1%}" for row in rows],
            "failed": [f"{row['failed']} of {row['tables']}" for row in rows],
            "bits / parameter of a set as large as the budget": [
                f"{row['of_budget']:.3f}" for row in rows
            ],
        }
    )


EXPERIMENT = Experiment(
    name="board/peak",
    title="Bits per parameter against the size of the set",
    presets={preset: functools.partial(runs, budgets) for preset, budgets in PRESETS.items()}
    | {"entries": functools.partial(runs, ENTRIES, entries), "entry": _entry},
    left_out="the budget of 1,024 parameters",
    figure=Peaks(),
)
