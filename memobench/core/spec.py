"""Specs: immutable values that say what a run is, and the id that follows from them.

A kind of task, architecture, optimiser or method is one frozen dataclass in one file. The decorator
`kind` makes it so and registers it under its name when its module is imported: one of the family's
folder, or a user's own. Imports no JAX.

Fields are declared with their meaning and range (`memobench.core.columns`). They are checked and
brought into one form when a spec is made, so that equal specs have equal ids however they were
spelled.
"""

import collections
import dataclasses
import functools
import importlib
import importlib.util
import inspect
import itertools
import pkgutil
import sys
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, Self, TypeVar

from memobench.common.errors import UnknownKind, UserError, check_arguments, require, short_repr
from memobench.core import own_code
from memobench.core.columns import (
    NAME,
    Column,
    Domain,
    by_name,
    choice,
    declare,
    flag,
    integer,
    is_empty,
    merge,
    number,
)

SPEC_VERSION = 2
# Keys of JAX are made of 32 bits: larger seeds would repeat smaller ones.
MOST_SEED = 2**32 - 1

# Python evaluates annotations when they are read from 3.14 on, and some name what is not there yet.
_UNDEFINED: dict[str, Any] = {}
if sys.version_info >= (3, 14):
    import annotationlib

    _UNDEFINED = {"format": annotationlib.Format.FORWARDREF}

_Kind = TypeVar("_Kind", bound=type["Spec"])
_Result = TypeVar("_Result")

# Names of all kinds and measures registered so far; only their number is used.
REGISTERED: list[str] = []


def cached_until_new_kind(function: Callable[[], _Result]) -> Callable[[], _Result]:
    """Caches a value that follows from all kinds, until another one is registered."""
    cached: dict[int, _Result] = {}

    @functools.wraps(function)
    def get() -> _Result:
        found = cached.get(len(REGISTERED))
        if found is None:
            # Deriving may import kinds, which registers them; another thread may do the same.
            found = function()
            cached.clear()
            cached[len(REGISTERED)] = found
        return found

    return get


