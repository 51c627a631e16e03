"""Factual recall: a subject and a relation, somewhere among noise, have an answer.

Nichani, Lee & Bietti (2025), section 4 and appendix: of `context_length` tokens one is a subject
and one a relation, at two random places, the last is the end and all others are noise. Fact number
s R + r is the answer to subject s and relation r, drawn from the relation's own answers. Noise and
places are new at every step of training; an evaluation sees every fact once, in a sequence that
only the task's seed decides.

The vocabulary is answers (D of relation 0, D of relation 1, ..), subjects, relations, noise, end.

Shape letters: B batch or any number of facts, S context_length, T facts.
"""

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from memobench import theory
from memobench.common.errors import require
from memobench.core.columns import integer
from memobench.core.spec import kind
from memobench.tasks.tokens import Array, Fresh, TokenTask, sample_contexts


@kind("factual_recall")
class FactualRecall(TokenTask):
    """A subject and a relation among noise are followed by one of the relation's own answers.

    >>> task = FactualRecall(n_subjects=4, n_relations=3, n_answers=2, n_noise=10)
    >>> task.vocab_size, task.n_examples, task.n_choices
    (24, 12, 2)
    """

    theorems: ClassVar[dict] = {theory.COUNTING: theory.always}
    in_blocks: ClassVar[bool] = True
    always_listed: ClassVar[bool] = True
    is_fresh: ClassVar[bool] = True
    question: ClassVar[str] = "fact"

    n_subjects: int = integer("subjects", 1, most=2**20)
    n_relations: int = integer("relations", 1, most=2**20)
    n_answers: int = integer("answers of a relation", 2, most=2**20)
    n_noise: int = integer("noise tokens", 0, most=2**20)
    context_length: int = integer("tokens of a sequence", 3, default=32, most=2**20)

    def check(self) -> None:
        # Three places are taken: the subject's, the relation's and the end.
        require(
            self.n_noise >= min(self.context_length - 3, 1),
            f"n_noise={self.n_noise}: context_length={self.context_length} needs a noise token; "
            "raise n_noise",
        )
        require(
            self.n_examples <= 2**20,
            f"n_subjects={self.n_subjects}: more than 2^20 facts; lower n_subjects",
        )
        require(
            self.vocab_size <= 2**24,
            f"n_answers={self.n_answers}: more than 2^24 tokens; lower n_answers",
        )

    @property
    def vocab_size(self) -> int:
        """Answers, subjects, relations, noise and the end."""
        return self.n_outputs + self.n_subjects + self.n_relations + self.n_noise + 1

    @property
    def n_examples(self) -> int:
        return self.n_subjects * self.n_relations

    @property
    def n_choices(self) -> int:
        """The relation's answers: which answers belong to a relation is not a fact to memorize."""
        return self.n_answers

    @property
    def n_outputs(self) -> int:
        """The answers are the first tokens."""
        return self.n_relations * self.n_answers

    def sample_next(self, key: jax.Array) -> tuple[Array, Array]:
        """The answer of every fact, int32 (T, 1), and its probability, 1, float32 (T, 1)."""
        shape = (self.n_examples, 1)
        relation_Tx1 = np.arange(self.n_examples, dtype=np.int32)[:, None] % self.n_relations
        which_Tx1 = jax.random.randint(key, shape, 0, self.n_answers, jnp.int32)
        return (relation_Tx1 * self.n_answers + which_Tx1).astype(jnp.int32), np.ones(
            shape, np.float32
        )

    def sample_sequences(self, key: jax.Array, next_TxK: Array) -> jax.Array:
        """tokens_TxS in which the facts are evaluated, one sequence each."""
        del next_TxK
        fact_T = np.arange(self.n_examples, dtype=np.int32)
        return sample_contexts(self.signature(), key, fact_T)

    def draw_batch(self, key: jax.Array, batch_size: int) -> Fresh:
        """fact_B, uniformly drawn, and tokens_BxS with new noise at new places."""
        fact_key, context_key = jax.random.split(key)
        fact_B = jax.random.randint(fact_key, (batch_size,), 0, self.n_examples, jnp.int32)
        return Fresh(fact_B, self.contexts(context_key, fact_B))

    def contexts(self, key: jax.Array, fact_B: jax.Array) -> jax.Array:
        """tokens_BxS, int32: subject and relation of every fact among noise, and the end."""
        n_facts, length = len(fact_B), self.context_length
        first_subject = self.n_outputs
        first_relation = first_subject + self.n_subjects
        first_noise = first_relation + self.n_relations
        subject_B, relation_B = fact_B // self.n_relations, fact_B % self.n_relations
        random_BxS = jax.random.bits(key, (n_facts, length + 1), jnp.uint32)

        def draw_below(limit: int, words_BxS: jax.Array) -> jax.Array:
            # Uniform up to a relative error of limit / 2^32.
            return (words_BxS % jnp.uint32(limit)).astype(jnp.int32)

        # Two distinct places before the end.
        place_B = draw_below(length - 1, random_BxS[:, -1])
        other_B = draw_below(length - 2, random_BxS[:, -2])
        other_B = other_B + (other_B >= place_B)
        # The end takes the last place, whose random word is therefore free to draw `other_B`.
        tokens_BxS = first_noise + draw_below(max(self.n_noise, 1), random_BxS[:, :-1])
        number_1xS = jnp.arange(length)[None]
        for at_B, token_B in (
            (place_B, first_subject + subject_B),
            (other_B, first_relation + relation_B),
            (jnp.full(n_facts, length - 1), jnp.full(n_facts, self.vocab_size - 1)),
        ):
            tokens_BxS = jnp.where(number_1xS == at_B[:, None], token_B[:, None], tokens_BxS)
        return tokens_BxS
