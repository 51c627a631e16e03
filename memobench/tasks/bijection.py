"""Bijection: token i is followed by token i of another set, for all N of them.

Nichani, Lee & Bietti (2025), section 3: as many answers as questions, none of them used twice.
Where embeddings are random and fixed, it does not matter which token answers which: renaming the
answers makes any bijection this one. With `n_values` answers each belongs to as many tokens as any
other; for the same reason it does not matter to which. Where keys and values are one table it does
matter: `permuted` draws which token answers which, as Garcia et al. (2026) do.
"""

from typing import Any, ClassVar, Self

import jax
import numpy as np

from memobench.common.errors import require
from memobench.core.columns import flag, integer
from memobench.core.spec import kind
from memobench.tasks.tokens import Array, TokenTask


@kind("bijection")
class Bijection(TokenTask):
    """Every sequence is a single token, and no two have the same next token.

    With `n_values` there are so many answers, the first tokens, each to every n_values-th token. A
    `permuted` one is a random permutation of the tokens, of which some may answer themselves.
    """

    constructible: ClassVar[bool] = True
    context_length: ClassVar[int] = 1

    vocab_size: int = integer("tokens in the vocabulary", 2, default=50, most=2**20)
    n_values: int | None = integer(
        "answers; none for as many as tokens", 2, default=None, most=2**20, omit=None
    )
    permuted: bool = flag(
        "whether answers are drawn, and not each token's own number", default=False, omit=False
    )

    def check(self) -> None:
        require(
            self.n_values is None or self.n_values < self.vocab_size,
            f"n_values={self.n_values} is not below vocab_size={self.vocab_size}; leave it out",
        )
        require(
            self.n_values is None or not self.permuted,
            "permuted: a permutation has as many answers as tokens; leave n_values out",
        )

    @property
    def only_asked(self) -> bool:  # type: ignore[override]
        """Tokens that are not asked are not answers of a bijection."""
        return self.n_values is None

    @property
    def n_outputs(self) -> int:
        return self.n_values or self.vocab_size

    @property
    def n_choices(self) -> int:
        return self.n_outputs

    @property
    def n_examples(self) -> int:
        return self.vocab_size

    @property
    def measures(self) -> tuple[str, ...]:
        """No bits: the set of answers is known beforehand, and their order is not counted."""
        return ("accuracy", "accuracy_protocol", "loss", "memorized")

    @property
    def slicing_error(self) -> str:
        """The first tokens are a smaller bijection, unless answers are drawn."""
        return "its answers are a permutation; set permuted=False" if self.permuted else ""

    def sample_next(self, key: jax.Array) -> tuple[Array, Array]:
        """The answer of every token, int32 (N, 1), and its probability, 1, float32 (N, 1)."""
        shape = (self.n_examples, 1)
        token_N: Any = np.arange(self.n_examples, dtype=np.int32)
        if self.permuted:
            token_N = jax.random.permutation(key, token_N)
        return token_N[:, None] % self.n_outputs, np.ones(shape, np.float32)

    def without_count(self) -> Self:
        changes: dict[str, Any] = {"vocab_size": 1 + (self.n_values or 1), "seed": 0}
        return self.replace(**changes)

    def pad_to(self, module: Any) -> Self:
        changes: dict[str, Any] = {"vocab_size": module.vocab_size, "seed": 0}
        return self.replace(**changes)