class Spec:
    """Base of all specs.

    A family is a class with a noun: `class Task(Spec, noun="task", package=..., order=...)`.

    Attributes:
      name: of the kind within its family.
      noun: what the family is called in messages and columns.
      package: the folder of modules that define its kinds.
      order: names of kinds in the order of their columns; all others follow by name.
      shared_columns: those that rows of all kinds of the family have.
      taken: names that no column of its kinds may have: other tables add columns of these names.
      registry: the family's kinds, by name.
      theorems: bounds and limits of `memobench.theory` that are about the kind, each with the
        condition on its rows under which they hold.
      has_code: whether a user's kinds have a field `code`, see `memobench.core.own_code`, as
        results depend on what they do.
    """

    name: ClassVar[str] = ""
    noun: ClassVar[str] = ""
    package: ClassVar[str] = ""
    order: ClassVar[tuple[str, ...]] = ()
    shared_columns: ClassVar[dict[str, Column]] = {}
    taken: ClassVar[tuple[str, ...]] = ()
    theorems: ClassVar[Mapping[Any, Callable[[Any], Any]]] = {}
    registry: ClassVar[dict[str, type["Spec"]]]
    has_code: ClassVar[bool] = True
    families: ClassVar[dict[str, type["Spec"]]] = {}

    def __init_subclass__(
        cls,
        noun: str = "",
        package: str = "",
        order: tuple[str, ...] = (),
        shared_columns: dict[str, Column] | None = None,
        **more: Any,
    ) -> None:
        """Makes a family of a class that is given a noun."""
        super().__init_subclass__(**more)
        if noun:
            cls.noun, cls.package, cls.order, cls.registry = noun, package, order, {}
            cls.shared_columns = shared_columns or {}
            Spec.families[noun] = cls

    def __new__(cls, *unnamed: Any, **named: Any) -> Self:
        # A subclass that is not registered would have the id of the kind from which it derives,
        # whose __init__ does not know the subclass's fields.
        del unnamed, named
        known: Any = cls.registry.get(cls.name)
        if known is not cls and (known is None or _home(known) != _home(cls)):
            raise UserError(
                f"{cls.__qualname__} is not a registered {cls.noun}; put @kind('a name') before "
                "the class"
            )
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for field in fields(type(self)):
            value = getattr(self, field.name)
            if value is not None or not field.optional:
                value = field.domain.validate(field.name, value)
                try:
                    hash(value)  # Specs are keys.
                except TypeError as error:
                    raise UserError(
                        f"{field.name}={short_repr(value)} must be hashable, got a "
                        f"{type(value).__name__}. Give a tuple; rows keep it as a list, which its "
                        "domain must take, too"
                    ) from error
                # The one place where a frozen value is written: its fields take their one form.
                object.__setattr__(self, field.name, value)
        self.check()

    def check(self) -> None:
        """Raises UserError for fields that do not go together."""

    def with_nested(self) -> Iterator["Spec"]:
        """The spec and those that are its fields, and theirs."""
        yield self
        for field in fields(type(self)):
            value = getattr(self, field.name)
            if isinstance(value, Spec):
                yield from value.with_nested()

    def replace(self, **changes: Any) -> Self:
        """The same spec with other values of these fields."""
        return dataclasses.replace(self, **changes)  # type: ignore[type-var]

    def canonical(self) -> dict[str, Any]:
        """The kind's name and every field, as JSON can write them."""
        values, flat = {"name": self.name}, []
        for field in fields(type(self)):
            if (value := getattr(self, field.name)) != field.omit:
                if isinstance(field, _Flat):
                    flat.append(field.canonical(value))
                else:
                    values[field.name] = _canonical(value)
        return self._merge([values, *flat]) if flat else values

    def cells(self) -> dict[str, Any]:
        """The spec's own columns of a row: those of its fields."""
        return self._merge([field.cells(getattr(self, field.name)) for field in fields(type(self))])

    def _merge(self, parts: list[dict[str, Any]]) -> dict[str, Any]:
        """One of all parts. Raises UserError for a column that two of them have."""
        found: dict[str, Any] = {}
        for own in parts:
            found |= own
        if len(found) < sum(map(len, parts)):
            counts = collections.Counter(itertools.chain.from_iterable(parts))
            raise UserError(
                f"{counts.most_common(1)[0][0]} is a column of two fields of {self.name}; rename "
                "yours, or give it column='another_name'"
            )
        return found

    @classmethod
    def check_kind(cls) -> None:
        """Raises UserError for a kind that lacks what its family has no default for."""

    def shared_cells(self) -> dict[str, Any]:
        """The cells of `shared_columns`."""
        return {name: getattr(self, name) for name in self.shared_columns}

    @classmethod
    def columns(cls) -> dict[str, Column]:
        """The columns that the kind's fields become, by name."""
        found: dict[str, Column] = {}
        for field in fields(cls):
            found |= field.columns()
        return found

    @classmethod
    def from_cells(cls, row: Mapping[str, Any]) -> Self:
        """The spec of which `cells` makes these columns; others are ignored.

        Raises:
          UserError: no spec has such columns; the line names the first that is wrong.
        """
        return cls(**{field.name: field.read(row) for field in fields(cls)})

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Self:
        """The spec of a row, of the kind that its column `noun` names.

        Raises:
          UserError: nobody registered the kind, or as `from_cells`.
        """
        return cls.get_kind(row.get(cls.noun)).from_cells(row)

    @classmethod
    def from_canonical(cls, found: Any) -> Self:
        """The spec of which `canonical` makes this.

        Raises:
          UserError: no spec has this canonical form; the line says why.

        >>> from memobench.tasks.associations import Associations
        >>> from memobench.core.task import Task
        >>> task = Associations(n_sequences=7)
        >>> Task.from_canonical(task.canonical()) == task
        True
        """
        if not isinstance(found, Mapping):
            raise UserError(f"{short_repr(found)} is not the spec of a {cls.noun}; give one")
        kind = cls.get_kind(found.get("name"))
        known = {"name"}.union(*(field.names(found) for field in fields(kind)))
        for name in found.keys() - known:
            raise UserError(f"{kind.name} has no field {short_repr(name)}; leave it out")
        for field in fields(kind):
            present = field.name in found or field.omit is not dataclasses.MISSING
            require(present, f"{field.name} is missing; give {field.name} a value")
        return kind(**{field.name: field.from_canonical(found) for field in fields(kind)})

    @classmethod
    def get_kind(cls, name: Any) -> type[Self]:
        """The kind of this name.

        Raises:
          UnknownKind: nobody registered it.
        """
        found = cls.kinds().get(name) if isinstance(name, str) else None
        if found is None:
            choices = ", ".join(sorted(cls.kinds()))
            raise UnknownKind(
                f"{cls.noun}={short_repr(name)} is unknown; choose one of {choices}, or load the "
                "file that defines it with --plugin"
            )
        return found

    @classmethod
    def kinds(cls) -> dict[str, type[Self]]:
        """Every kind of the family, by name: those of its folder and those of users' files.

        In `order`, then by name, whichever was imported first: columns follow it.
        """
        discover(cls.package)
        names = [name for name in cls.order if name in cls.registry]
        names += sorted(cls.registry.keys() - set(names))
        return {name: typing.cast(type[Self], cls.registry[name]) for name in names}


