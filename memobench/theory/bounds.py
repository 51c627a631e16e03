"""Bounds that theorems promise: numbers of examples that some weights memorize."""

import dataclasses
from typing import Any

import numpy as np

from memobench.theory.theorem import DANA, MAHDAVI, Bound, Sizes, number, plane


def _spans(sizes: Sizes) -> Any:
    """True where tokens span a stream of two dimensions at least."""
    return plane(sizes) & (number(sizes["vocab_size"]) >= sizes["d_model"])


def _attention(sizes: Sizes) -> Any:
    # Attention to a single token is not a choice: heads then add nothing to the skip connection.
    return _spans(sizes) & (sizes["context_length"] > 1)


def _attention_alone(sizes: Sizes) -> Any:
    return _attention(sizes) & (sizes["d_mlp"] == 0)


def _effective_d_head(sizes: Sizes) -> Any:
    # Heads wider than the stream, as released code has them, see no more than the stream.
    return np.minimum(sizes["d_head"], sizes["d_model"])


def _mlp(sizes: Sizes) -> Any:
    return _spans(sizes) & (sizes["d_mlp"] > 0)


def _queries_span(sizes: Sizes) -> Any:
    # Queries span their inputs' dimensions and that of the bias.
    wanted = np.minimum(sizes["context_length"], sizes["d_head"])
    return number(sizes["input_dim"]) + 1 >= wanted


_ARCHITECTURE, _BOTH = ("architecture",), ("architecture", "task")

COROLLARY_2 = Bound(
    name="Dana 2025: H·d_h + d",
    source=f"{DANA}, Theorem 1 and Corollaries 1 and 2",
    value=lambda sizes: sizes["n_heads"] * _effective_d_head(sizes) + sizes["d_model"],
    assumptions="sequences end in as many tokens as there are dimensions",
    about=_ARCHITECTURE,
    where=_attention_alone,
)
SILENT_MLP = dataclasses.replace(
    COROLLARY_2,
    name="Dana 2025 with a silent MLP: H·d_h + d",
    where=lambda sizes: _attention(sizes) & (sizes["d_mlp"] > 0),
)
MAHDAVI_1 = Bound(
    name="Mahdavi 2024: H·(d_h − 1) + 1",
    source=f"{MAHDAVI}, Theorem 1",
    value=lambda sizes: sizes["n_heads"] * (_effective_d_head(sizes) - 1) + 1,
    assumptions="as Dana et al. carry it over to tokens",
    about=_ARCHITECTURE,
    where=_attention_alone,
)
RANDOM_FEATURES = Bound(
    name="rank of an MLP: w + d",
    source="linear algebra: random hidden neurons and the skip connection are independent",
    value=lambda sizes: sizes["d_mlp"] + sizes["d_model"],
    assumptions="attention tells all sequences apart",
    about=_ARCHITECTURE,
    where=_mlp,
)
PROPOSITION_3 = Bound(
    name="Dana 2025: all sequences",
    source=f"{DANA}, Proposition 3",
    value=lambda sizes: sizes["n_examples"],
    assumptions="one next token to a sequence",
    about=_BOTH,
    where=plane,
)
LINEAR_LEAST_SQUARES = Bound(
    name="linear memory of random keys, exact: d",
    source="linear algebra: d random keys are independent, and W takes them to any values",
    value=lambda sizes: sizes["d_model"],
    about=_ARCHITECTURE,
    where=plane,
)
# For labelled contexts of n vectors; tight where all share one (Proposition 2).
THEOREM_1 = Bound(
    name="Mahdavi 2024: H·(min(n, d_h) − 1) + 1",
    source=f"{MAHDAVI}, Theorem 1",
    value=lambda sizes: (
        sizes["n_heads"] * (np.minimum(sizes["context_length"], sizes["d_head"]) - 1) + 1
    ),
    assumptions="queries of Kruskal rank n, contexts of rank n",
    about=_BOTH,
    where=_queries_span,
)
BUBECK = Bound(
    name="Bubeck 2020: (d − 1)·⌊w/4⌋",
    source="Bubeck, Eldan, Lee & Mikulincer 2020; here one of d coordinates is constant",
    value=lambda sizes: (sizes["d_model"] - 1) * (sizes["d_mlp"] // 4),
    assumptions="relu neurons, points of the stream in general position",
    about=_ARCHITECTURE,
    where=_mlp,
)

# A run is promised the largest of those that apply to it; see `lower_bounds`.
LOWER_BOUNDS = (
    COROLLARY_2,
    SILENT_MLP,
    MAHDAVI_1,
    RANDOM_FEATURES,
    BUBECK,
    PROPOSITION_3,
    LINEAR_LEAST_SQUARES,
    THEOREM_1,
)
