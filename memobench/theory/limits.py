"""Limits that theorems set: no weights exceed them, nor have less than a certified loss."""

import math
from typing import Any

import numpy as np
import pandas as pd

from memobench.theory.theorem import DANA, MAHDAVI, Limit, Sizes

# A head is saturated on an example if its largest attention weight exceeds this.
SATURATED_ATTENTION = 0.99

# A guess at random gains k bits with probability 2^-k.
SLACK_BITS = 64.0

COUNTING = Limit(
    name="counting bits",
    source="weights of B bits name at most 2^B labelings (Kraft's inequality)",
    measure=lambda sizes: sizes["bits"],
    value=lambda sizes: sizes["n_params"] * _bits_per_weight(sizes) + SLACK_BITS,
    assumptions="labels uniform and independent; fails with probability 2^-64",
    # Those that draw labels so; a rule that weights can follow is no memory.
    about=("task",),
    where=lambda sizes: pd.notna(sizes["bits"]),
)
PROPOSITION_2 = Limit(
    name="rank of attention: H·(n − 1) + 1",
    source=f"{MAHDAVI}, Proposition 2",
    measure=lambda sizes: sizes["attention_rank"],
    value=lambda sizes: sizes["n_heads"] * (sizes["context_length"] - 1) + 1,
    where=lambda sizes: pd.notna(sizes["attention_rank"]),
)
RANK_OF_WEIGHTS = Limit(
    name="rank of constructed attention: H·(n − 1) + 1",
    source=f"{MAHDAVI}, Proposition 2",
    measure=lambda sizes: sizes["feature_rank"],
    value=PROPOSITION_2.value,
    assumptions="all examples share a context",
    about=("theorem", "task"),
    where=lambda sizes: pd.notna(sizes["feature_rank"]),
)
# Losses in float32 are known to about 1e-6.
_ROUNDING = 1e-5
# A search certifies the least loss that it found, so that a run below it counts as wrong, if of so
# many starts at least so many ended there, within a share or a number, and the gradient vanishes.
LEAST_STARTS, LEAST_AGREEING = 16, 2
AGREES, VANISHES = 1e-6, 1e-6


def is_certified(row: Any) -> bool:
    """True for an optimised row whose loss may count as the least there is.

    A search that ended early, or that found its best once, says only that there are such weights.
    No search proves that there are no better ones: `PROPOSITION_1` says what it assumes.
    """
    losses, gradient_norm, starts = map(row.get, ("start_losses", "gradient_norm", "starts"))
    if not isinstance(losses, list) or not losses or pd.isna(gradient_norm) or pd.isna(starts):
        return False
    agreeing = sum(math.isclose(x, losses[0], rel_tol=AGREES, abs_tol=AGREES) for x in losses)
    enough = starts >= LEAST_STARTS and agreeing >= LEAST_AGREEING
    return bool(enough and gradient_norm <= VANISHES)


PROPOSITION_1 = Limit(
    name="floor of the best sequence encoder",
    source=f"{DANA}, Proposition 1",
    measure=lambda sizes: sizes["certified_floor"] - sizes["loss"],
    value=lambda sizes: _ROUNDING,
    assumptions="the search for the encoder, from many starts of which two agree, found the best",
    # Those that read their logits out of d_model numbers.
    about=("architecture",),
    where=lambda sizes: pd.notna(sizes["certified_floor"]),
)
UPPER_BOUNDS = (COUNTING, PROPOSITION_2, RANK_OF_WEIGHTS, PROPOSITION_1)


def _bits_per_weight(sizes: Sizes) -> Any:
    """Bits that one weight can hold: those a construction stored, or the method's precision."""
    # An Optimum's weights alone are of double precision.
    by_method = np.where(np.asarray(sizes["method"], object) == "optimised", 64.0, 32.0)
    stored = sizes.get("stored_bits")
    if stored is None:
        return by_method
    stored = np.asarray(stored, np.float64)
    return np.where(np.isnan(stored), by_method, stored)
