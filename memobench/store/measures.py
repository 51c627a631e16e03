"""A user's own measures: numbers of some tasks, in addition to those of every run.

The decorator `measure` makes one of a function, in the file of a task or in any other that is
imported: it is computed once for every run of these tasks that is done and did not diverge, and is
a column of rows, tables, pages and checks from then on. Searches, whose rows are not of one model's
weights, have none.

Shape letters: T examples, C outputs.
"""

import dataclasses
import functools
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import numpy as np

from memobench.common.errors import UserError, name_source, require, short_repr
from memobench.core import columns as col
from memobench.core import module as models
from memobench.core.columns import Column, Domain
from memobench.core.spec import REGISTERED
from memobench.core.task import Task
from memobench.numerics import lookup, precision

# From a task, its instance and output_TxC of all examples, float32 or float64.
Value = Callable[[Any, Any, np.ndarray], Any]


@dataclasses.dataclass(frozen=True)
class Measure:
    """A number of a run, and the tasks whose runs have it: those classes and their subclasses."""

    column: Column
    tasks: tuple[type[Task], ...]
    value: Value


_MEASURES: dict[str, Measure] = {}
# Figures and pages make columns of these names, or with these ends, from others.
_DERIVED = ("known", "slope", "row", "variant", "hue", "x", "y")
_DERIVED_ENDS = ("_interval", "_low", "_high", "_per_parameter")
_log = logging.getLogger("memobench")


def measure(
    meaning: str,
    *tasks: type[Task],
    domain: Domain | None = None,
    unit: str = "",
    digits: int | None = 3,
    over_seeds: str = "mean",
) -> Callable[[Value], Value]:
    """Makes a function of (task, data, output_TxC) a measure of some tasks, under its own name.

    Args:
      meaning: one line.
      *tasks: classes of tasks whose runs have it.
      domain: what its values must be; any finite number by default.
      unit: of the number.
      digits: on pages.
      over_seeds: `mean`, or `none` where a mean is meaningless.

    Raises:
      UserError: a task is missing or not a class of tasks, or the domain is not a `Domain`.
    """
    require(
        isinstance(meaning, str),
        f"measure: meaning={short_repr(meaning)} is not a text; write its meaning, then its tasks",
    )
    for task in tasks:
        require(
            isinstance(task, type) and issubclass(task, Task),
            f"measure: {short_repr(task)} is not a class of tasks; give one, such as Associations",
        )
    require(tasks, "measure: no tasks are given; write @measure(meaning, Associations)")
    require(
        domain is None or isinstance(domain, Domain),
        f"measure: domain={short_repr(domain)} is not a Domain; give one, such as "
        "memobench.core.columns.float_between(0, 1)",
    )

    def register(value: Value) -> Value:
        name: Any = getattr(value, "__name__", None)
        require(name, f"measure: {short_repr(value)} has no name; wrap it in a function of its own")
        require(
            name not in _DERIVED and not name.endswith(_DERIVED_ENDS),
            f"measure {name!r} has the name of a column that figures and pages make; choose "
            "another name",
        )
        column = Column(name, meaning, domain or col.float_between(), unit, digits, over_seeds)
        before = _MEASURES.get(name)
        same = before is None or before.value.__module__ == value.__module__
        require(same, f"measure {name!r} is registered already; choose another name")
        _MEASURES[name] = Measure(column, tasks, value)
        REGISTERED.append(name)
        return value

    return register


def forget(name: str) -> None:
    """Takes back a measure of this name, if there is one."""
    _MEASURES.pop(name, None)
    REGISTERED.append(name)


def registered_measures() -> dict[str, Measure]:
    """All measures by name."""
    return dict(_MEASURES)


def modules() -> list[str]:
    """The modules that define them, and have to be imported wherever they are measured."""
    return list(dict.fromkeys(each.value.__module__ for each in _MEASURES.values()))


def measures_of(task: Task) -> dict[str, Measure]:
    """The measures that a task's runs have."""
    return {name: each for name, each in _MEASURES.items() if isinstance(task, each.tasks)}


def values(task: Task, data: Any, output_TxC: np.ndarray) -> dict[str, float]:
    """A task's measures of outputs, but, with a warning, those that fail.

    One fails that raises anything, or gives a value outside its column's domain.
    """
    found = {}
    for name, each in measures_of(task).items():
        try:
            value = _value(name, each, task, data, output_TxC)
            found[name] = each.column.domain.validate(name, value)
        except UserError as error:  # What was trained, and other measures, are kept all the same.
            _log.warning("a measure stays empty: %s", error)
    return found


def _value(name: str, each: Measure, *arguments: Any) -> Any:
    with name_source(f"measure {name}"):
        return to_scalar(each.value(*arguments))


def require_sound(runs: Iterable[Any]) -> None:
    """Raises UserError for the first measure that raises anything or gives no number.

    It is tried on initial weights, of one run of each kind of task; its domain is that of trained
    ones.
    """
    for run in {type(run.task): run for run in runs if measures_of(run.task)}.values():
        module, data = run.module(), run.task.sample()
        key = jax.random.key(0)
        variables = models.init_on_host(module, run.task.context_length, key)
        outputs_TxC = outputs(module, variables, run.task, data, double=False)
        for name, each in measures_of(run.task).items():
            value = _value(name, each, run.task, data, outputs_TxC)
            require(
                isinstance(value, int | float),
                f"measure {name} gives {short_repr(value)}, not a number; return one",
            )


def to_scalar(value: Any) -> Any:
    """An array of one number as that number."""
    return np.asarray(value).item() if np.ndim(value) == 0 else value


def of_weights(task: Task, module: Any, variables: Mapping[str, Any]) -> dict[str, float]:
    """A task's measures of weights, which are of the module's size."""
    data = task.sample()
    return values(task, data, outputs(module, variables, task, data, double=False))


def outputs(module: Any, variables: Any, task: Any, data: Any, double: bool) -> np.ndarray:
    """output_TxC of all examples, computed in float64 or float32."""
    double_or_single, highest = jax.enable_x64(double), jax.default_matmul_precision("highest")
    with double_or_single, highest, lookup.traced_for_here():
        variables, data = precision.cast((variables, data), np.float64 if double else np.float32)
        return np.asarray(_outputs(module, task.signature(), variables, data))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _outputs(module: Any, task: Any, variables: Any, data: Any) -> jax.Array:
    return task.outputs(module, variables, data)
