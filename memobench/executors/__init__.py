"""Executors: where packs run, in this process or on a cluster. Imports no JAX.

One pack in, one shard out: an executor calls `work(pack)` somewhere and says how that ended.
Whether the pack's runs are done, only shards say.

An executor is one file here, or any file that is imported: a class with `@kind("its_name")`, whose
fields are its options, and a method `start`. The packages it needs are imported where it starts.
"""

import contextlib
import dataclasses
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

from memobench.common.errors import UserError, require, short_repr, suggest
from memobench.core.columns import text_matching
from memobench.core.spec import Spec

if TYPE_CHECKING:
    from memobench.core.run import Pack

# Rows and provenance of one shard.
Shard = tuple[list[dict[str, Any]], dict[str, Any]]
# Trains a pack and writes its shard; raises where it fails.
Work = Callable[..., Any]
# Called with a pack and with its model-steps done since the last call.
OnPackSteps = Callable[["Pack", int], None]


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


# An option that is text.
TEXT = text_matching(r".*", "text")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Executor(Spec):
    """Base of all executors. A kind gives `start`; its fields are options.

    retries: how often a pack whose work ended without its shard is handed in again. in_process:
    whether it works in this process; then results need no folder.
    """

    noun: ClassVar[str] = "executor"
    package: ClassVar[str] = __name__
    registry: ClassVar[dict[str, type[Spec]]] = {}
    has_code: ClassVar[bool] = False
    retries: ClassVar[int] = 2
    in_process: ClassVar[bool] = False

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

    def check_machine(self) -> None:
        """Raises UserError where this machine lacks what `start` will need. It takes no time."""

    @classmethod
    def make(cls, options: Mapping[str, Any]) -> Self:
        """The executor with these options. Raises UserError for another name or value."""
        fields = [field.name for field in dataclasses.fields(cls)]
        for name in options:
            hint = suggest(name, fields) if fields else "; it has none"
            require(
                name in fields,
                f"option {short_repr(name)} is unknown to executor={cls.name!r}{hint}",
            )
        return cls(**options)

    @classmethod
    def read(cls, name: str, text: str) -> Any:
        """The value that a text of the command line stands for; the text itself if it is none."""
        about = {field.name: field.metadata for field in dataclasses.fields(cls)}.get(name)
        if about is None or (text == "None" and about["optional"]):
            return None if about else text
        readings = (value for value in _readings(text) if about["domain"].holds(value))
        return next(readings, text)


def make(name: str, options: Mapping[str, Any]) -> Executor:
    """The executor of this name with options. Raises UserError for another name or option."""
    return Executor.get_kind(name).make(options)


def read(name: str, options: Sequence[str]) -> Executor:
    """The executor of this name with options as NAME=VALUE. Raises UserError for others."""
    chosen, values = Executor.get_kind(name), {}
    for text in options:
        field, equals, value = text.partition("=")
        if not equals or not field.isidentifier():
            raise UserError(
                f"--option={short_repr(text)[1:-1]} is no NAME=VALUE, such as --option=workers=4"
            )
        values[field] = chosen.read(field, value)
    return chosen.make(values)


def describe() -> str:
    """Every executor with its options and their defaults, a line each."""
    lines = ["executors, and what --option sets of each:"]
    width = max(map(len, Executor.kinds()))
    for name, cls in Executor.kinds().items():
        first = (cls.__doc__ or "").partition("\n")[0]
        lines.append(f"  {name:{width}s}  {first}")
        for field in dataclasses.fields(cls):
            default = "" if field.default is dataclasses.MISSING else f"={field.default}"
            lines.append(f"    {field.name + default:24s}  {field.metadata['meaning']}")
    return "\n".join(lines)


def _readings(text: str) -> Iterator[Any]:
    """What a text may stand for: True or False, a number, itself."""
    if text in ("True", "False"):
        yield text == "True"
    for number in (int, float):
        with contextlib.suppress(ValueError):
            yield number(text)
    yield text
