"""board/peak: capacity as the maximum over set sizes, attention against MLP.

`board/typical` measures all entries on sets of as many associations as parameters, more than any
model holds: there training settles for fewer bits than at its best size. Here the six main families
learn sets of up to six sizes at four learning rates, every setting on the same label tables, and
the most is their capacity, by which the board ranks. Shapes are those of `board/typical`, which
were chosen on sets as large as the budget. Preset `entries` has all other families, up to 2,048
parameters, and above that the MLP of SwiGLU neurons.

Expected: the most lies where some 95% are known, at half to three quarters of the parameters, and
attention alone gains more by it than the MLP.

    memobench run board/peak --preset=quick
    memobench report board/peak --preset=quick
    memobench leaderboard
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pandas as pd

from memobench.board import capacity_summary, families, peak
from memobench.board import table as board
from memobench.common.errors import require
from memobench.common.notation import enumerate_words
from memobench.core.architecture import Architecture
from memobench.core.run import Run
from memobench.experiment import Drawing, Experiment
from memobench.experiments.board import shapes
from memobench.methods.thresholds import FAILING
from memobench.report import tables
from memobench.report.answer import WIDE
from memobench.report.drawing import key, legend, subplots
from memobench.report.peak_answer import (
    compare,
    estimate,
    find_best,
    find_gelu,
    name_peaks,
    overfull_ratio,
)
from memobench.report.style import styles_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PRESETS = {
    "quick": (256, 512),
    "full": (256, 512, 1024),
    "large": (256, 512, 1024, 2048, 4096, 8192),
}
# Panels of a row of the figure, and families in it.
_COLUMNS, _DRAWN = 3, 6
# Fewest entries of a budget for which ranks are simulated (docs/intervals.md).
_RANKED = 6
# At which all other families of the board are measured as well.
ENTRIES = (256, 512, 1024, 2048)


def main_shapes(budget: int) -> Iterator[Architecture]:
    """One layer, with wide and with narrow heads: the six main families.

    Raises UserError for a budget at which no shapes were searched.
    """
    found = [x for of in ("families", "narrow") for x in shapes.standard(budget, of) if is_main(x)]
    require(
        found,
        f"budget={budget} has no searched shapes. Choose one of experiments/board/chosen.csv.",
    )
    yield from found


def is_main(shape: Architecture) -> bool:
    """True if a shape is of one of the six main families, of Dana et al.'s model."""
    is_plain = getattr(shape, "activation", "gelu") == "gelu"
    return (
        shape.name in ("attention_only", "mlp")
        and shape.side[1] in ("full", "narrow")
        and is_plain
        and shape.shared_cells()["n_layers"] == 1
    )


def entries(budget: int) -> Iterator[Architecture]:
    """The shapes that stand for all other families of the board."""
    main = set(main_shapes(budget))
    for of in shapes.RANKED:
        yield from (shape for shape in shapes.standard(budget, of) if shape not in main)
    yield from shapes.standard_gated_mlps(budget)


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
        if shape.side[0] == capacity_summary.BOTH:
            yield _run_briefly(shape, 256)


def _entries() -> Iterator[Run]:
    """All other families; at larger budgets only the MLP of SwiGLU neurons, briefly."""
    yield from runs(ENTRIES, entries)
    for budget in (4096, 8192):
        for shape in shapes.standard_gated_mlps(budget):
            yield _run_briefly(shape, budget)


