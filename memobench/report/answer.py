"""The answer on attention or MLP on sets as large as the parameters, in sentences and a figure.

Each side is its best measured form at a budget, and the cost of heads as wide as the model stands
beside it. All of it follows from runs of Capacities; no sentence is written by hand.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from memobench.board import capacity_summary
from memobench.board.peak import ratio
from memobench.methods.thresholds import Estimate
from memobench.report.drawing import draw_labelled_lines, subplots
from memobench.report.names import form_name
from memobench.report.style import FAINT

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_ATTENTION, _MLP, _BOTH = capacity_summary.SIDES
NAMES = {
    _ATTENTION: "attention alone",
    _MLP: "the MLP",
    _BOTH: "attention + MLP",
}
# What pages call heads that have as many dimensions as the residual stream.
WIDE = form_name(_ATTENTION, "full")
# Bits per parameter of perceptrons, and that others measured of larger models.
FIELD = {
    2.0: "Gardner; Allen-Zhu & Li",
    3.51: "Morris et al., bfloat16",
    3.83: "Morris et al., float32",
}


def answer(table: pd.DataFrame) -> str:
    """Sentences on attention and MLP at the budgets with every measured form of both.

    Raises ValueError where no budget has attention alone and an MLP on the same label tables.
    """
    contests = capacity_summary.contests(table)
    if not contests:
        raise ValueError("the table must have attention alone and an MLP at one budget")
    complete = capacity_summary.select_complete(contests) or contests[-1:]
    compared = capacity_summary.select_complete(contests, [_ATTENTION, _MLP]) or complete
    where = "" if _where(compared) == _where(complete) else f"{_where(compared)} "
    parts = [
        _order(complete),
        _ratio_sentence(compared, where),
        _width(compared),
        _design(compared),
    ]
    return " ".join(filter(None, parts))


def compare_learned_sets(table: pd.DataFrame) -> str:
    """A sentence on the largest sets that half of the trainings learn; "" where unknown."""
    compared = capacity_summary.select_complete(
        capacity_summary.contests(table), [_ATTENTION, _MLP]
    )
    measured, over = _compare_sets(compared)
    if not over:
        return ""
    pairs = zip(measured, over, strict=True)
    undecided = [f"{each.budget:,}" for each, x in pairs if not (x.low > 1 or x.high < 1)]
    note = f"; undecided at {', '.join(undecided)}" if undecided else ""
    return (
        f"Sets that half of attention alone's trainings learn to 99% are "
        f"{format_range([x.value for x in over])} times the MLP's "
        f"(to {measured[-1].budget:,}{note})."
    )


def draw(table: pd.DataFrame, bits_of: dict[str, list[Any]], title: str) -> "Figure":
    """The key figure, of bits and of largest sets per parameter, of each side's best form.

    Args:
      table: of runs of Capacities, which know the largest sets.
      bits_of: bits by form: parameters, estimate and limits.
      title: of the figure.
    """
    contests = capacity_summary.contests(table)
    figure, ((bits, sets),) = subplots(1, 2, (12, 4.8))
    compared = capacity_summary.select_complete(contests, [_ATTENTION, _MLP]) or contests
    for axis, lines, label in (
        (bits, bits_of, "bits per parameter"),
        (
            sets,
            _largest_sets(compared),
            "associations per parameter of which\nhalf of the trainings learn 99%",
        ),
    ):
        draw_labelled_lines(axis, lines, max(FIELD) + 0.3 if axis is bits else None)
        axis.set_ylabel(label)
        axis.set_xlabel("parameters, all counted")
    bits.grid(visible=False, axis="y")
    for value, where in FIELD.items():
        bits.axhline(value, color=FAINT, linewidth=1, linestyle=":", zorder=0)
        # The axis tells whole numbers. High ones are at the left, where lines are low.
        right = value < 3
        bits.annotate(
            where.replace("; ", ";\n") if value.is_integer() else f"{value:g}: {where}",
            (right, value),
            xytext=(-4 if right else 4, 2),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            color=FAINT,
            fontsize="xx-small",
            ha="right" if right else "left",
        )
    figure.suptitle(title, fontsize="medium")
    return figure


def _largest_sets(contests: Sequence[capacity_summary.Contest]) -> dict[str, list[Any]]:
    """By form, parameters with the largest sets and their limits, where a side is complete."""
    lines = {}
    for name in (_BOTH, _ATTENTION, _MLP, WIDE):
        side = _ATTENTION if name == WIDE else name
        known = map(_summarize_largest, capacity_summary.select_complete(contests, [side]))
        rows = [of_budget[name] for of_budget in known if name in of_budget]
        is_narrow = all(row["model"].side[1] == "narrow" for row in rows)
        lines[form_name(name, "narrow") if is_narrow else name] = [
            (row["n_params"], *_per_parameter(row, "half_99")) for row in rows
        ]
    return lines


# --- Sentences ------------------------------------------------------------------------------------


def _order(contests: Sequence[capacity_summary.Contest]) -> str:
    """The side that knows the most, and its bits."""
    known = [_summaries(contest) for contest in contests]
    last = contests[-1]
    sides = sorted(last.best, key=lambda side: -_per_parameter(known[-1][side], "bits").value)
    first, *others = sides
    over = [
        _ratio(contest.best[first], contest.best[other]) for contest in contests for other in others
    ]
    more = "the most" if all(each.low > 1 for each in over) else "as much as any"
    if any(each.high < 1 for each in over):
        more = f"the most at {last.budget:,}, not everywhere"
    name = NAMES[first]
    if all(summaries[first]["model"].side[1] == "narrow" for summaries in known):
        name = f"with narrow heads (narrower than the model) {name}"
    return (
        f"{name[0].upper()}{name[1:]} memorizes {more}: "
        f"{format_range([_per_parameter(each[first], 'bits').value for each in known])} bits per "
        f"parameter {_where(contests)}."
    )


def _ratio_sentence(contests: Sequence[capacity_summary.Contest], where: str) -> str:
    """Attention over MLP at budgets with the same forms of both."""
    over = [_ratio(each.best[_ATTENTION], each.best[_MLP]).value for each in contests]
    condition = " with narrow heads" * _has_narrow(contests)
    sets, (measured, times) = "", _compare_sets(contests)
    if times:
        at = "" if len(measured) == len(contests) else f" {_where(measured)}"
        sets = (
            f"; the sets that half of its trainings learn to 99%{at} are "
            f"{format_range([x.value for x in times])} times as large"
        )
    return (
        f"Attention alone{condition} {where}knows {format_range(over)} times the MLP's bits{sets}."
    )


def _compare_sets(
    contests: Sequence[capacity_summary.Contest],
) -> tuple[list[capacity_summary.Contest], list[Estimate]]:
    """Attention over MLP by the largest sets that fit, behind the contests that have them."""
    measured, over = [], []
    for contest in contests:
        largest = _summarize_largest(contest)
        attention, mlp = (_per_parameter(largest[side], "half_99") for side in (_ATTENTION, _MLP))
        if not math.isnan(attention.value / mlp.value):
            measured.append(contest)
            over.append(ratio(attention, mlp))
    return measured, over


def _where(contests: Sequence[capacity_summary.Contest]) -> str:
    return name_budgets([contest.budget for contest in contests])


def _width(contests: Sequence[capacity_summary.Contest]) -> str:
    """The cost of heads as wide as the model, where narrower ones were measured."""
    if not _has_narrow(contests):
        return "Narrow heads (narrower than the model) are not among these runs."
    wide = [(each.wide, each.best[_MLP]) for each in contests if each.wide is not None]
    if not wide:
        return ""
    over = [_ratio(run, mlp).value for run, mlp in wide]
    return f"With wide heads it knows {format_range(over)} times as many."


def _has_narrow(contests: Sequence[capacity_summary.Contest]) -> bool:
    return (_ATTENTION, "narrow") in contests[-1].forms


def _design(contests: Sequence[capacity_summary.Contest]) -> str:
    """The design for which all of this holds."""
    runs = [contest.best[_MLP] for contest in contests]
    # Whole numbers are floats beside runs that lack them, such as those of labelled contexts.
    tokens = format_range([run["vocab_size"] for run in runs], ".0f")
    return (
        f"Bits are of as many pairs of {tokens} tokens as parameters, after "
        f"{runs[-1]['steps']:,.0f} steps of full-batch Adam."
    )


# --- Numbers --------------------------------------------------------------------------------------


def _summaries(contest: capacity_summary.Contest) -> dict[str, Any]:
    """The summary of each side's best form, and of attention with wide heads."""
    runs = dict(contest.best)
    if contest.wide is not None and contest.wide["run_id"] != runs[_ATTENTION]["run_id"]:
        runs[WIDE] = contest.wide
    return {name: capacity_summary.summarize_run(run) for name, run in runs.items()}