def check_code(specs: Iterable[Spec]) -> None:
    """Raises UnknownKind for the first spec of other code than its kind has here, by now."""
    every = (x for spec in specs for x in spec.with_nested())
    for kind, found in dict.fromkeys((type(x), getattr(x, "code", None)) for x in every):
        here = found and kind.code  # type: ignore[attr-defined]
        if found != here:
            raise UnknownKind(
                f"{kind.noun} {kind.name!r} has {here} here, and this is of {found}: its code, or "
                "a value that it reads, was edited in between; go back to that one, or make the "
                "run anew"
            )


@functools.cache
def discover(package: str) -> None:
    """Imports every module of a package, which registers the kinds that they define.

    And those of papers: where the package is `memobench.tasks`, `own_tasks` beside experiments.
    """
    if not package:
        return
    folder = importlib.import_module(package)
    for module in pkgutil.iter_modules(folder.__path__):
        importlib.import_module(f"{package}.{module.name}")
    papers = importlib.import_module("memobench.experiments")
    for paper in pkgutil.iter_modules(papers.__path__, f"{papers.__name__}."):
        name = f"{paper.name}.own_{package.rpartition('.')[2]}"
        if paper.ispkg and importlib.util.find_spec(name):
            importlib.import_module(name)


def _canonical(value: Any) -> Any:
    if isinstance(value, Spec):
        return value.canonical()
    if isinstance(value, tuple):
        return [_canonical(x) for x in value]
    # 1 and 1.0 are equal values; JSON would write them differently.
    return int(value) if isinstance(value, float) and value.is_integer() else value


def is_spec(family: type[Spec]) -> Domain:
    """Specs of a family, or of its one kind."""
    # Of a single kind the name is not a column, so that no other may stand in its place.
    several = "registry" in vars(family)
    return Domain(
        f"a {family.__name__}" if family.name else f"one of the {family.noun}s",
        lambda value: (
            value if (several and isinstance(value, family)) or type(value) is family else None
        ),
        made=(is_spec, family),
    )


def nested(
    family: type[Spec],
    meaning: str,
    default: Any = dataclasses.MISSING,
    *,
    omit: Any = dataclasses.MISSING,
) -> Any:
    """A field that holds another spec, whose columns stand beside the outer one's.

    Of a family of several kinds the kind's name is a column of the family's noun. With a spec to
    `omit`, see `declare`, the canonical form has cells in place of another canonical form.
    """
    domain = is_spec(family)
    require(
        omit is dataclasses.MISSING or "registry" in vars(family),
        f"omit must be left out, for {family.__name__} has no kinds that a column could name",
    )
    if isinstance(default, Spec):
        example = f"{domain.description}, such as memobench.{type(default).__name__}()"
        domain = dataclasses.replace(domain, description=example)
    field = declare(domain, meaning, default, omit=omit)
    field.metadata = {**field.metadata, "family": family}
    return field


