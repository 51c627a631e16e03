"""Columns of the results table: the domain of a value, and its meaning. Imports no JAX.

A column is declared once, beside what produces it: the fields of specs with `integer`, `number`,
`choice`, `flag` and their like, measures and certificates as `Column`s of their producers. Tables,
pages, checks and the documentation of columns derive from these declarations.
"""

import dataclasses
import itertools
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from memobench.common.errors import UnknownKind, UserError, require, short_repr


@dataclasses.dataclass(frozen=True)
class Domain:
    """A set of values, such as the integers from 1 to 64.

    Attributes:
      description: completes "is not ..".
      canonical: gives the value in its one form, None where it is not such a value.
      write: the cell of a value, where the two differ.
      read: the value of a cell.
      made: the function that made it and its arguments, for those who draw values.
    """

    description: str
    canonical: Callable[[Any], Any]
    write: Callable[[Any], Any] = lambda value: value
    read: Callable[[Any], Any] = lambda value: value
    made: tuple[Any, ...] = ()

    @property
    def least(self) -> float:
        """The least number in it; minus infinity where it has none, or is not of numbers."""
        is_of_numbers = bool(self.made) and self.made[0] in (int_between, float_between)
        return float(self.made[1]) if is_of_numbers and self.made[1] > -1e300 else -math.inf

    def holds(self, cell: Any) -> bool:
        """True where a cell of the table holds such a value, or that of a kind nobody loaded."""
        try:
            return self.canonical(self.read(cell)) is not None
        except UnknownKind:
            return True
        except UserError:
            return False

    def validate(self, name: str, value: Any) -> Any:
        """The value in its canonical form.

        Raises:
          UserError: it is not of the domain; the line names the field.
        """
        canonical = self.canonical(value)
        if canonical is None:  # Tens of thousands of specs are made; few need a message.
            raise UserError(
                f"{name}={short_repr(value)} is not {self.description}; give {name} such a value"
            )
        return canonical


def _to_python(value: Any) -> Any:
    """A number of NumPy's as Python's."""
    return value.item() if isinstance(value, np.generic) else value


def int_between(least: int = 0, most: int = 2**40) -> Domain:
    """Integers from least to most."""

    def canonical(value: Any) -> int | None:
        value = _to_python(value)
        return value if type(value) is int and least <= value <= most else None

    def read(cell: Any) -> Any:
        # Tables with gaps hold integers as floats.
        cell = _to_python(cell)
        integral = type(cell) is float and abs(cell) < 2**53 and cell == int(cell)
        return int(cell) if integral else cell

    text = f"an integer from {least} to {most}" if most < 2**40 else f"an integer >= {least}"
    return Domain(text, canonical, read=read, made=(int_between, least, most))


def float_between(least: float = -1e300, most: float = 1e300, above: float | None = None) -> Domain:
    """Finite numbers from least to most, or greater than `above`; integers become floats."""

    def canonical(value: Any) -> float | None:
        value = _to_python(value)
        if type(value) not in (int, float) or not least <= value <= most:
            return None
        # -0.0 equals 0.0 and would be written otherwise.
        return float(value) + 0.0 if above is None or value > above else None

    if above is not None:
        text = f"a number > {above:g}" + (f" and <= {most:g}" if most < 1e300 else "")
    elif least > -1e300 or most < 1e300:
        text = f"a number from {least:g} to {most:g}" if most < 1e300 else f"a number >= {least:g}"
    else:
        text = "a number"
    return Domain(text, canonical, made=(float_between, least, most, above))


def value_where(description: str, holds: Callable[[Any], Any]) -> Domain:
    """Values for which a predicate is true."""
    return Domain(description, lambda value: value if holds(value) else None)


def constant(constant: int) -> Domain:
    """One integer."""
    return value_where(str(constant), lambda x: type(x) is int and x == constant)


def one_of(*choices: str) -> Domain:
    """One of a few words."""

    def canonical(value: Any) -> str | None:
        value = _to_python(value)
        return value if type(value) is str and value in choices else None

    return Domain(f"one of {', '.join(choices)}", canonical, made=(one_of, *choices))


