"""All that was trained on fixed sets of associations or constructed for them, ranked by bits."""

import collections
import logging
import pathlib
from typing import Any

import numpy as np
import pandas as pd

from memobench.analysis import seeds as analysis
from memobench.analysis import theorems
from memobench.common.errors import UserError
from memobench.common.notation import pluralize
from memobench.constructions.base import Construction
from memobench.core.run import Method
from memobench.methods.by_training import ByTraining
from memobench.methods.optimum import Optimum
from memobench.numerics.metrics import NEARLY
from memobench.report import tables
from memobench.store.rows import task_columns
from memobench.tasks.associations import Associations

_log = logging.getLogger("memobench")

# What a row shows, with digits of the numbers; whatever else tells rows apart stands between.
SPECS = ["architecture", "heads", "d_model", "d_head", "n_heads", "n_layers", "d_mlp"]
SPECS += ["activation", "theorem", "scale", "weights", "learning_rate"]
MEASURED = {
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
  (`memobench/theory/`), and how many times as many were memorized.
- **saturated**: `yes` where accuracy reached 0.99. Such a model ran out of data, so its numbers are
  lower bounds of what it can memorize.

Written by `memobench leaderboard`; never edited by hand.
"""


def build(table: pd.DataFrame) -> pd.DataFrame:
    """One row per configuration, best bits per parameter first within its section.

    Only what was trained on associations or constructed for them competes: bits of other tasks are
    of other sets. Constructions compete at the number of associations that they promise, and on
    all.

    Raises theory.Violation where a run is beyond what is possible.
    """
    theorems.check(table)
    made = table["theorem"].notna()
    # All associations, or as many as promised; made for some only, weights owe the others nothing.
    whole = table["n_sequences"].isna() | (table["n_examples"] == table["promises"])
    competes = _is_trained(table) | (made & whole & table["n_aimed"].isna())
    table = table[(table["task"] == Associations.name) & competes]
    table = table[_is_registered(table)]
    per_parameter = table.assign(
        **{
            "bits per parameter": table["bits"] / table["n_params"],
            "memorized per parameter": table["memorized"] / table["n_params"],
        }
    )
    measures = ("accuracy", "bits per parameter", "memorized", "memorized per parameter")
    board = analysis.mean_over_seeds(per_parameter, measures)
    saturated = board["accuracy"] >= NEARLY
    board = board.rename(
        columns={
            "accuracy_interval": "± accuracy",
            "bits per parameter_interval": "± bits",
        }
    ).assign(
        saturated=saturated.map({True: "yes", False: "no"}),
        proven=theorems.promised_examples(board),
    )
    board["memorized / proven"] = board["memorized"] / board["proven"]
    return board.sort_values("bits per parameter", ascending=False, kind="stable")


# Beside the task, what all rows of a section share.
METHOD = ["method", "protocol", "solve", "start", "trained", "batch_size", "steps"]


def page(board: pd.DataFrame) -> str:
    """The board as Markdown, a section per task, protocol and number of steps."""
    parts = [INTRODUCTION]
    sections: Any = board.groupby([*task_columns(), *METHOD], dropna=False, sort=True)
    for _, rows in sections:
        first = rows.iloc[0]
        zipf = first["zipf_exponent"]
        prior = "" if pd.isna(zipf) else f" by Zipf's law with exponent {zipf:g}"
        shown = [
            name for name in analysis.distinguishing_columns(rows, SPECS) if name != "n_params"
        ]
        shown += [name for name in MEASURED if rows[name].notna().any()]
        parts += [
            f"## {first['n_examples']:,} {first['task']}{prior}, N = {first['vocab_size']:.0f}, "
            f"S = {first['context_length']}: {_method(first)}",
            "",
            tables.markdown(rows[shown], {k: v for k, v in MEASURED.items() if v is not None}),
            "",
            f"Measured on: {tables.join_distinct(rows['device'])}.",
            "",
        ]
    return "\n".join(parts)


def _is_trained(table: pd.DataFrame) -> pd.Series:
    """The mask of rows that are trained step by step and measured in the end."""
    others = Construction, Optimum, ByTraining
    names = [name for name, x in Method.kinds().items() if not issubclass(x, others)]
    return table["method"].isin(names)


def _is_registered(table: pd.DataFrame) -> np.ndarray:
    """The mask of rows whose kinds of method are registered here; a warning names the others."""
    known_X, unknown = np.ones(len(table), bool), collections.Counter[str]()
    rows: list[Any] = table.to_dict("records")
    for i, row in enumerate(rows):
        try:
            Method.from_row(row)
        except UserError as error:
            known_X[i] = False
            unknown[str(error)] += 1
    for reason, count in unknown.items():
        _log.warning("left out of all configurations: %s: %s", pluralize(count, "run"), reason)
    return known_X


def _method(row: Any) -> str:
    """The way in which a row's weights come about, in words."""
    return Method.from_row(row).summary


def write(board: pd.DataFrame, folder: pathlib.Path) -> None:
    """Writes CONFIGURATIONS.md and configurations.csv of what `build` made."""
    (folder / "CONFIGURATIONS.md").write_text(page(board), "utf-8")
    tables.write_csv(board, folder / "configurations.csv")
