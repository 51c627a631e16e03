"""Theorems applied to rows, which promise or forbid something of their runs."""

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pandas as pd

from memobench.analysis.kinds import FAMILIES
from memobench.common.errors import UserError, suggest
from memobench.core.spec import cached_until_new_kind
from memobench.store.rows import OF_THEORY, all_columns
from memobench.theory.bounds import LOWER_BOUNDS
from memobench.theory.limits import UPPER_BOUNDS
from memobench.theory.theorem import Bound, Limit, Sizes, Theorem, Violation


@cached_until_new_kind
def lower_bounds() -> tuple[Bound, ...]:
    """The theorems that promise something, ours and then those that users' kinds alone name."""
    named = (x for x in _named_by_kinds() if isinstance(x, Bound) and x.proven)
    return tuple(dict.fromkeys((*LOWER_BOUNDS, *named)))


@cached_until_new_kind
def upper_bounds() -> tuple[Limit, ...]:
    """The theorems that forbid something, in the same order."""
    named = (x for x in _named_by_kinds() if isinstance(x, Limit))
    return tuple(dict.fromkeys((*UPPER_BOUNDS, *named)))


def _named_by_kinds() -> Iterator[Theorem]:
    for family in FAMILIES:
        for kind in family.kinds().values():
            yield from kind.theorems


@contextlib.contextmanager
def name_columns(theorem: Theorem) -> Iterator[None]:
    """Makes one line of the KeyError of a theorem that reads a column which nobody declares.

    That of a column which a table merely lacks stays a KeyError.
    """
    try:
        yield
    except KeyError as error:
        name, known = str(*error.args[:1]), [*all_columns(), *OF_THEORY]
        if name in known:
            raise
        raise UserError(
            f"theorem {theorem.name!r} reads {name!r}, which is not a column of runs"
            f"{suggest(name, known, others='; declare it, or read another')}"
        ) from error


def promised_examples(sizes: Sizes) -> Any:
    """The largest number of examples that a theorem promises; NaN where none applies.

    >>> from memobench.models.transformer import AttentionOnly
    >>> from memobench.core.run import Run
    >>> from memobench.core.cells import cells
    >>> from memobench.tasks.associations import Associations
    >>> heads = AttentionOnly(d_model=10, d_head=10, n_heads=20)
    >>> float(promised_examples(cells(Run(task=Associations(), architecture=heads))))
    210.0
    """
    values = []
    for bound in lower_bounds():
        with name_columns(bound):
            value = np.asarray(bound.value(sizes), np.float64)
            values.append(np.where(bound.applies(sizes), value, np.nan))
    return np.fmax.reduce(np.broadcast_arrays(*values))


def check(table: pd.DataFrame) -> None:
    """Checks that no run is beyond a limit; see `violations`.

    Raises:
      Violation: a run is beyond one. A limit is a theorem, so that this is a mistake in the run, in
        its measurement or in the code.
    """
    for limit, measured, beyond in violations(table):
        run_id, found = table["run_id"][beyond].iloc[0], measured[beyond].iloc[0]
        raise Violation(
            f"run {run_id} is beyond {limit}: "
            f"{found:.6g} measured, and {beyond.sum()} of {len(table)} runs like it; "
            "they or their measurement are wrong, do not publish them"
        )


def violations(
    table: pd.DataFrame, limits: Iterable[Limit] | None = None
) -> Iterator[tuple[Limit, pd.Series, np.ndarray]]:
    """Each limit that runs are beyond, with its measure of all runs and a mask of those beyond it.

    Args:
      table: the runs; a limit that reads a column which it lacks is passed over.
      limits: all by default.

    Raises:
      UserError: a limit reads a column that nobody declares.
    """
    for limit in upper_bounds() if limits is None else limits:
        try:
            with name_columns(limit):
                applies = limit.applies(table)
                measured, value = limit.measure(table), limit.value(table)
        except KeyError:
            continue
        measured = pd.to_numeric(measured, errors="coerce")
        beyond = np.asarray(applies & (measured > value))
        if beyond.any():
            yield limit, measured, beyond
