"""Names of architectures for people, as figures, tables and the page of the board write them."""

import re
from collections.abc import Mapping
from typing import Any

from memobench.board import capacity_summary
from memobench.common.errors import escape_unprintable
from memobench.core.architecture import Architecture

# Heads as wide as the residual stream are those that `Architecture.side` calls full.
_HEADS = {"full": "wide", "narrow": "narrow", "compressed": "compressed"}
# Of families that are forms of no side, with options in braces that stand in the name.
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
    "activation": "{}",
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
    "relu": "ReLU",
    "relu_squared": "squared ReLU",
    "swiglu": "SwiGLU",
}


def display_name(of: Architecture | Mapping[str, Any]) -> str:
    """The name of an architecture's family in plain words, without sizes.

    Args:
      of: the architecture, or a row of one; its kind may be unknown here.

    >>> from memobench.core.architecture import Architecture
    >>> row = {"architecture": "mlp", "d_model": 8, "d_head": 2, "d_mlp": 9, "heads": "full"}
    >>> display_name({**row, "n_heads": 4, "n_layers": 2, "activation": "relu"})
    'attention + MLP, narrow heads, ReLU, 2 layers'
    """
    known = of if isinstance(of, Architecture) else capacity_summary.architecture(of)
    family = escape_unprintable(known.family) if known else capacity_summary.family(of)
    name, options, layers = _split(family)
    if known and all(known.side):
        side, heads = known.side
        # Heads as wide as the stream are not compressed, whatever their parameterisation is.
        is_wide = heads == "compressed" and known.shared_cells()["d_head"] == known.d_model
        form = "wide" if is_wide else _HEADS.get(heads, heads)
        name = f"{side}, {form} {'head' if side == capacity_summary.MLP else 'heads'}"
    values = {"activation": "swiglu"} | dict(x.split("=", 1) for x in options if "=" in x)
    pattern = _NAMES.get(name, name.replace("_", " "))
    inside = re.findall(r"{(\w+)}", pattern)
    words = pattern.format_map({x: _ACTIVATIONS.get(values[x], values[x]) for x in inside})
    rest = [_option(x) for x in options if x.partition("=")[0] not in inside]
    return ", ".join([words, *rest, *layers])


def _split(family: str) -> tuple[str, list[str], list[str]]:
    """A family's name, its options in brackets, and its layers if there are several."""
    family, _, layers = re.fullmatch(r"(.*?)(, )?(\d+ layers)?", family).groups("")
    name, _, options = family.partition(" (")
    options, _, more = options.partition(")")
    return name + more, options.split(", ") if options else [], [layers] if layers else []


def _option(option: str) -> str:
    """An option such as "norm=none" in words."""
    key, _, value = option.rpartition("=")
    usual = f"{{}} {key.removeprefix('n_').replace('_', ' ')}".rstrip()
    words = _OPTIONS.get(option) or _OPTIONS.get(key, usual)
    return words.format(_ACTIVATIONS.get(value, value)).replace("_", " ")
