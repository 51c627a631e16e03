"""How pages and figures write columns: the papers' letters for sizes, and names for axes."""

from collections.abc import Iterable
from typing import Any

LETTERS = {
    "vocab_size": "N",
    "context_length": "S",
    "n_examples": "T",
    "d_model": "d",
    "d_head": "d_h",
    "n_heads": "H",
    "n_layers": "L",
}
NAMES = {
    "accuracy": "accuracy",
    "loss": "divergence (nats)",
    "slope": "slope of accuracy on heads",
    "known": "memorized examples (accuracy × T)",
    "memorized": "memorized associations",
    "complete_99": "largest set memorized to 99%",
    "bits": "bits memorized",
    "bits_per_parameter": "bits per parameter",
    "n_examples": "examples T",
    "load": "T over the promised number",
    "promised": "H·d_h + d",
    "context_length": "context length",
    "n_heads": "heads H",
    "d_head": "head dimension d_h",
    "d_model": "width d",
    "d_mlp": "hidden neurons m",
    "n_layers": "layers of attention",
    "n_params": "parameters",
    "n_params_memory": "parameters of the memory",
    "condition": "condition number",
    "largest_weight": "largest weight",
    "margin": "least margin / largest output",
}


def name(column: str) -> str:
    """What an axis says of a column."""
    return NAMES.get(column, column)


def sizes(values: Any, columns: Iterable[str]) -> str:
    """The values that a row or mapping has of columns, each behind its letter.

    >>> sizes({"n_heads": 5, "d_model": 3, "load": 0.5}, ["d_model", "n_heads", "load"])
    'd = 3, H = 5, load = 0.5'
    """
    return ", ".join(f"{LETTERS.get(column, column)} = {values[column]}" for column in columns)


def plural(n: int, noun: str) -> str:
    """So many of them.

    >>> plural(1, "seed"), plural(2, "seed")
    ('1 seed', '2 seeds')
    """
    return f"{n} {noun}" + ("" if n == 1 else "s")
