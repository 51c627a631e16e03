"""Faults of a user's task, found before anything trains.

Its instance is drawn twice: a task is what its seed says, the same on every machine and day.
"""

import functools
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np

from memobench.common.errors import UserError, name_source
from memobench.core import own_code
from memobench.core.task import Task


def require_sound(tasks: Iterable[Task]) -> None:
    """Raises UserError for the first task whose instance is not what the task says.

    Each is checked once, whatever its seed. Those of memobench itself are checked by its tests.
    """
    for task in tasks:
        key = task.signature()
        if not own_code.in_tree(type(task)) and key not in _SOUND:
            with name_source(f"task {task.name}: its code"):
                for line in faults(task):
                    raise UserError(f"task {task.name}: {line}")
            _SOUND.add(key)


_SOUND: set[Task] = set()
# What is not a number differs from no drawing of its own seed; the task's own faults tell of it.
_is_equal = functools.partial(np.array_equal, equal_nan=True)


def faults(task: Task) -> Iterable[str]:
    """Lines, each of which names a fault of a task's instance; later ones rest on earlier ones."""
    first, second = (jax.device_get(task.sample()) for _ in range(2))
    if _shapes(first) != _shapes(task.shapes()):
        given, declared = _describe(first), _describe(task.shapes())
        yield f"sample gives {given} and shapes {declared}; make them agree"
    elif not all(map(_is_equal, jax.tree.leaves(first), jax.tree.leaves(second))):
        yield "its seed draws another instance each time; draw from the key or seed given alone"
    else:
        yield from task.faults(first)


def _shapes(data: Any) -> Any:
    leaves, structure = jax.tree.flatten(data)
    return [(x.shape, np.dtype(x.dtype)) for x in leaves], structure


def _describe(data: Any) -> str:
    return ", ".join(f"{np.dtype(x.dtype)}{list(x.shape)}" for x in jax.tree.leaves(data))
