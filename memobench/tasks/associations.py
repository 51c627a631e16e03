"""Associations: every sequence of tokens has one next token, drawn uniformly.

Dana, Pydi & Chevaleyre (2025), section on experiments: S = 2, all N^2 pairs, uniform prior.
"""

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from memobench import theory
from memobench.core.spec import kind
from memobench.tasks.tokens import Array, SampledTask


@kind("associations")
class Associations(SampledTask):
    """One next token follows each of T = `n_examples` sequences of tokens."""

    theorems: ClassVar[dict] = {
        theory.PROPOSITION_3: theory.always,
        theory.COUNTING: theory.always,
    }

    def sample_next(self, key: jax.Array) -> tuple[Array, Array]:
        """The next token of every sequence, int32 (T, 1), and its probability, 1."""
        shape = (self.n_examples, 1)
        next_TxK = jax.random.randint(key, shape, 0, self.vocab_size, jnp.int32)
        return next_TxK, np.ones(shape, np.float32)
