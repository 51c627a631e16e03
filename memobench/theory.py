"""What theorems promise or forbid, as functions of a run's sizes. Imports no JAX."""

import dataclasses
from collections.abc import Callable
from typing import Any


@dataclasses.dataclass(frozen=True)
class Bound:
    """A bound on the number of associations that some weights of these sizes memorize.

    value takes n_heads, d_head, d_model (numbers or columns) and returns associations.
    """

    name: str
    source: str
    value: Callable[[Any, Any, Any], Any]


# Lower bounds for one layer of attention, as drawn in the figures of Dana et al. (2025).
LOWER_BOUNDS = (
    Bound(
        name="Dana 2025: H·d_h + d",
        source="Dana, Pydi & Chevaleyre 2025, Corollary 2",
        value=lambda n_heads, d_head, d_model: n_heads * d_head + d_model,
    ),
    Bound(
        name="Mahdavi 2024: H·(d_h − 1) + 1",
        source="Mahdavi, Liao & Thrampoulidis 2024, Theorem 1",
        value=lambda n_heads, d_head, d_model: n_heads * (d_head - 1) + 1,
    ),
)
