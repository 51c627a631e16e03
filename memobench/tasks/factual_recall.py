"""Factual recall: a subject and a relation, somewhere among noise, have an answer.

Nichani, Lee & Bietti (2025), section 4 and appendix: of `context_length` tokens one is a subject
and one a relation, at two random places, the last is the end and all others are noise. Fact number
s R + r is the answer to subject s and relation r, drawn from the relation's own answers. Noise and
places are new at every step of training; an evaluation sees every fact once, in a sequence that
only the task's seed decides.

The vocabulary is answers (D of relation 0, D of relation 1, ..), subjects, relations, noise, end.

Shape letters: B batch or any number of facts, S context_length, T facts.
"""

from typing import Any

import jax
import jax.numpy as jnp

from memobench.specs import Task


def sample_next(key: jax.Array, task: Task) -> tuple[jax.Array, jax.Array]:
    """The answer of every fact, int32 (T, 1), and its probability, 1, float32 (T, 1)."""
    shape = (task.n_examples, 1)
    n_answers: Any = task.n_answers
    relation_Tx1 = jnp.arange(task.n_examples)[:, None] % _n_relations(task)
    which_Tx1 = jax.random.randint(key, shape, 0, n_answers, jnp.int32)
    return (relation_Tx1 * n_answers + which_Tx1).astype(jnp.int32), jnp.ones(shape)


def sample_sequences(key: jax.Array, task: Task, next_TxK: jax.Array) -> jax.Array:
    """tokens_TxS in which the facts are evaluated, one sequence each."""
    del next_TxK
    return contexts(key, task, jnp.arange(task.n_examples))


def fresh(key: jax.Array, task: Task, batch_size: int) -> tuple[jax.Array, jax.Array]:
    """fact_B, uniformly drawn, and tokens_BxS with new noise at new places."""
    fact_key, context_key = jax.random.split(key)
    fact_B = jax.random.randint(fact_key, (batch_size,), 0, task.n_examples, jnp.int32)
    return fact_B, contexts(context_key, task, fact_B)


def contexts(key: jax.Array, task: Task, fact_B: jax.Array) -> jax.Array:
    """tokens_BxS, int32: the subject and the relation of every fact among noise, and the end."""
    n_facts, length = len(fact_B), task.context_length
    first_subject = task.n_outputs
    first_relation = first_subject + (task.n_subjects or 0)
    first_noise = first_relation + _n_relations(task)
    subject_B, relation_B = fact_B // _n_relations(task), fact_B % _n_relations(task)
    random_BxS = jax.random.bits(key, (n_facts, length + 1), jnp.uint32)

    def below(limit: int, words_BxS: jax.Array) -> jax.Array:
        # Uniform up to limit in 2^32.
        return (words_BxS % jnp.uint32(limit)).astype(jnp.int32)

    # Two distinct places before the end.
    place_B = below(length - 1, random_BxS[:, -1])
    other_B = below(length - 2, random_BxS[:, -2])
    other_B = other_B + (other_B >= place_B)
    # The word of the last place is free for a place: the end stands there.
    tokens_BxS = first_noise + below(max(task.n_noise, 1), random_BxS[:, :-1])
    number_1xS = jnp.arange(length)[None]
    for at_B, token_B in (
        (place_B, first_subject + subject_B),
        (other_B, first_relation + relation_B),
        (jnp.full(n_facts, length - 1), jnp.full(n_facts, task.vocab_size - 1)),
    ):
        tokens_BxS = jnp.where(number_1xS == at_B[:, None], token_B[:, None], tokens_BxS)
    return tokens_BxS


def _n_relations(task: Task) -> int:
    return task.n_relations or 1
