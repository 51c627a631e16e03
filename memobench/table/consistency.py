"""Whether the numbers of a row are consistent: what checks of rows share.

A row has all columns, None where a run has no value. Each check raises UserError for what is
inconsistent.
"""

import math
from collections.abc import Mapping
from typing import Any

from memobench.common.errors import UserError, require, shown
from memobench.core.columns import Domain

# Tolerances: of measures that follow from others in float32, and of numbers that are repeated.
MEASURED = 1e-4
REPEATED = 1e-6

Row = Mapping[str, Any]


def check_domain(name: str, domain: Domain, value: Any) -> None:
    require(
        domain.holds(value),
        f"{name}={shown(value)} is not {domain.description}; give {name} such a value",
    )


def check_derived(row: Row, derived: Row, within: float) -> None:
    """Raises UserError where a value differs from the one that other columns determine."""
    for name, value in derived.items():
        if not agree(row[name], value, within):
            raise UserError(
                f"{name}={shown(row[name])} but {shown(value)} follows from the other columns; "
                "fix the one that is wrong"
            )


def agree(a: Any, b: Any, within: float, zero: float = 0.0) -> bool:
    """Whether two JSON values agree, numbers up to a relative `within` or an absolute `zero`."""
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(
            agree(x, y, within, zero) for x, y in zip(a, b, strict=True)
        )
    if {type(a), type(b)} <= {int, float}:
        return math.isclose(a, b, rel_tol=within, abs_tol=zero)
    return type(a) is type(b) and a == b


def check_loss(loss: float, accuracy: float, least: float) -> None:
    require(
        loss >= (1 - accuracy) * least * (1 - 1e-3) - REPEATED,
        f"loss={loss} is too small for an accuracy of {accuracy}: an example that is not known "
        f"costs {least:.3g} at least; fix the one that is wrong",
    )
