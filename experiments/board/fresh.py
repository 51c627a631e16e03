"""board/fresh: the answer on label tables that chose nothing.

In `board/peak` half of the label tables choose the set and the learning rate at which the other
half is measured, and four of them chose shapes before: at 8,192 parameters all. Here the six main
families, and the MLP of SwiGLU neurons, learn the set that was best at the rate that was best, with
label tables that nothing else has seen; so does the best MLP of all neurons and rates that were
tried (`board/neurons`). Initial weights are drawn by the run's seed, so that the first are the
board's.

Expected: the same ratios to the MLP. (They are as high, or higher, where the MLP knows less.)

    memobench run board/fresh --preset=quick
    memobench report board/fresh --preset=quick
"""

import dataclasses
import functools
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from memobench.analysis.statistics import half_widths
from memobench.board import capacity_summary, families, peak
from memobench.core.run import Run
from memobench.experiment import Drawing, Experiment
from memobench.experiments.board import shapes
from memobench.experiments.board.peak import PRESETS, is_main
from memobench.methods.peak import Peak
from memobench.methods.thresholds import Estimate, count_failed
from memobench.report import tables
from memobench.report.answer import format_range, name_budgets
from memobench.report.drawing import key, legend, subplots
from memobench.report.names import display_name
from memobench.report.peak_answer import compare, find_best, name_peaks
from memobench.report.style import styles_of
from memobench.store.published import published

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ATTENTION, MLP, BOTH = capacity_summary.SIDES
# Sides that are compared with the MLP.
COMPARED = (BOTH, ATTENTION)
# The seed of the first label table; those of all else on the board are below.
FIRST = 1000
# Label tables of each budget.
TABLES = {256: 48, 512: 48, 1024: 48, 2048: 32, 4096: 24, 8192: 24}

# Of `measure`.
_COLUMNS = ("budget", "side", "model", "n_examples", "learning_rate", "bits_T")


@functools.cache
def read_board(jointly: bool) -> pd.DataFrame:
    """The peaks of the board, with their names (see `name_peaks`)."""
    return name_peaks(published("board/peak"), jointly)


def find_beyond() -> dict[int, dict[str, Any]]:
    """The best form of each side, of MLPs also among those beyond the board.

    These have other neurons and higher rates (`board/neurons`). Set and rate are chosen together.
    """
    known = [read_board(True), name_peaks(published("board/neurons"), jointly=True)]
    return find_best(pd.concat(known))


def runs(budgets: Collection[int]) -> Iterator[Run]:
    """Forms of each side at each budget, on their best set and at their best rate.

    Also on the set and at the rate that together have the most bits, where these are others, and
    the MLP of `find_beyond`.
    """
    rows = [row for jointly in (False, True) for row in read_board(jointly).to_dict("records")]
    rows = [row for row in rows if is_main(row["model"]) or _is_gated_mlp(row)]
    rows += [of_side[MLP] for of_side in find_beyond().values()]
    for row in {_place(row): row for row in rows}.values():
        budget = row["budget"]
        if budget in budgets:
            training = peak.TRAINING.replace(learning_rate=row["learning_rate"])
            method = Peak(
                training=training, shares=(1.0,), rate_factors=(1.0,), tables=TABLES[budget]
            )
            task = families.task(budget, FIRST).replace(n_sequences=row["n_examples"])
            yield Run(task=task, architecture=row["model"], method=method)


def _is_gated_mlp(row: Any) -> bool:
    return row["model"] in shapes.standard_gated_mlps(row["budget"])


def _place(row: Any) -> tuple[Any, ...]:
    """The form of a row, its set and its learning rate."""
    return row["model"], row["n_examples"], row["learning_rate"]


def measure(table: pd.DataFrame) -> pd.DataFrame:
    """The bits that each form knows of every label table.

    Args:
      table: rows of this experiment.

    Returns:
      A row for each run, by budget and mean bits: budget, side, model, n_examples, learning_rate,
      and bits_T, bits per parameter of every label table.
    """
    found = []
    for row in table[(table["method"] == Peak.name) & (table["status"] == "ok")].to_dict("records"):
        made, bits_JxRxT, _ = peak.read_grid(row)
        shape: Any = made.architecture
        method: Any = made.method
        found.append(
            {
                "budget": capacity_summary.budget(row["n_params"]),
                "side": shape.side[0],
                "model": shape,
                "n_examples": method.sizes(made)[0],
                "learning_rate": method.training.learning_rate,
                "bits_T": bits_JxRxT[0, 0] / row["n_params"],
            }
        )
    found.sort(key=lambda row: (row["budget"], row["bits_T"].mean()))
    return pd.DataFrame(found, columns=_COLUMNS)


def ratio(bits_T: np.ndarray, other_T: np.ndarray) -> Estimate:
    """The mean of one form's bits over that of another, on the same label tables.

    The interval is Student's of what the one has beyond so many times the other's.

    >>> ratio(np.array([2.0, 4.0]), np.array([1.0, 2.0]))
    Estimate(value=2.0, low=2.0, high=2.0)
    """
    value = bits_T.mean() / other_T.mean()
    half = half_widths(bits_T - value * other_T) / other_T.mean()
    return Estimate(*map(float, (value, value - half, value + half)))