def boolean() -> Domain:
    """True or False."""

    def canonical(value: Any) -> bool | None:
        value = _to_python(value)
        return value if type(value) is bool else None

    return Domain("true or false", canonical, read=_to_python, made=(boolean,))


# A pattern is tried on no more characters than it could fit.
_LONGEST = 400
# Characters that pages and spreadsheets would take for more than text.
_MARKUP = frozenset("<>|`*[]{}\\$#~;")


def text_matching(pattern: str, description: str) -> Domain:
    """Text that a regular expression matches as a whole."""
    compiled = re.compile(pattern, re.ASCII)
    return Domain(
        description,
        lambda value: (
            value
            if isinstance(value, str) and len(value) <= _LONGEST and compiled.fullmatch(value)
            else None
        ),
    )


NAME = text_matching(r"[\w.-]{1,100}", "a name of letters, digits, dots and dashes")


def numbers(most: int) -> Domain:
    """A tuple of distinct positive numbers; in a cell they are text with spaces between."""
    each = float_between(above=0.0)

    def canonical(value: Any) -> tuple[float, ...] | None:
        if not isinstance(value, tuple | list) or not 1 <= len(value) <= most:
            return None
        values = tuple(each.canonical(x) for x in value)
        return None if None in values or len(set(values)) < len(values) else values

    def read(cell: Any) -> Any:
        # A file of text has a single number as a number.
        cell = repr(cell) if type(cell) in (int, float) else cell
        try:
            return tuple(float(x) for x in cell.split(" "))
        except (AttributeError, ValueError):
            # A list is not a cell, whatever it holds.
            return cell if isinstance(cell, str) else short_repr(cell)

    def write(value: tuple[float, ...]) -> str:
        return " ".join(repr(x) for x in value)

    description = f"a tuple of 1 to {most} distinct numbers > 0"
    return Domain(description, canonical, write, read, made=(numbers, most))


def list_of(domain: Domain, most: int) -> Domain:
    """A list of at most so many values of a domain."""

    def canonical(value: Any) -> list | None:
        if not isinstance(value, list) or len(value) > most:
            return None
        return value if all(map(domain.holds, value)) else None

    return Domain(f"a list of at most {most}, each {domain.description}", canonical)


def or_null(domain: Domain) -> Domain:
    """Values of a domain, or None inside a list."""
    return dataclasses.replace(
        domain,
        description=f"{domain.description} or null",
        canonical=lambda value: _NULL if value is None else domain.canonical(value),
        made=(),
    )


def unite(first: Domain, second: Domain) -> Domain:
    """Values of one domain or of another, as cells of a column that several specs have."""
    if first.description == second.description:
        return first
    if first.made[:1] == second.made[:1] == (int_between,):
        return int_between(min(first.made[1], second.made[1]), max(first.made[2], second.made[2]))
    if first.made[:1] == second.made[:1] == (one_of,):
        return one_of(*dict.fromkeys((*first.made[1:], *second.made[1:])))

    def of_value(value: Any) -> Domain:
        return second if first.canonical(value) is None else first

    return Domain(
        f"{first.description} or {second.description}",
        lambda value: of_value(value).canonical(value),
        write=lambda value: of_value(value).write(value),
        read=lambda cell: (first if first.holds(cell) else second).read(cell),
    )


# Stands for None where None would say that a value is not of its domain.
_NULL = object()


def text_of(most: int) -> Domain:
    """Plain text of one line without markup or the beginning of a formula."""

    def canonical(value: Any) -> str | None:
        plain = (
            isinstance(value, str)
            and 0 < len(value) <= most
            # Neither control characters nor what turns the direction of writing is printable.
            and value.isprintable()
            and value == value.strip()
            and not value.startswith(("=", "+", "-", "@"))
            and not set(value) & _MARKUP
        )
        return value if plain else None

    description = f"a plain text of 1 to {most} characters without markup or formula"
    return Domain(description, canonical)


