"""board/peak: capacity as the maximum over set sizes, attention against MLP.

`board/typical` measures all entries on sets of as many associations as parameters, more than any
model holds: there training settles for fewer bits than at its best size. Here the six main families
learn sets of up to ten sizes, each at a learning rate of its own, and the most is their capacity.
Shapes are those of `board/typical`, which were chosen on sets as large as the budget.

Expected: the most lies where some 95% are known, at half to three quarters of the parameters, and
attention alone gains more by it than the MLP.

    memobench run board/peak --preset=quick
    memobench report board/peak --preset=quick
"""

import dataclasses
import functools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pandas as pd

from memobench.board import capacity_summary, families, peak
from memobench.board import table as board
from memobench.core.architecture import Architecture
from memobench.core.run import Run
from memobench.experiment import Drawing, Experiment
from memobench.experiments.board import shapes
from memobench.methods.capacity import Capacity
from memobench.methods.thresholds import Estimate
from memobench.report import tables
from memobench.report.drawing import key, legend, subplots
from memobench.report.names import form_name
from memobench.report.style import styles_of
from memobench.tasks.associations import Associations

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Sizes of sets over parameters, finer where attention's peak was found to lie, as far as there are
# so many pairs of tokens.
SHARES = (0.3125, 0.375, 0.4375, 0.5, 0.5625, 0.625, 0.75, 0.875, 1.0, 1.25)
# Label tables of each budget.
TABLES = {256: 24, 512: 16, 1024: 12, 2048: 10, 4096: 8, 8192: 6}
PRESETS = {
    "quick": (256, 512),
    "full": (256, 512, 1024),
    "large": (256, 512, 1024, 2048, 4096),
}


def main_shapes(budget: int) -> Iterator[Architecture]:
    """One layer, with wide and with narrow heads: the six main families."""
    found = [*shapes.standard(budget), *shapes.standard(budget, "narrow")]
    for shape in found:
        side, heads = shape.side
        plain = getattr(shape, "activation", "gelu") == "gelu" and shape.shared_cells()
        if side and heads in ("full", "narrow") and plain and plain["n_layers"] == 1:
            yield shape


def runs(budgets: Iterable[int]) -> Iterator[Run]:
    """Every main family on sets of every size."""
    for budget in budgets:
        method = Capacity(
            training=board.TRAININGS[board.EXACT],
            rate_factors=board.RATE_FACTORS,
            tables=TABLES[budget],
            pilots=3,
            rungs=1,
        )
        for shape in main_shapes(budget):
            for share in SHARES:
                n_tokens, n_sequences = families.VOCAB_SIZES[budget], round(share * budget)
                if n_sequences <= n_tokens**2:
                    task = Associations(vocab_size=n_tokens, n_sequences=n_sequences)
                    yield Run(task=task, architecture=shape, method=method)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Peaks(Drawing):
    """Bits per parameter against the size of the set, a panel for each budget."""

    def draw(self, experiment: Experiment, preset: str, table: pd.DataFrame) -> "Figure":
        """See `Drawing`; a ring is where the mean over all label tables is most."""
        found = peak.peaks(table)
        budgets = sorted(set(found["budget"])) or [0]
        figure, (axes,) = subplots(1, len(budgets), (2 + 5 * len(budgets), 5), sharey=True)
        names = [form_name(row["side"], row["heads"]) for row in found.to_dict("records")]
        styles = styles_of(names)
        for axis, budget in zip(axes, budgets, strict=True):
            for row in found[found["budget"] == budget].to_dict("records"):
                per = row["n_params"]
                x, y = ([value / per for value in row[name]] for name in ("sizes", "means"))
                axis.errorbar(
                    x,
                    y,
                    yerr=[error / per for error in row["errors"]],
                    markersize=4,
                    capsize=2,
                    **styles[form_name(row["side"], row["heads"])].for_line(),
                )
                top = row["n_examples"] / per, max(y)
                axis.plot(*top, "o", markersize=13, fillstyle="none", color="black")
            axis.set_title(f"{budget:,} parameters")
            axis.set_xlabel("associations of the set / parameters")
        axes[0].set_ylabel("bits per parameter")
        axes[0].set_ylim(1)
        legend(figure, [key(name, **style.for_line()) for name, style in styles.items()])
        figure.suptitle(experiment.title)
        return figure

    def answer(self, table: pd.DataFrame) -> str:
        """See `Drawing`: attention over MLP at their best sizes of sets, at the largest budget."""
        return " ".join(ratios(peak.peaks(table))[-1:])

    def sections(self, table: pd.DataFrame) -> list[str]:
        """See `Drawing`: the ratios, and every entry's peak."""
        found = peak.peaks(table)
        if found.empty:
            return []
        return [
            "## Attention alone and MLP at the peak",
            "\n".join(f"- {line}" for line in ratios(found)),
            "## Peaks",
            "Half of the label tables choose the size at which the other half is measured, and the "
            "reverse. The interval covers that choice (95%); it does not cover the choice of "
            "shapes, of steps, or of learning rates, which three pilots chose for each size. "
            "*Edge*: the largest set is the best one, so that the peak may lie beyond. Entries "
            "that cannot be told apart share a range of ranks, as on the board.",
            tables.markdown(_format(found), {}),
        ]


