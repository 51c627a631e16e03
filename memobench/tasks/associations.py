"""Associations: every sequence of tokens has one next token, drawn uniformly.

Dana, Pydi & Chevaleyre (2025), section on experiments: S = 2, all N^2 pairs, uniform prior.
"""

from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp

from memobench.columns import integer, number
from memobench.spec import kind
from memobench.tasks.tokens import TokenTask


@kind("associations")
class Associations(TokenTask):
    """What follows each of T = `n_examples` sequences of tokens: one next token.

    `n_sequences` distinct sequences are drawn from all vocab_size ** context_length; None takes
    all. They occur equally often, or by Zipf's law with `zipf_exponent`.
    """

    has_parts: ClassVar[bool] = True
    constructible: ClassVar[bool] = True

    vocab_size: int = integer("tokens in the vocabulary", 2, default=50, most=2**24)
    context_length: int = integer("tokens of a sequence", 1, default=2, most=2**20)
    n_sequences: int | None = integer("sequences drawn; none for all", 1, default=None, most=2**24)
    zipf_exponent: float | None = number(
        "exponent of the sequences' frequencies", default=None, above=0
    )

    def check(self) -> None:
        self.require_sequences()

    @property
    def n_examples(self) -> int:
        """Number of sequences: N^S, or as many as were drawn."""
        return self.n_sequences or self.vocab_size**self.context_length

    def sample_next(self, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The next token of every sequence, int32 (T, 1), and its probability, 1."""
        shape = (self.n_examples, 1)
        return jax.random.randint(key, shape, 0, self.vocab_size, jnp.int32), jnp.ones(shape)

    def without_count(self) -> Self:
        changes: dict[str, Any] = {"n_sequences": 1, "seed": 0}
        return self.replace(**changes)
