r"""The leaderboard as LaTeX tables, for papers that cite it.

Entries come from strangers: of their text no character reaches LaTeX that it does not print.
"""

import math
import re
import unicodedata
from typing import Any

import pandas as pd

from memobench.report import html

HEAD = r"""% The memobench leaderboard, written by memobench. Preamble:
%   \usepackage[T1]{fontenc}
%   \usepackage{booktabs}
"""
# Measure, title and digits.
MEASURES = (
    ("bits", "bits", 3),
    ("memorized", "assoc.", 3),
    ("complete_99", r"set 99\%", 3),
    ("complete_100", r"set 100\%", 3),
)
DEFINITIONS = (
    r"Per parameter, of all $P$: bits memorized of a set too large for the model; associations "
    r"memorized of it, corrected for guessing; the largest set memorized to an accuracy of 0.99, "
    r"and to 1. $\pm$ is half of the 95\% interval, $\geq$ marks a lower bound, $^{\dagger}$ "
    r"training that had not converged."
)
_SPECIAL = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "`": r"\textasciigrave{}",
    # After the end of a row these would be its options.
    **{character: f"{{{character}}}" for character in "[]*"},
}
_LIGATURES = re.compile(r"([-,'])(?=\1)")
# What pdflatex prints with T1 fonts and no other package.
_PRINTED = {*map(chr, range(0xA1, 0x180)), *"–—‘’“”…€™"} - set("ĦħĸĿŀŉŦŧſ")


def booktabs(board: pd.DataFrame) -> str:
    """A `table` per version of the board, track and vocabulary size, best bits first.

    Args:
      board: as for `html.page`.
    """
    rows = html.ranked(html.typed(board, html.TEXTS, html.NUMBERS))
    groups: Any = rows.groupby(["version", "track", "vocab_size"], dropna=False, sort=True)
    tables = [_table(version, track, size, found) for (version, track, size), found in groups]
    return "\n".join([HEAD, *tables])


def _table(version: Any, track: Any, vocab_size: Any, rows: pd.DataFrame) -> str:
    named = [
        escaped(version),
        escaped(track),
        "--" if pd.isna(vocab_size) else f"{vocab_size:,.0f}",
    ]
    caption = "Board {}, {}, $N = {}$. ".format(*named) + DEFINITIONS
    titles = ["entry", "family", "by", "$P$", *(title for _, title, _ in MEASURES), "seeds"]
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering\scriptsize\setlength{\tabcolsep}{3pt}",
            rf"\caption{{{caption}}}",
            rf"\label{{{_label(version, track, vocab_size)}}}",
            r"\begin{tabular}{p{8em}p{7em}p{5em}r" + "r" * len(MEASURES) + "r}",
            r"\toprule",
            " & ".join(titles) + r" \\",
            r"\midrule",
            *(_row(row) for _, row in rows.iterrows()),
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def _label(*parts: Any) -> str:
    label = "-".join("none" if pd.isna(part) else f"{part}" for part in parts)
    return "tab:memobench-" + "".join(c if c.isascii() and c.isalnum() else "-" for c in label)


def _row(row: Any) -> str:
    mark = r"$^{\dagger}$" if row["verdict"] == "not converged" else ""
    cells = [
        rf"\raggedright {escaped(row['entry'])}{mark}",
        rf"\raggedright {escaped(row['family'])}",
        rf"\raggedright {escaped(row['submitter'])}",
        _number(row["n_params"], 0),
        *(_measured(row, measure, digits) for measure, _, digits in MEASURES),
        _number(row["seeds"], 0),
    ]
    return " & ".join(cells) + r" \\"


def _measured(row: Any, measure: str, digits: int) -> str:
    value, half = row[f"{measure} per parameter"], row[f"{measure}_interval per parameter"]
    if pd.isna(value):
        return "--"
    least = r"$\geq$\," if row["verdict"] == "lower bound" else ""
    around = "" if pd.isna(half) else rf"\,$\pm$\,{_number(half, digits)}"
    return least + _number(value, digits) + around


def _number(value: float | None, digits: int) -> str:
    if value is None or pd.isna(value):
        return "--"
    if abs(value) >= 1e9:
        power = math.floor(math.log10(abs(value)))
        return rf"${value / 10.0**power:.2f} \times 10^{{{power}}}$"
    return f"{value:,.{digits}f}"


def escaped(text: Any) -> str:
    r"""Text that LaTeX prints as it is; what it cannot print becomes a question mark.

    >>> print(escaped("50% of d_model\n\\input{x}"))
    50\% of d\_model \textbackslash{}input\{x\}
    """
    if pd.isna(text):
        return "--"
    spaced = " ".join(unicodedata.normalize("NFC", str(text)).split())
    shown = (c for c in spaced if unicodedata.category(c) not in ("Cc", "Cf"))
    return _LIGATURES.sub(r"\1{}", "".join(map(_printed, shown)))


def _printed(character: str) -> str:
    if character in _SPECIAL:
        return _SPECIAL[character]
    return character if character.isascii() or character in _PRINTED else "?"
