"""A run from its row: the inverse of `specs.columns`. Imports no JAX.

Rows come from files that others wrote: nothing in one is taken on trust.
"""

import functools
import math
import sys
import types
import typing
from collections.abc import Mapping
from typing import Any

import numpy as np

from memobench.errors import UserError
from memobench.specs import (
    Annealing,
    Architecture,
    Construction,
    LabelledContexts,
    Method,
    Optimum,
    Run,
    Search,
    Task,
    Training,
    columns,
)

# What follows from the other columns may be missing.
_DERIVED = ("run_id", "n_examples", "steps")
# A task counts its sequences, N^S; in a number of more bits nobody is interested.
_MOST_BITS = 2**17
_MOST = 2**63


def from_columns(row: Mapping[str, Any]) -> Run:
    """The run of which `specs.columns` makes this row; other columns are not looked at.

    Missing columns count as None. Numbers may have come through JSON or a table, where 2.0 stands
    for 2 and NaN for None.

    Args:
      row: the columns of one run.

    Raises:
      UserError: no run has such columns; the line names the first one that is wrong.

    >>> from memobench.specs import Architecture, Run, Task
    >>> run = Run(task=Task(), architecture=Architecture(name="mlp", d_model=4, d_head=4, d_mlp=8))
    >>> from_columns(columns(run)) == run
    True
    """
    row = {name: None if _is_nan(value) else value for name, value in row.items()}
    run = Run(
        task=_task(row),
        architecture=_spec(Architecture, row, name="architecture"),
        method=_method(row),
        seed=_value("seed", int, row.get("seed")),
    )
    # The id last: that it is another one does not say why.
    for name, value in sorted(columns(run).items(), key=lambda x: x[0] == "run_id"):
        given = row.get(name)
        if given is None and name in _DERIVED:
            continue
        # True equals 1, but is none.
        if given != value or isinstance(given, bool) != isinstance(value, bool):
            raise UserError(
                f"{name}={shown(given)} is not that of such a run, {shown(value)}; "
                "all columns of a row must be those of one run"
            )
    return run


def shown(value: Any) -> str:
    """A value for a message: one line of bounded length in which nothing is invisible."""
    try:
        text = repr(value)
    except ValueError:  # Python does not write numbers of thousands of digits.
        return "a number of thousands of digits"
    return text if len(text) <= 80 else f"{text[:60]}… ({len(text):,} characters)"


def _task(row: Mapping[str, Any]) -> Task | LabelledContexts:
    if row.get("task") == "labelled_contexts":
        return _spec(LabelledContexts, row, name="task", seed="task_seed")
    vocab_size = _value("vocab_size", int, row.get("vocab_size"))
    context_length = _value("context_length", int, row.get("context_length"))
    if vocab_size.bit_length() * context_length > _MOST_BITS:
        raise UserError(
            f"context_length={context_length} is too long to count the sequences; lower it"
        )
    return _spec(Task, row, name="task", seed="task_seed")


def _method(row: Mapping[str, Any]) -> Method:
    name, protocol = row.get("method"), row.get("protocol")
    if name == "trained" and protocol == "annealed":
        return _spec(Annealing, row)
    if name == "trained":
        start = row.get("start")
        return _spec(Training, row, given={"start": None if start is None else _start(start)})
    if name == "optimised":
        return _spec(Optimum, row)
    if name == "constructed":
        return _spec(Construction, row)
    if name == "searched":
        training = _spec(Training, row, given={"start": None})
        factors = _rate_factors(row.get("rate_factors"))
        return _spec(Search, row, given={"training": training, "rate_factors": factors})
    raise UserError(
        f"method={shown(name)} is unknown; choose one of trained, optimised, constructed, searched"
    )


def _spec(
    kind: type, row: Mapping[str, Any], given: Mapping[str, Any] | None = None, **named: str
) -> Any:
    """A spec of a kind from its fields' columns, which are of the same name but for those named."""
    given = given or {}
    values = {
        field: _value(named.get(field, field), hint, row.get(named.get(field, field)))
        for field, hint in _hints(kind).items()
        if field not in given
    }
    return kind(**given, **values)


_hints = functools.cache(typing.get_type_hints)


def _value(name: str, hint: Any, value: Any) -> Any:
    """The value of a column as a field of this type has it."""
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if value is None and types.NoneType in kinds:
        return None
    for kind in kinds:
        converted = _as(kind, value)
        if converted is not None:
            return converted
    wanted = " or ".join({"NoneType": "null"}.get(x.__name__, x.__name__) for x in kinds)
    raise UserError(f"{name}={shown(value)} is no {wanted}; give {name} such a value")


def _as(kind: type, value: Any) -> Any:
    """The value as one of the kind, or None where it is not equal to any."""
    if isinstance(value, np.generic):
        value = value.item()
    if kind in (str, bool):
        return value if type(value) is kind else None
    if kind not in (int, float) or type(value) not in (int, float):
        return None
    if not abs(value) <= sys.float_info.max:
        return None
    # Whole numbers beyond any size would take forever to write.
    if abs(value) < _MOST and value == int(value):
        return int(value)
    return float(value) if kind is float else None


def _start(text: Any) -> Construction:
    """The construction of which `str` makes this text."""
    try:
        theorem, *options = text.split(" ")
        given = dict(option.split("=") for option in options)
        kinds: dict[str, Any] = {"n_aimed": int, "scale": _number, "solve": str, "weights": str}
        values = {name: kinds[name](value) for name, value in given.items()}
        start = Construction(theorem=theorem, **values)
    except (AttributeError, KeyError, ValueError) as error:
        raise UserError(
            f"start={shown(text)} is no construction; write a theorem and what differs from "
            "the defaults, as in 'dana2025 n_aimed=0'"
        ) from error
    if not theorem or str(start) != text:
        raise UserError(f"start={shown(text)} is written {shown(str(start))}")
    return start


def _rate_factors(text: Any) -> tuple[float, ...]:
    try:
        return tuple(float(factor) for factor in text.split(" "))
    except (AttributeError, ValueError) as error:
        raise UserError(
            f"rate_factors={shown(text)} are no numbers with a space between them; write such"
        ) from error


def _number(text: str) -> float:
    try:
        return int(text)
    except ValueError:
        return float(text)


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)