def _run_briefly(shape: Architecture, budget: int) -> Run:
    """The run of an entry by the fewest label tables that the board ranks."""
    fewest = peak.method(budget).replace(tables=peak.LEAST_TABLES)
    return dataclasses.replace(board.run(shape, budget), method=fewest)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Peaks(Drawing):
    """Bits per parameter against the size of the set, a panel for each budget.

    Attributes:
      compares: whether the page compares the best attention alone and MLP of its runs.
    """

    compares: bool = True

    def draw(self, experiment: Experiment, preset: str, table: pd.DataFrame) -> "Figure":
        """See `Drawing`; a ring is at the best size of each."""
        found = select_drawn(name_peaks(table))
        budgets = sorted(set(found["budget"])) or [0]
        n_rows = -(-len(budgets) // _COLUMNS)
        n_columns = -(-len(budgets) // n_rows)
        size = (1 + 4 * n_columns, 1 + 3.5 * n_rows)
        figure, axes = subplots(n_rows, n_columns, size, sharex=True, sharey=True)
        styles = styles_of(found["name"])
        for axis, budget in zip(axes.flat, budgets, strict=False):
            for row in found[found["budget"] == budget].to_dict("records"):
                style = styles[row["name"]]
                x = [size / row["n_params"] for size in row["sizes"]]
                axis.errorbar(
                    x, row["means"], yerr=row["errors"], markersize=4, capsize=2, **style.for_line()
                )
                top = row["sizes"].index(row["n_examples"])
                ring = {"markersize": 11, "fillstyle": "none", "color": style.color}
                axis.plot(x[top], row["means"][top], "o", **ring)
            axis.set_title(f"{budget:,} parameters")
        # Those with no panel below.
        for axis in axes.flat[max(0, len(budgets) - n_columns) : len(budgets)]:
            axis.set_xlabel("associations / parameters")
            axis.tick_params(labelbottom=True)
        for axis in axes[:, 0]:
            axis.set_ylabel("bits per parameter")
        for axis in axes.flat[len(budgets) :]:
            axis.remove()
        legend(figure, [key(name, **style.for_line()) for name, style in styles.items()])
        figure.suptitle(experiment.title)
        return figure

    def answer(self, table: pd.DataFrame) -> str:
        """See `Drawing`: attention over MLP at their best sizes of sets, at the largest budget."""
        return " ".join(ratios(name_peaks(table))[-1:]) if self.compares else ""

    def sections(self, table: pd.DataFrame) -> list[str]:
        """See `Drawing`: the ratios, and every entry's peak."""
        found = name_peaks(table)
        if found.empty:
            return []
        tried = sorted(set(map(tuple, found["rates"])))
        rates = " or ".join(", ".join(f"{rate:g}" for rate in each) for each in tried)
        lines, names = ratios(found) if self.compares else [], set(found["name"])
        left_out = names - {*select_drawn(found)["name"]}
        shown = format_peaks(found)
        has_ranks = bool(found.groupby("budget").size().min() >= _RANKED)
        if has_ranks:
            ranks = [board.COLUMNS["rank"].text(row) for row in found.to_dict("records")]
            shown.insert(1, "rank", ranks)
        return [
            *(
                ["## Attention alone and MLP at the peak", "\n".join(f"- {x}" for x in lines)]
                if lines
                else []
            ),
            "## Peaks",
            f"Each entry learns each set at learning rates {rates}. Half of the label tables "
            "choose the rate and the size at which the other half is measured, and the reverse; a "
            "ring in the figure is at the size that all choose. The interval (95%) covers that "
            "choice; it does not cover the choice of shapes or of steps. *Edge*: the best set size "
            "or learning rate is the lowest or highest of those tried; with one beyond, the entry "
            f"might know more{_tell_all_pairs(found)}. *Failed* trainings know less than "
            f"{FAILING:.0%} of their median; they count."
            + " Entries that cannot be told apart share a range of ranks; the board, with more "
            "entries, tells fewer apart."
            * has_ranks
            + f" The figure has {len(names - left_out)} families, those that know the most of all "
            "that were measured at every budget." * bool(left_out),
            tables.markdown(shown, {}),
        ]


def _tell_all_pairs(found: pd.DataFrame) -> str:
    """The budgets at which no set could be larger, "" for none."""
    largest = found["sizes"].map(max)
    n_pairs = found["budget"].map(lambda budget: families.task(budget).vocab_size ** 2)
    budgets = sorted(set(found["budget"][largest == n_pairs]))
    if not budgets:
        return ""
    shown = enumerate_words(f"{budget:,}" for budget in budgets)
    return f". None is beyond the largest set at {shown} parameters, which has all pairs of tokens"


def select_drawn(found: pd.DataFrame) -> pd.DataFrame:
    """The rows of as many families as lines can be told apart, those of most bits on average.

    Families that were not measured at all budgets come last.
    """
    budgets = found.groupby("name")["budget"].nunique()
    bits = found.groupby("name")["bits"].mean()
    order = pd.DataFrame({"budgets": budgets, "bits": bits}).sort_values(["budgets", "bits"])
    return found[found["name"].isin(order.index[-_DRAWN:])]


def ratios(found: pd.DataFrame) -> list[str]:
    """Attention over MLP at each budget, by the best form of each and by wide heads.

    Args:
      found: as `name_peaks` returns it.
    """
    lines = []
    attention, mlp, _ = capacity_summary.SIDES
    sides = find_best(found)
    gelu = find_gelu(found, sides)
    for budget, best in sides.items():
        overfull = overfull_ratio(found, budget)
        shown = tables.interval(*overfull, digits=2)
        large = "" if math.isnan(overfull.value) else f"; on sets of {budget:,} {shown} times"
        line = (
            f"At {budget:,} parameters the best attention alone of these runs holds "
            f"{_format_ratio(best[attention], best[mlp])} times the bits of their best "
            f"{'GELU ' * (budget in gelu)}MLP, each at its best size of set{large}"
        )
        if WIDE in best:
            line += f". With wide heads it holds {_format_ratio(best[WIDE], best[mlp])} times"
        lines.append(f"{line}.")
    return lines


def _format_ratio(row: Any, other: Any) -> str:
    return tables.interval(*compare(row, other), digits=2)


def forms(found: pd.DataFrame) -> str:
    """A Markdown table of the best form of each side at the largest budget, and of wide heads."""
    budget, best = max(find_best(found).items())
    rows = pd.DataFrame(best.values()).sort_values("bits", ascending=False)
    shown = format_peaks(rows).drop(columns=["budget", "failed"])
    return tables.markdown(shown.rename(columns={"entry": f"{budget:,} parameters"}), {})


def format_peaks(found: pd.DataFrame) -> pd.DataFrame:
    """The columns of a table of peaks for people."""
    rows: list[Any] = found.to_dict("records")
    return pd.DataFrame(
        {
            "budget": [f"{row['budget']:,}" for row in rows],
            "entry": [f"{row['name']} ({row['entry']})" for row in rows],
            "bits / parameter at the peak": [
                tables.interval(*estimate(row), digits=3) for row in rows
            ],
            "set size there": [
                f"{row['n_examples']:,}" + " (edge)" * row["edge_of_sizes"] for row in rows
            ],
            "over parameters": [f"{row['n_examples'] / row['n_params']:.2f}" for row in rows],
            "learning rate": [
                f"{row['learning_rate']:g}" + " (edge)" * row["edge_of_rates"] for row in rows
            ],
            "known there": [f"{row['known']:.1%}" for row in rows],
            "failed": [f"{row['failed']} of {row['tables']}" for row in rows],
            "bits / parameter of a set as large as the budget": [
                "–" if math.isnan(row["of_budget"]) else f"{row['of_budget']:.3f}" for row in rows
            ],
        }
    )


EXPERIMENT = Experiment(
    name="board/peak",
    title="Bits per parameter against the size of the set",
    presets={preset: functools.partial(runs, budgets) for preset, budgets in PRESETS.items()}
    | {"entries": _entries, "entry": _entry},
    of_full="256 and 512 parameters of up to 1,024",
    figure=Peaks(),
)
