"""Bijection: token i is followed by token i of another set, for all N of them.

Nichani, Lee & Bietti (2025), section 3: as many answers as questions, none of them used twice.
Where embeddings are random and fixed, it does not matter which token answers which: renaming the
answers makes any bijection this one.
"""

from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp

from memobench.columns import integer
from memobench.spec import kind
from memobench.tasks.tokens import TokenTask


@kind("bijection")
class Bijection(TokenTask):
    """Every sequence is a single token, and no two have the same next token."""

    has_parts: ClassVar[bool] = True
    only_asked: ClassVar[bool] = True
    context_length: ClassVar[int] = 1

    vocab_size: int = integer("tokens in the vocabulary", 2, default=50, most=2**20)

    @property
    def n_examples(self) -> int:
        return self.vocab_size

    @property
    def measures(self) -> tuple[str, ...]:
        """No bits: the set of answers is known beforehand, and their order is not counted."""
        return ("accuracy", "accuracy_protocol", "loss", "memorized")

    @property
    def parts(self) -> bool:
        """The first tokens are a smaller bijection."""
        return True

    def sample_next(self, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The answer of every token, int32 (N, 1), and its probability, 1, float32 (N, 1)."""
        del key
        shape = (self.n_examples, 1)
        return jnp.arange(self.n_examples, dtype=jnp.int32)[:, None], jnp.ones(shape)

    def without_count(self) -> Self:
        changes: dict[str, Any] = {"vocab_size": 2, "seed": 0}
        return self.replace(**changes)

    def padded(self, module: Any) -> Self:
        changes: dict[str, Any] = {"vocab_size": module.vocab_size, "seed": 0}
        return self.replace(**changes)
