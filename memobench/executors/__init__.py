"""Where packs run: this process, or an engine for clusters.

One pack in, one shard out: an executor calls `work(pack)` somewhere and says how that ended.
Whether the pack's runs are done, only shards say.
"""

import dataclasses
import importlib
import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from memobench.errors import UserError
from memobench.packing import Pack

# Rows and provenance of one shard.
Shard = tuple[list[dict[str, Any]], dict[str, Any]]

# By name: the module and the class in it, imported when it is asked for.
EXECUTORS = {
    "local": ("memobench.executors.local", "Local"),
    "ray": ("memobench.executors.ray", "Ray"),
    "slurm": ("memobench.executors.slurm", "Slurm"),
}


@dataclasses.dataclass(frozen=True)
class Ended:
    """How the work on a pack ended, as its executor saw it.

    error: the reason in one line; None where the worker came to its end. shards: what it brought
    back beside what it wrote, of an executor within this process.
    """

    pack: Pack
    error: str | None = None
    shards: Sequence[Shard] = ()


class Executor(Protocol):
    """An engine for packs.

    platform: "cpu", "gpu" or "tpu", for which packs are planned. n_devices: how many of them share
    a pack. retries: how often a pack whose work ended without its shard is handed in again.
    """

    platform: str
    n_devices: int
    retries: int

    def submit(self, packs: Sequence[Pack]) -> None:
        """Queues the work on packs and returns at once."""

    def ended(self, timeout: float) -> list[Ended]:
        """What ended since this was asked last; waits up to `timeout` seconds for the first."""

    def close(self) -> None:
        """Cancels what is queued or running, and frees what this executor started."""


def make(name: str, options: Mapping[str, Any], **given: Any) -> Executor:
    """The executor of this name, with options of its user's beside what a sweep gives it.

    Raises UserError for another name or option, or where the executor's extra is missing.
    """
    if name not in EXECUTORS:
        raise UserError(f"executor={name!r} is unknown; choose one of {', '.join(EXECUTORS)}")
    module, attribute = EXECUTORS[name]
    kind = getattr(importlib.import_module(module), attribute)
    parameters = inspect.signature(kind).parameters
    known = [x for x in parameters if x not in given]
    # Settings of its engine's own.
    more = any(x.kind is inspect.Parameter.VAR_KEYWORD for x in parameters.values())
    for option in options:
        if option in given or not (option in known or more):
            choices = f"it has {', '.join(known)}" if known else "it has none"
            raise UserError(f"option {option!r} is unknown to executor={name!r}; {choices}")
    return kind(**given, **options)
