"""The settings of JAX that results rest on."""

import functools
from collections.abc import Callable
from typing import Any

import jax

from memobench.common import forks
from memobench.common.errors import require


def pin(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function in single precision and with JAX's own generator of random numbers.

    Tasks, weights and batches follow from seeds: with a caller's settings (`jax_enable_x64`,
    `jax_default_prng_impl`, `jax_threefry_partitionable`) they would be others under the same run's
    id. A thread has settings of its own: what other threads call is to be wrapped as well.

    Raises:
      UserError: in a process that was forked after JAX began, where it would wait for ever.
    """

    @functools.wraps(function)
    def run_pinned(*arguments: Any, **named: Any) -> Any:
        require(
            not forks.is_after_jax(),
            "processes must be spawned, got one that was forked after JAX began, where JAX waits "
            "for ever; start them with multiprocessing.get_context('spawn')",
        )
        offset = jax.config.values["jax_random_seed_offset"]
        require(offset == 0, f"JAX_RANDOM_SEED_OFFSET must be 0, got {offset}; unset it")
        with (
            jax.enable_x64(False),
            jax.default_prng_impl("threefry2x32"),
            jax.threefry_partitionable(True),
            jax.numpy_dtype_promotion("standard"),
        ):
            return function(*arguments, **named)

    return run_pinned
