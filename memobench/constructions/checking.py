"""Checks of what a kind's `construct` returns, before it is judged: a mistake is one line.

Without it, weights of other shapes, columns that the row has already, or a read-out that does not
scale the logits would become numbers of the row.
"""

import contextlib
import dataclasses
import numbers

import numpy as np

from memobench import certificates
from memobench.common.errors import UserError, name_source, require, short_repr, suggest
from memobench.constructions.problem import Constructed, Problem
from memobench.core import own_code
from memobench.store import measures


def call_construct(problem: Problem) -> Constructed:
    """The Constructed of the run's method, checked, its parameters by flat names.

    Raises:
      UserError: a user's own kind raises an error, or gives weights or columns that are not the
        run's; the line names the theorem.
    """
    method = problem.method
    is_ours = own_code.in_tree(type(method))
    with (
        contextlib.nullcontext()
        if is_ours
        else name_source(f"theorem={method.name!r}: its construct")
    ):
        made = method.construct(problem)
    try:
        require(
            isinstance(made, Constructed), f"{short_repr(made)} is not a Constructed. Return one"
        )
        return _check_constructed(problem, made)
    except UserError as error:
        raise UserError(f"theorem={method.name!r}, from its construct: {error}") from error


def _check_constructed(problem: Problem, made: Constructed) -> Constructed:
    run = problem.run
    params = {
        name: _check_weights(name, x) for name, x in certificates.flatten(made.params).items()
    }
    certificates.require_shapes(params, certificates.shapes(run.module(), run.task.context_length))
    columns = type(problem.method).columns_of_rows()
    is_dict = isinstance(made.certificate, dict)
    require(is_dict, f"certificate={short_repr(made.certificate)} is not a dict of numbers")
    for name in made.certificate:
        require(
            name in columns,
            f"certificate has {short_repr(name)}, no column of this method's rows"
            f"{suggest(str(name), columns)}",
        )
    given = made.read_out
    require(
        isinstance(given, tuple),
        f"read_out={short_repr(given)} is not a tuple of parameters' names",
    )
    for name in given:
        require(name in params, f"read_out names {short_repr(name)}{suggest(str(name), params)}")
    certificate = {name: measures.to_scalar(x) for name, x in made.certificate.items()}
    for name, x in certificate.items():
        allowed = x is None or isinstance(x, numbers.Real | str)
        require(allowed, f"certificate has {name}={short_repr(x)}; give a number")
    return dataclasses.replace(made, params=params, certificate=certificate)


def _check_weights(name: str, x: np.ndarray) -> np.ndarray:
    require(bool(np.isfinite(x).all()), f"the parameter {short_repr(name)} is not finite")
    return x.astype(np.float64)
