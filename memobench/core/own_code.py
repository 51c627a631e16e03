"""The code of users' kinds as a part of run ids: a hash of it, or a version that they declare.

Kinds of memobench have versions of memobench. A user edits a file or a cell and runs it again under
the old name: with its code in its id, an edited kind is another one, and nothing old is taken for
new.

The code of a kind is its class as it is in memory, and what that reads: functions by their text,
and values of globals, closures, defaults and attributes, whichever file or cell they are from. What
libraries define counts by its name, and what they were given by value. Comments, blank lines and
what is not read may change. Imports no JAX.
"""

import collections
import contextlib
import dataclasses
import enum
import functools
import hashlib
import importlib
import importlib.util
import inspect
import io
import itertools
import logging
import pathlib
import pickle
import sys
import types
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

from memobench.common.errors import UserError, in_a_line, is_ours
from memobench.core import source
from memobench.core.columns import NAME

_DIGITS = 12
# No user's, even where they are installed as a checkout.
_LIBRARIES = {"memobench", "jax", "jaxlib", "flax", "optax", "chex", "numpy", "scipy", "pandas"}
# What pickles by value, and is met most.
_PLAIN = {types.NoneType, bool, int, float, complex, str, bytes, list, tuple, dict}
# Members that Python adds to classes.
_ADDED = {"_abc_impl", "__annotate__", "__annotate_func__"}
_SLOTS = (
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    type(collections.namedtuple("_", "x").x),  # type: ignore[attr-defined]
)


_FILES: weakref.WeakKeyDictionary[type, str] = weakref.WeakKeyDictionary()


def note_file(cls: type, file: str) -> None:
    """Keeps the file of the code that registers a kind; `__module__` is what a kind says."""
    _FILES[cls] = file


def file_of(cls: type) -> str:
    """The file that registered a kind, or the cell of a notebook or the like; may be empty."""
    return _FILES.get(cls, "")


def in_tree(cls: type) -> bool:
    """True for a kind of memobench's own: a file of it or of its experiments registered it."""
    return is_ours(file_of(cls))


def code_of(cls: type) -> str:
    """The name of a class's code as it is now: `version-` and its `version`, or `code-` and a hash.

    Raises:
      UserError: it has no version, and its code cannot be hashed.
    """
    if version := vars(cls).get("version"):
        return f"version-{NAME.validate('version', version)}"
    return f"code-{_Walk(cls).digest(cls)[:_DIGITS]}"


class Current:
    """An attribute of a class: its `code_of` at the time that it is read."""

    def __get__(self, instance: Any, cls: type) -> str:
        return code_of(cls)


def files(cls: type) -> set[str]:
    """The files in which a class and what it rests on are written, and those that they import."""
    walk = _Walk(cls)
    walk.digest(cls)
    waiting = list(walk.files.items())
    while waiting:
        file, package = waiting.pop()
        parsed = source.file("".join(source.lines_of(file)))
        for spec in walk.find_imported(source.names(parsed.code), package) if parsed else ():
            if spec.origin not in walk.files:
                walk.files[spec.origin] = spec.parent
                waiting.append((spec.origin, spec.parent))
    return set(walk.files)


