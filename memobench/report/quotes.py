"""What pages quote of the published capacities, written anew between marks by `make docs`.

    python -m memobench.report.quotes PAGE…

A page has `<!-- NAME -->` before and `<!-- /NAME -->` behind what is written; QUOTES has the names.
"""

import pathlib
import sys
import textwrap

import pandas as pd

from memobench import typical
from memobench.report import tables
from memobench.report import typical as entries
from memobench.table.published import published

_FAMILIES = (typical.ATTENTION, typical.MLP, "attention + MLP")


def _answer(table: pd.DataFrame) -> str:
    return textwrap.fill(entries.answer(table), 100)


def _budgets(table: pd.DataFrame) -> str:
    """Attention alone, MLP and both at every budget."""
    return tables.markdown(_quoted(table).drop(columns="budget"), {})


def _largest(table: pd.DataFrame) -> str:
    """The same at the largest budget, in fewer columns."""
    quoted = _quoted(table)
    budget = quoted["budget"].max()
    at_largest = quoted[quoted["budget"] == budget].drop(columns=["budget", "parameters", "rank"])
    return tables.markdown(at_largest.rename(columns={"entry": f"{budget:,} parameters"}), {})


def _quoted(table: pd.DataFrame) -> pd.DataFrame:
    found = typical.summary(table)
    found = found[(found["protocol"] == "exact") & found["family"].isin(_FAMILIES)]
    shown = pd.concat([entries.shown(rows) for _, rows in found.groupby("budget")])
    return pd.DataFrame(
        {
            "budget": found["budget"],
            "entry": shown["entry"],
            "parameters": shown["parameters"],
            "rank": shown["rank"],
            "bits per parameter": shown["bits / parameter"],
            "half know to 99%": shown["half know"],
        }
    )


QUOTES = {"answer": _answer, "budgets": _budgets, "largest": _largest}


def renewed(page: str) -> str:
    """The page with what it quotes as the published table of `board/typical` has it."""
    table = published("board/typical", "full")
    for name, quote in QUOTES.items():
        head, first, rest = page.partition(f"<!-- {name} -->")
        if first:
            _, last, tail = rest.partition(f"<!-- /{name} -->")
            page = f"{head}{first}\n{quote(table)}\n{last}{tail}"
    return page


if __name__ == "__main__":
    for name in sys.argv[1:]:
        path = pathlib.Path(name)
        path.write_text(renewed(path.read_text("utf-8")), "utf-8")
