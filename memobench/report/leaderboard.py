"""The leaderboard, which is the standard board as Markdown, CSV and one HTML page."""

import logging
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from memobench.board import copies, families, peak, submissions
from memobench.board import table as standard
from memobench.certificates import counting
from memobench.common import atomic, folders
from memobench.common.errors import UserError
from memobench.core.cells import from_cells
from memobench.methods.peak import Peak
from memobench.report import answer, html, peak_answer, tables
from memobench.report.drawing import save
from memobench.store import published as tables_of
from memobench.store import results

_log = logging.getLogger("memobench")

_SETS = ", ".join(f"{n} at {budget:,}" for budget, n in families.VOCAB_SIZES.items())
_SHARES = ", ".join(f"{share:g}" for share in peak.SHARES)
_COLUMNS = "\n".join(f"- *{x.label}*: {x.meaning}" for x in standard.FIRST)
INTRODUCTION = f"""\
# Leaderboard

How much does a Transformer memorize, per parameter, and who memorizes better, attention or MLP?
The standard board {standard.VERSION}, never mixed with another version: associations of pairs of
tokens ({_SETS} parameters), sets of {_SHARES} times as many as parameters, as far as there are so
many pairs. Capacity is the most over set sizes. Parameters are all counted and meet the budget
within {families.TOLERANCE:.0%}. [All of it in one page](leaderboard.html) to sort and draw, and
as [CSV](leaderboard.csv).@@earlier@@

@@answer@@Tracks:

@@tracks@@

Columns:

{_COLUMNS}

An *MLP* has one head of attention before its MLP in every layer, *attention + MLP* has two heads or
more; today's blocks are forms of these, too, or of attention alone, but for experts and product
keys. Typical numbers are means over label tables; certified ones were counted by running weights
(`memobench certify`), so they say what weights can know, not what training typically finds. Your
own weights, found by any means: `memobench submit` writes them for a pull request.

Written by `memobench leaderboard`; never edited by hand.
"""
_EARLIER = """
[Board v2](boards/v2-tables.md) ranks by sets as large as the budget{reversed}, and has more
families at 4,096 and 8,192 parameters. An MLP of two layers is first there at 8,192, where
attention + MLP has no narrow heads. Two layers with narrow heads, some of fewer learning rates and
sets, are [not ranked here](board/depth.md), nor are most of [today's blocks with narrow
heads](board/blocks.md), which know more than those with wide ones, nor MLPs of [other neurons and
at higher rates](board/neurons.md), of which some know more than the MLPs here."""
_MARGIN = f"""
Submitted weights rank above an entry where they know over {standard.MARGIN:.0%} more than it does.
"""
EMPTY = "No entry of the standard board is here; `memobench run board/peak` makes some.\n"
_FIGURE = "![Bits, and sets that fit, per parameter](leaderboard.png)"
# What the page links to, where it is there: in memobench's folder, and beside the page.
_ABOUT = {
    "README.md": "README",
    "docs/submissions.md": "how to submit",
    "results/board/weights": "weights",
}
_BESIDE = {
    "LEADERBOARD.md": "Markdown",
    "leaderboard.csv": "CSV",
    "leaderboard.png": "figure",
    "large/board/peak.md": "all numbers of peaks",
    "board/certified.md": "all numbers of weights",
    "boards/v2.html": "board v2",
}


def page(board: pd.DataFrame, said: str = "", earlier: str = "") -> str:
    """The board as Markdown, a section for each budget and in it a table for each track.

    Args:
      board: as `board.build` makes it.
      said: the answer in sentences.
      earlier: of the board before this one, if its page lies beside it.
    """
    board = html.name_entries(board)
    introduction = INTRODUCTION.replace("@@answer@@", f"{said}\n\n{_FIGURE}\n\n" * bool(said))
    introduction = introduction.replace("@@earlier@@", earlier)
    tracks = set(board["track"]) or standard.TRACKS
    lines = [f"- `{x}`: {meaning}" for x, meaning in standard.TRACKS.items() if x in tracks]
    if (board["by"] != standard.OWN).any():
        lines.append(_MARGIN)
    has_peak = set(board["budget"][board["track"] == standard.EXACT])
    if left := sorted({*board["budget"]} - has_peak):
        budgets = ", ".join(f"{budget:,}" for budget in left)
        lines.append(
            f"\nNo architecture has been trained yet on sets of all sizes at {budgets} parameters."
        )
    above = html.compare_certified(board)
    parts = [introduction.replace("@@tracks@@", "\n".join(lines))]
    for budget in sorted(set(board["budget"])):
        of_budget = board[board["budget"] == budget]
        parts.append(f"## {budget:,} parameters, N = {families.VOCAB_SIZES[budget]}\n")
        parts += [f"{tables.text(above[budget])}\n"] if budget in above else []
        for track in dict.fromkeys(of_budget["track"]):
            rows = of_budget[of_budget["track"] == track]
            records = rows.to_dict("records")
            texts = {
                x.label: [x.text(row) for row in records] for x in standard.shown_columns(rows)
            }
            parts += [f"### {track.capitalize()}: {budget:,} parameters\n"]
            parts += [tables.markdown(pd.DataFrame(texts), {}), ""]
        made = of_budget.dropna(subset=["device"])
        parts += [
            f"Measured on: {tables.join_distinct(made['device'])}; memobench "
            f"{tables.join_distinct(made['memobench'].astype(str))} "
            f"({tables.join_distinct(made['commit'].dropna())}).\n"
        ] * (not made.empty)
    return "\n".join(parts if len(board) else [*parts, EMPTY])


