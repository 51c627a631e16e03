"""board/fresh: the answer on label tables that chose nothing.

In `board/peak` half of the label tables choose the set and the learning rate at which the other
half is measured, and four of them chose shapes before: at 8,192 parameters all. Here the best form
of each side, and attention alone with wide heads, learn the set that was best at the rate that was
best, with label tables and initial weights that nothing else has seen.

Expected: the same ratios to the MLP.

    memobench run board/fresh --preset=quick
    memobench report board/fresh --preset=quick
"""

import dataclasses
import functools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from memobench.analysis.statistics import half_widths
from memobench.board import capacity_summary, families, peak
from memobench.core.run import Run
from memobench.experiment import Drawing, Experiment
from memobench.experiments.board.peak import PRESETS
from memobench.methods.peak import Peak
from memobench.methods.thresholds import Estimate, count_failed
from memobench.report import tables
from memobench.report.answer import WIDE, format_range, name_budgets
from memobench.report.drawing import key, legend, subplots
from memobench.report.names import display_name
from memobench.report.peak_answer import compare, find_best, name_peaks
from memobench.report.style import styles_of
from memobench.store.published import published

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ATTENTION, MLP, BOTH = capacity_summary.SIDES
# What is compared with the MLP.
COMPARED = (BOTH, ATTENTION, WIDE)
# The seed of the first label table; those of all else on the board are below.
FIRST = 1000
# Label tables of each budget.
TABLES = {256: 48, 512: 48, 1024: 48, 2048: 32, 4096: 24, 8192: 24}

# Of `measure`.
_COLUMNS = ("budget", "form", "name", "entry", "n_examples", "learning_rate", "bits_T")


@functools.cache
def _on_board() -> dict[int, dict[str, Any]]:
    """The best of each side of the board at each budget, and attention alone with wide heads."""
    return find_best(name_peaks(published("board/peak")))


def runs(budgets: Iterable[int]) -> Iterator[Run]:
    """The forms that the answer compares, each on its best set and at its best rate."""
    for budget in budgets:
        for row in _on_board()[budget].values():
            training = peak.TRAINING.replace(learning_rate=row["learning_rate"])
            method = Peak(
                training=training, shares=(1.0,), rate_factors=(1.0,), tables=TABLES[budget]
            )
            task = families.task(budget, FIRST).replace(n_sequences=row["n_examples"])
            yield Run(task=task, architecture=row["model"], method=method)


def measure(table: pd.DataFrame) -> pd.DataFrame:
    """What each form knows of every label table.

    Args:
      table: rows of this experiment.

    Returns:
      A row for each run, by budget: budget, form (a side, or attention alone with wide heads),
      name, entry, n_examples, learning_rate, and bits_T, bits per parameter of every label table.
    """
    found = []
    for row in table[(table["method"] == Peak.name) & (table["status"] == "ok")].to_dict("records"):
        made, bits_JxRxT, _ = peak.read_grid(row)
        shape: Any = made.architecture
        method: Any = made.method
        name, (side, _) = display_name(shape), shape.side
        found.append(
            {
                "budget": capacity_summary.budget(row["n_params"]),
                "form": name if name == WIDE else side,
                "name": name,
                "entry": " ".join(shape.shown_sizes),
                "n_examples": method.sizes(made)[0],
                "learning_rate": method.training.learning_rate,
                "bits_T": bits_JxRxT[0, 0] / row["n_params"],
            }
        )
    return pd.DataFrame(found, columns=_COLUMNS).sort_values("budget", ignore_index=True)


def ratio(bits_T: np.ndarray, other_T: np.ndarray) -> Estimate:
    """The mean of one form's bits over that of another, on the same label tables.

    The interval is Student's of what the one has beyond so many times the other's.

    >>> ratio(np.array([2.0, 4.0]), np.array([1.0, 2.0]))
    Estimate(value=2.0, low=2.0, high=2.0)
    """
    value = bits_T.mean() / other_T.mean()
    half = half_widths(bits_T - value * other_T) / other_T.mean()
    return Estimate(*map(float, (value, value - half, value + half)))


