"""Tables as Markdown and as CSV, made from rows and never by hand."""

import math
import pathlib
import re
from collections.abc import Iterable, Mapping

import pandas as pd

from memobench.common import atomic
from memobench.core.cells import spec_columns

# What would become markup within a cell: code, emphasis, the beginning of a strike or a formula;
# tags and entities; links and images; addresses that GitHub links by itself. Names and prose pass
# unchanged: d_head, "x < d", "1.9 [1.8, 2.0]" and "Dana & Pydi" are no markup.
_MARKUP = re.compile(
    r"""[`*~$|]
    | \\(?=[!-/:-@\[-`{-~]|$)
    | (?<![^\W_])_ | _(?![^\W_])
    | <(?=[a-z/!?]) | &(?=\#?\w+;)
    | \](?=[(\[:]) | !(?=\[) | \[(?=\^)
    | :(?=//) | (?<=www)\. | @(?=\w)""",
    re.VERBOSE | re.IGNORECASE,
)
# A spreadsheet reads a cell that begins so as a formula. Where semicolons separate cells, as in
# half of Europe, one begins behind each of them, quoted or not.
_FORMULA = re.compile(r'(?:^|(?<=[;|\t\r\n]))(?=[" \t\r\n]*[=+@-]|[\t\r\n])')


def markdown(table: pd.DataFrame, digits: Mapping[str, int]) -> str:
    r"""A GitHub table; numbers right-aligned, missing ones as a dash, text as text, never markup.

    >>> print(markdown(pd.DataFrame({"who": ["a|b"], "x": [0.5]}), {"x": 2}))
    | who | x |
    |:---|---:|
    | a\|b | 0.50 |
    >>> print(markdown(pd.DataFrame({"who": ["d_head < d", "<b>_me_</b> [x](y)"]}), {}))
    | who |
    |:---|
    | d_head < d |
    | \<b>\_me\_\</b> [x\](y) |
    """
    if table.empty:
        return "*(no rows)*"
    numeric = [pd.api.types.is_numeric_dtype(table[column]) for column in table.columns]
    lines = [
        _line(table.columns),
        "|" + "|".join("---:" if right else ":---" for right in numeric) + "|",
    ]
    for row in table.itertuples(index=False):
        pairs = zip(table.columns, row, strict=True)
        lines.append(_line([_cell(value, digits.get(column)) for column, value in pairs]))
    return "\n".join(lines)


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _cell(value: object, digits: int | None) -> str:
    if value is None or value != value:
        return "–"
    if isinstance(value, float):
        return f"{value:z.{digits}f}" if digits is not None else f"{value:g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return text(str(value))


def interval(value: float, low: float, high: float, digits: int) -> str:
    """A value with its interval, if there is one.

    >>> interval(1.23456, 1.0, float("inf"), 2), interval(1000.0, *2 * [float("nan")], 0)
    ('1.23 [1.00, ∞]', '1,000')
    """
    if math.isnan(value):
        return "–"
    ends = "" if math.isnan(low) else f" [{low:z,.{digits}f}, {high:z,.{digits}f}]"
    return f"{value:z,.{digits}f}{ends}".replace("inf", "∞")


def text(value: str) -> str:
    """A line of text in Markdown, where none of it is markup."""
    return _MARKUP.sub(r"\\\g<0>", " ".join(value.splitlines()))


def join_distinct(values: Iterable[str]) -> str:
    """The distinct values in a line of Markdown, as text."""
    return text("; ".join(sorted(set(values))))


def write_csv(table: pd.DataFrame, path: pathlib.Path) -> None:
    """Writes a table for spreadsheets."""
    _write(make_csv_safe(table), path)


def write_runs(table: pd.DataFrame, path: pathlib.Path) -> None:
    """Writes rows of runs, specs with all their digits, as an id follows from them."""
    specs = {name: table[name].map(_to_whole) for name in spec_columns() if name in table}
    _write(make_csv_safe(table).assign(**specs), path)


def _write(table: pd.DataFrame, path: pathlib.Path) -> None:
    # What is published stays whole if the writer is killed.
    with atomic.replace(path) as file:
        table.to_csv(file, index=False, float_format="%.6g")


def _to_whole(value: object) -> object:
    if not isinstance(value, float):
        return value
    return "" if value != value else str(int(value)) if value.is_integer() else repr(value)


def make_csv_safe(table: pd.DataFrame) -> pd.DataFrame:
    """The table for `to_csv`, with no text that can be taken for a formula; numbers stay.

    >>> make_csv_safe(pd.DataFrame({"who": ["=1+1", "me; =2"], "x": [-1, 2]})).to_dict("list")
    {'who': ["'=1+1", "me;' =2"], 'x': [-1, 2]}
    """
    texts = [name for name in table if not pd.api.types.is_numeric_dtype(table[name])]
    return table.assign(**{str(name): table[name].astype(object).map(_quote) for name in texts})


def _quote(value: object) -> object:
    return _FORMULA.sub("'", value) if isinstance(value, str) else value
