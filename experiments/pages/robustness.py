"""The answer by every other way in which it was measured: tables that `quotes` writes."""

import functools
from collections.abc import Callable
from typing import Any

import pandas as pd

from memobench.board.capacity_summary import SIDES
from memobench.experiments.board import design, fresh, longer
from memobench.methods.thresholds import Estimate
from memobench.report import peak_answer, tables
from memobench.report.names import form_name
from memobench.store.published import published

_ATTENTION, _MLP, _BOTH = SIDES
_NARROW = ", narrow heads"


@functools.cache
def read_peaks(name: str = "board/peak", preset: str | None = None) -> pd.DataFrame:
    """The published peaks of an experiment, as `name_peaks` returns them."""
    return peak_answer.name_peaks(published(name, preset))


@functools.cache
def read_fresh() -> dict[int, dict[str, Estimate]]:
    """The ratios of forms to the MLP on fresh label tables at each budget."""
    return fresh.compare_forms(fresh.measure(published("board/fresh")))


@functools.cache
def read_designs() -> dict[int, pd.DataFrame]:
    """The ratios of every design at each budget."""
    return design.split_budgets(design.ratios(published("board/design")))


def tabulate_ways() -> str:
    """A Markdown table of each side over the MLP: a row for each way, a column for each budget."""
    rows = [
        {"bits over the MLP's": side, "measured": way} | of(side)
        for side in (_ATTENTION, _BOTH)
        for way, of in _WAYS.items()
    ]
    shown = pd.DataFrame(rows).rename(columns=lambda x: f"{x:,}" if isinstance(x, int) else x)
    return tables.markdown(shown.fillna("–"), {})


def tabulate_depths() -> str:
    """A Markdown table of the most bits per parameter of each side, in one layer and in two."""
    measured = [read_peaks(name) for name in ("board/peak", "board/depth")]
    found = pd.concat(measured).query("side != ''").sort_values("bits")
    best = found.groupby(["budget", "side", "n_layers"]).tail(1)
    rows: list[Any] = best.to_dict("records")
    bits = {
        (row["budget"], row["side"], row["n_layers"]): _show(peak_answer.estimate(row))
        for row in rows
    }
    shown = [
        {"parameters": f"{budget:,}"}
        | {
            f"{side}, {layers}": bits.get((budget, side, n), "–")
            for side in (_ATTENTION, _MLP, _BOTH)
            for n, layers in ((1, "one layer"), (2, "two"))
        }
        for budget in sorted({budget for budget, _, _ in bits})
    ]
    return tables.markdown(pd.DataFrame(shown), {})


def tabulate_blocks() -> str:
    """A Markdown table of what today's blocks know with wide and with narrow heads."""
    wide = {(row["budget"], row["name"]): row for row in read_peaks().to_dict("records")}
    found = read_peaks("board/blocks").sort_values(["budget", "bits"], ascending=[True, False])
    rows = []
    for row in found.to_dict("records"):
        block = row["name"].removesuffix(_NARROW)
        other = wide[row["budget"], block]
        rows.append(
            {
                "parameters": f"{row['budget']:,}",
                "block": block,
                "wide heads": _show(peak_answer.estimate(other)) + peak_answer.mark_edge(other),
                "narrow heads": _show(peak_answer.estimate(row)) + peak_answer.mark_edge(row),
                "narrow over wide": _show(peak_answer.compare(row, other)),
            }
        )
    return tables.markdown(pd.DataFrame(rows), {})


def _compare(name: str, preset: str | None = None) -> Callable[[str], dict[int, str]]:
    """A side over the MLP at their peaks in an experiment, each by its best form."""

    def compare(side: str) -> dict[int, str]:
        best = peak_answer.find_best(read_peaks(name, preset))
        return {n: _show(peak_answer.compare(of_n[side], of_n[_MLP])) for n, of_n in best.items()}

    return compare


def _show(found: Estimate) -> str:
    return tables.interval(*found, digits=2)


