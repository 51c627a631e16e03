"""In-context recall: pairs of a key and a value in the context, then one of the keys.

Multi-query associative recall (Arora et al. 2024, "Zoology"), of whose queries one is asked, drawn
at random: what reads the pairs cannot know which. Pairs are new at every step of training, so that
no weight can hold them: what is measured is a model's state. It is not a capacity, and has no bits.

The first half of the vocabulary are values, all others keys. An example is what the answer
is; its pairs are drawn anew, for an evaluation from the task's seed alone.

Shape letters: B batch or any number of examples, T examples, P pairs, S context_length, N tokens.
"""

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from memobench.common.errors import require
from memobench.core.columns import integer
from memobench.core.spec import kind
from memobench.tasks.tokens import Array, Fresh, TokenTask, sample_contexts


@kind("in_context_recall")
class InContextRecall(TokenTask):
    """`n_pairs` pairs of a key and a value, then one of the keys, which its value follows.

    >>> task = InContextRecall(vocab_size=16, n_pairs=4)
    >>> task.context_length, task.n_choices
    (9, 8)
    """

    question: ClassVar[str] = "context"
    always_listed: ClassVar[bool] = True
    is_fresh: ClassVar[bool] = True
    # Contexts of an evaluation.
    n_examples: ClassVar[int] = 512

    vocab_size: int = integer("tokens in the vocabulary", 4, default=16, most=2**20)
    n_pairs: int = integer("pairs of a key and a value in a context", 1, most=2**16)

    def check(self) -> None:
        require(
            self.n_pairs <= self.n_keys,
            f"n_pairs={self.n_pairs} exceeds the {self.n_keys} keys; lower n_pairs",
        )
        require(
            self.n_outputs <= self.n_examples,
            f"vocab_size={self.vocab_size} has more values than the {self.n_examples} examples, so "
            "that some would never be asked for; lower it",
        )

    @property
    def n_keys(self) -> int:
        """Keys are the tokens that are not values."""
        return self.vocab_size - self.n_outputs

    @property
    def context_length(self) -> int:
        return 2 * self.n_pairs + 1

    @property
    def n_choices(self) -> int:
        return self.n_outputs

    @property
    def n_outputs(self) -> int:
        """Values are the first tokens."""
        return self.vocab_size // 2

    @property
    def measures(self) -> tuple[str, ...]:
        """Neither memorized nor bits: nothing is memorized."""
        return ("accuracy", "accuracy_protocol", "loss")

    def sample_next(self, key: jax.Array) -> tuple[Array, Array]:
        """The answer of every example, int32 (T, 1), and its probability, 1, float32 (T, 1)."""
        del key
        example_Tx1 = np.arange(self.n_examples, dtype=np.int32)[:, None]
        return example_Tx1 % self.n_outputs, np.ones((self.n_examples, 1), np.float32)

    def sample_sequences(self, key: jax.Array, next_TxK: Array) -> jax.Array:
        """tokens_TxS of an evaluation."""
        return sample_contexts(self.signature(), key, next_TxK[:, 0])

    def draw_batch(self, key: jax.Array, batch_size: int) -> Fresh:
        """example_B, uniformly drawn, and tokens_BxS with new pairs."""
        example_key, context_key = jax.random.split(key)
        example_B = jax.random.randint(example_key, (batch_size,), 0, self.n_examples, jnp.int32)
        return Fresh(example_B, self.contexts(context_key, example_B % self.n_outputs))

    def contexts(self, key: jax.Array, answer_B: jax.Array) -> jax.Array:
        """tokens_BxS, int32: pairs of distinct keys, and the key of a pair with that answer."""
        n, n_pairs = len(answer_B), self.n_pairs
        keys, values, places = jax.random.split(key, 3)
        _, key_BxP = jax.lax.top_k(jax.random.uniform(keys, (n, self.n_keys)), n_pairs)
        value_BxP = jax.random.randint(values, (n, n_pairs), 0, self.n_outputs, jnp.int32)
        asked_Bx1 = jax.random.randint(places, (n, 1), 0, n_pairs)
        is_asked_BxP = jnp.arange(n_pairs)[None] == asked_Bx1
        value_BxP = jnp.where(is_asked_BxP, answer_B[:, None], value_BxP)
        key_BxP = key_BxP.astype(jnp.int32) + self.n_outputs
        pairs_BxS = jnp.stack([key_BxP, value_BxP], axis=-1).reshape(n, 2 * n_pairs)
        query_Bx1 = jnp.where(is_asked_BxP, key_BxP, 0).sum(axis=1, keepdims=True)
        return jnp.concatenate([pairs_BxS, query_Bx1], axis=1)
