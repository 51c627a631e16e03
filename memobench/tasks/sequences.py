"""Sequences: all tokens of uniformly random sequences, each predicted from those before it.

Morris et al. (2025), "How much do language models memorize?", section 3: there is nothing to
generalise from, so that n sequences hold n S log2 N bits and what a model's likelihood saves of
them it has memorized. The first token is predicted from nothing.

Shape letters: T sequences, S context_length, M draws, K = 1 token at a place.
"""

import jax
import jax.numpy as jnp

from memobench.specs import Task


def sample_next(key: jax.Array, task: Task) -> tuple[jax.Array, jax.Array]:
    """The token at every place, int32 (T, S, 1), and its probability, 1, float32 (T, S, 1)."""
    shape = (task.n_examples, task.context_length, 1)
    return jax.random.randint(key, shape, 0, task.vocab_size, jnp.int32), jnp.ones(shape)


def sample_sequences(key: jax.Array, task: Task, next_TxSxK: jax.Array) -> jax.Array:
    """tokens_TxS: what is predicted is what is read."""
    del key, task
    return next_TxSxK[..., 0]


def sample_draws(task: Task, n_draws: int) -> jax.Array:
    """draws_M: every sequence in turn, so that an epoch holds each equally often."""
    return jnp.arange(n_draws, dtype=jnp.int32) % task.n_examples
