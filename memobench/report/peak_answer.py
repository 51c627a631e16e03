"""The answer on attention or MLP at the best size of set of each, in sentences and in a table.

Each side is its best measured form at a budget, and the cost of heads as wide as the model stands
beside it. All of it follows from runs of Peaks; no sentence is written by hand.
"""

import math
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pandas as pd

from memobench.board import capacity_summary
from memobench.board.peak import peaks, ratio
from memobench.board.table import EDGE
from memobench.common.notation import enumerate_words
from memobench.core.cells import from_cells
from memobench.methods.peak import Peak
from memobench.methods.thresholds import Estimate
from memobench.report import tables
from memobench.report.answer import NAMES, WIDE, format_range
from memobench.report.answer import draw as draw_answer
from memobench.report.names import display_name, form_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_ATTENTION, _MLP, _BOTH = capacity_summary.SIDES
# Columns of what was tried, by those that say whether its end was the best.
_TRIED = {"edge_of_sizes": "sizes", "edge_of_rates": "rates"}
# What is known beyond an end counts as more from so many times on.
_MORE = 1.01


def name_peaks(table: pd.DataFrame, jointly: bool = False) -> pd.DataFrame:
    """The rows of `board.peak.peaks`, with the names and edges of the table's runs.

    Args:
      table: of runs.
      jointly: whether size and learning rate are chosen together (`board.peak.peak`).

    Returns:
      Also the columns name, of the family in plain words, n_layers, rates, the learning rates
      tried, and edge_of_sizes and edge_of_rates, True where the best set size or learning rate is
      the lowest or highest tried.
    """
    found, known = peaks(table, jointly), {}
    runs: list[Any] = table[table["method"] == Peak.name].to_dict("records")
    for run in runs:
        architecture = capacity_summary.architecture(run)
        if architecture:
            method: Any = from_cells(run).method
            rates = [method.training.learning_rate * factor for factor in method.rate_factors]
            known[run["run_id"]] = display_name(architecture), rates, run["n_layers"]
    rows: list[Any] = found.to_dict("records")
    of_rows: list[Any] = [known[row["run_id"]] for row in rows]
    tried: Any = [rates for _, rates, _ in of_rows]
    pairs = list(zip(rows, of_rows, strict=True))
    return found.assign(
        name=[name for name, _, _ in of_rows],
        n_layers=[n_layers for _, _, n_layers in of_rows],
        rates=tried,
        edge_of_sizes=[row["n_examples"] in _ends(row["sizes"]) for row in rows],
        edge_of_rates=[row["learning_rate"] in _ends(rates) for row, (_, rates, _) in pairs],
    )


def _ends(values: list[Any]) -> tuple[Any, Any]:
    return min(values), max(values)


def find_best(found: pd.DataFrame) -> dict[int, dict[str, Any]]:
    """At each budget the row of most bits of each side, and of attention with wide heads.

    Budgets without an MLP, or without narrow heads of attention alone, are left out: there the best
    form of a side was not measured.

    Args:
      found: as `name_peaks` returns it.
    """
    best = {}
    for budget, rows in found.groupby("budget"):
        of_budget: list[Any] = rows.sort_values("bits").to_dict("records")
        chosen = {row["side"]: row for row in of_budget if row["side"]}
        forms = {(row["side"], row["heads"]): row for row in of_budget}
        if (_ATTENTION, "full") in forms:
            chosen[WIDE] = forms[_ATTENTION, "full"]
        if _MLP in chosen and (_ATTENTION, "narrow") in forms:
            best[int(str(budget))] = chosen
    return best