def compare_forms(
    found: pd.DataFrame, best: Mapping[int, Mapping[str, Any]] | None = None
) -> dict[int, dict[str, Estimate]]:
    """At each budget whose MLP was measured, the ratios to it of the sides of COMPARED.

    Args:
      found: as `measure` returns it.
      best: the row of each side at each budget that says its form, set and rate; by default those
        of most bits on the board (`find_best`).
    """
    known_of: dict[Any, Any] = {_place(row): row["bits_T"] for row in found.to_dict("records")}
    compared = {}
    for budget, of_side in (best or find_best(read_board(False))).items():
        known: dict[str, Any] = {side: known_of.get(_place(row)) for side, row in of_side.items()}
        if known[MLP] is not None:
            others = [side for side in COMPARED if known.get(side) is not None]
            compared[budget] = {x: ratio(known[x], known[MLP]) for x in others}
    return compared


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fresh(Drawing):
    """Bits over the best MLP's against the budget, here and on the board."""

    def draw(self, experiment: Experiment, preset: str, table: pd.DataFrame) -> "Figure":
        """See `Drawing`; of MLPs the best of all that were tried, by `find_beyond`."""
        compared = compare_forms(measure(table), find_beyond())
        figure, axes = subplots(1, 1, (7, 5))
        axis, styles = axes[0, 0], styles_of(COMPARED)
        for shift, alpha, shown in ((0.98, 0.35, _board_ratios(compared)), (1.02, 1.0, compared)):
            for form, style in styles.items():
                points = [(x, *of[form]) for x, of in shown.items() if form in of]
                x_B, value_B, low_B, high_B = np.reshape(points, (-1, 4)).T
                arms = [value_B - low_B, high_B - value_B]
                axis.errorbar(
                    x_B * shift, value_B, yerr=arms, capsize=2, alpha=alpha, **style.for_line()
                )
        axis.axhline(1, color="black", linewidth=1)
        axis.set_xscale("log")
        axis.set_xticks([*compared], [f"{x:,}" for x in compared])
        axis.minorticks_off()
        axis.set_xlabel("parameters")
        axis.set_ylabel("bits over the best MLP's")
        legend(figure, [key(form, **style.for_line()) for form, style in styles.items()])
        figure.suptitle(f"{experiment.title}\n(faint: label tables and MLPs of the board)")
        return figure

    def answer(self, table: pd.DataFrame) -> str:
        """See `Drawing`: the ratios to the MLP."""
        compared = {
            x: of for x, of in compare_forms(measure(table)).items() if {*COMPARED} <= {*of}
        }
        if not compared:
            return ""
        over = {x: format_range([of[x].value for of in compared.values()]) for x in COMPARED}
        undecided = [f"{x:,}" for x, of in compared.items() if of[ATTENTION].low <= 1]
        note = f" (undecided at {', '.join(undecided)})" if undecided else ""
        return (
            f"On label tables that chose nothing attention alone knows {over[ATTENTION]} times the "
            f"bits of the board's MLP{note}, attention + MLP {over[BOTH]} times, "
            f"{name_budgets([*compared])}."
        )

    def sections(self, table: pd.DataFrame) -> list[str]:
        """See `Drawing`: the ratios beside those of the board, and what each form knows."""
        found = measure(table)
        compared = compare_forms(found)
        if not compared:
            return []
        board, beyond, rows = _board_ratios(compared), compare_forms(found, find_beyond()), []
        for budget, of in compared.items():
            row = {"parameters": f"{budget:,}"}
            for form in of:
                row[f"{form} / MLP"] = tables.interval(*of[form], digits=3)
                row[f"{form} / MLP, on the board"] = tables.interval(*board[budget][form], digits=3)
                if form in beyond.get(budget, ()):
                    tried = tables.interval(*beyond[budget][form], digits=3)
                    row[f"{form} / best MLP tried"] = tried
            rows.append(row)
        return [
            "## Bits over the MLP's",
            self.answer(table),
            tables.markdown(pd.DataFrame(rows).fillna("–"), {}),
            "Means over label tables, with 95% intervals (Student's, paired over label tables). "
            "Shape, set and rate of each side are those of most bits on the board, chosen on other "
            "label tables: another choice might know more, which intervals do not cover. The rate "
            "is the one best over all sizes of set; rows below have others where a pair of size "
            "and rate had more bits. By such pairs each side is compared with the best MLP of all "
            "neurons and rates that were tried. Initial weights of the first label tables, as many "
            "as the board has, are those of the board.",
            "## What each knows",
            tables.markdown(_format(found), {}),
        ]


def _board_ratios(budgets: Iterable[int]) -> dict[int, dict[str, Estimate]]:
    """The ratios to the MLP on the board."""
    best = find_best(read_board(False))
    return {x: {form: compare(best[x][form], best[x][MLP]) for form in COMPARED} for x in budgets}


def _format(found: pd.DataFrame) -> pd.DataFrame:
    rows: list[Any] = found.to_dict("records")
    known = [(row["bits_T"], row["bits_T"].mean(), half_widths(row["bits_T"])) for row in rows]
    return pd.DataFrame(
        {
            "parameters": [f"{row['budget']:,}" for row in rows],
            "entry": [
                f"{display_name(row['model'])} ({' '.join(row['model'].shown_sizes)})"
                for row in rows
            ],
            "set size": [f"{row['n_examples']:,}" for row in rows],
            "learning rate": [f"{row['learning_rate']:g}" for row in rows],
            "bits / parameter": [
                tables.interval(mean, mean - half, mean + half, digits=3) for _, mean, half in known
            ],
            "failed": [f"{count_failed(bits_T)} of {len(bits_T)}" for bits_T, _, _ in known],
        }
    )


EXPERIMENT = Experiment(
    name="board/fresh",
    title="Bits over the MLP's on fresh label tables",
    presets={preset: functools.partial(runs, budgets) for preset, budgets in PRESETS.items()},
    of_full="256 and 512 parameters of up to 1,024",
    figure=Fresh(),
)
