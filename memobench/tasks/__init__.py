"""Tasks: what is to be memorized. One file per task; `TASKS` lists those of tokens once.

A task's entry draws the next tokens of its sequences; which sequences there are and how often each
occurs (the prior) is the same for every task and drawn here. What is not made of tokens stands by
itself, in `labelled_contexts.py`.

Shape letters: T sequences, K possible next tokens of a sequence, S tokens, M draws, N vocabulary.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from memobench.errors import UserError
from memobench.specs import LabelledContexts, Run, Task
from memobench.tasks import associations, bijection, distributions

# Sequences are numbered in int32, and beyond this many are drawn token by token.
ENUMERABLE = 2**22


class Instance(NamedTuple):
    """One instance of a task.

    next_TxK: int32 tokens that may follow, the likeliest first; probability_TxK: how likely,
    summing to 1; prior_T: how often each sequence occurs, summing to 1. tokens_TxS: int32, the
    sequences; empty (0, S) where they are all N^S in lexicographic order.
    """

    next_TxK: jax.Array
    probability_TxK: jax.Array
    prior_T: jax.Array
    tokens_TxS: jax.Array


# From a key and a task: next_TxK and probability_TxK.
TASKS: dict[str, Callable[[jax.Array, Task], tuple[jax.Array, jax.Array]]] = {
    "associations": associations.sample_next,
    "bijection": bijection.sample_next,
    "distributions": distributions.sample_next,
}


def check(task: Task | LabelledContexts) -> None:
    """Raises UserError for a task that no entry serves."""
    if isinstance(task, Task) and task.name not in TASKS:
        raise UserError(f"task name={task.name!r} is unknown; choose one of {', '.join(TASKS)}")


def of_tokens(run: Run) -> Task:
    """The run's task, or ValueError where it is not one of tokens."""
    if not isinstance(run.task, Task):
        raise ValueError(f"{run.task.name} are not sequences of tokens")
    return run.task


def sample(task: Task) -> Instance:
    """The task's instance, drawn from its seed alone."""
    keys = [jax.random.fold_in(jax.random.key(task.seed), i) for i in (0, 2, 3)]
    next_TxK, probability_TxK = TASKS[task.name](keys[0], task)
    return Instance(
        next_TxK, probability_TxK, _sample_prior(keys[1], task), _sample_sequences(keys[2], task)
    )


def shapes(task: Task) -> Any:
    """An Instance of the shapes and dtypes of `sample`, without computing anything."""
    n_listed = 0 if task.n_sequences is None else task.n_sequences
    instance: Any = Instance
    return instance(
        next_TxK=jax.ShapeDtypeStruct((task.n_examples, task.n_next or 1), jnp.int32),
        probability_TxK=jax.ShapeDtypeStruct((task.n_examples, task.n_next or 1), jnp.float32),
        prior_T=jax.ShapeDtypeStruct((task.n_examples,), jnp.float32),
        tokens_TxS=jax.ShapeDtypeStruct((n_listed, task.context_length), jnp.int32),
    )


def sample_draws(task: Task, n_draws: int) -> jax.Array:
    """draws_M, int32 in [0, n_examples): the training set, i.i.d. from the prior.

    Drawn from the task's seed alone, so that every run of an instance sees the same set.
    """
    key = jax.random.fold_in(jax.random.key(task.seed), 1)
    if task.zipf_exponent is None:
        return jax.random.randint(key, (n_draws,), 0, task.n_examples, jnp.int32)
    prior_T = sample(task).prior_T
    return jax.random.choice(key, task.n_examples, (n_draws,), p=prior_T).astype(jnp.int32)


def _sample_prior(key: jax.Array, task: Task) -> jax.Array:
    if task.zipf_exponent is None:
        return jnp.full(task.n_examples, 1 / task.n_examples, jnp.float32)
    rank_T = jax.random.permutation(key, task.n_examples) + 1
    weight_T = rank_T.astype(jnp.float32) ** -task.zipf_exponent
    return weight_T / weight_T.sum()


def _sample_sequences(key: jax.Array, task: Task) -> jax.Array:
    """tokens_TxS, distinct, uniformly drawn from all N^S; (0, S) where the task takes all."""
    n_tokens, length, n_sequences = task.vocab_size, task.context_length, task.n_sequences
    if n_sequences is None:
        return jnp.zeros((0, length), jnp.int32)
    if n_tokens**length <= ENUMERABLE:
        numbers_T = jax.random.choice(key, n_tokens**length, (n_sequences,), replace=False)
        return tokens_of(numbers_T.astype(jnp.int32), n_tokens, length)
    # Specs hold n_sequences far below N^S here: twice as many draws hold enough distinct ones.
    drawn = np.asarray(jax.random.randint(key, (2 * n_sequences + 16, length), 0, n_tokens))
    _, first = np.unique(drawn, axis=0, return_index=True)
    return jnp.asarray(drawn[np.sort(first)[:n_sequences]], jnp.int32)


def tokens_of_example(task: Task, instance: Instance, example: jax.Array) -> jax.Array:
    """tokens_S of an example number of a task's instance; elementwise on any leading shape."""
    if task.n_sequences is None:
        return tokens_of(example, task.vocab_size, task.context_length)
    return instance.tokens_TxS[example]


def tokens_of(example: jax.Array, vocab_size: int, context_length: int) -> jax.Array:
    """tokens_S of an example number; works elementwise on any leading shape.

    >>> tokens_of(jnp.asarray(7), vocab_size=5, context_length=2).tolist()
    [1, 2]
    """
    place_S = vocab_size ** jnp.arange(context_length - 1, -1, -1)
    return (example[..., None] // place_S.reshape((1,) * example.ndim + (-1,))) % vocab_size