class _Walk:
    """A walk through all that a class rests on.

    Attributes:
      files: the user's files in which it is written, and the package of each.
    """

    def __init__(self, cls: type) -> None:
        self.files: dict[str, str | None] = {}
        self._cls, self._reading = cls, cls.__qualname__
        file = getattr(sys.modules.get(cls.__module__), "__file__", None)
        self._home = _root(file) if file else None
        # By id; the things are kept, so that no other takes their place in memory. The third is the
        # id of what is highest above a thing that it refers to, or its own.
        self._done: dict[int, tuple[str, Any, int]] = {}
        self._open: list[int] = []
        self._highest = 0

    def digest(self, thing: Any) -> str:
        """A hash that is equal for what does the same, in every process.

        Pickles decide what a value is made of. For functions, classes and sets they would depend on
        more than that: see `digest_inside`.
        """
        file = io.BytesIO()
        try:
            _Pickler(self, file).dump(thing)
        except UserError:
            raise
        except Exception as error:
            raise UserError(
                f"{self._cls.__qualname__} reads {self._reading}, whose value no id can hold "
                f"({in_a_line(error)}); give the class version = '1'"
            ) from error
        return hashlib.sha256(file.getvalue()).hexdigest()

    def digest_inside(self, thing: Any, names: Collection[str] = ()) -> str | None:
        """The digest of what does not pickle by value; None for all else.

        Args:
          thing: any value.
          names: those that are read of it, where it is a module.
        """
        if type(thing) in _PLAIN:
            return None
        digest, _, above = self._done.get(id(thing), (None, None, id(thing)))
        if above in self._open:
            self._highest = min(self._highest, self._open.index(above))
            digest = digest or f"that above, {len(self._open) - self._open.index(above)}"
        if digest:
            return digest
        before, self._highest = self._highest, len(self._open)
        self._open.append(id(thing))
        is_module = isinstance(thing, ModuleType)
        parts = self._module(thing, names) if is_module else self._parts(thing)
        found = None if parts is None else self.digest([type(thing).__name__, *parts])
        above = self._open[self._highest]
        self._open.pop()
        if found and not is_module:
            self._done[id(thing)] = found, thing, above
        # Within a cycle the digest depends on where that was entered.
        if found and isinstance(thing, FunctionType) and above == id(thing):
            last, _LAST[thing] = _LAST.get(thing, found), found
            if last != found:
                _forget()
        self._highest = min(before, self._highest)
        return found

    def find_imported(self, names: source.Names, package: str | None) -> Iterator[Any]:
        """The specs of the user's modules that code imports."""
        for module, level, given in names.imports:
            try:
                name = importlib.util.resolve_name("." * level + module, package)
            except ImportError:
                continue
            packages = itertools.accumulate(name.split("."), "{}.{}".format)
            for each in (*packages, *(f"{name}.{x}" for x in given)):
                spec = source.find_spec(each)
                if spec and self._owns({"__name__": each, "__file__": spec.origin}):
                    yield spec
                elif name.startswith(each):
                    break  # A library's, whose modules need not be imported.

    def _owns(self, names: Mapping[str, Any]) -> bool:
        """True for a user's module, of which these are the names, and false for a library."""
        module, file = names.get("__name__") or "", names.get("__file__")
        top = module.partition(".")[0]
        if top in _LIBRARIES:
            return module.startswith("memobench.core.plugins.")
        if not file:  # Such as a notebook.
            return top not in sys.stdlib_module_names
        if not source.is_installed(file):
            return True
        return self._home in (pathlib.Path(file), *pathlib.Path(file).parents)

    def _parts(self, thing: Any) -> Iterable[Any] | None:
        """The parts of a thing; None where its pickle says them."""
        home = getattr(thing, "__module__", None)
        module = sys.modules.get(home) if isinstance(home, str) else None
        names = vars(module) if module else {"__name__": home}
        if module and not self._owns(names) and (name := _name_in(module, thing)):
            return home, name
        if isinstance(thing, FunctionType):
            return self._function(thing)
        if isinstance(thing, type):
            return self._class(thing, names)
        if isinstance(thing, set | frozenset):
            return sorted(map(self.digest, thing))
        if isinstance(thing, np.ufunc) and (name := _name_in(np, thing)):
            return (name,)  # It does not know its module.
        if isinstance(thing, logging.Logger):
            return ()  # Its name may hold a path, and no result depends on it.
        if isinstance(thing, property):
            return thing.fget, thing.fset, thing.fdel
        if isinstance(thing, staticmethod | classmethod):
            return (thing.__func__,)
        if isinstance(thing, functools.cached_property):
            return (thing.func,)
        if isinstance(thing, types.MappingProxyType):
            return (dict(thing),)
        if any(x.__module__ == "flax.linen.module" for x in type(thing).__mro__):
            # Flax numbers its modules.
            return type(thing), *((x.name, getattr(thing, x.name, None)) for x in _fields(thing))
        return (_attributes(thing),) if hasattr(thing, "__wrapped__") else None

    def _digest_names(self, values: Mapping[str, Any], names: Collection[str] = ()) -> list[Any]:
        """Names and digests of values, in the order of the names."""
        found = []
        for name, value in sorted(values.items()):
            before, self._reading = self._reading, name
            module = isinstance(value, ModuleType)
            found += [name, self.digest_inside(value, names) if module else self.digest(value)]
            self._reading = before
        return found

    def _module(self, module: ModuleType, names: Collection[str]) -> Iterable[Any]:
        if not self._owns(vars(module)):
            return (module.__name__,)
        if file := getattr(module, "__file__", None):
            self.files[file] = module.__package__
        every = {x: y for x, y in vars(module).items() if not x.startswith("__")}
        # Where none of its names is read it is handed on as a whole.
        return self._digest_names({x: every[x] for x in names if x in every} or every, names)

    def _function(self, function: FunctionType) -> Iterable[Any]:
        own, code = function.__globals__, function.__code__
        held = [function.__defaults__, function.__kwdefaults__]
        if not self._owns(own):
            if own.get("__name__") == "flax.linen.module" and hasattr(function, "__wrapped__"):
                return (function.__wrapped__,)  # Flax wraps all methods of modules.
            # Of the wrapper: the function's own are those of what it wraps, a user's file.
            called = own.get("__name__"), code.co_qualname
            unnamed = code.co_names if code.co_name == "<lambda>" else ()
            return *called, unnamed, *held, *self._digest_names(_closure(function))
        package = own.get("__package__")
        self.files[own.get("__file__") or code.co_filename] = package
        try:
            text = source.text(code)
        except UserError as error:
            name = self._cls.__qualname__
            raise UserError(f"{name}: {error}, or give the class version = '1'") from error
        names = source.names(code)
        # The module's name and path are others in another folder.
        read = {x: own.get(x) for x in names.globals if not x.startswith("__")}
        # What it imports when it is called.
        read |= {f"{x.name}.": _module(x.name) for x in self.find_imported(names, package)}
        values = (_attributes(function), _closure(function), read)
        return text, *held, *(self._digest_names(x, names.every) for x in values)

    def _class(self, cls: Any, own: Mapping[str, Any]) -> Iterable[Any]:
        if not self._owns(own):
            # Not in its module by its name: a library made it, as `nn.remat` of a module.
            wrapped = {x: y for x, y in vars(cls).items() if hasattr(y, "__wrapped__")}
            return cls.__module__, cls.__qualname__, cls.__bases__, *self._digest_names(wrapped)
        if own.get("__file__"):
            self.files[own["__file__"]] = own.get("__package__")
        # Fields with a domain are in ids by their values.
        others = [x for x in _fields(cls) if "domain" not in x.metadata]
        known = {x.name for x in _fields(cls)} - {x.name for x in others}
        members = {x: vars(cls)[x] for x in vars(cls).keys() - known}
        members = {x: y for x, y in members.items() if self._is_written(x, y)}
        if issubclass(cls, enum.Enum):
            members = {x: y for x, y in members.items() if not x.endswith("_")}
            members |= {x: y.value for x, y in cls.__members__.items()}
        made = {x.name: x.default_factory for x in others}
        bases = type(cls), cls.__bases__
        return cls.__name__, bases, [*made], self._digest_names(made), self._digest_names(members)

    def _is_written(self, name: str, member: Any) -> bool:
        """True for members of a class that a user wrote, not a decorator, a library or Python."""
        if name in _ADDED or isinstance(member, (Current, *_SLOTS)):
            return False
        if not name.startswith("__"):
            return True
        function = inspect.unwrap(getattr(member, "__func__", member))
        if not isinstance(function, FunctionType):
            return callable(function) and not isinstance(function, type)
        # Dataclasses make theirs of strings.
        return self._owns(function.__globals__) and function.__code__.co_filename != "<string>"


