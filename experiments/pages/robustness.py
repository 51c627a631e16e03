"""The answer by every other way in which it was measured: tables that `quotes` writes."""

import functools
import itertools
from collections.abc import Callable
from typing import Any

import pandas as pd

from memobench.board.capacity_summary import SIDES
from memobench.experiments.board import design, fresh, longer
from memobench.methods.thresholds import Estimate
from memobench.report import peak_answer, tables
from memobench.store.published import published

_ATTENTION, _MLP, _BOTH = SIDES


@functools.cache
def read_peaks(
    name: str = "board/peak", preset: str | None = None, jointly: bool = False
) -> pd.DataFrame:
    """The published peaks of an experiment, as `name_peaks` returns them."""
    return peak_answer.name_peaks(published(name, preset), jointly)


def read_beyond() -> pd.DataFrame:
    """The published peaks of MLPs at rates and set sizes beyond those of the board."""
    return pd.concat(map(read_peaks, ("board/edges", "board/neurons")))


@functools.cache
def read_fresh() -> pd.DataFrame:
    """Bits that forms know of fresh label tables, as `fresh.measure` has them."""
    return fresh.measure(published("board/fresh"))


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
    """A Markdown table of each side's most bits per parameter in one layer and in two.

    Of Dana et al.'s model alone: today's blocks have one layer.
    """
    measured = pd.concat(map(read_peaks, ("board/peak", "board/depth")))
    found = measured[[x.name in ("attention_only", "mlp") for x in measured["model"]]]
    named = (("one layer", 1), ("two", 2))
    return _tabulate_sides({name: found[found["n_layers"] == n] for name, n in named})


def tabulate_tied() -> str:
    """A Markdown table of each side's most bits per parameter on the board and with one token map.

    At budgets that have both.
    """
    tied = read_peaks("board/tied")
    untied = read_peaks()[read_peaks()["budget"].isin(tied["budget"])]
    return _tabulate_sides({"untied": untied, "tied": tied})


def _tabulate_sides(found: dict[str, pd.DataFrame]) -> str:
    """A row for each budget, with each side's most bits per parameter in tables by their names."""
    rows = []
    for budget in sorted(set(pd.concat(found.values())["budget"])):
        row = {"parameters": f"{budget:,}"}
        for side, (name, of) in itertools.product(SIDES, found.items()):
            best = _find_side(of, side).get(budget)
            row[f"{side}, {name}"] = _show(peak_answer.estimate(best)) if best else "–"
        rows.append(row)
    return tables.markdown(pd.DataFrame(rows), {})


def tabulate_blocks() -> str:
    """A Markdown table of what today's blocks know with wide and with narrow heads.

    Budgets at which they were measured with both.
    """
    wide = {(row["budget"], row["name"]): row for row in read_peaks().to_dict("records")}
    known = pd.concat(map(read_peaks, ("board/blocks", "board/peak")))
    known["block"] = known["name"].str.replace(r", narrow heads?$", "", regex=True)
    is_block = known["model"].map(lambda x: x.name) == "modern"
    found = known[is_block & (known["name"] != known["block"])]
    found = found.sort_values(["budget", "bits"], ascending=[True, False])
    rows = []
    for row in found.drop_duplicates(["budget", "block"]).to_dict("records"):
        block, other = row["block"], wide.get((row["budget"], row["block"]))
        if other is None:
            continue
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


def _compare(
    name: str, preset: str | None = None, jointly: bool = False
) -> Callable[[str], dict[int, str]]:
    """A side over the MLP at their peaks in an experiment, each by its best form."""

    def compare(side: str) -> dict[int, str]:
        best = peak_answer.find_best(read_peaks(name, preset, jointly))
        return {n: _show(peak_answer.compare(of_n[side], of_n[_MLP])) for n, of_n in best.items()}

    return compare


def _find_best(jointly: bool = False) -> dict[int, dict[str, Any]]:
    return peak_answer.find_best(read_peaks(jointly=jointly))


def _show(found: Estimate) -> str:
    return tables.interval(*found, digits=2)


