"""A command, and what commands share: flags and the choice of experiments.

A file `memobench/cli/commands/NAME.py` with a `COMMAND` is the command `memobench NAME`; nothing
else lists it. Its imports are quick: what takes long is imported where the command runs.
"""

import dataclasses
import os
import pathlib
import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from absl import flags
from absl.flags import FlagHolder

from memobench.common.errors import UserError, suggest
from memobench.common.folders import RUNS, SHARDS
from memobench.common.notation import match_names

if TYPE_CHECKING:
    from memobench.experiment import Experiment


@dataclasses.dataclass(frozen=True)
class Command:
    """One command, `memobench NAME`.

    Attributes:
      run: called with the arguments; the first line of its docstring is the command's line in
        `memobench --help`.
      arguments: their name in the usage; "" for a command without any.
      flags: those that the command knows.
    """

    run: Callable[[list[str]], None]
    arguments: str = ""
    flags: tuple[FlagHolder, ...] = ()


class _Folder(flags.ArgumentParser[str]):
    """The path of a folder; an empty one is a mistake, such as a shell variable without a value."""

    syntactic_help = "a folder"

    def parse(self, argument: str) -> str:
        if not argument:
            raise ValueError("name a folder")
        # A shell leaves ~ as it is after the = of a flag.
        return os.path.expanduser(argument)


class _Count(flags.ArgumentParser[int]):
    """A positive integer."""

    syntactic_help = "a positive integer"

    def parse(self, argument: str) -> int:
        if not argument.isdecimal() or not int(argument):
            raise ValueError("give a positive integer")
        return int(argument)


PRESET = flags.DEFINE_string(
    "preset", "quick", "How much of an experiment: quick, the default, full, or another it has."
)
SEEDS = flags.DEFINE(_Count(), "seeds", None, "Only the seeds below this.")
RESULTS = flags.DEFINE(_Folder(), "results", SHARDS, f"Folder of the shards; {SHARDS} by default.")
OUTPUT = flags.DEFINE(_Folder(), "output", RUNS, f"Folder for what is written; {RUNS} by default.")

PLUGIN = flags.DEFINE_multi_string(
    "plugin", [], "A file that defines kinds or experiments of your own"
)


def format_command(words: str) -> str:
    """The line of a shell that runs a command as this one was run, on the same --results."""
    # `make` runs the program of an environment that is not on the path.
    is_off_path = pathlib.Path(sys.argv[0]).name == "memobench" and not shutil.which("memobench")
    program = os.path.relpath(sys.argv[0]) if is_off_path else "memobench"
    return f"{program} {words}" + f" --results={shlex.quote(RESULTS.value)}" * RESULTS.present


def choose(names: Sequence[str], preset: str | None = None) -> "list[Experiment]":
    """The experiments that names stand for, each once.

    Of those that one pattern matches only those with the preset are chosen, if any has it.

    Args:
      names: of experiments, patterns (`dana2025/*`), papers (`dana2025`), and files (`my_file.py`),
        which are loaded; of a file's experiments those that another name matches, or all.
      preset: its name.

    Raises:
      UserError: a name that no experiment has.
    """
    from memobench.experiment import load_experiments, load_file

    files = [name for name in names if name.endswith(".py")]
    patterns = [name for name in names if name not in files]
    known = dict(load_experiments())
    if files:
        declared = {found.name: found for file in files for found in load_file(file)}
        if not declared:
            raise UserError(
                f"{' '.join(files)}: no experiment; declare one as EXPERIMENT, or name one of ours "
                f"and --plugin={files[0]}"
            )
        known |= declared
        if not any(match_names(declared, pattern) for pattern in patterns):
            patterns = [*declared, *patterns]
    if not patterns:
        papers = dict.fromkeys(name.partition("/")[0] for name in known)
        raise UserError(
            f"name an experiment, or a paper: {', '.join(papers)}; memobench list shows all"
        )
    chosen: dict[str, Experiment] = {}
    for pattern in patterns:
        matching = match_names(known, pattern)
        if not matching:
            hint = suggest(
                pattern,
                known,
                others="; memobench list shows all; for one of yours name its file too",
            )
            raise UserError(f"unknown experiment {pattern!r}{hint}")
        having = [name for name in matching if preset in known[name].presets]
        chosen |= {name: known[name] for name in having or matching}
    return list(chosen.values())
