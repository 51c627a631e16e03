"""board/finalists: the best shapes of the search, on sets of the sizes where they hold most.

`board/shapes` compares shapes on sets as large as the budget, after a quarter of the steps of the
board. What is best there need not be at the best size of set. Here the eight shapes of each side
that the search found best (at 8,192 parameters four) learn sets of half to three quarters of the
budget for all steps, on four label tables. Those that hold 2% more than the best of their side on
the board learn all sets, at all rates and with all tables, of `board/peak` in `board/challengers`.

Expected: the first of the search is among the best. (It was, but for attention + MLP at 4,096
parameters and attention alone at 8,192, where by the whole grid the second holds 4% and 3% more,
and took its place: `passed.csv` has the first.)

    memobench run board/finalists --preset=quick
    memobench report board/finalists --preset=quick

`python -m memobench.experiments.board.finalists` writes `finalists.csv`, from the published search
and the published finalists.
"""

import collections
import dataclasses
import functools
import math
import pathlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pandas as pd

from memobench.board import capacity_summary, families, peak
from memobench.board import table as board
from memobench.core.architecture import Architecture
from memobench.core.run import Run
from memobench.experiment import Drawing, Experiment
from memobench.experiments.board import shapes
from memobench.experiments.board.edges import run_with
from memobench.experiments.board.peak import Peaks, format_peaks, is_main, main_shapes
from memobench.report import tables
from memobench.report.drawing import key, legend, subplots, whole_numbers
from memobench.report.peak_answer import compare, estimate, find_best, name_peaks
from memobench.report.style import styles_of
from memobench.store.published import published
from memobench.store.rows import architecture_columns

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ATTENTION, MLP, BOTH = capacity_summary.SIDES
# Sizes over parameters.
SHARES = (0.5, 0.625, 0.75)
# Of the learning rate: the two that narrow heads of each side take on the board.
FACTORS = {ATTENTION: (1.0, 2.0), MLP: (5.0, 10.0), BOTH: (5.0, 10.0)}
# Shapes of each side at a budget.
PLACES = dict.fromkeys((256, 512, 1024, 2048, 4096), 8) | {8192: 4}
PRESETS = {
    "quick": (256, 512),
    "full": (256, 512, 1024),
    "large": tuple(PLACES),
}
# The column of what is measured by the whole grid.
AGAIN = "again"
FINALISTS = pathlib.Path(__file__).with_name("finalists.csv")


def find(table: pd.DataFrame) -> pd.DataFrame:
    """The shapes of each side that know most at a budget, the best first, as many as PLACES says.

    Args:
      table: rows of `board/shapes`.

    Returns:
      Columns budget, and those of architectures.
    """
    row_by_run = table[table["status"] == "ok"].set_index("run_id")
    found = []
    for budget, places in PLACES.items():
        tried = shapes.runs([budget], lambda n: families.shapes(n) + families.narrow_shapes(n))
        of_side = collections.defaultdict[str, list[dict[str, Any]]](list)
        for run in tried:
            if is_main(run.architecture) and run.run_id in row_by_run.index:
                row: Any = row_by_run.loc[run.run_id]
                cells = {"budget": budget, "known": row["bits"] / row["n_params"]}
                of_side[run.architecture.side[0]].append(cells | dict(row[architecture_columns()]))
        for rows in of_side.values():
            found += sorted(rows, key=lambda row: -row["known"])[:places]
    return pd.DataFrame(found).drop(columns="known")


def find_better(table: pd.DataFrame) -> set[tuple[int, Architecture]]:
    """The budgets and the finalists that hold EQUAL more than the best of their side on the board.

    Args:
      table: rows of `board/finalists`.
    """
    better = set()
    for _, of_side in peak.peaks(table).groupby(["budget", "side"]):
        rows: list[Any] = of_side.to_dict("records")
        on_board = (row["bits"] for row in rows if row["model"] in main_shapes(row["budget"]))
        most = max(on_board, default=math.inf)
        bar = (1 + shapes.EQUAL) * most
        better |= {(row["budget"], row["model"]) for row in rows if row["bits"] > bar}
    return better