def as_text(
    family: type[Spec], meaning: str, parse: Callable[[str], Spec], *, default: None
) -> Any:
    """A field that holds another spec or None, and is one column of text."""
    domain = dataclasses.replace(
        is_spec(family),
        write=str,
        read=lambda cell: parse(cell) if isinstance(cell, str) else cell,
    )
    return declare(domain, meaning, default)


@typing.dataclass_transform(
    frozen_default=True,
    kw_only_default=True,
    field_specifiers=(declare, integer, number, choice, flag, nested, as_text),
)
def kind(name: str) -> Callable[[_Kind], _Kind]:
    """Makes a class a frozen dataclass and registers it under a name in its family."""
    require(not isinstance(name, type), '@kind needs a name: @kind("...")')
    file = sys._getframe(1).f_code.co_filename

    def register(cls: _Kind) -> _Kind:
        require(
            isinstance(cls, type) and issubclass(cls, Spec) and bool(cls.noun),
            f"@kind({name!r}): {short_repr(cls)} is not of a family; derive from one, such as Task",
        )
        require(
            "__dataclass_fields__" not in vars(cls),
            f"@kind({name!r}) makes {cls.__qualname__} a dataclass, which it is; remove "
            "@dataclass, or the other @kind, below it",
        )
        own_code.note_file(cls, file)
        is_users = cls.has_code and not own_code.in_tree(cls)
        if is_users:
            _add_code(cls)
        made: Any = check_arguments(dataclasses.dataclass(frozen=True, kw_only=True)(cls))
        if is_users:
            made.code = own_code.Current()
        made.name = NAME.validate("name", name)
        _check_fields(made)
        made.check_kind()
        REGISTERED.append(name)
        before = made.registry.setdefault(name, made)
        if before is not made:
            require(
                _home(before) == _home(made),
                f"{made.noun} name={name!r} is that of {_class_and_file(before)} already; "
                "choose another name",
            )
            made.registry[name] = made
        return made

    return register


def _add_code(cls: Any) -> None:
    """Gives a user's kind the field `code`; rows from before there was one have none."""
    annotations = inspect.get_annotations(cls, **_UNDEFINED)
    require("code" not in annotations, f"{cls.__qualname__}.code is taken; rename the field")
    meaning = f"code of a user's kind of {cls.noun}, see memobench.core.own_code"
    field = declare(NAME, meaning, column=f"{cls.noun}_code", optional=True, omit=None)
    # Of the moment when a spec is made: what the class reads may be set later, and again.
    field.default_factory = lambda: own_code.code_of(cls)
    cls.code = field
    cls.__annotations__ = {**annotations, "code": str | None}


def _home(cls: type) -> tuple[bool, str, str]:
    """The place of a class's definition, which is equal after its file was loaded once more."""
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    return own_code.in_tree(cls), file or cls.__module__, cls.__qualname__


def _class_and_file(cls: type) -> str:
    """A class, and the file that defines it if that is a user's."""
    if own_code.in_tree(cls):
        return f"{cls.__module__}.{cls.__qualname__}"
    return f"{cls.__qualname__} of {getattr(sys.modules.get(cls.__module__), '__file__', 'here')}"


def _check_fields(cls: Any) -> None:
    """Raises UserError for fields that neither id nor columns would tell apart from others."""
    for field in dataclasses.fields(cls):
        where = f"{cls.__qualname__}.{field.name}"
        require(
            "domain" in field.metadata,
            f"{where} is not declared: make it with integer, number, choice, flag or declare of "
            "memobench.core.columns, so that ids and tables hold it",
        )
        taken = {cls.noun, "name", "registry"} & {field.name, field.metadata["column"]}
        require(
            not taken and not hasattr(Spec, field.name),
            f"{where} has a name that every {cls.noun} has already; rename the field",
        )
        column = field.metadata["column"] or field.name
        require(
            column not in cls.taken,
            f"{where} has the name of a column of the board or of certified weights; rename it",
        )