@dataclasses.dataclass(frozen=True)
class Column:
    """One column of the results table.

    Attributes:
      name: in rows and tables.
      meaning: one line.
      domain: of its values.
      unit: of a number.
      digits: on pages; None for as many as it has.
      over_seeds: its aggregate over repetitions. `same` for a column that tells configurations
        apart, `seed` for one that tells repetitions apart, `mean`, or `none` without an aggregate.
      in_csv: whether it is a single number or word, as a spreadsheet has them, and not a list.
    """

    name: str
    meaning: str
    domain: Domain
    unit: str = ""
    digits: int | None = None
    over_seeds: str = "none"
    in_csv: bool = True

    def __post_init__(self) -> None:
        NAME.validate("column", self.name)
        where, over = f"column {self.name}", ("same", "seed", "mean", "none")
        require(
            self.digits is None or (type(self.digits) is int and self.digits >= 0),
            f"{where}: digits={short_repr(self.digits)} is not an integer >= 0; give one, or None",
        )
        require(
            self.over_seeds in over,
            f"{where}: over_seeds={short_repr(self.over_seeds)} is not one of {', '.join(over)}",
        )


def by_name(*columns: Column) -> dict[str, Column]:
    """Columns by their names."""
    return {column.name: column for column in columns}


def to_tuple(cell: Any) -> Any:
    """A list, and those within it, as a tuple; anything else as it is."""
    return tuple(map(to_tuple, cell)) if isinstance(cell, list | tuple) else cell


def is_empty(cell: Any) -> bool:
    """True for the cell of a column that a row does not have: None, or NaN in a table."""
    return cell is None or (isinstance(cell, float) and math.isnan(cell))


def merge(*groups: Mapping[str, Column]) -> dict[str, Column]:
    """Columns of several declarations; one of several of a name holds the values of all."""
    found: dict[str, Column] = {}
    for name, column in itertools.chain.from_iterable(group.items() for group in groups):
        before = found.setdefault(name, column)
        found[name] = dataclasses.replace(before, domain=unite(before.domain, column.domain))
    return found


# --- Declarations of the fields of specs -----------------------------------------------------

_MISSING = dataclasses.MISSING


def declare(
    domain: Domain,
    meaning: str,
    default: Any = _MISSING,
    *,
    unit: str = "",
    column: str | None = None,
    over_seeds: str = "same",
    optional: bool = False,
    omit: Any = _MISSING,
) -> Any:
    """A field of a spec, with the column it becomes.

    Args:
      domain: of its values.
      meaning: one line.
      default: the field's, if it has one.
      unit: of a number.
      column: the column's name where it is not the field's.
      over_seeds: see `Column`.
      optional: whether None is a value too, as it is wherever it is the default.
      omit: a value at which the field is left out of the canonical form, and its cell empty, so
        that a field added later leaves older ids and tables as they are.
    """
    require(
        not isinstance(default, list | dict | set),
        f"default={short_repr(default)} could be changed; give a tuple in its place",
    )
    metadata: Mapping[str, Any] = {
        "domain": domain,
        "meaning": meaning,
        "unit": unit,
        "column": column,
        "over_seeds": over_seeds,
        "optional": optional or default is None,
        "omit": omit,
    }
    if default is _MISSING:
        return dataclasses.field(metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def integer(
    meaning: str, least: int = 1, default: Any = _MISSING, *, most: int = 2**40, **more: Any
) -> Any:
    """A field that holds an integer."""
    return declare(int_between(least, most), meaning, default, **more)


def number(
    meaning: str,
    default: Any = _MISSING,
    *,
    least: float = -1e300,
    most: float = 1e300,
    above: float | None = None,
    **more: Any,
) -> Any:
    """A field that holds a finite number."""
    return declare(float_between(least, most, above), meaning, default, **more)


def choice(meaning: str, *choices: str, default: Any = _MISSING, **more: Any) -> Any:
    """A field that holds one of a few words."""
    return declare(one_of(*choices), meaning, default, **more)


def flag(meaning: str, default: Any = _MISSING, **more: Any) -> Any:
    """A field that holds True or False."""
    return declare(boolean(), meaning, default, **more)
