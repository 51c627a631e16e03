"""What theorems promise or forbid, as functions of a run's sizes. Imports no JAX.

A theorem takes sizes by name: a mapping such as `runs.cells`, a row of a table or a table, whose
columns then give a column. Kinds say which theorems are about them (`Spec.theorems`), so that an
architecture in a user's own file is promised what it names, and may bring theorems of its own.

`theorem` says what a theorem is; `bounds` what theorems promise, `limits` what they forbid,
`guides` what is expected of large sizes without proof; `formulas` are for comparison.
"""

from collections.abc import Collection, Iterable, Iterator
from typing import Any

import numpy as np
import pandas as pd

from memobench.errors import UserError, closest
from memobench.spec import derived
from memobench.theory.bounds import (
    BUBECK,
    COROLLARY_2,
    GENERAL_POSITION,
    LINEAR_LEAST_SQUARES,
    LOWER_BOUNDS,
    MAHDAVI_1,
    PROPOSITION_3,
    RANDOM_FEATURES,
    SILENT_MLP,
    THEOREM_1,
)
from memobench.theory.formulas import encoder_bound, t_eps
from memobench.theory.guides import (
    GRADIENT_STEP,
    HEBBIAN,
    MUON_STEP,
    NTK,
    OUTER_PRODUCTS,
    WHITENED,
    outer_products_guide,
)
from memobench.theory.limits import (
    COUNTING,
    PROPOSITION_1,
    PROPOSITION_2,
    RANK_OF_WEIGHTS,
    SATURATED_ATTENTION,
    SLACK_BITS,
    UPPER_BOUNDS,
    certified,
)
from memobench.theory.theorem import Bound, Condition, Limit, Sizes, Theorem, Violation, always

__all__ = [
    "BUBECK",
    "COROLLARY_2",
    "COUNTING",
    "GENERAL_POSITION",
    "GRADIENT_STEP",
    "HEBBIAN",
    "LINEAR_LEAST_SQUARES",
    "LOWER_BOUNDS",
    "MAHDAVI_1",
    "MUON_STEP",
    "NTK",
    "OUTER_PRODUCTS",
    "PROPOSITION_1",
    "PROPOSITION_2",
    "PROPOSITION_3",
    "RANDOM_FEATURES",
    "RANK_OF_WEIGHTS",
    "SATURATED_ATTENTION",
    "SILENT_MLP",
    "SLACK_BITS",
    "THEOREM_1",
    "UPPER_BOUNDS",
    "WHITENED",
    "Bound",
    "Condition",
    "Limit",
    "Sizes",
    "Theorem",
    "Violation",
    "always",
    "certified",
    "check",
    "encoder_bound",
    "lower_bounds",
    "outer_products_guide",
    "promised",
    "t_eps",
    "upper_bounds",
    "violations",
]

# What `analysis.with_theory` adds to the columns of runs.
ADDED = ("promised", "load", "t_eps", "floor", "certified_floor", "proven_ratio")


@derived
def lower_bounds() -> tuple[Bound, ...]:
    """What theorems promise: ours, then those that only kinds of users' files name."""
    named = (x for x in _named_by_kinds() if isinstance(x, Bound) and x.proven)
    return tuple(dict.fromkeys((*LOWER_BOUNDS, *named)))


@derived
def upper_bounds() -> tuple[Limit, ...]:
    """What theorems forbid, in the same order."""
    named = (x for x in _named_by_kinds() if isinstance(x, Limit))
    return tuple(dict.fromkeys((*UPPER_BOUNDS, *named)))


def _named_by_kinds() -> Iterator[Theorem]:
    from memobench.kinds import FAMILIES

    for family in FAMILIES:
        for kind in family.kinds().values():
            yield from kind.theorems


def promised(sizes: Sizes) -> Any:
    """The largest number of examples that a theorem promises; NaN where none applies.

    >>> from memobench.models.transformer import AttentionOnly
    >>> from memobench.runs import Run, cells
    >>> from memobench.tasks.associations import Associations
    >>> heads = AttentionOnly(d_model=10, d_head=10, n_heads=20)
    >>> float(promised(cells(Run(task=Associations(), architecture=heads))))
    210.0
    """
    values = [
        np.where(bound.applies(sizes), np.asarray(bound.value(sizes), np.float64), np.nan)
        for bound in lower_bounds()
    ]
    return np.fmax.reduce(np.broadcast_arrays(*values))


def check(table: pd.DataFrame, declared: Collection[str]) -> None:
    """Raises Violation where a run is beyond a limit; see `violations`.

    A limit is a theorem, so that a run beyond it is a mistake in the run, in its measurement or in
    the code.
    """
    for limit, measured, beyond in violations(table, declared):
        run_id, found = table["run_id"][beyond].iloc[0], measured[beyond].iloc[0]
        raise Violation(
            f"run {run_id} is beyond {limit}: "
            f"{found:.6g} measured, and {beyond.sum()} of {len(table)} runs like it; "
            "they or their measurement are wrong, do not publish them"
        )


def violations(
    table: pd.DataFrame, declared: Collection[str], limits: Iterable[Limit] | None = None
) -> Iterator[tuple[Limit, pd.Series, np.ndarray]]:
    """Each limit that runs are beyond, what it measures of all runs, and which are beyond it.

    Args:
      table: the runs; a limit that reads a column which it lacks is passed over.
      declared: every column that tables of runs may have, of `rows.all_columns`.
      limits: all by default.

    Raises:
      UserError: a limit reads a column that nobody declares.
    """
    for limit in upper_bounds() if limits is None else limits:
        try:
            applies = limit.applies(table)
            measured, value = limit.measure(table), limit.value(table)
        except KeyError as error:
            name, known = str(*error.args[:1]), [*declared, *ADDED]
            if name in known:
                continue
            raise UserError(
                f"theorem {limit.name!r} reads {name!r}, which is not a column of runs"
                f"{closest(name, known, others='; declare it, or read another')}"
            ) from error
        measured = pd.to_numeric(measured, errors="coerce")
        beyond = np.asarray(applies & (measured > value))
        if beyond.any():
            yield limit, measured, beyond
