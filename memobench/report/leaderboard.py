"""The leaderboard: the standard board as Markdown, CSV, LaTeX and one HTML page."""

import pathlib

import pandas as pd

from memobench import board as standard
from memobench.report import capacity, configurations, html, latex, tables

INTRODUCTION = f"""\
# Leaderboard

How much does a Transformer memorize, per parameter, and who memorizes better, attention or MLP?
The standard board {standard.VERSION}, never mixed with another version: associations of pairs of
tokens, budgets of parameters (all counted, met within {standard.TOLERANCE:.0%}), an overfull set of
as many associations as parameters. [All of it in one page](leaderboard.html) to sort and filter, as
[CSV](leaderboard.csv) and as [LaTeX](leaderboard.tex); everything else that was trained on
associations stands in [all configurations](CONFIGURATIONS.md).

{capacity.DEFINITION}
Tracks: `{standard.EXACT}`, the gradient over all examples, four learning rates for every set and
up to eight times the steps; `{standard.PUBLISHED}`, the protocol of Dana et al. (2025), its batches
and its learning rate; `{standard.CONSTRUCTED}`, a proof's weights for as many associations as it
promises, exactly solved. *Proven* is what a theorem promises weights of these sizes to memorize.

Your own weights, found by any means: `memobench submit` writes them for a pull request.

Written by `memobench leaderboard`; never edited by hand.
"""
_NONE = pd.DataFrame()
EMPTY = "No run of the standard board is in this folder; `memobench run board/256` makes some.\n"


SUBMITTED = """\
## Submitted weights

Whatever the way they were found, these numbers were counted by running them (`memobench certify`).
They say what weights can know, not what training typically finds.
"""
_COUNTED = ["task", "vocab_size", "n_examples", "architecture", "n_params", "known", "bits"]
_COUNTED += ["bits_per_parameter", "bits_per_byte", "bits_per_byte_int8", "bits_per_byte_int4"]


def page(board: pd.DataFrame, submitted: pd.DataFrame) -> str:
    """The board as Markdown, a section for each budget and vocabulary size, and submissions."""
    parts = [INTRODUCTION]
    if not submitted.empty:
        best = submitted.sort_values("bits_per_parameter", ascending=False, ignore_index=True)
        places = {name: 2 if "_per_" in name else 0 for name in _COUNTED}
        parts += [SUBMITTED, tables.markdown(best[["submitter", *_COUNTED]], places), ""]
    if board.empty:
        return "\n".join([*parts, EMPTY])
    for (budget, vocab_size), rows in board.groupby(["budget", "vocab_size"]):
        columns, digits = capacity.shown(rows)
        first = pd.DataFrame({"entry": rows.apply(standard.entry, axis=1), "track": rows["track"]})
        kept = [name for name in columns if name not in capacity.SIZES]
        by = {"by": rows["submitter"]} if rows["submitter"].nunique() > 1 else {}
        parts += [
            f"## {budget:,} parameters, N = {vocab_size}",
            "",
            tables.markdown(pd.concat([first, columns[kept]], axis=1).assign(**by), digits),
            "",
            f"Measured on: {tables.listed(rows['device'])}; memobench "
            f"{tables.listed(rows['memobench'])} ({tables.listed(rows['commit'])}).",
            "",
        ]
    return "\n".join(parts)


def write(table: pd.DataFrame, folder: pathlib.Path, submitted: pd.DataFrame = _NONE) -> str:
    """Writes LEADERBOARD.md, leaderboard.csv, .tex and .html and returns the page's text.

    Beside them what is no entry of the board: CONFIGURATIONS.md and configurations.csv.

    Args:
      table: of memobench's own runs.
      folder: to write into.
      submitted: others' certified weights, as `submissions.table` gives them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    board = standard.build(table)
    others = configurations.build(table)
    configurations.write(others, folder)
    text = page(board, submitted)
    (folder / "LEADERBOARD.md").write_text(text, "utf-8")
    tables.write_csv(board, folder / "leaderboard.csv")
    names = [standard.entry(row) for row in board.to_dict("records")]
    named = board.assign(entry=pd.Series(names, dtype=object), steps=board["final_steps"])
    (folder / "leaderboard.tex").write_text(latex.booktabs(named), "utf-8")
    curves = configurations.curves(others)
    (folder / "leaderboard.html").write_text(html.page(named, curves), "utf-8")
    return text
