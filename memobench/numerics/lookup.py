"""Rows of a table by index, in the form whose gradient is fast on the platform.

The gradient of a gather is a scatter. CPUs add one row after another at little cost. GPUs, asked to
be deterministic, sort all indices first, and TPUs take one row at a time: there a row is a product
with a one-hot vector, whose gradient is a product as well. Values agree to the last bit, gradients
to rounding.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

# The platform that functions are traced for; None for any.
PLATFORM: Any = jax.make_user_context()

# Beyond this many rows a one-hot vector is longer than anything else that a step holds.
MOST_ROWS = 2**15


def rows(table_NxX: jax.Array, number: jax.Array) -> jax.Array:
    """The rows of a table: table_NxX[number], for indices in [0, N) of any shape.

    >>> rows(jnp.eye(3), jnp.array([2, 0])).tolist()
    [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]
    """
    if len(table_NxX) > MOST_ROWS:
        return table_NxX[number]
    return select_by_platform(_gather, _multiply_one_hot, table_NxX, number)


def select_by_platform(
    cpu: Callable[..., Any], accelerator: Callable[..., Any], *arguments: Any
) -> Any:
    """One of two functions of equal values, by the platform that a program is compiled for."""
    if PLATFORM.value is not None:
        return (cpu if PLATFORM.value == "cpu" else accelerator)(*arguments)
    return jax.lax.platform_dependent(*arguments, cpu=cpu, default=accelerator)


def traced_for_here() -> Any:
    """A context in which functions are traced for the devices of this process and no others.

    It takes two thirds of the time of a trace for any platform, which has both functions of
    `select_by_platform`.
    """
    return PLATFORM(jax.local_devices()[0].platform)


def _gather(table_NxX: jax.Array, number: jax.Array) -> jax.Array:
    return table_NxX[number]


def _multiply_one_hot(table_NxX: jax.Array, number: jax.Array) -> jax.Array:
    one_hot = jax.nn.one_hot(number, len(table_NxX), dtype=table_NxX.dtype)
    return jnp.tensordot(one_hot, table_NxX, 1, precision="highest")
