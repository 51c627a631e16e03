"""A command, and what commands share: flags and the choice of experiments.

A file `memobench/commands/NAME.py` with a `COMMAND` is the command `memobench NAME`; nothing else
lists it. Its imports are quick: what takes long is imported where the command runs.
"""

import dataclasses
import fnmatch
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from absl import flags
from absl.flags import FlagHolder

from memobench.errors import UserError, closest

if TYPE_CHECKING:
    from memobench.experiment import Experiment


@dataclasses.dataclass(frozen=True)
class Command:
    """What `memobench NAME` does.

    run: called with the arguments; the first line of its docstring is the command's line in
    `memobench --help`. arguments: their name in the usage, "" where there are none. flags: those
    that the command knows. more: text below its `--help`.
    """

    run: Callable[[list[str]], None]
    arguments: str = ""
    flags: tuple[FlagHolder, ...] = ()
    more: Callable[[], str] = lambda: ""


class _Folder(flags.ArgumentParser[str]):
    """The path of a folder; an empty one is a mistake, such as a shell variable without a value."""

    syntactic_help = "a folder"

    def parse(self, argument: str) -> str:
        if not argument:
            raise ValueError("name a folder")
        return argument


PRESET = flags.DEFINE_enum(
    "preset", "quick", ["quick", "full"], "How much of an experiment: quick, the default, or full."
)
RESULTS = flags.DEFINE(
    _Folder(), "results", "results/runs", "Folder of the shards; results/runs by default."
)
OUTPUT = flags.DEFINE(
    _Folder(), "output", "results", "Folder for what is written; results by default."
)


def choose(names: Sequence[str]) -> list["Experiment"]:
    """The experiments of these names, patterns (`dana2025/*`) and papers (`dana2025`), each once.

    Raises UserError for a name that none has.
    """
    from memobench.experiments import EXPERIMENTS

    if not names:
        raise UserError(f"name an experiment: {', '.join(EXPERIMENTS)}")
    chosen: dict[str, Experiment] = {}
    for name in names:
        matching = _matching(EXPERIMENTS, name)
        if not matching:
            raise UserError(f"unknown experiment {name!r}{closest(name, EXPERIMENTS)}")
        chosen |= {match: EXPERIMENTS[match] for match in matching}
    return list(chosen.values())


def _matching(names: Sequence[str], pattern: str) -> list[str]:
    """The names that a pattern matches, or that begin with it as their paper.

    >>> _matching(["dana2025/heads", "dana2025/slopes", "board/64"], "dana2025")
    ['dana2025/heads', 'dana2025/slopes']
    >>> _matching(["dana2025/heads", "dana2025/slopes", "board/64"], "*/heads")
    ['dana2025/heads']
    """
    folder = pattern.rstrip("/") + "/"
    return [name for name in names if fnmatch.fnmatch(name, pattern) or name.startswith(folder)]