def _per_parameter(row: Any) -> Estimate:
    return Estimate(*(row[f"bits{end}"] / row["n_params"] for end in ("", "_low", "_high")))


def ratios(found: pd.DataFrame) -> list[str]:
    """Attention over MLP at each budget, by the best form of each and by wide heads."""
    lines = []
    attention, mlp, _ = capacity_summary.SIDES
    for budget, rows in found.groupby("budget"):
        by_side: dict[Any, Any] = {}
        for row in rows.to_dict("records"):  # The most bits come first.
            by_side.setdefault(row["side"], row)
            by_side.setdefault((row["side"], row["heads"]), row)
        if {attention, mlp} <= by_side.keys():
            over = peak.ratio(_per_parameter(by_side[attention]), _per_parameter(by_side[mlp]))
            at_budget = _at_budget(by_side[attention]) / _at_budget(by_side[mlp])
            line = (
                f"At {budget:,} parameters the best attention alone holds "
                f"{tables.interval(*over, digits=2)} times the bits of the best MLP, each at its "
                f"best size of set ({_in_sample(rows, attention) / _in_sample(rows, mlp):.2f} with "
                f"the sizes chosen on all label tables); on sets of {by_side[mlp]['budget']:,} "
                f"{at_budget:.2f} times"
            )
            if (attention, "full") in by_side:
                wide = peak.ratio(
                    _per_parameter(by_side[attention, "full"]), _per_parameter(by_side[mlp])
                )
                line += f". With wide heads it holds {tables.interval(*wide, digits=2)} times"
            lines.append(f"{line}.")
    return lines


def _in_sample(rows: pd.DataFrame, side: str) -> float:
    """The highest mean of any size, in bits per parameter, of the best form of a side."""
    of_side: list[Any] = rows[rows["side"] == side].to_dict("records")
    return max(max(row["means"]) / row["n_params"] for row in of_side)


def headline(found: pd.DataFrame) -> str:
    """The range over budgets of attention over MLP, each at its best size of set, in a clause."""
    attention, mlp, _ = capacity_summary.SIDES
    over: dict[Any, float] = {}
    for budget, rows in found.groupby("budget"):
        best = (rows["bits"] / rows["n_params"]).groupby(rows["side"]).max()
        if {attention, mlp} <= set(best.index):
            over[budget] = best[attention] / best[mlp]
    least, most = min(over.values()), max(over.values())
    return (
        f"Each at its best size of set, attention alone knows {least:.2f} to {most:.2f} times the "
        f"MLP's bits from {min(over):,} to {max(over):,} parameters"
    )


def _at_budget(row: Any) -> float:
    """Mean bits per parameter of the set whose size is nearest to the budget."""
    place = min(range(len(row["sizes"])), key=lambda j: abs(row["sizes"][j] - row["budget"]))
    return row["means"][place] / row["n_params"]


def _format(found: pd.DataFrame) -> pd.DataFrame:
    rows = found.to_dict("records")
    return pd.DataFrame(
        {
            "budget": [f"{row['budget']:,}" for row in rows],
            "rank": [board.COLUMNS["rank"].text(row) for row in rows],
            "entry": [f"{form_name(row['side'], row['heads'])} ({row['entry']})" for row in rows],
            "bits / parameter at the peak": [
                tables.interval(*_per_parameter(row), digits=3) for row in rows
            ],
            "set size there": [
                f"{row['n_examples']:,}" + " (edge)" * (row["n_examples"] == row["sizes"][-1])
                for row in rows
            ],
            "over parameters": [f"{row['n_examples'] / row['n_params']:.2f}" for row in rows],
            "known there": [f"{row['known']:.1%}" for row in rows],
            "bits / parameter of a set as large as the budget": [
                f"{_at_budget(row):.3f}" for row in rows
            ],
            "label tables": [row["tables"] for row in rows],
        }
    )


EXPERIMENT = Experiment(
    name="board/peak",
    title="Bits per parameter against the size of the set",
    presets={preset: functools.partial(runs, budgets) for preset, budgets in PRESETS.items()},
    left_out="the budget of 1,024 parameters",
    figure=Peaks(),
)
