r"""The leaderboard as LaTeX tables, for papers that cite it.

Entries come from strangers, so no character of their text reaches LaTeX that it does not print.
"""

import re
import unicodedata
from collections.abc import Iterable
from typing import Any

import pandas as pd

from memobench.board import table as standard

HEAD = r"""% The memobench leaderboard, written by memobench. Preamble:
%   \usepackage[T1]{fontenc}
%   \usepackage{booktabs}
"""
_SPECIAL = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "†": r"\textdagger{}",
    "‡": r"\textdaggerdbl{}",
    "∞": r"$\infty$",
    "`": r"\textasciigrave{}",
    # After the end of a row these would be its options.
    **{character: f"{{{character}}}" for character in "[]*"},
}
_LIGATURES = re.compile(r"([-,'])(?=\1)")
# What pdflatex prints with T1 fonts and no other package.
_PRINTED = {*map(chr, range(0xA1, 0x180)), *"–—‘’“”…€™"} - set("ĦħĸĿŀŉŦŧſ")


def booktabs(board: pd.DataFrame) -> str:
    """A `table` for every budget and track.

    Args:
      board: as `board.build` makes it.
    """
    groups: Any = board.groupby(["budget", "track"], sort=False)
    return "\n".join([HEAD, *(_table(budget, track, rows) for (budget, track), rows in groups)])


def _table(budget: int, track: str, rows: pd.DataFrame) -> str:
    columns = standard.shown_columns(rows)
    meanings = "; ".join(f"{x.label}: {x.meaning}" for x in columns if x.is_measure)
    caption = f"Board {standard.VERSION}, {budget:,} parameters: {standard.TRACKS[track]}. "
    # Of numbers lines are as long as they are; names break.
    widths = "".join("r" if x.digits is not None else "p{9em}" for x in columns)
    lines = (_line([x.text(row) for x in columns]) for row in rows.to_dict("records"))
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering\scriptsize\setlength{\tabcolsep}{3pt}",
            rf"\caption{{{escape(caption + meanings)}.}}",
            rf"\label{{tab:memobench-{track}-{budget}}}",
            rf"\begin{{tabular}}{{{widths}}}",
            r"\toprule",
            _line([x.label for x in columns]),
            r"\midrule",
            *lines,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def _line(cells: Iterable[str]) -> str:
    return " & ".join(escape(cell) for cell in cells) + r" \\"


def escape(text: Any) -> str:
    r"""Text that LaTeX prints as it is; what it cannot print becomes a question mark.

    >>> print(escape("50% of d_model\n\\input{x}"))
    50\% of d\_model \textbackslash{}input\{x\}
    """
    if pd.isna(text):
        return "--"
    spaced = " ".join(unicodedata.normalize("NFC", str(text)).split())
    shown = (c for c in spaced if unicodedata.category(c) not in ("Cc", "Cf"))
    return _LIGATURES.sub(r"\1{}", "".join(map(_to_printable, shown)))


def _to_printable(character: str) -> str:
    if character in _SPECIAL:
        return _SPECIAL[character]
    return character if character.isascii() or character in _PRINTED else "?"