def compare_forms(found: pd.DataFrame) -> dict[int, dict[str, Estimate]]:
    """At each budget that has an MLP, the ratio to it of every other form.

    Args:
      found: as `measure` returns it.
    """
    compared = {}
    for budget, rows in found.groupby("budget"):
        of_form = dict(zip(rows["form"], rows["bits_T"], strict=True))
        if MLP in of_form:
            others = {form: of_form[form] for form in COMPARED if form in of_form}
            compared[int(str(budget))] = {x: ratio(y, of_form[MLP]) for x, y in others.items()}
    return compared


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fresh(Drawing):
    """Bits over the MLP's against the budget, here and on the board."""

    def draw(self, experiment: Experiment, preset: str, table: pd.DataFrame) -> "Figure":
        """See `Drawing`."""
        compared = compare_forms(measure(table))
        figure, axes = subplots(1, 1, (7, 5))
        axis, styles = axes[0, 0], styles_of(COMPARED)
        for factor, shown, fill in (
            (0.985, _board_ratios(compared), "none"),
            (1.015, compared, "full"),
        ):
            for shift, (form, style) in zip((0.94, 1.0, 1.06), styles.items(), strict=True):
                points = [(x, *of[form]) for x, of in shown.items() if form in of]
                x_B, value_B, low_B, high_B = np.reshape(points, (-1, 4)).T
                drawn = {**style.for_points(), "markersize": 6, "linestyle": "", "fillstyle": fill}
                arms = [value_B - low_B, high_B - value_B]
                axis.errorbar(x_B * shift * factor, value_B, yerr=arms, capsize=2, **drawn)
        axis.axhline(1, color="black", linewidth=1)
        axis.set_xscale("log")
        axis.set_xticks([*compared], [f"{x:,}" for x in compared])
        axis.minorticks_off()
        axis.set_xlabel("parameters")
        axis.set_ylabel("bits over the MLP's")
        legend(figure, [key(form, **style.for_points()) for form, style in styles.items()])
        figure.suptitle(f"{experiment.title}; hollow: the board's")
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
            f"bits of the MLP{note}, with wide heads {over[WIDE]} times, attention + MLP "
            f"{over[BOTH]} times, {name_budgets([*compared])}."
        )

    def sections(self, table: pd.DataFrame) -> list[str]:
        """See `Drawing`: the ratios beside those of the board, and what each form knows."""
        found = measure(table)
        compared = compare_forms(found)
        if not compared:
            return []
        board, rows = _board_ratios(compared), []
        for budget, of in compared.items():
            row = {"parameters": f"{budget:,}"}
            for form in of:
                row[f"{form} / MLP"] = tables.interval(*of[form], digits=3)
                row[f"{form} / MLP, on the board"] = tables.interval(*board[budget][form], digits=3)
            rows.append(row)
        return [
            "## Bits over the MLP's",
            self.answer(table),
            tables.markdown(pd.DataFrame(rows).fillna("–"), {}),
            "Means over label tables, with 95% intervals (Student's, paired over label tables). "
            "Shape, set and rate are those of most bits on the board, chosen on other label "
            "tables: another choice might know more.",
            "## What each knows",
            tables.markdown(_format(found), {}),
        ]


def _board_ratios(budgets: Iterable[int]) -> dict[int, dict[str, Estimate]]:
    """The ratios to the MLP on the board."""
    best = _on_board()
    return {x: {form: compare(best[x][form], best[x][MLP]) for form in COMPARED} for x in budgets}


def _format(found: pd.DataFrame) -> pd.DataFrame:
    rows: list[Any] = found.to_dict("records")
    known = [(row["bits_T"], row["bits_T"].mean(), half_widths(row["bits_T"])) for row in rows]
    return pd.DataFrame(
        {
            "parameters": [f"{row['budget']:,}" for row in rows],
            "entry": [f"{row['name']} ({row['entry']})" for row in rows],
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
    title="Bits over the MLP's on label tables that chose nothing",
    presets={preset: functools.partial(runs, budgets) for preset, budgets in PRESETS.items()},
    of_full="256 and 512 parameters of up to 1,024",
    figure=Fresh(),
)
