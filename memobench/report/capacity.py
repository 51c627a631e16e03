"""The section on capacities of an experiment's page, and what its words mean."""

from typing import Any

import pandas as pd

from memobench.analysis import capacities
from memobench.report import tables

DEFINITION = """\
Three capacities of an architecture at one size, means over seeds (each with weights, labels and
sequences of its own) ± half the 95% interval (Student):

- **(a) complete**: the largest set of which at least 99%, or all, is memorized, found by bisection
  to 2% of itself (below 100 examples 99% of a set are all of it);
- **(b) memorized**: associations known beyond guessing (accuracy = 1/N + (1 − 1/N)·X/T) of an
  overfull set, one too large to be memorized;
- **(c) bits**: T·log2 N minus the negative log-likelihood in bits of the same set, at least 0.

(a) and (b) count what the best of the checked weights know (every 32 steps of the exact gradient;
the last ones of the published protocol), (c) the last weights; each at its best learning rate and
number of steps. Per parameter means: of *all*; of the *memory*, all but token embeddings and
unembedding; of the degrees of *freedom*, the dimensions of the set of functions that the weights
can have (– where they differ between weights). A row is `converged` where the last doubling of the
steps gained less than 2% in each of the three (*gain*; what is known of the overfull set for b); a
set that was memorized to 99% is not overfull, and its row a `lower bound`, no capacity. *Rate at
edge* is the share of seeds whose best learning rate is the least or the largest tried.
"""
CONVENTIONS = {"all": "n_params", "memory": "n_params_memory", "freedom": "degrees_of_freedom"}
SIZES = ["task", "vocab_size", "architecture", "heads", "d_model", "d_head", "n_heads"]
SIZES += ["n_layers", "d_mlp", "activation", "protocol"]


def section(table: pd.DataFrame) -> list[str]:
    """Paragraphs of a page; none where nothing was searched."""
    found = table[table["complete_99"].notna()]
    if found.empty:
        return []
    found = capacities.summarize(found).sort_values(["vocab_size", "n_params", "d_model"])
    return [
        "## Capacities",
        DEFINITION,
        tables.markdown(*reader_table(found)),
    ]


def reader_table(found: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, int]]:
    """Capacities for readers, each with its interval, and digits of the numbers."""
    columns: dict[str, Any] = {
        name: found[name]
        for name in SIZES
        if name in found and found[name].notna().any() and _is_telling(found[name])
    }
    columns["parameters"] = found["n_params"]
    for label, name in (("complete 99%", "complete_99"), ("complete", "complete_100")):
        columns[label] = _format_measure(found, name, 0)
    columns["memorized"] = _format_measure(found, "memorized", 0)
    columns["bits"] = _format_measure(found, "bits", 0)
    for label, count in CONVENTIONS.items():
        columns[f"99% / {label}"] = found["complete_99"] / found[count].astype(float)
    for label, count in CONVENTIONS.items():
        columns[f"bits / {label}"] = found["bits"] / found[count].astype(float)
    columns |= {
        "99% / proven": found["complete_99_over_proven"],
        "verdict": found["verdict"],
        "gain (a)": found["gain_99"],
        "gain (b)": found["gain_known"],
        "gain (c)": found["gain_bits"],
        "rate at edge": found["rate_at_edge"],
        "steps": found["final_steps"],
        "seeds": found["seeds"],
        "seconds": found["seconds"],
    }
    digits = dict.fromkeys((f"99% / {label}" for label in CONVENTIONS), 3)
    digits |= dict.fromkeys((f"bits / {label}" for label in CONVENTIONS), 2)
    return pd.DataFrame(columns), {
        **digits,
        "99% / proven": 1,
        "gain (a)": 3,
        "gain (b)": 3,
        "gain (c)": 3,
        "rate at edge": 1,
        "seconds": 1,
    }


def _is_telling(values: pd.Series) -> bool:
    """True if a column differs among rows, or names what all of them are."""
    return values.name in ("architecture", "d_model") or values.nunique(dropna=False) > 1


def _format_measure(table: pd.DataFrame, measure: str, digits: int) -> list[str]:
    bound = table["verdict"] == capacities.LOWER_BOUND
    return [
        _number(value, interval, digits, "≥ " if is_bound else "")
        for value, interval, is_bound in zip(
            table[measure], table[f"{measure}_interval"], bound, strict=True
        )
    ]


def _number(value: float, interval: float, digits: int, prefix: str) -> str:
    if value != value:
        return "–"
    text = f"{prefix}{value:,.{digits}f}"
    return text if interval != interval else f"{text} ± {interval:,.{digits}f}"
