"""Tasks: what is to be memorized. One file per task; `TASKS` lists them once."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from memobench.errors import UserError
from memobench.specs import Task
from memobench.tasks import associations

TASKS: dict[str, Callable[[jax.Array, Task], jax.Array]] = {
    "associations": associations.sample_labels,
}


def check(task: Task) -> None:
    """Raises UserError for a task that no entry serves."""
    if task.name not in TASKS:
        raise UserError(f"task name={task.name!r} is unknown; choose one of {', '.join(TASKS)}")


def sample_labels(task: Task) -> jax.Array:
    """The task's labels_T, drawn from its seed alone."""
    return TASKS[task.name](jax.random.fold_in(jax.random.key(task.seed), 0), task)


def sample_draws(task: Task, n_draws: int) -> jax.Array:
    """draws_M, int32 in [0, n_examples): the i.i.d. uniform training set, as example numbers.

    Drawn from the task's seed alone, so that every run of an instance sees the same set.
    """
    key = jax.random.fold_in(jax.random.key(task.seed), 1)
    return jax.random.randint(key, (n_draws,), 0, task.n_examples, jnp.int32)


def tokens_of(example: jax.Array, vocab_size: int, context_length: int) -> jax.Array:
    """tokens_S of an example number; works elementwise on any leading shape.

    >>> tokens_of(jnp.asarray(7), vocab_size=5, context_length=2).tolist()
    [1, 2]
    """
    place_S = vocab_size ** jnp.arange(context_length - 1, -1, -1)
    return (example[..., None] // place_S.reshape((1,) * example.ndim + (-1,))) % vocab_size
