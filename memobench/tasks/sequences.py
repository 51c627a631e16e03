"""Sequences: all tokens of uniformly random sequences, each predicted from those before it.

Morris et al. (2025), "How much do language models memorize?", section 3: there is nothing to
generalise from, so n sequences hold n S log2 N bits, and the bits that a model's likelihood saves
are those it has memorized. The first token is predicted from nothing.

Shape letters: T sequences, S context_length, M draws, K = 1 token at a place.
"""

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from memobench import theory
from memobench.core.columns import integer
from memobench.core.spec import kind
from memobench.tasks.tokens import Array, TokenTask


@kind("sequences")
class Sequences(TokenTask):
    """Every token of `n_sequences` random sequences is predicted from those before it."""

    theorems: ClassVar[dict] = {theory.COUNTING: theory.always}
    question: ClassVar[str] = "every token"
    in_blocks: ClassVar[bool] = True
    always_listed: ClassVar[bool] = True

    vocab_size: int = integer("tokens in the vocabulary", 2, default=50, most=2**24)
    context_length: int = integer("tokens of a sequence", 1, default=2, most=2**20)
    n_sequences: int = integer("sequences drawn", 1, most=2**24)

    def check(self) -> None:
        self.require_sequences()

    @property
    def n_examples(self) -> int:
        return self.n_sequences

    @property
    def n_predicted(self) -> int:
        """All tokens of all sequences."""
        return self.n_examples * self.context_length

    def sample_next(self, key: jax.Array) -> tuple[Array, Array]:
        """The token at every place, int32 (T, S, 1), and its probability, 1, float32 (T, S, 1)."""
        shape = (self.n_examples, self.context_length, 1)
        next_TxSxK = jax.random.randint(key, shape, 0, self.vocab_size, jnp.int32)
        return next_TxSxK, np.ones(shape, np.float32)

    def sample_sequences(self, key: jax.Array, next_TxSxK: Array) -> Array:
        """tokens_TxS: what is predicted is what is read."""
        del key
        return next_TxSxK[..., 0]

    def sample_draws(self, n_draws: int) -> Array:
        """draws_M: every sequence in turn, so that an epoch holds each equally often."""
        return np.arange(n_draws, dtype=np.int32) % self.n_examples