def _compare_wide(side: str) -> dict[int, str]:
    found, name = read_peaks().sort_values("bits"), form_name(side, "full")
    wide: dict[int, Any] = {x["budget"]: x for x in found[found["name"] == name].to_dict("records")}
    best = peak_answer.find_best(found)
    return {n: _show(peak_answer.compare(wide[n], of[_MLP])) for n, of in best.items()}


def _compare_finalists(side: str) -> dict[int, str]:
    """Without intervals: the best of several looks better than it is."""
    most = read_peaks("board/finalists").groupby(["budget", "side"])["bits"].max().unstack()
    over: dict[Any, float] = (most[side] / most[_MLP]).to_dict()
    return {n: f"{x:.2f}" for n, x in over.items()}


def _compare_overfull(side: str) -> dict[int, str]:
    found = read_peaks()
    return {
        n: f"{peak_answer.overfull_ratio(found, n, side):.2f}" for n in peak_answer.find_best(found)
    }


def _compare_with_mlps(name: str) -> Callable[[str], dict[int, str]]:
    """A side of the board over the best MLP of an experiment that has other MLPs."""

    def compare(side: str) -> dict[int, str]:
        best = peak_answer.find_best(read_peaks())
        mlps = read_peaks(name, "quick").query("side != @_ATTENTION").sort_values("bits")
        of_budget: dict[int, Any] = {x["budget"]: x for x in mlps.to_dict("records")}
        return {n: _show(peak_answer.compare(best[n][side], x)) for n, x in of_budget.items()}

    return compare


def _compare_blocks(side: str) -> dict[int, str]:
    """A side over the MLP in today's blocks without norms, with narrow heads."""
    block = "SwiGLU block" if side == _BOTH else "modern attention alone"
    blocks, neurons = read_peaks("board/blocks"), read_peaks("board/neurons", "quick")
    mlps: dict[int, Any] = {x["budget"]: x for x in neurons.to_dict("records")}
    of_side = blocks[blocks["name"] == f"{block}, no norm{_NARROW}"].to_dict("records")
    return {x["budget"]: _show(peak_answer.compare(x, mlps[x["budget"]])) for x in of_side}


def _compare_fresh(side: str) -> dict[int, str]:
    return {n: _show(of[side]) for n, of in read_fresh().items()}


def _compare_designs(side: str) -> dict[int, str]:
    rows = {n: design.effects(of, side).iloc[0] for n, of in read_designs().items()}
    return {n: design.format_ratio(row) for n, row in rows.items()}


def _compare_longer(place: int) -> Callable[[str], dict[int, str]]:
    """A side over the MLP after one of the numbers of steps, the least first."""

    def compare(side: str) -> dict[int, str]:
        changes = _read_changes()
        steps = longer.steps_of(changes)[place]
        of_side = changes[changes["name"] == f"{side} / MLP"]
        by_budget: Any = of_side.groupby("budget")[steps]
        return {n: f"{_show(longer.estimate(of))} in {len(of)}" for n, of in by_budget}

    return compare


@functools.cache
def _read_changes() -> pd.DataFrame:
    return longer.changes(published("board/longer"))


# What differs from the board, and how a side is compared with the MLP by it.
_WAYS: dict[str, Callable[[str], dict[int, str]]] = {
    "the board": _compare("board/peak"),
    "other label tables": _compare_fresh,
    "narrow heads, sizes of set half as far apart": _compare("board/steps", "quick"),
    "these sets, 16,384 steps": _compare("board/steps", "full"),
    "the MLP at rates of 0.07 to 0.14": _compare_with_mlps("board/edges"),
    "the MLP with SwiGLU neurons": _compare_with_mlps("board/neurons"),
    "all in today's blocks without norms": _compare_blocks,
    "the best of eight shapes": _compare_finalists,
    "36 other designs": _compare_designs,
    "those of them of 4,096 steps": _compare_longer(0),
    "these designs, 16,384 steps": _compare_longer(-1),
    "sets as large as the parameters": _compare_overfull,
    "heads of the side as wide as the model": _compare_wide,
}