def answer(
    found: pd.DataFrame,
    fresh: Mapping[int, Estimate] | None = None,
    beyond: pd.DataFrame | None = None,
) -> str:
    """Sentences on attention and MLP, each at its best size of set.

    Args:
      found: as `name_peaks` returns it.
      fresh: attention alone over the best MLP tried, on label tables that chose nothing, at every
        budget; by default it is compared with the best MLP found.
      beyond: as `name_peaks` returns it, of other forms, rates and sizes that were tried: sets as
        large as the budget, and wide heads, are compared by the best of these, too.

    Raises ValueError where no budget has all sides.
    """
    best = {k: rows for k, rows in find_best(found).items() if {_BOTH, WIDE} <= {*rows}}
    if not best:
        raise ValueError("peaks must have all sides, narrow and wide heads at one budget")
    last = best[max(best)]
    first, *others = sorted(capacity_summary.SIDES, key=lambda side: -last[side]["bits"])
    is_one = all(row["n_layers"] == 1 for rows in best.values() for row in rows.values())
    is_narrow = all(rows[_ATTENTION]["heads"] == "narrow" for rows in best.values())
    form = "with heads narrower than the model" if is_narrow else "by its best form"
    gelu = [] if fresh else find_gelu(found, best)
    mlp = "GELU MLP" if gelu == [*best] else "MLP"
    over = fresh or {k: compare(rows[_ATTENTION], rows[_MLP]) for k, rows in best.items()}
    tried = found if beyond is None else pd.concat([found, beyond])
    best_tried = find_best(tried)
    wide = format_range([compare(best_tried[k][WIDE], best_tried[k][_MLP]).value for k in best])
    overfull = [x for budget in best if not math.isnan(x := overfull_ratio(tried, budget).value)]
    on_large = f"on as many pairs as parameters {format_range(overfull)}" if overfull else ""
    neurons = f"GELU alone at {', '.join(map('{:,}'.format, gelu))}"
    notes = _in_brackets(
        *_tell_exceptions({k: [x] for k, x in over.items()}),
        on_large,
        neurons * (mlp == "MLP" and bool(gelu)),
    )
    ratios = format_range([x.value for x in over.values()])
    whose = "the best MLP's" if fresh else f"an equally large {mlp}'s"
    bits = format_range([rows[first]["bits"] for rows in best.values()])
    order = _in_brackets(
        *_tell_exceptions(
            {k: [compare(rows[first], rows[x]) for x in others] for k, rows in best.items()},
            {k for k, rows in best.items() if all(_is_told(rows[first], rows[x]) for x in others)},
        )
    )
    name = NAMES[first]
    return (
        f"Attention alone, {form}, knows {ratios} times {whose} bits{notes}, "
        f"with wide heads {wide}. {name[0].upper()}{name[1:]} knows most: {bits} bits per "
        f"parameter{order}. {'One layer, ' if is_one else ''}{format_range([*best], ',d')} "
        f"parameters, best set sizes, {last[_MLP]['steps']:,} Adam steps."
    )


def answer_for(design: str, found: pd.DataFrame) -> str:
    """A sentence on attention alone and attention + MLP over the MLP in another design.

    Args:
      design: such as "with tied embeddings".
      found: peaks of that design, as `name_peaks` returns them.
    """
    best, said = find_best(found), []
    for side in (_ATTENTION, _BOTH):
        over = {budget: compare(rows[side], rows[_MLP]) for budget, rows in best.items()}
        notes = _in_brackets(*_tell_exceptions({k: [x] for k, x in over.items()}))
        said.append(format_range([x.value for x in over.values()]) + notes)
    return (
        f"{design[0].upper()}{design[1:]}, at {format_range([*best], ',d')} parameters, attention "
        f"alone knows {said[0]} and attention + MLP {said[1]} times an MLP's bits."
    )


def find_gelu(found: pd.DataFrame, budgets: Iterable[int]) -> list[int]:
    """The budgets at which only MLPs of GELU neurons were measured."""
    of_mlp = found[found["side"] == _MLP]
    others = of_mlp[of_mlp["model"].map(lambda x: getattr(x, "activation", "gelu") != "gelu")]
    return [budget for budget in budgets if budget not in set(others["budget"])]


