"""Words and letters of pages and figures: the papers' letters for sizes, names for axes."""

import fnmatch
from collections.abc import Iterable
from numbers import Number
from typing import Any

LETTERS = {
    "zipf_exponent": "α",
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
    "drawn": "examples of the batch",
    "items_known": "items known",
    "load": "T over the promised number",
    "promised": "promised examples",
    "context_length": "context length",
    "n_heads": "heads H",
    "d_head": "head dimension d_h",
    "d_model": "width d",
    "d_mlp": "hidden neurons w",
    "n_layers": "layers of attention",
    "n_params": "parameters",
    "n_params_memory": "parameters of the memory",
    "condition": "condition number",
    "largest_weight": "largest weight",
    "margin": "least margin / largest output",
}
# Values of columns, as legends and titles write them.
WORDS: dict[Any, str] = {
    "attention_only": "attention alone",
    "mlp": "MLP",
    "linear_memory": "linear memory",
    "mlp_memory": "MLP memory",
    "uniform": "equally likely next tokens",
    "power_law": "power law",
    "dirichlet": "Dirichlet",
    "": "one next token",
    False: "without residuals",
    True: "with residuals",
    "dana2025": "Dana 2025",
    "dana2025_proposition3": "Dana 2025, Proposition 3",
    "bubeck2020": "Bubeck 2020",
    "mahdavi2024": "Mahdavi 2024",
    "linear_least_squares": "linear memory, least squares",
    "hebbian": "outer products",
    "hebbian_whitened": "least squares",
    "hebbian_data_dependent": "fitted projections",
    "ntk": "NTK",
    "gradient_step": "SGD",
    "muon_step": "Muon",
}


def name(column: str) -> str:
    """A column's name on an axis."""
    return typeset(NAMES.get(column, column.replace("_", " ")))


def words(value: Any) -> str:
    """A value in legends and titles.

    >>> words("random_features"), words(True), words(1)
    ('random features', 'with residuals', '1')
    """
    # 1 equals True, but has no words.
    number = isinstance(value, Number) and not isinstance(value, bool)
    return f"{value:,}" if number else WORDS.get(value) or str(value).replace("_", " ")


def label(column: str, value: Any) -> str:
    """A value of a column in a legend, numbers with their letter.

    >>> label("d_head", 3), label("n_examples", 1000), label("architecture", "mlp")
    ('head dimension $d_h$ = 3', 'examples T = 1,000', 'MLP')
    """
    if column in LETTERS or column in NAMES:
        return f"{name(column)} = {value:,}" if isinstance(value, Number) else words(value)
    return words(value)


def typeset(text: str) -> str:
    """A text of a figure, in which letters have their subscripts, and formulas stay.

    >>> typeset("a share of $T$ at d_h = 3")
    'a share of $T$ at $d_h$ = 3'
    """
    parts = text.split("$")
    parts[::2] = [
        x.replace("d_h", "$d_h$").replace("T_eps", r"$T_\varepsilon$") for x in parts[::2]
    ]
    return "$".join(parts)


def sizes(values: Any, columns: Iterable[str]) -> str:
    """The values that a row or mapping has of columns, each behind its letter.

    >>> sizes({"n_heads": 5, "d_model": 3, "load": 0.5}, ["d_model", "n_heads", "load"])
    'd = 3, H = 5, load = 0.5'
    """
    return ", ".join(f"{LETTERS.get(column, column)} = {values[column]}" for column in columns)


def match_names(names: Iterable[str], pattern: str) -> list[str]:
    """The names that a pattern matches, or that begin with it as their paper.

    >>> match_names(["dana2025/heads", "dana2025/slopes", "board/64"], "dana2025")
    ['dana2025/heads', 'dana2025/slopes']
    >>> match_names(["dana2025/heads", "dana2025/slopes", "board/64"], "*/heads")
    ['dana2025/heads']
    """
    folder = pattern.rstrip("/") + "/"
    return [name for name in names if fnmatch.fnmatch(name, pattern) or name.startswith(folder)]


def enumerate_words(words: Iterable[str]) -> str:
    """The words in a row.

    >>> enumerate_words("abc")
    'a, b and c'
    """
    *others, last = words
    return f"{', '.join(others)} and {last}" if others else last


def pluralize(n: int, noun: str) -> str:
    """A number and its noun.

    >>> pluralize(1, "seed"), pluralize(2, "seed")
    ('1 seed', '2 seeds')
    """
    return f"{n} {noun}" + ("" if n == 1 else "s")