@functools.cache
def finalists(budget: int, again: bool = False) -> tuple[Architecture, ...]:
    """The shapes of all sides at a budget, each side's best of the search first.

    Args:
      budget: of parameters.
      again: those alone that are measured by the whole grid.
    """
    table = pd.read_csv(FINALISTS).query("budget == @budget")
    rows: list[Any] = table.to_dict("records")
    return tuple(Architecture.from_row(row) for row in rows if row[AGAIN] or not again)


def runs(budgets: Iterable[int]) -> Iterator[Run]:
    """The finalists of each budget."""
    for budget in budgets:
        for shape in finalists(budget):
            factors = FACTORS[shape.side[0]]
            yield run_with(shape, budget, factors, SHARES, peak.LEAST_TABLES)


def challenges() -> Iterator[Run]:
    """The finalists that seemed better than what is on the board, as it measures entries."""
    for budget in PLACES:
        for shape in finalists(budget, again=True):
            yield board.run(shape, budget)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finalists(Drawing):
    """Bits at the best size of set against the place in the search, a panel for each budget."""

    def draw(self, experiment: Experiment, preset: str, table: pd.DataFrame) -> "Figure":
        """See `Drawing`; a ring is round the shapes on the board."""
        found = place(table)
        budgets = sorted(set(found["budget"])) or [0]
        n_columns = min(len(budgets), 3)
        n_rows = -(-len(budgets) // n_columns)
        size = (1 + 4 * n_columns, 1 + 3.2 * n_rows)
        figure, axes = subplots(n_rows, n_columns, size, sharex=True, sharey=True)
        styles = styles_of(capacity_summary.SIDES)
        for axis, budget in zip(axes.flat, budgets, strict=False):
            for shift, (side, style) in zip((-0.2, 0.0, 0.2), styles.items(), strict=True):
                of_side = found[(found["budget"] == budget) & (found["side"] == side)]
                x, bits = of_side["place"] + shift, of_side["bits"]
                ends = bits - of_side["bits_low"], of_side["bits_high"] - bits
                points = {**style.for_points(), "markersize": 4, "linestyle": ""}
                axis.errorbar(x, bits, yerr=ends, capsize=2, **points)
                ring = {"markersize": 11, "fillstyle": "none", "color": style.color}
                axis.plot(x[of_side["stands"]], bits[of_side["stands"]], "o", **ring)
            axis.set_title(f"{budget:,} parameters")
            whole_numbers(axis)
        for axis in axes[-1]:
            axis.set_xlabel("place in the search of shapes")
        for axis in axes[:, 0]:
            axis.set_ylabel("bits per parameter")
        for axis in axes.flat[len(budgets) :]:
            axis.remove()
        legend(figure, [key(side, **style.for_points()) for side, style in styles.items()])
        figure.suptitle(experiment.title)
        return figure

    def sections(self, table: pd.DataFrame) -> list[str]:
        """See `Drawing`: every finalist's place and peak."""
        found = place(table)
        if found.empty:
            return []
        # With so few sizes and rates nearly all are ends.
        shown = format_peaks(found.assign(edge_of_sizes=False, edge_of_rates=False))
        shown = shown.drop(columns=["bits / parameter of a set as large as the budget"])
        shown.insert(1, "place", found["place"].map(str))
        shown.insert(3, "on the board", ["yes" if stands else "" for stands in found["stands"]])
        return [
            "## The best of each side",
            "The most bits of a side's finalists over the most of those that are on the board, and "
            "attention over MLP, each by its best finalist. The best of several, on so few label "
            "tables, looks better than it is.",
            tables.markdown(compare_best(found), {}),
            "## Finalists",
            "Places are those of the search. Rate and size are chosen as in `board/peak`, of "
            "fewer, on fewer label tables.",
            tables.markdown(shown, {}),
        ]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Challengers(Peaks):
    """Bits per parameter against the size of the set, beside the best on the board."""

    def answer(self, table: pd.DataFrame) -> str:
        """See `Drawing`: none, as these are not the best of their sides."""
        return ""

    def sections(self, table: pd.DataFrame) -> list[str]:
        """See `Drawing`: each peak over that of its side's best of the six main families."""
        on_board = name_peaks(published("board/peak"))
        best = find_best(on_board[on_board["model"].map(is_main)])
        rows: list[Any] = name_peaks(table).to_dict("records")
        shown = []
        for row in rows:
            stands = best[row["budget"]][row["side"]]
            columns = {"parameters": f"{row['budget']:,}"}
            for title, of in (("challenger", row), ("the best on the board", stands)):
                columns |= {
                    title: f"{of['name']} ({of['entry']})",
                    f"bits / parameter of {title}": tables.interval(*estimate(of), digits=3),
                }
            is_same = row["model"] == stands["model"]
            ratio = tables.interval(*compare(row, stands), digits=2)
            shown.append(columns | {"challenger over the board": "the same" if is_same else ratio})
        if not shown:
            return []
        return [
            "## Beside the board",
            "A challenger that held more than the best of its side has taken its place since: it "
            "is *the same*, and `experiments/board/passed.csv` has what the former held.",
            tables.markdown(pd.DataFrame(shown), {}),
        ]


def compare_best(found: pd.DataFrame) -> pd.DataFrame:
    """A row for each budget: the best of each side over the board's, and their ratio.

    Args:
      found: as `place` returns it.
    """
    rows = []
    for budget, of_budget in found.groupby("budget"):
        best = of_budget.groupby("side")["bits"].max()
        over = best / of_budget[of_budget["stands"]].groupby("side")["bits"].max()
        cells = {side: f"{over[side]:.3f}" for side in capacity_summary.SIDES if side in over}
        ratio = best.get(ATTENTION, math.nan) / best.get(MLP, math.nan)
        rows.append({"parameters": f"{budget:,}"} | cells | {"attention / MLP": f"{ratio:.2f}"})
    return pd.DataFrame(rows).fillna("–")


def place(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of `name_peaks` with each shape's place in the search of its side.

    Args:
      table: rows of this experiment.

    Returns:
      Two columns more: place, from 1; stands, whether the board has the shape. Rows are by
      budget, side and place.
    """
    found = name_peaks(table)
    rows: list[Any] = found.to_dict("records")
    of_side = [[x for x in finalists(row["budget"]) if x.side[0] == row["side"]] for row in rows]
    found["place"] = [x.index(row["model"]) + 1 for x, row in zip(of_side, rows, strict=True)]
    found["stands"] = [row["model"] in set(main_shapes(row["budget"])) for row in rows]
    return found.sort_values(["budget", "side", "place"], ignore_index=True)


EXPERIMENTS = (
    Experiment(
        name="board/finalists",
        title="The best shapes of the search at their best sizes of sets",
        presets={preset: functools.partial(runs, budgets) for preset, budgets in PRESETS.items()},
        of_full="256 and 512 parameters of up to 1,024",
        figure=Finalists(),
    ),
    Experiment(
        name="board/challengers",
        title="Shapes that looked better than those on the board",
        presets={"quick": challenges},
        figure=Challengers(),
    ),
)


def _main() -> None:
    """Writes `finalists.csv`."""
    found = find(published("board/shapes"))
    # Those that were measured stay: one may stand on the board since, and no longer be better.
    again = find_better(published("board/finalists")) | {
        (budget, shape) for budget in PLACES for shape in finalists(budget, again=True)
    }
    rows: list[Any] = found.to_dict("records")
    found[AGAIN] = [(row["budget"], Architecture.from_row(row)) in again for row in rows]
    # Sizes that some have stay whole numbers.
    found.dropna(axis=1, how="all").convert_dtypes().to_csv(FINALISTS, index=False)


if __name__ == "__main__":
    _main()
