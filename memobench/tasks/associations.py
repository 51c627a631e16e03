"""Associations: every sequence of tokens has one next token, drawn uniformly.

Dana, Pydi & Chevaleyre (2025), section on experiments: S = 2, all N^2 pairs, uniform prior.
"""

import jax
import jax.numpy as jnp

from memobench.specs import Task


def sample_next(key: jax.Array, task: Task) -> tuple[jax.Array, jax.Array]:
    """The next token of every sequence, and its probability, 1.

    Args:
      key: PRNG key of the instance.
      task: its sizes.

    Returns:
      next_Tx1, int32 in [0, vocab_size), T = task.n_examples; and ones, float32. Where the task
      takes all sequences they count up lexicographically, the last token fastest.
    """
    shape = (task.n_examples, 1)
    return jax.random.randint(key, shape, 0, task.vocab_size, jnp.int32), jnp.ones(shape)
