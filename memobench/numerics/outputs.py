"""Outputs of a module for all examples of a task."""

import functools
from typing import Any

import jax
import numpy as np

from memobench.numerics import lookup, precision


def outputs(module: Any, variables: Any, task: Any, data: Any, double: bool) -> np.ndarray:
    """output_TxC of all examples, computed in float64 or float32."""
    double_or_single, highest = jax.enable_x64(double), jax.default_matmul_precision("highest")
    with double_or_single, highest, lookup.traced_for_here():
        variables, data = precision.cast((variables, data), np.float64 if double else np.float32)
        return np.asarray(_outputs(module, task.signature(), variables, data))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _outputs(module: Any, task: Any, variables: Any, data: Any) -> jax.Array:
    return task.outputs(module, variables, data)