def write(
    published: Sequence[Mapping[str, Any]],
    own: pd.DataFrame,
    folder: pathlib.Path,
    certified: Sequence[Mapping[str, Any]] = (),
) -> str:
    """Writes LEADERBOARD.md, leaderboard.csv, .html and .png and returns the page's text.

    Args:
      published: rows of memobench's runs.
      own: the reader's runs.
      folder: to write into.
      certified: see `board.build`; paths of weights are relative to here.
    """
    folder.mkdir(parents=True, exist_ok=True)
    yours = ({**row, "by": standard.YOURS} for row in own.to_dict("records"))
    runs = results.to_table([*({**row, "by": standard.OWN} for row in published), *yours])
    linked = [{**row, "weights": _make_relative(row.get("weights"), folder)} for row in certified]
    board = standard.build(runs, linked)
    said, ours = "", results.to_table([dict(row) for row in published])
    at_peak = peak_answer.name_peaks(ours)
    if peak_answer.has_answer(at_peak):
        said = f"{peak_answer.answer(at_peak)} {answer.compare_learned_sets(ours)}".strip()
        save(peak_answer.draw(at_peak, ours), folder / "leaderboard.png")
    earlier = ""
    if (folder / "boards/v2-tables.md").exists():
        earlier = _EARLIER.format(reversed=peak_answer.tell_reversed(at_peak))
    text = page(board, said, earlier)
    atomic.replace_text(folder / "LEADERBOARD.md", text)
    tables.write_csv(board, folder / "leaderboard.csv")
    root = folders.published().parent
    places = {root / path: label for path, label in _ABOUT.items()}
    places |= {folder / path: label for path, label in _BESIDE.items()}
    links = {str(_make_relative(x, folder)): label for x, label in places.items() if x.exists()}
    atomic.replace_text(folder / "leaderboard.html", html.page(board, said, links))
    return text


def own_entries(folder: pathlib.Path) -> str:
    """The reader's entries of the board in a folder, with their ranks among all, as text."""
    board = pd.read_csv(folder / "leaderboard.csv")
    rows: list[Any] = html.name_entries(board[board["by"] == standard.YOURS]).to_dict("records")
    found = []
    for row in rows:
        shown = {name: row[name] for name in ("budget", "track")}
        # The measure that it is ranked by.
        main = next((name for name in standard.MAIN if not pd.isna(row[name])), standard.MAIN[0])
        columns = {"rank": "rank", "entry": "entry", "bits / parameter": main}
        found.append(shown | {x: standard.COLUMNS[name].text(row) for x, name in columns.items()})
    return pd.DataFrame(found).to_string(index=False) if found else ""


def _make_relative(path: Any, folder: pathlib.Path) -> str | None:
    return pathlib.Path(os.path.relpath(path, folder)).as_posix() if path else None


# --- What the board is made of ------------------------------------------------------------------


def load_published() -> tuple[list[Any], list[Any]]:
    """Rows of the published runs and of the published weights, submitted ones too."""
    folder = folders.published() / "board"
    of_both = map(tables_of.published, ("board/peak", "board/typical"))
    runs = [row for table in of_both for row in table.to_dict("records")]
    certified: list[Any] = pd.read_csv(folder / "certified.csv").to_dict("records")
    paths = [folder / "weights" / row["file"] for row in certified]
    # An installed package has what was counted, and no weights.
    ours = [
        {**row, "weights": path if path.exists() else None}
        for row, path in zip(certified, paths, strict=True)
    ]
    return runs, [*ours, *load_submitted(folders.published())]


def certify_kept(own: pd.DataFrame, folder: results.Path) -> list[dict[str, Any]]:
    """Rows of what the kept weights of runs of the board in the reader's folder know."""
    found = []
    rows: list[Any] = own.to_dict("records")
    for row in rows:
        path = results.weights_path(folder, row["run_id"])
        is_known = path.exists() and row["status"] == "ok"
        if is_known and (standard.track_of(row) or standard.is_of_overfull_set(row)):
            whose = {"track": standard.EXACT, "submitter": standard.YOURS, "weights": path}
            try:
                found.append({**counting.certify(path), **whose})
            except UserError as error:
                _log.warning("left out of the board: %s", error)
    return found


def explain_off_board(own: pd.DataFrame) -> str:
    """The reasons why runs of the reader's are not entries, of those that can be read; "" for none.

    Every reason stands once, whichever runs have it.
    """
    peaks: list[Any] = own[(own["method"] == Peak.name) & (own["status"] == "ok")].to_dict(
        "records"
    )
    known = [row for row in peaks if not standard.reading_error(row)]
    errors = [standard.entry_error(from_cells(row), row["n_params"]) for row in known]
    off = list(filter(None, errors))
    if off:
        first = f"{len(off)} of your {len(peaks)} runs of peaks are not ranked:"
        return "\n".join([first, *(f"- {reason}" for reason in dict.fromkeys(off))])
    if len(own) and not peaks:
        return (
            "No run of yours is ranked: the board ranks peaks over set sizes.\n"
            "memobench compare has them beside published ones."
        )
    return ""


def load_submitted(folder: pathlib.Path) -> list[dict[str, Any]]:
    """Rows of the weights that submissions of a folder of results hold, without copies of ours."""
    folder = folder / "submissions"
    found = submissions.load_folder(folder)
    ours = (
        copies.load_published({x.task for each in found for x in each.certificates})
        if found
        else ()
    )
    rows: list[Any] = submissions.table(found, ours).to_dict("records")
    return [{**row, "weights": folder / row["source"] / row["file"]} for row in rows]
