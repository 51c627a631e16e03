"""Tasks: what is to be memorized. One file per task; `TASKS` lists those of tokens once.

A task's module draws the next tokens of its sequences by `sample_next`; which sequences there are
and how often each occurs (the prior) is the same for most tasks and drawn here. Further offers:
`sample_sequences` draws them otherwise, and their examples are evaluated in blocks; `sample_draws`
chooses the training set; `fresh` draws a new batch at every step instead. What is not made of
tokens stands by itself, in `labelled_contexts.py`.

Shape letters: B batch, T sequences, K possible next tokens of a sequence, S tokens, M draws, N
vocabulary.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from memobench.errors import UserError
from memobench.specs import LabelledContexts, Run, Task
from memobench.tasks import associations, bijection, distributions, factual_recall, sequences

# Sequences are numbered in int32, and beyond this many are drawn token by token.
ENUMERABLE = 2**22


class Instance(NamedTuple):
    """One instance of a task.

    next_TxK: int32 tokens that may follow, the likeliest first, or (T, S, K) those that may stand
    at every place; probability_TxK: how likely, summing to 1; prior_T: how often each sequence
    occurs, summing to 1. tokens_TxS: int32, the sequences; empty (0, S) where they are all N^S in
    lexicographic order.
    """

    next_TxK: jax.Array
    probability_TxK: jax.Array
    prior_T: jax.Array
    tokens_TxS: jax.Array


class Fresh(NamedTuple):
    """A batch drawn for one step: example_B, numbers of examples, and their tokens_BxS."""

    example_B: jax.Array
    tokens_BxS: jax.Array


# Modules that offer `sample_next`: from a key and a task, next_TxK and probability_TxK.
TASKS: dict[str, Any] = {
    "associations": associations,
    "bijection": bijection,
    "distributions": distributions,
    "factual_recall": factual_recall,
    "sequences": sequences,
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
    offered = TASKS[task.name]
    next_TxK, probability_TxK = offered.sample_next(keys[0], task)
    if hasattr(offered, "sample_sequences"):
        tokens_TxS = offered.sample_sequences(keys[2], task, next_TxK)
    else:
        tokens_TxS = _sample_sequences(keys[2], task)
    return Instance(next_TxK, probability_TxK, _sample_prior(keys[1], task), tokens_TxS)


def shapes(task: Task) -> Any:
    """An Instance of the shapes and dtypes of `sample`, without computing anything."""
    next_TxK, probability_TxK = jax.eval_shape(
        lambda key: TASKS[task.name].sample_next(key, task), jax.random.key(0)
    )
    n_listed = task.n_examples if listed(task) else 0
    instance: Any = Instance
    return instance(
        next_TxK=next_TxK,
        probability_TxK=probability_TxK,
        prior_T=jax.ShapeDtypeStruct((task.n_examples,), jnp.float32),
        tokens_TxS=jax.ShapeDtypeStruct((n_listed, task.context_length), jnp.int32),
    )


def listed(task: Task) -> bool:
    """Whether an instance lists its sequences; otherwise they are all N^S."""
    return task.n_sequences is not None or in_blocks(task)


def in_blocks(task: Task) -> bool:
    """Whether examples are evaluated block by block: they are many, or long."""
    return hasattr(TASKS[task.name], "sample_sequences")


def is_fresh(task: Task) -> bool:
    """Whether every step has a batch of its own, and no training set is drawn."""
    return hasattr(TASKS[task.name], "fresh")


def fresh(task: Task, key: jax.Array, batch_size: int) -> Fresh:
    """The batch of a step, from its key."""
    return Fresh(*TASKS[task.name].fresh(key, task, batch_size))


def sample_draws(task: Task, n_draws: int) -> jax.Array:
    """draws_M, int32 in [0, n_examples): the training set, i.i.d. from the prior.

    Drawn from the task's seed alone, so that every run of an instance sees the same set; a task
    may choose it otherwise.
    """
    if hasattr(TASKS[task.name], "sample_draws"):
        return TASKS[task.name].sample_draws(task, n_draws)
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
    if not listed(task):
        return tokens_of(example, task.vocab_size, task.context_length)
    return instance.tokens_TxS[example]


def tokens_of(example: jax.Array, vocab_size: int, context_length: int) -> jax.Array:
    """tokens_S of an example number; works elementwise on any leading shape.

    >>> tokens_of(jnp.asarray(7), vocab_size=5, context_length=2).tolist()
    [1, 2]
    """
    place_S = vocab_size ** jnp.arange(context_length - 1, -1, -1)
    return (example[..., None] // place_S.reshape((1,) * example.ndim + (-1,))) % vocab_size
