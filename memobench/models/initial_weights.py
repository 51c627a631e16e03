"""Initial distributions: of weights uniform within bounds, of keys and values random directions."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

# Name of a parameter: its shape, and b where its entries start out uniform(-b, b).
Table = dict[str, tuple[tuple[int, ...], float]]


def fan_in(n: int) -> float:
    """The bound 1 / sqrt(n) of a linear map from n inputs."""
    return 1 / math.sqrt(max(n, 1))


def uniform(bound: float) -> nn.initializers.Initializer:
    """Entries between -bound and bound, as an initializer of Flax."""

    def initialize(key: jax.Array, shape: Any, dtype: Any = jnp.float32) -> jax.Array:
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return initialize


def unit_rows(key: jax.Array, shape: Any, dtype: Any = jnp.float32) -> jax.Array:
    """Rows of norm 1 in independent random directions, as an initializer of Flax."""
    rows = jax.random.normal(key, shape, dtype)
    return rows / jnp.linalg.norm(rows, axis=1, keepdims=True)


def generator(key: jax.Array) -> np.random.Generator:
    """NumPy's stream of random numbers of a key: it compiles nothing."""
    return np.random.default_rng(np.asarray(jax.random.key_data(key)))


def draw_normal_rows(random: np.random.Generator, n_rows: int, size: int) -> np.ndarray:
    """Standard normal entries, float32."""
    return random.standard_normal((n_rows, size)).astype(np.float32)


def draw_unit_rows(random: np.random.Generator, n_rows: int, size: int) -> np.ndarray:
    """The same distribution as `unit_rows`, float32."""
    rows = random.standard_normal((n_rows, size))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def draw(table: Table, key: jax.Array) -> dict[str, np.ndarray]:
    """Initial parameters, float32, without a compilation for every set of shapes."""
    n_total = sum(math.prod(shape) for shape, _ in table.values())
    flat = np.asarray(_draw(key, 1 << (n_total - 1).bit_length()))
    params, start = {}, 0
    for name, (shape, bound) in table.items():
        stop = start + math.prod(shape)
        params[name] = np.float32(bound) * flat[start:stop].reshape(shape)
        start = stop
    return params


@functools.partial(jax.jit, static_argnums=1)
def _draw(key: jax.Array, n: int) -> jax.Array:
    return jax.random.uniform(key, (n,), jnp.float32, -1, 1)