def _summarize_largest(contest: capacity_summary.Contest) -> dict[str, Any]:
    """As `_summaries`, of each side, and of wide heads, the form that learns the largest sets.

    Where those of the form of most bits were not measured, another would understate the side.
    """

    def size(row: Any) -> float:
        return _per_parameter(row, "half_99").value

    found = _summaries(contest)
    for side, runs in contest.runs.items():
        if not math.isnan(size(found[side])):
            known = map(capacity_summary.summarize_run, runs)
            rows = sorted((row for row in known if not math.isnan(size(row))), key=size)
            found[side] = rows[-1]
            wide = [row for row in rows if row["model"].side == (_ATTENTION, "full")]
            if WIDE in found and wide and not math.isnan(size(found[WIDE])):
                found[WIDE] = wide[-1]
    return found


def _ratio(run: Any, other: Any) -> Estimate:
    """One run's bits per parameter over another's, after all steps."""
    return capacity_summary.ratio(run, other)[-1][1]


def _estimate(row: Any, name: str, per: float = 1) -> Estimate:
    ends = (row.get(f"{name}{end}", float("nan")) / per for end in ("", "_low", "_high"))
    return Estimate(*ends)


def _per_parameter(row: Any, name: str) -> Estimate:
    return _estimate(row, name, row["n_params"])


def name_budgets(budgets: Sequence[int]) -> str:
    """Such as "from 256 to 512 parameters", of budgets in order."""
    ends = list(dict.fromkeys(f"{budgets[i]:,}" for i in (0, -1)))
    return f"{'from' if len(ends) > 1 else 'at'} {' to '.join(ends)} parameters"


def format_range(values: Sequence[float], form: str = ".2f") -> str:
    """The least and the greatest, or the one that there is."""
    least, most = format(min(values), form), format(max(values), form)
    return least if least == most else f"{least} to {most}"
