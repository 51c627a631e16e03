"""Tables as Markdown, made from rows and never by hand."""

from collections.abc import Iterable, Mapping

import pandas as pd


def markdown(table: pd.DataFrame, digits: Mapping[str, int]) -> str:
    r"""A GitHub table; numbers right-aligned, missing ones as a dash, text with `|` escaped.

    >>> print(markdown(pd.DataFrame({"who": ["a|b"], "x": [0.5]}), {"x": 2}))
    | who | x |
    |:---|---:|
    | a\|b | 0.50 |
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
        return f"{value:.{digits}f}" if digits is not None else f"{value:g}"
    if isinstance(value, int):
        return f"{value:,}"
    return str(value).replace("|", "\\|").replace("\n", " ")
