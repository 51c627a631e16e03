"""Names of architectures for people, as figures, tables and the page of the board write them."""

import re
from collections.abc import Mapping
from typing import Any

from memobench.board import capacity_summary
from memobench.common.errors import escape_unprintable
from memobench.core.architecture import Architecture, read_family

# Heads as wide as the residual stream are those that `Architecture.side` calls full.
_HEADS = {"full": "wide", "narrow": "narrow", "compressed": "compressed"}
# Kinds that are named by their `Architecture.side`.
_SIDES = ("attention_only", "mlp")
# Of others, with options in braces that stand in the name.
_NAMES = {
    "gpt": "GPT-2",
    "mixture_of_experts": "mixture of {n_experts} experts",
    "mlp_memory": "MLP memory",
    "modern": "{activation} block",
    "modern attention": "modern attention alone",
    "product_key_memory": "product-key memory",
    "recall_transformer": "recall Transformer",
}
_OPTIONS = {
    "attention=delta": "delta rule",
    "norm=none": "no norm",
    "norm_position=post": "norms after blocks",
    "qk_norm=True": "normed queries and keys",
    "tied=True": "tied embeddings",
    "top_k": "{} per token",
}
_ACTIVATIONS = {
    "gelu": "GELU",
    "geglu": "GEGLU",
    "reglu": "ReGLU",
    "relu": "ReLU",
    "relu_squared": "squared ReLU",
    "swiglu": "SwiGLU",
}


def display_name(of: Architecture | Mapping[str, Any]) -> str:
    """The name of an architecture's family in plain words, without sizes.

    Args:
      of: the architecture, or a row of one; its kind may be unknown here.

    >>> row = {"architecture": "mlp", "d_model": 8, "d_head": 2, "d_mlp": 9, "heads": "full"}
    >>> display_name({**row, "n_heads": 4, "n_layers": 2, "activation": "relu"})
    'attention + ReLU MLP, narrow heads, 2 layers'
    """
    row: Any = of
    known = of if isinstance(of, Architecture) else capacity_summary.architecture(row)
    family = escape_unprintable(known.family) if known else read_family(row)
    found: Any = re.fullmatch(r"(.*?)(, narrow heads?)?(, \d+ layers)?", family, re.DOTALL)
    of_kind, heads, layers = found.groups("")
    name, _, rest = of_kind.partition(" (")
    options = rest.removesuffix(")").split(", ") if rest.endswith(")") else []
    if known and known.name in _SIDES:
        return _name_form(known) + layers
    if (options or not rest) and all("=" in x for x in options):
        of_kind = _name_kind(name, options)
    return of_kind.replace("_", " ") + heads + layers


def name_entry(of: Architecture | Mapping[str, Any], sizes: str) -> str:
    """The name of a family with the sizes of one of its architectures."""
    return f"{display_name(of)} ({sizes})"


def form_name(side: str, heads: str) -> str:
    """The name of a form of a side, as `Architecture.side` has both.

    >>> form_name("MLP", "full"), form_name("attention alone", "narrow")
    ('MLP, wide head', 'attention alone, narrow heads')
    """
    return f"{side}, {_HEADS[heads]} {'heads' if side.startswith('attention') else 'head'}"


def _name_form(known: Architecture) -> str:
    """The side that an architecture is a form of, its activation and its heads."""
    side, heads = known.side
    activation = getattr(known, "activation", "gelu")
    if activation != "gelu":
        side = side.replace("MLP", f"{_ACTIVATIONS.get(activation, activation)} MLP")
    # Heads as wide as the stream are not compressed, whatever their parameterisation is.
    is_wide = known.shared_cells()["d_head"] == known.d_model
    return form_name(side, "full" if is_wide else heads)


def _name_kind(name: str, options: list[str]) -> str:
    """The name of a kind, with its options in words."""
    values = {"activation": "swiglu"} | dict(x.split("=", 1) for x in options)
    pattern = _NAMES.get(name, "")
    inside = [x for x in values if f"{{{x}}}" in pattern]
    words = pattern.format_map({x: _ACTIVATIONS.get(values[x], values[x]) for x in inside}) or name
    rest = [_option(x) for x in options if x.split("=")[0] not in inside]
    # The norm comes last.
    return ", ".join([words, *sorted(rest, key=lambda x: x == "no norm")])


def _option(option: str) -> str:
    """An option such as "norm=none" in words."""
    key, value = option.split("=", 1)
    usual = f"{{}} {key.removeprefix('n_')}"
    words = _OPTIONS.get(option) or _OPTIONS.get(key, usual)
    return words.format(_ACTIVATIONS.get(value, value))