def overfull_ratio(found: pd.DataFrame, budget: int, side: str = _ATTENTION) -> Estimate:
    """A side over the MLP in bits of a set as large as the budget, each by its best form.

    NaN where no such set was measured.

    Args:
      found: as `name_peaks` returns it.
      budget: one that has both.
      side: that of attention alone, by default.
    """
    rows = found[(found["budget"] == budget) & found["of_budget"].notna()].sort_values("of_budget")
    last: dict[Any, Any] = {row["side"]: row for row in rows.to_dict("records")}
    if not {side, _MLP} <= {*last}:
        return Estimate(math.nan, math.nan, math.nan)
    known = []
    for row in (last[side], last[_MLP]):
        bits, half = row["of_budget"], row["errors"][row["sizes"].index(budget)]
        known.append(Estimate(bits, bits - half, bits + half))
    return ratio(*known)


def tell_reversed(found: pd.DataFrame) -> str:
    """A clause on the budgets at which sets as large as these reverse attention alone and MLP.

    It begins with a comma, and is empty where no budget does.

    Args:
      found: as `name_peaks` returns it.
    """
    budgets = [
        f"{budget:,}"
        for budget, rows in find_best(found).items()
        if overfull_ratio(found, budget).value < 1 < compare(rows[_ATTENTION], rows[_MLP]).value
    ]
    if not budgets:
        return ""
    return (
        f", on which attention alone knows less than the MLP on average at "
        f"{enumerate_words(budgets)} parameters, and here more"
    )


def has_answer(found: pd.DataFrame) -> bool:
    """True if peaks compare attention alone, with narrow and with wide heads, with an MLP."""
    return any({_BOTH, WIDE} <= {*rows} for rows in find_best(found).values())


def draw(found: pd.DataFrame, table: pd.DataFrame) -> "Figure":
    """The key figure, of most bits at the best size of set, and of largest sets.

    Args:
      found: as `name_peaks` returns it.
      table: of runs of Capacities, which know the largest sets.
    """
    best, lines = find_best(found), dict[str, list[Any]]()
    for name in (_BOTH, _ATTENTION, _MLP, WIDE):
        rows = [of_budget[name] for of_budget in best.values() if name in of_budget]
        is_narrow = all(row["heads"] == "narrow" for row in rows)
        form = form_name(name, "narrow") if is_narrow else name
        lines[form] = [(row["n_params"], *estimate(row)) for row in rows]
    over, wide = (
        format_range([compare(rows[x], rows[_MLP]).value for rows in best.values() if x in rows])
        for x in (_ATTENTION, WIDE)
    )
    of_rows = [row for rows in best.values() for row in rows.values()]
    layer = "One layer, " if all(row["n_layers"] == 1 for row in of_rows) else ""
    steps = format_range([row["steps"] for row in of_rows], ",d")
    title = (
        f"{layer}{steps} steps, best set sizes: attention alone knows {over} times\nthe bits of "
        f"the board's MLP with narrow heads, {wide} times with wide ones"
    )
    return draw_answer(table, lines, title)


def _tell_exceptions(
    over: Mapping[int, list[Estimate]], told: Collection[int] | None = None
) -> Iterator[str]:
    """The budgets at which a side cannot be told from one of the others, or knows less.

    Args:
      over: at each budget the ratios of the side to the others.
      told: budgets at which the leaderboard's ranks tell it from all of them, if these count.
    """
    undecided, behind, by_ranks = [], [], []
    for budget, ratios in over.items():
        if any(each.high < 1 for each in ratios):
            behind.append(f"{budget:,}")
        elif any(each.low <= 1 for each in ratios):
            undecided.append(f"{budget:,}")
        elif told is not None and budget not in told:
            by_ranks.append(f"{budget:,}")
    notes = [f"undecided at {', '.join(undecided)}"] * bool(undecided)
    if by_ranks:
        said = "by ranks" if undecided else "by ranks undecided"
        notes.append(f"{said} at {', '.join(by_ranks)}")
    yield ", ".join(notes)
    if behind:
        yield f"less at {', '.join(behind)}"


def _in_brackets(*notes: str) -> str:
    """The notes that there are, behind a space; "" for none."""
    found = "; ".join(filter(None, notes))
    return f" ({found})" if found else ""


