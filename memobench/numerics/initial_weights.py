"""Initial weights: how every parameter of a model is initialised, and drawing all of them."""

import functools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class Weight(NamedTuple):
    """A parameter's shape, and the distribution of its entries at the start.

    Attributes:
      shape: the parameter's.
      bound: uniform between -bound and bound; None means normal, with this mean and deviation.
      mean: of a normal distribution.
      deviation: of a normal distribution.
      unit: whether rows are divided by their norms, which makes them random directions.
    """

    shape: tuple[int, ...]
    bound: float | None = None
    mean: float = 0.0
    deviation: float = 1.0
    unit: bool = False

    def initialize(self, key: jax.Array, shape: Any, dtype: Any = jnp.float32) -> jax.Array:
        """The weight as an initializer of Flax."""
        if self.bound is not None:
            return jax.random.uniform(key, shape, dtype, -self.bound, self.bound)
        entries = self.mean + self.deviation * jax.random.normal(key, shape, dtype)
        return entries / jnp.linalg.norm(entries, axis=1, keepdims=True) if self.unit else entries


# By name of the parameter.
Table = dict[str, Weight]


def add_prefix(prefix: str, table: Mapping[str, Any]) -> dict[str, Any]:
    """The table with a prefix before every name."""
    return {f"{prefix}{name}": x for name, x in table.items()}


def select_prefix(prefix: str, table: Mapping[str, Any]) -> dict[str, Any]:
    """The entries that `add_prefix` has put into a table, without the prefix."""
    found = {name: x for name, x in table.items() if name.startswith(prefix)}
    return {name.removeprefix(prefix): x for name, x in found.items()}


def fan_in(n: int) -> float:
    """The bound 1 / sqrt(n) of a linear map from n inputs."""
    return 1 / math.sqrt(max(n, 1))


def size(table: Table) -> int:
    """The number of entries of all parameters together."""
    return sum(math.prod(weight.shape) for weight in table.values())


def draw(table: Table, key: jax.Array) -> dict[str, np.ndarray]:
    """Initial parameters, float32, without a compilation for every set of shapes."""
    bounded = [name for name, weight in table.items() if weight.bound is not None]
    n_total = sum(math.prod(table[name].shape) for name in bounded)
    flat = np.zeros(0)
    if bounded:
        # NumPy aborts the process where the array did not fit into memory; waiting raises.
        flat = np.asarray(_draw(key, 1 << (n_total - 1).bit_length()).block_until_ready())
    random = None if len(bounded) == len(table) else _generator(key)
    params, start = {}, 0
    for name, (shape, bound, mean, deviation, unit) in table.items():
        if random is None or bound is not None:
            stop = start + math.prod(shape)
            params[name] = np.float32(bound) * flat[start:stop].reshape(shape)
            start = stop
            continue
        entries = mean + deviation * random.standard_normal(shape)
        if unit:
            entries /= np.linalg.norm(entries, axis=1, keepdims=True)
        params[name] = entries.astype(np.float32)
    return params


def _generator(key: jax.Array) -> np.random.Generator:
    """NumPy's generator seeded by a JAX key: drawing from it compiles nothing."""
    return np.random.default_rng(np.asarray(jax.random.key_data(key)))


@functools.partial(jax.jit, static_argnums=1)
def _draw(key: jax.Array, n: int) -> jax.Array:
    return jax.random.uniform(key, (n,), jnp.float32, -1, 1)
