"""The leaderboard as one HTML page: table, filters, curves and provenance, without any network.

The page is what `assets/page.html` says, with the style and the scripts beside it. Entries come
from strangers: data enter as JSON that no string can leave, and the scripts make text nodes of it.
"""

import base64
import hashlib
import html
import json
import math
import pathlib
import re
from collections.abc import Iterable
from typing import Any

import pandas as pd

ASSETS = pathlib.Path(__file__).parent / "assets"
SCRIPTS = ("common.js", "board.js", "curves.js", "page.js")

# Half of the 95% interval stands in `<measure>_interval`.
MEASURES = {
    "bits": "Bits",
    "memorized": "Associations",
    "complete_99": "Set known to 99%",
    "complete_100": "Set known to 100%",
}
INTERVALS = [f"{measure}_interval" for measure in (*MEASURES, "accuracy")]
TEXTS = [
    *("version", "entry", "submitter", "track", "family", "task", "architecture", "heads"),
    *("activation", "theorem", "verdict", "device", "memobench", "commit", "date"),
]
NUMBERS = [
    *("vocab_size", "context_length", "n_examples", "budget", "d_model", "d_head", "n_heads"),
    *("n_layers", "d_mlp", "n_params", "n_params_memory", "n_params_distinct", "seeds", "diverged"),
    *(*MEASURES, "accuracy", *INTERVALS, "proven", "steps", "seconds"),
]


def page(board: pd.DataFrame, curves: pd.DataFrame) -> str:
    """A page that stands alone; to be written as UTF-8.

    Args:
      board: one row per entry, with what there is of the columns TEXTS and NUMBERS.
      curves: one row per point, with the columns group, line, n_params, accuracy and interval.
    """
    board = typed(board, TEXTS, NUMBERS)
    curves = typed(curves, ["group", "line"], ["n_params", "accuracy", "interval"])
    style = (ASSETS / "page.css").read_text("utf-8")
    script = "".join((ASSETS / name).read_text("utf-8") for name in SCRIPTS)
    parts = {
        "policy": policy(script, style),
        "style": style,
        "script": script,
        "data": embedded({"board": board.to_dict("records"), "curves": curves.to_dict("records")}),
        "static": static(board),
    }
    # In a single pass: what was put in is not searched again.
    template = (ASSETS / "page.html").read_text("utf-8")
    return re.sub(r"@@(\w+)@@", lambda found: parts[found[1]], template)


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


def embedded(data: Any) -> str:
    r"""JSON that can stand in a script element, whatever its strings say.

    >>> print(embedded({"who": "</script><!-- & \u2028"}))
    {"who":"\u003c/script\u003e\u003c!-- \u0026 \u2028"}
    """
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    # These three stand nowhere in JSON but within strings; what is not ASCII is escaped already.
    return re.sub("[<>&]", lambda found: f"\\u{ord(found[0]):04x}", text)


def typed(table: pd.DataFrame, texts: Iterable[str], numbers: Iterable[str]) -> pd.DataFrame:
    """The table with these columns and no others, as objects: str, int or finite float, or None."""
    columns = dict.fromkeys(texts, _text) | dict.fromkeys(numbers, _number)
    missing = [None] * len(table)
    return pd.DataFrame(
        {
            name: pd.Series([clean(value) for value in table.get(name, missing)], dtype=object)
            for name, clean in columns.items()
        }
    )


def _text(value: Any) -> str | None:
    """What UTF-8 can say of a value, a missing one as None."""
    return None if pd.isna(value) else str(value).encode("utf-8", "replace").decode()


def _number(value: Any) -> float | None:
    """A finite number as an int if it is one, all else as None."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    if not math.isfinite(number):
        return None
    return int(number) if number.is_integer() else number


def ranked(board: pd.DataFrame) -> pd.DataFrame:
    """A typed board with every measure per parameter (of all), most bits per parameter first."""
    n_params = pd.to_numeric(board["n_params"])
    per = {
        f"{column} per parameter": pd.to_numeric(board[column]) / n_params.where(n_params > 0)
        for measure in MEASURES
        for column in (measure, f"{measure}_interval")
    }
    return board.assign(**per).sort_values(
        "bits per parameter", ascending=False, kind="stable", na_position="last"
    )


def static(board: pd.DataFrame) -> str:
    """Tables for readers without scripts, one per version of the board, newest first."""
    versions = sorted(set(board["version"]), key=lambda name: _natural(name or ""), reverse=True)
    rows = ranked(board)
    tables = [_static(name, rows[[v == name for v in rows["version"]]]) for name in versions]
    return "\n".join(tables) or "<p>No entries yet.</p>"


def _natural(name: str) -> list[tuple[bool, int, str]]:
    """A key by which v10 comes after v9."""
    parts = re.findall(r"\d{1,18}|\D+", name)
    return [(not p[0].isdecimal(), int(p) if p[0].isdecimal() else 0, p) for p in parts]


STATIC = {
    "entry": "Entry",
    "submitter": "Submitter",
    "track": "Track",
    "family": "Family",
    "vocab_size": "N",
    "n_params": "Parameters",
}


def _static(version: str | None, rows: pd.DataFrame) -> str:
    heads = [*STATIC.values(), *(f"{label} per parameter" for label in MEASURES.values())]
    head = "".join(f"<th scope='col'>{name}</th>" for name in [*heads, "Verdict"])
    lines = []
    for _, row in rows.iterrows():
        cells = [_escaped(row[name]) for name in STATIC]
        cells += [_measured(row, measure) for measure in MEASURES]
        lines.append(f"<tr><td>{'</td><td>'.join([*cells, _escaped(row['verdict'])])}</td></tr>")
    return "\n".join(
        [
            "<table>",
            f"<caption>Board {_escaped(version)}: {len(rows)} entries</caption>",
            f"<thead><tr>{head}</tr></thead>",
            "<tbody>",
            *lines,
            "</tbody>",
            "</table>",
        ]
    )


def _measured(row: Any, measure: str) -> str:
    value, half = row[f"{measure} per parameter"], row[f"{measure}_interval per parameter"]
    if pd.isna(value):
        return "–"
    least = "≥ " if row["verdict"] == "lower bound" else ""
    return f"{least}{value:.4g}" + ("" if pd.isna(half) else f" ± {half:.2g}")


def _escaped(value: Any) -> str:
    return "–" if pd.isna(value) else html.escape(str(value))
