"""The leaderboard as one HTML page: tables, curves and provenance, without any network.

The page is what `assets/page.html` says, with the style and the scripts beside it. Entries come
from strangers, so data enter as JSON that no string can leave, and scripts make text nodes of it.
"""

import base64
import hashlib
import html
import json
import math
import pathlib
import re
from collections.abc import Mapping
from typing import Any

import pandas as pd

from memobench.board import table as standard
from memobench.report import answer as answers
from memobench.report.names import display_name
from memobench.report.style import styles_of

ASSETS = pathlib.Path(__file__).parent / "assets"
SCRIPTS = ("common.js", "board.js", "curves.js", "page.js")
# What a table of several budgets has beside the board's columns.
BUDGET = standard.BoardColumn(
    "budget", "budget", "parameters of an entry, within 5%; ranks are those within a budget", 0
)
# Columns at first. Parameters are not: they are the budget within 5%.
FIRST = (*(x.name for x in standard.FIRST if x.name != "n_params"), "weights")
COLUMNS = (BUDGET, *standard.COLUMNS.values())


def page(board: pd.DataFrame, answer: str = "", links: Mapping[str, str] | None = None) -> str:
    """A page that stands alone; to be written as UTF-8.

    Args:
      board: as `board.build` makes it.
      answer: a sentence above the table.
      links: paths beside the page, and what they are.
    """
    style = (ASSETS / "page.css").read_text("utf-8")
    script = "".join((ASSETS / name).read_text("utf-8") for name in SCRIPTS)
    board = name_entries(board)
    anchors = (f'<a href="{_escape(path)}">{_escape(x)}</a>' for path, x in (links or {}).items())
    parts = {
        "policy": policy(script, style),
        "style": style,
        "script": script,
        "data": embed_json(data(board)),
        "static": static_tables(board),
        "version": standard.VERSION,
        "answer": f"<p>{_escape(answer)}</p>" if answer else "",
        "links": " · ".join(anchors),
    }
    # In a single pass: what was put in is not searched again.
    template = (ASSETS / "page.html").read_text("utf-8")
    return re.sub(r"@@(\w+)@@", lambda found: parts[found[1]], template)


def name_entries(board: pd.DataFrame) -> pd.DataFrame:
    """The board with families and entries in plain words."""
    rows: list[Any] = board.to_dict("records")
    names = [row["family"] if pd.isna(row["architecture"]) else display_name(row) for row in rows]
    entries = [
        name + row["entry"].removeprefix(row["family"])
        for name, row in zip(names, rows, strict=True)
    ]
    return board.assign(
        family=pd.Series(names, board.index, object), entry=pd.Series(entries, board.index, object)
    )


def compare_certified(board: pd.DataFrame) -> dict[int, str]:
    """A sentence for each budget that has peaks: the best certified weights against the highest.

    Weights of architectures that submitted code defines are left out.
    """
    found: dict[int, str] = {}
    budgets: Any = board.groupby("budget")
    for budget, rows in budgets:
        peaks = rows["bits_per_parameter"].dropna()
        known = rows[rows["track"] == standard.OPEN].set_index("entry")
        certified = known["certified_bits_per_parameter"].dropna().astype(float)
        if len(peaks) and len(certified):
            best, above = certified.max(), certified.max() - peaks.max()
            found[int(budget)] = (
                f"At {budget:,} parameters the best certified weights, of {certified.idxmax()}, "
                f"know {best:.2f} bits per parameter, {abs(above):.2f} "
                f"{'more' if above >= 0 else 'less'} than the highest typical peak."
            )
    return found


def data(board: pd.DataFrame) -> dict[str, Any]:
    """The data of the scripts, every cell as text, with the numbers and ranges behind them."""
    columns = [
        {
            "key": x.name,
            "label": x.label,
            "title": x.meaning,
            "first": x.name in FIRST,
            "measure": x.is_measure,
            "right": x.digits is not None,
            "range": x.of_range,
        }
        for x in COLUMNS
    ]
    styles = styles_of(board["family"])
    rows = [
        {
            "budget": int(row["budget"]),
            "track": row["track"],
            "text": {x.name: _text(x.text(row)) for x in COLUMNS},
            "range": {
                x.name: [_number(row[name]) for name in x.names]
                for x in COLUMNS
                if x.digits is not None
            },
            "style": styles[row["family"]].for_page(),
        }
        for row in board.to_dict("records")
    ]
    return {
        "columns": columns,
        "rows": rows,
        "tracks": {x: text for x, text in standard.TRACKS.items() if x in set(board["track"])},
        "certified": compare_certified(board),
        "main": standard.MAIN,
        "own": standard.OWN,
        "yours": standard.YOURS,
        "references": list(answers.FIELD.items()),
    }


def policy(script: str, style: str) -> str:
    """The Content-Security-Policy under which only this script and style run, and nothing loads."""
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src {_hash(script)}",
            f"style-src {_hash(style)}",
            "img-src data:",
            "connect-src 'none'",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def embed_json(data: Any) -> str:
    r"""JSON that can stand in a script element, whatever its strings say.

    >>> print(embed_json({"who": "</script><!-- & \u2028"}))
    {"who":"\u003c/script\u003e\u003c!-- \u0026 \u2028"}
    """
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    # These three stand nowhere in JSON but within strings; what is not ASCII is escaped already.
    return re.sub("[<>&]", lambda found: f"\\u{ord(found[0]):04x}", text)


def _text(text: str) -> str:
    """The text with what UTF-8 lacks replaced."""
    return text.encode("utf-8", "replace").decode()


def _number(value: Any) -> float | None:
    """A finite number, all else as None."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def static_tables(board: pd.DataFrame) -> str:
    """Tables for readers without scripts, one for every budget and track."""
    groups: Any = board.groupby(["budget", "track"], sort=False)
    tables = [_static_table(budget, track, rows) for (budget, track), rows in groups]
    return "\n".join(tables) or "<p>No entries yet.</p>"


def _static_table(budget: int, track: str, rows: pd.DataFrame) -> str:
    columns = standard.shown_columns(rows)
    head = "".join(f"<th scope='col'>{_escape(x.label)}</th>" for x in columns)
    lines = []
    for row in rows.to_dict("records"):
        cells = "</td><td>".join(_escape(x.text(row)) for x in columns)
        lines.append(f"<tr><td>{cells}</td></tr>")
    return "\n".join(
        [
            "<table>",
            f"<caption>{budget:,} parameters, {track}: {standard.TRACKS[track]}</caption>",
            f"<thead><tr>{head}</tr></thead>",
            "<tbody>",
            *lines,
            "</tbody>",
            "</table>",
        ]
    )


def _escape(value: str) -> str:
    return html.escape(_text(value))
