"""The leaderboard: bits and associations memorized per parameter, one row per configuration."""

import pathlib
from typing import Any

import pandas as pd

from memobench import analysis
from memobench.report import tables

# At this accuracy the data set is used up: what was memorized is its size, not the capacity.
SATURATED = 0.99

COLUMNS = {
    "architecture": None,
    "heads": None,
    "d_model": None,
    "d_head": None,
    "n_heads": None,
    "n_layers": None,
    "d_mlp": None,
    "n_params": None,
    "bits per parameter": 3,
    "± bits": 3,
    "memorized per parameter": 4,
    "memorized": 0,
    "accuracy": 3,
    "± accuracy": 3,
    "seeds": None,
    "diverged": None,
    "saturated": None,
}

INTRODUCTION = """\
# Leaderboard

How much does a Transformer memorize, per parameter? Every row is the mean over seeds of one
architecture at one size, trained on all associations of a task; ± is half the 95% interval of that
mean (Student). Rows compete only within a section: one task, one protocol, one number of steps.

- **bits per parameter**: T·log2 N minus the negative log-likelihood in bits of all T associations
  at the final weights, floored at 0, over all parameters.
- **memorized**: associations known beyond guessing, from accuracy = 1/N + (1 − 1/N)·memorized/T.
- **saturated**: `yes` where accuracy reached 0.99. Such a model ran out of data, so its numbers are
  lower bounds of what it can memorize.

Written by `memobench leaderboard`; never edited by hand.
"""


def build(table: pd.DataFrame) -> pd.DataFrame:
    """One row per configuration, best bits per parameter first within its section.

    Only what was trained on associations competes: nothing else has bits.
    """
    table = table[(table["task"] == "associations") & (table["method"] == "trained")]
    per_parameter = table.assign(
        **{
            "bits per parameter": table["bits"] / table["n_params"],
            "memorized per parameter": table["memorized"] / table["n_params"],
        }
    )
    measures = ("accuracy", "bits per parameter", "memorized", "memorized per parameter")
    board = analysis.over_seeds(per_parameter, measures)
    saturated = board["accuracy"] >= SATURATED
    board = board.rename(
        columns={
            "accuracy_interval": "± accuracy",
            "bits per parameter_interval": "± bits",
        }
    ).assign(saturated=saturated.map({True: "yes", False: "no"}))
    return board.sort_values("bits per parameter", ascending=False, kind="stable")


SECTION = ["task", "vocab_size", "context_length", "n_examples", "zipf_exponent", "method"]
SECTION += ["protocol", "batch_size", "steps"]


def page(board: pd.DataFrame) -> str:
    """The board as Markdown, a section per task, protocol and number of steps."""
    parts = [INTRODUCTION]
    sections: Any = board.groupby(SECTION, dropna=False, sort=True)
    for key, rows in sections:
        task, vocab_size, context_length, n_examples, zipf, *method, batch_size, steps = key
        prior = "" if pd.isna(zipf) else f" by Zipf's law with exponent {zipf:g}"
        examples = f"batches of {batch_size:,.0f}" if batch_size == batch_size else "all examples"
        parts += [
            f"## {n_examples:,} {task}{prior}, N = {vocab_size:.0f}, S = {context_length}: "
            f"{', '.join(method)} protocol, {steps:,} steps of {examples}",
            "",
            tables.markdown(
                rows[list(COLUMNS)], {k: v for k, v in COLUMNS.items() if v is not None}
            ),
            "",
            f"Measured on: {'; '.join(sorted(set(rows['device'])))}.",
            "",
        ]
    return "\n".join(parts)


def write(table: pd.DataFrame, folder: pathlib.Path) -> str:
    """Writes LEADERBOARD.md and leaderboard.csv and returns the page's text."""
    folder.mkdir(parents=True, exist_ok=True)
    board = build(table)
    text = page(board)
    (folder / "LEADERBOARD.md").write_text(text)
    board.to_csv(folder / "leaderboard.csv", index=False, float_format="%.6g")
    return text
