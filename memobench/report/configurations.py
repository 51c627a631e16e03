"""All that was trained on fixed sets of associations or constructed for them, ranked by bits."""

import pathlib
from typing import Any

import pandas as pd

from memobench import analysis, theory
from memobench.capacity import NEARLY
from memobench.report import tables

COLUMNS = {
    "architecture": None,
    "heads": None,
    "d_model": None,
    "d_head": None,
    "n_heads": None,
    "n_layers": None,
    "d_mlp": None,
    "activation": None,
    "theorem": None,
    "scale": None,
    "weights": None,
    "learning_rate": None,
    "n_params": None,
    "bits per parameter": 3,
    "± bits": 3,
    "memorized per parameter": 4,
    "memorized": 0,
    "proven": 0,
    "memorized / proven": 2,
    "accuracy": 3,
    "± accuracy": 3,
    "seeds": None,
    "diverged": None,
    "saturated": None,
}

INTRODUCTION = """\
# All configurations

Beside the [standard board](LEADERBOARD.md): every row is the mean over seeds of one architecture at
one size, trained on all associations of a task or constructed for them; ± is half the 95% interval
of that mean (Student). Rows compete only within a section: one task, one protocol, one number of
steps.

- **bits per parameter**: T·log2 N minus the negative log-likelihood in bits of all T associations
  at the final weights, floored at 0, over all parameters.
- **memorized**: associations known beyond guessing, from accuracy = 1/N + (1 − 1/N)·memorized/T.
- **proven**: the associations that a theorem promises some weights of these sizes to memorize
  (`memobench/theory.py`), and how many times as many were memorized.
- **saturated**: `yes` where accuracy reached 0.99. Such a model ran out of data, so its numbers are
  lower bounds of what it can memorize.

Written by `memobench leaderboard`; never edited by hand.
"""


def build(table: pd.DataFrame) -> pd.DataFrame:
    """One row per configuration, best bits per parameter first within its section.

    Only what was trained on associations or constructed for them competes: nothing else has bits.
    Constructions compete at the number of associations that they promise, and on all.

    Raises theory.Violation where a run is beyond what is possible.
    """
    theory.check(table)
    made = table["method"] == "constructed"
    # All associations, or as many as promised; made for some only, weights owe the others nothing.
    whole = table["n_sequences"].isna() | (table["n_examples"] == table["promises"])
    competes = (table["method"] == "trained") | (made & whole & table["n_aimed"].isna())
    table = table[(table["task"] == "associations") & competes]
    per_parameter = table.assign(
        **{
            "bits per parameter": table["bits"] / table["n_params"],
            "memorized per parameter": table["memorized"] / table["n_params"],
        }
    )
    measures = ("accuracy", "bits per parameter", "memorized", "memorized per parameter")
    board = analysis.over_seeds(per_parameter, measures)
    saturated = board["accuracy"] >= NEARLY
    board = board.rename(
        columns={
            "accuracy_interval": "± accuracy",
            "bits per parameter_interval": "± bits",
        }
    ).assign(saturated=saturated.map({True: "yes", False: "no"}), proven=theory.promised(board))
    board["memorized / proven"] = board["memorized"] / board["proven"]
    return board.sort_values("bits per parameter", ascending=False, kind="stable")


SECTION = ["task", "vocab_size", "context_length", "n_examples", "zipf_exponent", "method"]
SECTION += ["protocol", "solve", "start", "trained", "batch_size", "steps"]


def page(board: pd.DataFrame) -> str:
    """The board as Markdown, a section per task, protocol and number of steps."""
    parts = [INTRODUCTION]
    sections: Any = board.groupby(SECTION, dropna=False, sort=True)
    for key, rows in sections:
        task, vocab_size, context_length, n_examples, zipf, *method = key
        prior = "" if pd.isna(zipf) else f" by Zipf's law with exponent {zipf:g}"
        shown = [column for column in COLUMNS if rows[column].notna().any()]
        parts += [
            f"## {n_examples:,} {task}{prior}, N = {vocab_size:.0f}, S = {context_length}: "
            f"{_told(*method)}",
            "",
            tables.markdown(rows[shown], {k: v for k, v in COLUMNS.items() if v is not None}),
            "",
            f"Measured on: {'; '.join(sorted(set(rows['device'])))}.",
            "",
        ]
    return "\n".join(parts)


def _told(
    method: str,
    protocol: str,
    solve: Any,
    start: Any,
    trained: Any,
    batch_size: float,
    steps: int,
) -> str:
    if method == "constructed":
        return "constructed exactly" if solve == "exact" else "constructed, by least squares"
    examples = f"batches of {batch_size:,.0f}" if batch_size == batch_size else "all examples"
    begins = "" if pd.isna(start) else f", starting from the construction {start}"
    only = "" if pd.isna(trained) else f", {trained} only"
    return f"{method}, {protocol} protocol, {steps:,} steps of {examples}{begins}{only}"


def curves(board: pd.DataFrame) -> pd.DataFrame:
    """Accuracy against parameters: a row per point of a line of a group, with its interval."""
    trained = board[(board["method"] == "trained") & board["accuracy"].notna()]
    # Several learning rates are no curve.
    sizes = ["task", "vocab_size", "n_examples", "protocol", "steps", "architecture", "heads"]
    sizes += ["d_model", "d_head", "n_heads", "d_mlp", "n_layers", "start", "trained"]
    trained = trained[~trained.duplicated(sizes, keep=False)]
    groups = [_group(row) for row in trained.to_dict("records")]
    lines = [_line(row) for row in trained.to_dict("records")]
    return pd.DataFrame(
        {
            "group": pd.Series(groups, index=trained.index, dtype=object),
            "line": pd.Series(lines, index=trained.index, dtype=object),
            "n_params": trained["n_params"],
            "accuracy": trained["accuracy"],
            "interval": trained["± accuracy"],
            "device": trained["device"],
        }
    ).sort_values(["group", "line", "n_params"], ignore_index=True)


def _group(row: Any) -> str:
    method = (row["method"], row["protocol"], row["solve"], row["start"], row["trained"])
    told = _told(*method, row["batch_size"], row["steps"])
    zipf = "" if pd.isna(row["zipf_exponent"]) else f", Zipf {row['zipf_exponent']:g}"
    size = f"{row['n_examples']:,} {row['task']}, N = {row['vocab_size']:.0f}"
    return f"{size}, S = {row['context_length']}{zipf}: {told}"


def _line(row: Any) -> str:
    heads = f", {row['heads']} heads" if row["architecture"] == "attention_only" else ""
    layers = f", {row['n_layers']} layers" if row["n_layers"] > 1 else ""
    return f"{row['architecture']}{heads}, d = {row['d_model']}{layers}"


def write(board: pd.DataFrame, folder: pathlib.Path) -> None:
    """Writes CONFIGURATIONS.md and configurations.csv of what `build` made."""
    (folder / "CONFIGURATIONS.md").write_text(page(board), "utf-8")
    tables.write_csv(board, folder / "configurations.csv")