class _Pickler(pickle.Pickler):
    """A pickler whose bytes do not depend on which of equal things are one."""

    def __init__(self, walk: _Walk, file: io.BytesIO) -> None:
        super().__init__(file, protocol=4)
        self.fast, self._walk = True, walk

    def persistent_id(self, thing: Any) -> str | None:
        return self._walk.digest_inside(thing)


# The last digest of each function. JAX keeps what it traced of one, whatever that has read.
_LAST: weakref.WeakKeyDictionary[FunctionType, str] = weakref.WeakKeyDictionary()


def _forget() -> None:
    """Drops what JAX traced of functions that read another value now."""
    if jax := sys.modules.get("jax"):
        jax.clear_caches()


def _root(file: str) -> pathlib.Path:
    """The folder of the outermost package of a file, or the file if it is in none."""
    path = pathlib.Path(file)
    while (path.parent / "__init__.py").exists():
        path = path.parent
    return path


def _name_in(module: ModuleType, thing: Any) -> str | None:
    """The name under which a module has a thing, if it does."""
    name, found = getattr(thing, "__qualname__", None) or getattr(thing, "__name__", None), module
    for part in str(name).split("."):
        found = getattr(found, part, None)  # type: ignore[assignment]
    return name if found is thing else None


def _module(name: str) -> Any:
    """A module, imported; None where that fails, as it will when it is needed."""
    with contextlib.suppress(Exception):
        return importlib.import_module(name)


def _fields(thing: Any) -> Iterable[Any]:
    return dataclasses.fields(thing) if dataclasses.is_dataclass(thing) else ()


def _attributes(thing: Any) -> dict[str, Any]:
    """The attributes of a function or a wrapper of one, but for those that describe it."""
    own = getattr(thing, "__dict__", {}).items()
    return {x: y for x, y in own if x == "__wrapped__" or not x.startswith("_")}


def _closure(function: FunctionType) -> dict[str, Any]:
    """The values of a function's free variables that have one yet."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    found = {}
    for name, cell in cells:
        with contextlib.suppress(ValueError):
            found[name] = cell.cell_contents
    return found
