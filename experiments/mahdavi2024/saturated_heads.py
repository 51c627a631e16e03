"""Saturation: heads that look at one token only, as Mahdavi et al. (2024) define it.

A head is saturated on an example if its largest attention weight exceeds 0.99. Such a head adds
the same for every example on which it looks at the same token of a shared context; what tells
examples apart comes from the heads that are not saturated on them, the heads that serve them.

Shape letters: T examples, H n_heads, N tokens attended to, B examples of a block.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from memobench.core.module import Module, has_attention
from memobench.core.run import Run
from memobench.theory import SATURATED_ATTENTION

EXAMPLES_AT_ONCE = 1024

# From what all examples share and an example's number: the module's inputs.
Example = Callable[[Any, jax.Array], tuple[Any, ...]]


def largest_attention(run: Run, variables: Any) -> np.ndarray:
    """largest_TxH: the largest attention weight of each head of the last layer on each example.

    Args:
      run: any run whose architecture offers `attention`.
      variables: its weights, at their true size.

    Raises:
      ValueError: the architecture has no attention.
    """
    module = run.module()
    if not has_attention(module):
        raise ValueError(f"{run.architecture.name} has no attention to look at")
    task = run.task
    return largest_of_module(
        module, variables, task.signature().inputs, task.sample(), task.n_examples
    )


def largest_of_module(
    module: Module, variables: Any, example: Example, data: Any, n_examples: int
) -> np.ndarray:
    """largest_TxH of a module whose inputs are `example(data, i)`, i < n_examples."""
    variables, data = jax.device_put((variables, data))
    # Blocks of one size, which compile once; what lies beyond the last example is cut off.
    blocks = [
        _largest_of_block(
            module, example, variables, data, np.arange(start, start + EXAMPLES_AT_ONCE)
        )
        for start in range(0, n_examples, EXAMPLES_AT_ONCE)
    ]
    return np.concatenate(blocks)[:n_examples]


@functools.partial(jax.jit, static_argnums=(0, 1))
def _largest_of_block(
    module: Module, example: Example, variables: Any, data: Any, example_B: jax.Array
) -> jax.Array:
    def largest_of(i: jax.Array) -> jax.Array:
        attention_HxN: Any = module.apply(variables, *example(data, i), method="attention")
        return attention_HxN.max(axis=-1)

    with jax.default_matmul_precision("highest"):
        return jax.vmap(largest_of)(example_B)


def columns(largest_TxH: np.ndarray) -> dict[str, Any]:
    """Columns of a row, from its largest attention weights.

    Returns:
      saturated: the share of pairs of a head and an example that are saturated.
      saturated_by_head: the share of each head's examples.
      examples_by_serving_heads: how many examples have 0, 1, .., H heads that serve them.
    """
    saturated_TxH = largest_TxH > SATURATED_ATTENTION
    serving_T = (~saturated_TxH).sum(axis=1)
    return {
        "saturated": float(saturated_TxH.mean()),
        "saturated_by_head": saturated_TxH.mean(axis=0).tolist(),
        "examples_by_serving_heads": np.bincount(
            serving_T, minlength=largest_TxH.shape[1] + 1
        ).tolist(),
    }
