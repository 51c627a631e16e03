"""The answer on attention or MLP in sentences, in a table and in the key figure.

Each side is its best measured form at a budget, and what heads as wide as the model cost is said
beside it. All of it follows from runs of Capacities; no sentence is written by hand.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from memobench.board import capacity_summary
from memobench.methods.thresholds import Estimate
from memobench.report import tables
from memobench.report.drawing import draw_labelled_lines, subplots

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_ATTENTION, _MLP, _BOTH = capacity_summary.SIDES
_NAMES = {
    _ATTENTION: "attention alone",
    _MLP: "the MLP",
    _BOTH: "attention and MLP in one layer",
}
# What pages call heads that have as many dimensions as the residual stream.
WIDE = f"{_ATTENTION}, wide heads"
# Bits per parameter that others measured, of larger models.
FIELD = {2.0: "Allen-Zhu & Li", 3.6: "Morris et al."}
# What the key figure draws of each form, and how; as everywhere, MLP is orange.
_LOOKS = {_BOTH: (2, "D-"), _ATTENTION: (0, "o-"), _MLP: (1, "s-"), WIDE: (0, "x--")}


def answer(table: pd.DataFrame) -> str:
    """Sentences on attention and MLP at the largest budget with every measured form of both.

    Raises ValueError where no budget has attention alone and an MLP on the same label tables.
    """
    contests = capacity_summary.contests(table)
    if not contests:
        raise ValueError("the table must have attention alone and an MLP at one budget")
    complete = capacity_summary.select_complete(contests)
    contest = (complete or contests)[-1]
    known = _summaries(contest)
    parts = [
        _order(contest, known),
        _ratio_sentence(contest, capacity_summary.select_complete(contests, [_ATTENTION, _MLP])),
        _width(contest, known),
        _sets(known),
        _design(contest),
    ]
    return " ".join(filter(None, parts))


def has_answer(table: pd.DataFrame) -> bool:
    """True if a table compares attention alone with an MLP."""
    return bool(capacity_summary.contests(table))


def forms(table: pd.DataFrame) -> str:
    """A Markdown table of the forms that the answer compares, the one of most bits first."""
    contest = capacity_summary.select_complete(capacity_summary.contests(table))[-1]
    rows = sorted(_summaries(contest).values(), key=lambda row: -row["bits"] / row["n_params"])
    shown = {
        f"{contest.budget:,} parameters": [f"{row['family']} ({row['entry']})" for row in rows],
        "bits per parameter": [_interval(_per_parameter(row, "bits"), 3) for row in rows],
        "half know to 99%": [_interval(_estimate(row, "half_99"), 0) for row in rows],
    }
    return tables.markdown(pd.DataFrame(shown), {})


def draw(table: pd.DataFrame) -> "Figure":
    """The key figure, of bits and sets that fit, per parameter of each side's best form."""
    contests = capacity_summary.contests(table)
    figure, ((bits, sets),) = subplots(1, 2, (12, 4.8))
    points = [
        (name, row)
        for side in (_ATTENTION, _MLP, _BOTH)
        for contest in capacity_summary.select_complete(contests, [side])
        for name, row in _summaries(contest).items()
        if name == side or (side == _ATTENTION and name == WIDE)
    ]
    for axis, column, label in (
        (bits, "bits", "bits per parameter"),
        (sets, "half_99", "associations per parameter\nthat half of the trainings learn"),
    ):
        lines = {
            name: [
                (row["n_params"], *_per_parameter(row, column)) for of, row in points if of == name
            ]
            for name in _LOOKS
        }
        draw_labelled_lines(axis, lines, _LOOKS)
        axis.set_ylabel(label)
        axis.set_xlabel("parameters, all counted")
    for value, where in FIELD.items():
        bits.axhline(value, color="0.35", linewidth=1, linestyle=":", zorder=0)
        bits.annotate(
            f"{value:g}: {where}",
            (1, value),
            xytext=(-4, -10),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            color="0.35",
            fontsize="x-small",
            ha="right",
        )
    bits.set_ylim(0, max(FIELD) + 0.3)
    figure.suptitle(_title(contests), fontsize="medium")
    return figure


def _title(contests: Sequence[capacity_summary.Contest]) -> str:
    complete = capacity_summary.select_complete(contests, [_ATTENTION, _MLP])
    best = [_ratio(each.best[_ATTENTION], each.best[_MLP]).value for each in complete]
    wide = [_ratio(each.wide, each.best[_MLP]).value for each in complete if each.wide is not None]
    said = f"Attention alone knows {_range(best)} times the MLP's bits with its best heads"
    return f"{said}, {_range(wide)} times with wide ones" if wide else said