class _Field:
    """A field of a spec that is one column."""

    def __init__(self, field: dataclasses.Field) -> None:
        self.metadata = field.metadata
        self.name, self.domain = field.name, field.metadata["domain"]
        self.omit, self.optional = field.metadata["omit"], field.metadata["optional"]
        self.column: Any = field.metadata["column"] or field.name

    def cells(self, value: Any) -> dict[str, Any]:
        # As in a table that is older than the field.
        empty = value is None or value == self.omit
        return {self.column: None if empty else self.domain.write(value)}

    def columns(self) -> dict[str, Column]:
        meaning, unit, over_seeds = (self.metadata[x] for x in ("meaning", "unit", "over_seeds"))
        return {self.column: Column(self.column, meaning, self.domain, unit, None, over_seeds)}

    def read(self, row: Mapping[str, Any]) -> Any:
        cell = row.get(self.column)
        if is_empty(cell):
            if self.omit is not dataclasses.MISSING:
                return self.omit
            require(self.optional, f"{self.column} is missing; give {self.column} a value")
            return None
        return self.domain.validate(self.column, self.domain.read(cell))

    def names(self, found: Mapping[str, Any]) -> Iterable[str]:
        """The keys that the field may have in a canonical form."""
        del found
        return [self.name]

    def from_canonical(self, found: Mapping[str, Any]) -> Any:
        return found.get(self.name, self.omit)


class _Nested(_Field):
    """A field of a spec that is the columns of another spec."""

    def __init__(self, field: dataclasses.Field) -> None:
        super().__init__(field)
        self.family = field.metadata["family"]
        # The one kind of a family has no registry of its own.
        self.column = self.family.noun if "registry" in vars(self.family) else ""

    def cells(self, value: Any) -> dict[str, Any]:
        named = {self.column: value.name} if self.column else {}
        return {**named, **value.cells()}

    def columns(self) -> dict[str, Column]:
        if not self.column:
            return self.family.columns()
        named = by_name(Column(self.column, self.metadata["meaning"], NAME, over_seeds="same"))
        return merge(named, *(cls.columns() for cls in self.family.kinds().values()))

    def read(self, row: Mapping[str, Any]) -> Any:
        cls = self.family.get_kind(row.get(self.column)) if self.column else self.family
        return cls.from_cells(row)

    def from_canonical(self, found: Mapping[str, Any]) -> Any:
        value = super().from_canonical(found)
        return self.family.from_canonical(value) if isinstance(value, Mapping) else value


class _Flat(_Nested):
    """A field that holds another spec, whose cells stand in the outer one's canonical form."""

    def cells(self, value: Any) -> dict[str, Any]:
        return {self.column: None} if value == self.omit else super().cells(value)

    def names(self, found: Mapping[str, Any]) -> Iterable[str]:
        name = found.get(self.column)
        return [self.column, *(self.family.get_kind(name).columns() if name else ())]

    def canonical(self, value: Any) -> dict[str, Any]:
        cells = self.cells(value)
        return {name: _canonical(cell) for name, cell in cells.items() if cell is not None}

    def read(self, row: Mapping[str, Any]) -> Any:
        return self.omit if is_empty(row.get(self.column)) else super().read(row)

    def from_canonical(self, found: Mapping[str, Any]) -> Any:
        return self.read(found)


def _fields(cls: Any) -> tuple[_Field, ...]:
    """The declared fields of a kind: `name`, `domain`, `metadata`, `optional`, `omit`."""
    return tuple(
        _class_of(field.metadata)(field)
        for field in dataclasses.fields(cls)
        if "domain" in field.metadata
    )


def _class_of(metadata: Mapping[str, Any]) -> type[_Field]:
    if "family" not in metadata:
        return _Field
    return _Nested if metadata["omit"] is dataclasses.MISSING else _Flat


fields: Callable[[Any], tuple[_Field, ...]] = functools.cache(_fields)
