"""The device's best rates: float32 products of matrices, and copies."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import measuring


def measure(callers: int, rounds: int, seconds: float) -> dict[str, float]:
    """The best FLOP/s and bytes/s of as many callers together."""
    side, length = (2048, 2**26) if jax.default_backend() == "cpu" else (8192, 2**30)
    product = jax.jit(lambda x: jnp.dot(x, x, precision="highest") / side)
    # A copy into itself: fresh memory would be the host's to find.
    copy = jax.jit(lambda x: -x, donate_argnums=0)
    flops = [_per_second(product, (side, side), callers, seconds) for _ in range(rounds)]
    copies = [_per_second(copy, (length,), callers, seconds) for _ in range(rounds)]
    return {"FLOP/s": max(flops) * 2 * side**3, "bytes/s": max(copies) * 2 * 4 * length}


def _per_second(function: Any, shape: tuple[int, ...], callers: int, seconds: float) -> float:
    arrays = [jnp.ones(shape) for _ in range(callers)]

    def advance(x: Any) -> tuple[Any, Any]:
        x = function(x)
        return x, x[:1] if x.ndim == 1 else x

    calls = [functools.partial(measuring.calls_in_a_row, advance, x, seconds) for x in arrays]
    return sum(measuring.side_by_side(calls))
