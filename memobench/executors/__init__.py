"""Executors: where packs run, in this process or on a cluster. Imports no JAX.

One pack in, one shard out: an executor calls `work(pack)` somewhere and says how that ended.
Whether the pack's runs are done, only shards say.

An executor is one file here, or any file that is imported: a frozen dataclass with a `name`, whose
fields are its options, and a method `start`. The packages it needs are imported where it starts.
"""

import contextlib
import dataclasses
import functools
import importlib
import math
import pathlib
import pkgutil
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

from memobench.errors import UserError, closest

if TYPE_CHECKING:
    from memobench.planner.packing import Pack

# Rows and provenance of one shard.
Shard = tuple[list[dict[str, Any]], dict[str, Any]]
# Trains a pack and writes its shard; raises where it fails.
Work = Callable[..., Any]
# Called with a pack and with its model-steps done since the last call.
OnPackSteps = Callable[["Pack", int], None]

_TYPE_NAMES = {int: "a whole number", float: "a number", str: "text", bool: "True or False"}
_TYPE_NAMES[type(None)] = "None"
_kinds: dict[str, type["Executor"]] = {}


@dataclasses.dataclass(frozen=True)
class Ended:
    """How the work on a pack ended, as its executor saw it.

    error: the reason in one line; None where the worker came to its end. shards: what it brought
    back beside what it wrote, of an executor within this process.
    """

    pack: "Pack"
    error: str | None = None
    shards: Sequence[Shard] = ()


class Pool:
    """An executor at work.

    platform: "cpu", "gpu" or "tpu", for which packs are planned. n_devices: how many of them share
    a pack.
    """

    platform: str = "cpu"
    n_devices: int = 1

    def submit(self, packs: Sequence["Pack"]) -> None:
        """Queues the work on packs and returns at once."""
        raise NotImplementedError

    def ended(self, timeout: float) -> list[Ended]:
        """What ended since this was asked last; waits up to `timeout` seconds for the first."""
        raise NotImplementedError

    def close(self) -> None:
        """Cancels what is queued or running, and frees what was started."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Executor:
    """Base of all executors; a subclass with a `name` is known by it as soon as it is defined.

    Its fields are options, made by `option`: each a whole number, a number, text, True or False, or
    one of these or None.

    name: as in `--executor=NAME`. retries: how often a pack whose work ended without its shard is
    handed in again. in_process: whether it works in this process; then results need no folder.
    """

    name: ClassVar[str] = ""
    retries: ClassVar[int] = 2
    in_process: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        if "name" not in vars(cls):
            return
        known = _kinds.setdefault(cls.name, cls)
        if (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
            raise UserError(
                f"executor name={cls.name!r} is that of {known.__module__}.{known.__qualname__}; "
                "choose another"
            )
        _kinds[cls.name] = cls

    def start(self, work: Work, folder: pathlib.Path | None, on_steps: OnPackSteps) -> Pool:
        """Begins to take packs.

        Args:
          work: called with a pack; it can be pickled. In this process it is called with a pack and
            with what it calls with the model-steps done since.
          folder: of the results, which all workers share; None only in this process.
          on_steps: in this process, called with a pack and those steps.

        Raises UserError where it cannot start.
        """
        raise NotImplementedError

    def check(self) -> None:
        """Raises UserError where this machine lacks what `start` will need. It takes no time."""

    @classmethod
    def make(cls, options: Mapping[str, Any]) -> Self:
        """The executor with these options. Raises UserError for another name, type or range."""
        fields = {field.name: field for field in dataclasses.fields(cls)}
        for name, value in options.items():
            if name not in fields:
                hint = closest(name, fields) if fields else "; it has none"
                raise UserError(f"option {name!r} is unknown to executor={cls.name!r}{hint}")
            accepted, least = _types(cls, name), fields[name].metadata["least"]
            if type(value) not in accepted and not (type(value) is int and float in accepted):
                wanted = " or ".join(_TYPE_NAMES[x] for x in accepted)
                raise UserError(f"option {name}={value!r} is not {wanted}")
            if least is not None and value is not None and not least <= value < math.inf:
                raise UserError(f"option {name}={value!r} is not at least {least}")
        return cls(**options)

    @classmethod
    def read(cls, name: str, text: str) -> Any:
        """The value that a text of the command line stands for; the text itself if it is none."""
        return _read(text, _types(cls, name))


def option(default: Any, meaning: str, least: float | None = None) -> Any:
    """A field of an executor: its default, what it is in one line, and its smallest value."""
    return dataclasses.field(default=default, metadata={"meaning": meaning, "least": least})


def find() -> dict[str, type[Executor]]:
    """The executors by name: those of this folder and those of files imported so far."""
    _discover()
    return dict(_kinds)


def kind(name: str) -> type[Executor]:
    """The executor of this name. Raises UserError for another."""
    if name not in (known := find()):
        raise UserError(f"executor={name!r} is unknown{closest(name, known)}")
    return known[name]


def make(name: str, options: Mapping[str, Any]) -> Executor:
    """The executor of this name with options. Raises UserError for another name or option."""
    return kind(name).make(options)


def read(name: str, options: Sequence[str]) -> Executor:
    """The executor of this name with options as NAME=VALUE. Raises UserError for others."""
    chosen, values = kind(name), {}
    for text in options:
        field, equals, value = text.partition("=")
        if not equals or not field.isidentifier():
            raise UserError(f"--option={text} is no NAME=VALUE, such as --option=workers=4")
        values[field] = chosen.read(field, value)
    return chosen.make(values)


def describe() -> str:
    """Every executor with its options and their defaults, a line each."""
    lines = ["executors, and what --option sets of each:"]
    width = max(map(len, find()))
    for name, cls in find().items():
        lines.append(f"  {name:{width}s}  {(cls.__doc__ or '').splitlines()[0]}")
        for field in dataclasses.fields(cls):
            default = "" if field.default is dataclasses.MISSING else f"={field.default}"
            lines.append(f"    {field.name + default:24s}  {field.metadata['meaning']}")
    return "\n".join(lines)


@functools.cache
def _discover() -> None:
    for module in pkgutil.iter_modules(__path__, f"{__name__}."):
        importlib.import_module(module.name)


def _types(cls: type[Executor], name: str) -> tuple[type, ...]:
    """What a field may be; of a name that is no field any text."""
    hint = typing.get_type_hints(cls).get(name, str)
    return typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)


def _read(text: str, accepted: tuple[type, ...]) -> Any:
    named = {"None": None, "True": True, "False": False}
    if text in named and type(named[text]) in accepted:
        return named[text]
    for number in (int, float):
        if number in accepted or float in accepted:
            with contextlib.suppress(ValueError):
                return number(text)
    return text