# --- Sentences ------------------------------------------------------------------------------------


def _order(contest: capacity_summary.Contest, known: dict[str, Any]) -> str:
    """The side that knows the most, and the bits of the others."""
    sides = sorted(contest.best, key=lambda side: -_per_parameter(known[side], "bits").value)
    first, second, *_ = sides
    ahead = _ratio(contest.best[first], contest.best[second]).low > 1
    verb = "memorize" if first == _BOTH else "memorizes"
    most = f"{verb} the most" if ahead else f"{verb} as much as any other"
    bits = {side: _interval(_per_parameter(known[side], "bits"), 2) for side in sides}
    rest = " and ".join(f"{_NAMES[side]} {bits[side]}" for side in sides[1:])
    return (
        f"At {contest.budget:,} parameters {_NAMES[first]} {most}, "
        f"{bits[first]} bits per parameter, {rest}."
    )


def _ratio_sentence(
    contest: capacity_summary.Contest, all_forms: Sequence[capacity_summary.Contest]
) -> str:
    """Attention over MLP, here and from the least budget to the largest with all their forms."""
    over = _ratio(contest.best[_ATTENTION], contest.best[_MLP])
    of_budgets = [_ratio(each.best[_ATTENTION], each.best[_MLP]).value for each in all_forms]
    said = f"Attention alone over the MLP is {_interval(over, 2)}"
    if len(all_forms) > 1:
        ends = f"{all_forms[0].budget:,} to {all_forms[-1].budget:,}"
        said += f", from {ends} parameters {_range(of_budgets)}"
    return f"{said}."


def _width(contest: capacity_summary.Contest, known: dict[str, Any]) -> str:
    """The cost of heads as wide as the model, where narrower ones were measured."""
    if (_ATTENTION, "narrow") not in contest.forms:
        return "Heads narrower than the model are not among these runs."
    if contest.wide is None or WIDE not in known:
        return ""
    row = known[WIDE]
    redundant = 1 - row["degrees_of_freedom"] / row["n_params"]
    over = _ratio(contest.wide, contest.best[_MLP])
    return (
        f"It takes narrow heads: with heads as wide as the model, {redundant:.0%} of whose "
        f"parameters are redundant, the ratio is {_interval(over, 2)}."
    )


def _sets(known: dict[str, Any]) -> str:
    """The sets that fit, where their learning rate was chosen for them."""
    rows = {side: known[side] for side in capacity_summary.SIDES if side in known}
    learnt = {
        side: _estimate(row, "half_99")
        for side, row in rows.items()
        if not pd.isna(row.get("rate_of_sets"))
    }
    if not {_ATTENTION, _MLP} <= learnt.keys():
        return ""
    shown = ", ".join(
        f"{_interval(estimate, 0)} with {_NAMES[side]}" for side, estimate in learnt.items()
    )
    return f"Sets of which half of the trainings learn 99%: {shown}."


def _design(contest: capacity_summary.Contest) -> str:
    """The design for which all of this holds."""
    run = contest.best[_MLP]
    return (
        f"(Best measured form of each; pairs of {run['vocab_size']} tokens, "
        f"{run['n_examples']:,} with random next tokens; {run['steps']:,} steps of full-batch "
        "Adam; 95% intervals over random label tables alone.)"
    )


# --- Numbers --------------------------------------------------------------------------------------


def _summaries(contest: capacity_summary.Contest) -> dict[str, Any]:
    """The summary of each side's best form, and of attention with wide heads."""
    runs = dict(contest.best)
    if contest.wide is not None and contest.wide["run_id"] != runs[_ATTENTION]["run_id"]:
        runs[WIDE] = contest.wide
    found: dict[Any, Any] = (
        capacity_summary.summarize(pd.DataFrame(runs.values())).set_index("run_id").to_dict("index")
    )
    return {name: found[run["run_id"]] for name, run in runs.items()}


def _ratio(run: Any, other: Any) -> Estimate:
    """One run's bits per parameter over another's, after all steps."""
    return capacity_summary.ratio(run, other)[-1][1]


def _estimate(row: Any, name: str, per: float = 1) -> Estimate:
    ends = (row.get(f"{name}{end}", float("nan")) / per for end in ("", "_low", "_high"))
    return Estimate(*ends)


def _per_parameter(row: Any, name: str) -> Estimate:
    return _estimate(row, name, row["n_params"])


def _interval(estimate: Estimate, digits: int) -> str:
    return tables.interval(*estimate, digits=digits)


def _range(values: Sequence[float]) -> str:
    """The least and the greatest, or the one that there is."""
    least, most = f"{min(values):.2f}", f"{max(values):.2f}"
    return least if least == most else f"{least} to {most}"