def _compare_wide(side: str) -> dict[int, str]:
    wide = _find_side(read_peaks().query("heads == 'full' and n_layers == 1"), side)
    best = peak_answer.find_best(read_peaks())
    return {n: _show(peak_answer.compare(wide[n], of[_MLP])) for n, of in best.items()}


def _compare_finalists(side: str) -> dict[int, str]:
    """Without intervals: the best of several looks better than it is."""
    most = read_peaks("board/finalists").groupby(["budget", "side"])["bits"].max().unstack()
    over: dict[Any, float] = (most[side] / most[_MLP]).to_dict()
    return {n: f"{x:.2f}" for n, x in over.items()}


def _compare_overfull(side: str) -> dict[int, str]:
    found = read_peaks()
    return {
        n: _show(peak_answer.overfull_ratio(found, n, side)) for n in peak_answer.find_best(found)
    }


def _compare_with(name: str) -> Callable[[str], dict[int, str]]:
    """A side of the board over the best MLP of another experiment."""
    return lambda side: _compare_mlps(side, read_peaks(name))


def _compare_tried(side: str) -> dict[int, str]:
    return _compare_mlps(side, pd.concat([read_peaks(), read_beyond()]))


def _compare_gelu(side: str) -> dict[int, str]:
    known = read_peaks()
    is_gelu = known["model"].map(lambda x: getattr(x, "activation", "") == "gelu")
    return _compare_mlps(side, known[is_gelu])


def _compare_mlps(side: str, found: pd.DataFrame) -> dict[int, str]:
    """A side of the board over the best MLP of others' peaks."""
    best = peak_answer.find_best(read_peaks())
    mlps = _find_side(found, _MLP)
    return {n: _show(peak_answer.compare(best[n][side], x)) for n, x in mlps.items()}


def _find_side(found: pd.DataFrame, side: str) -> dict[int, Any]:
    """The form of a side that knows most bits at each budget."""
    of_side = found.query("side == @side").sort_values(["budget", "bits"])
    return {x["budget"]: x for x in of_side.to_dict("records")}


def _compare_blocks(side: str) -> dict[int, str]:
    """A side over the MLP in today's blocks without norms, with narrow heads, each by its best."""
    known = pd.concat([read_peaks("board/blocks"), read_peaks()])
    of_blocks = known[known["name"].str.contains(", no norm, narrow heads?$")]
    found, mlps = _find_side(of_blocks, side), _find_side(of_blocks, _MLP)
    return {n: _show(peak_answer.compare(x, mlps[n])) for n, x in found.items()}


def _compare_fresh(
    find: Callable[[], dict[int, dict[str, Any]]],
) -> Callable[[str], dict[int, str]]:
    """A side over the MLP on fresh label tables, in forms, sets and rates that others found."""

    def compare(side: str) -> dict[int, str]:
        found = fresh.compare_forms(read_fresh(), find())
        return {n: _show(of[side]) for n, of in found.items() if side in of}

    return compare


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
    "other label tables": _compare_fresh(_find_best),
    "learning rate chosen with the size": _compare("board/peak", jointly=True),
    "other tables, rate chosen with the size": _compare_fresh(lambda: _find_best(jointly=True)),
    "sets as large as the parameters": _compare_overfull,
    "heads of the side as wide as the model": _compare_wide,
    "the best MLP of all neurons and rates tried": _compare_tried,
    "this MLP, other tables, rate chosen with the size": _compare_fresh(fresh.find_beyond),
    "all in today's blocks without norms": _compare_blocks,
    "all in these with tied embeddings": _compare("board/tied"),
    "the MLP with GELU neurons": _compare_gelu,
    "GELU, rates of 0.07 to 0.14": _compare_with("board/edges"),
    "GELU, sizes of set half as far apart": _compare("board/steps", "quick"),
    "GELU, these sets, 16,384 steps": _compare("board/steps", "full"),
    "GELU, the best of eight shapes": _compare_finalists,
    "GELU, 36 other designs": _compare_designs,
    "GELU, those of them of 4,096 steps": _compare_longer(0),
    "GELU, these designs, 16,384 steps": _compare_longer(-1),
}
