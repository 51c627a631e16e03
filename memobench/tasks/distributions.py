"""Distributions: every sequence has several next tokens with given probabilities.

Dana, Pydi & Chevaleyre (2025), section on the distribution task: d_KL(pi, T) is the mean over the
prior of KL(pi(.|t) || softmax T(t)).
"""

from typing import Any

import jax
import jax.numpy as jnp

from memobench.specs import Task


def sample_next(key: jax.Array, task: Task) -> tuple[jax.Array, jax.Array]:
    """The n_next tokens that may follow every sequence, and their probabilities.

    Args:
      key: PRNG key of the instance.
      task: `conditional` says how probabilities fall: `uniform`; `power_law`, proportional to
        rank ** -conditional_parameter; `dirichlet`, symmetric with that concentration.

    Returns:
      next_TxK, int32, distinct within a sequence, and probability_TxK, float32, falling.
    """
    n_examples = task.n_examples
    n_next: Any = task.n_next
    parameter: Any = task.conditional_parameter
    tokens_key, weights_key = jax.random.split(key)
    # The tokens of the K largest of N random numbers are a uniform choice without replacement.
    random_TxN = jax.random.uniform(tokens_key, (n_examples, task.vocab_size))
    next_TxK = jax.lax.top_k(random_TxN, n_next)[1].astype(jnp.int32)
    if task.conditional == "uniform":
        weight_TxK = jnp.ones((n_examples, n_next))
    elif task.conditional == "power_law":
        rank_K = jnp.arange(1, n_next + 1, dtype=jnp.float32)
        weight_TxK = jnp.tile(rank_K**-parameter, (n_examples, 1))
    else:
        # Logarithms: small concentrations give weights below the least float32.
        shape = (n_examples, n_next)
        log_TxK = jax.random.loggamma(weights_key, parameter, shape)
        weight_TxK = jax.nn.softmax(-jnp.sort(-log_TxK, axis=1), axis=1)
    return next_TxK, weight_TxK / weight_TxK.sum(axis=1, keepdims=True)
