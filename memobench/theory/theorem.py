"""Classes of theorems: a number, as a function of a run's sizes, and the runs it is about."""

import dataclasses
import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from memobench.common.errors import UserError, describe, require, short_repr, suggest
from memobench.core.spec import Spec

# Papers of several theorems.
DANA = "Dana, Pydi & Chevaleyre 2025"
MAHDAVI = "Mahdavi, Liao & Thrampoulidis 2024"

# A mapping, a row or a table of the sizes that `core.cells.cells` names.
Sizes = Any
# A predicate of sizes.
Condition = Callable[[Sizes], Any]


def always(sizes: Sizes) -> Any:
    """The condition that always holds."""
    del sizes
    return True


def plane(sizes: Sizes) -> Any:
    """The condition that the stream has two dimensions at least."""
    return sizes["d_model"] > 1


def number(value: Any) -> Any:
    """A size or a column of sizes, NaN where a run has none."""
    return math.nan if value is None else np.asarray(value, np.float64)


def _name_errors_of(
    theorem: str, what: str, function: Callable[[Sizes], Any]
) -> Callable[[Sizes], Any]:
    """The function, whose errors but KeyError become a UserError that names the theorem."""

    @functools.wraps(function)
    def call(sizes: Sizes) -> Any:
        try:
            return function(sizes)
        except (KeyError, UserError):  # A table may lack a column.
            raise
        except Exception as error:
            raise UserError(
                f"theorem {theorem!r}: its {what} raises {describe(error)}; it is given the sizes "
                "of a run, or a table with a column for each"
            ) from error

    return call


@dataclasses.dataclass(frozen=True, kw_only=True)
class Theorem:
    """A number that a theorem gives.

    Attributes:
      name: in tables and messages.
      source: the paper, and the theorem in it.
      value: computes the number from a run's sizes.
      assumptions: those beyond the sizes; empty where random instances cannot fail any.
      about: families, by their columns, whose kinds say in `theorems` whether it is about them.
      where: the condition on sizes under which it holds.
    """

    name: str
    source: str
    value: Callable[[Sizes], Any]
    assumptions: str = ""
    about: tuple[str, ...] = ()
    where: Condition = always

    def __post_init__(self) -> None:
        for name in sorted({"value", "where", "measure"} & vars(self).keys()):
            function = getattr(self, name)
            require(
                callable(function),
                f"theorem {self.name!r}: {name}={short_repr(function)} is not a function of sizes",
            )
            # What it raises names the theorem, whoever calls it.
            object.__setattr__(self, name, _name_errors_of(self.name, name, function))
        require(
            isinstance(self.about, tuple),
            f"theorem {self.name!r}: about={short_repr(self.about)} is not a tuple, such as "
            "('architecture',)",
        )

    def applies(self, sizes: Sizes) -> Any:
        """True where the theorem is about runs of these sizes."""
        named = (self._is_named_by(noun, sizes) for noun in self.about)
        return functools.reduce(operator.and_, named, self.where(sizes))

    def _is_named_by(self, noun: str, sizes: Sizes) -> Any:
        """True where a kind of the family names the theorem, and its condition holds."""
        families = Spec.families
        require(noun in families, f"theorem {self.name!r}: about {noun!r}{suggest(noun, families)}")
        family = families[noun]
        named = (
            (sizes[noun] == name) & kind.theorems[self](sizes)
            for name, kind in family.kinds().items()
            if self in kind.theorems
        )
        return functools.reduce(operator.or_, named, False)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bound(Theorem):
    """A number of examples that some weights memorize.

    Attributes:
      proven: or else it is an asymptotic guide.
    """

    proven: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limit(Theorem):
    """A limit for all weights: `measure` exceeds `value` in no run to which it applies.

    Attributes:
      measure: the number of a run that is limited.
    """

    measure: Callable[[Sizes], Any]

    def __str__(self) -> str:
        assumed = f", assuming {self.assumptions}" if self.assumptions else ""
        return f"a proven limit ({self.name}; {self.source}{assumed})"


class Violation(UserError):
    """A run is beyond what a theorem forbids: it, or its measurement, is wrong."""
