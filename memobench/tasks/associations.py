"""Associations: every sequence of tokens has one next token, drawn uniformly.

Dana, Pydi & Chevaleyre (2025), section on experiments: S = 2, all N^2 pairs, uniform prior.
"""

import jax
import jax.numpy as jnp

from memobench.specs import Task


def sample_labels(key: jax.Array, task: Task) -> jax.Array:
    """The next token of every sequence.

    Args:
      key: PRNG key of the instance.
      task: its sizes.

    Returns:
      labels_T, int32 in [0, vocab_size), T = vocab_size ** context_length; sequences count up
      lexicographically, the last token fastest.
    """
    return jax.random.randint(key, (task.n_examples,), 0, task.vocab_size, jnp.int32)