def tabulate(
    found: pd.DataFrame,
    fresh: Mapping[int, Estimate] | None = None,
    beyond: pd.DataFrame | None = None,
) -> str:
    """A Markdown table of bits per parameter, and of attention over MLP, a row for each budget.

    Args:
      found: as `name_peaks` returns it.
      fresh: attention over MLP on label tables that chose nothing, at every budget.
      beyond: as `name_peaks` returns it, of learning rates and set sizes beyond those of `found`.
    """
    rows = [
        {
            "parameters": f"{budget:,}",
            **{
                side: tables.interval(*estimate(best[side]), digits=2)
                + mark_edge(best[side], beyond)
                for side in (_BOTH, _MLP, _ATTENTION, WIDE)
                if side in best
            },
            "attention alone / MLP": tables.interval(
                *compare(best[_ATTENTION], best[_MLP]), digits=2
            ),
            **(
                {"fresh labels, best MLP tried": tables.interval(*fresh[budget], digits=2)}
                if fresh
                else {}
            ),
        }
        for budget, best in find_best(found).items()
    ]
    shown = tables.markdown(pd.DataFrame(rows), {})
    edge = f"{EDGE} Best at an end of all learning rates or set sizes tried: may know more."
    notes = [edge] * (EDGE in shown) + [_tell_ranks(found)]
    return f"{shown}\n\n{textwrap.fill(' '.join(notes), 127)}"


def mark_edge(row: Mapping[Any, Any], beyond: pd.DataFrame | None = None) -> str:
    """EDGE for a row whose best set size or rate is at an end of those tried, and was not passed.

    It was where the same shape, trained beyond that end, does not know a percent more.

    Args:
      row: of what `name_peaks` returns.
      beyond: as `name_peaks` returns it, of other set sizes and rates, where some were tried.
    """
    edges = [x for x in _TRIED if row[x]]
    is_passed = not edges
    if edges and beyond is not None:
        same = beyond[(beyond["budget"] == row["budget"]) & (beyond["model"] == row["model"])]
        is_tried = all(any(_is_beyond(row, edge, x) for x in same[_TRIED[edge]]) for edge in edges)
        is_passed = is_tried and bool(same["bits"].max() <= _MORE * row["bits"])
    return "" if is_passed else EDGE


def _is_beyond(row: Mapping[Any, Any], edge: str, tried: list[Any]) -> bool:
    """True if some set size or rate of these lies beyond the end at which a row is best."""
    low, high = _ends(row[_TRIED[edge]])
    best = row["n_examples" if edge == "edge_of_sizes" else "learning_rate"]
    return max(tried) > high if best == high else min(tried) < low


def _tell_ranks(found: pd.DataFrame) -> str:
    """The budgets at which ranks tell the best forms of two sides apart."""
    best = find_best(found)
    pairs = [
        _name_budgets(best, lambda of: _is_told(of[_ATTENTION], of[_MLP])),
        _name_budgets(best, lambda of: all(_is_told(of[_BOTH], of[x]) for x in (_ATTENTION, _MLP))),
    ]
    return (
        "The leaderboard's ranks, which leave room for rare failures, tell attention alone from "
        f"the MLP {pairs[0]}, attention + MLP from both {pairs[1]}."
    )


def _name_budgets(best: dict[int, dict[str, Any]], is_so: Callable[[dict[str, Any]], bool]) -> str:
    """Such as "only at 512 and 1,024", of the budgets at which it is so."""
    found = [f"{budget:,}" for budget, rows in best.items() if _BOTH in rows and is_so(rows)]
    return f"only at {enumerate_words(found)}" if found else "nowhere"


def _is_told(row: Any, other: Any) -> bool:
    """True if the ranks of two rows do not overlap."""
    return row["rank_high"] < other["rank_low"] or other["rank_high"] < row["rank_low"]


def estimate(row: Any) -> Estimate:
    """The peak of a row, with its interval."""
    return Estimate(row["bits"], row["bits_low"], row["bits_high"])


def compare(row: Any, other: Any) -> Estimate:
    """The peak of a row over that of another."""
    return ratio(estimate(row), estimate(other))
