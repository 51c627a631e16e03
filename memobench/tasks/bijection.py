"""Bijection: token i is followed by token i of another set, for all N of them.

Nichani, Lee & Bietti (2025), section 3: as many answers as questions, none of them used twice.
Where embeddings are random and kept, which token answers which is no choice: renaming the answers
makes any bijection this one.
"""

import jax
import jax.numpy as jnp

from memobench.specs import Task


def sample_next(key: jax.Array, task: Task) -> tuple[jax.Array, jax.Array]:
    """The answer of every token, int32 (N, 1), and its probability, 1, float32 (N, 1)."""
    del key
    shape = (task.n_examples, 1)
    return jnp.arange(task.n_examples, dtype=jnp.int32)[:, None], jnp.ones(shape)
