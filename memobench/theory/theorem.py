"""What a theorem is: a number, as a function of a run's sizes, and the runs that it is about."""

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

# A mapping, a row or a table of the sizes that `runs.cells` names.
Sizes = Any
# Whether something holds, of sizes.
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


def _told(theorem: str, what: str, function: Callable[[Sizes], Any]) -> Callable[[Sizes], Any]:
    """The function, which says whose it is where it raises anything but KeyError."""

    @functools.wraps(function)
    def told(sizes: Sizes) -> Any:
        try:
            return function(sizes)
        except (KeyError, UserError):  # A table may lack a column.
            raise
        except Exception as error:
            raise UserError(
                f"theorem {theorem!r}: its {what} raises {describe(error)}; it is given the sizes "
                "of a run, or a table with a column for each"
            ) from error

    return told


@dataclasses.dataclass(frozen=True, kw_only=True)
class Theorem:
    """A number that a theorem gives.

    value: computes it from a run's sizes. assumptions: what it asks beyond the sizes; empty where
    it asks nothing that random instances could fail. about: families, by their columns, whose kinds
    say in `theorems` whether it is about them. where: the sizes that it is about.
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
                f"theorem {self.name!r}: {name}={short_repr(function)} is no function of sizes",
            )
            # What it raises names the theorem, whoever calls it.
            object.__setattr__(self, name, _told(self.name, name, function))
        require(
            isinstance(self.about, tuple),
            f"theorem {self.name!r}: about={short_repr(self.about)} is no tuple, as "
            "('architecture',)",
        )

    def applies(self, sizes: Sizes) -> Any:
        """Whether the theorem is about runs of these sizes."""
        named = (self._named(noun, sizes) for noun in self.about)
        return functools.reduce(operator.and_, named, self.where(sizes))

    def _named(self, noun: str, sizes: Sizes) -> Any:
        """Whether the kinds of a family name it, where they say that it holds."""
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
    """A number of examples that some weights memorize; proven: or else an asymptotic guide."""

    proven: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limit(Theorem):
    """What no weights can do: `measure` exceeds `value` in no run to which it applies."""

    measure: Callable[[Sizes], Any]

    def __str__(self) -> str:
        assumed = f", assuming {self.assumptions}" if self.assumptions else ""
        return f"a proven limit ({self.name}; {self.source}{assumed})"


class Violation(UserError):
    """A run is beyond what a theorem forbids: it, or its measurement, is wrong."""
