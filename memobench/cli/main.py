"""The command line: finds the command in `memobench/cli/commands`, reads its flags and runs it."""

import argparse
import errno
import functools
import importlib
import inspect
import io
import logging as standard_logging
import os
import pkgutil
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from absl import app, flags, logging
from absl.flags import argparse_flags

from memobench.cli import commands
from memobench.cli.command import PLUGIN, Command
from memobench.common.errors import UserError, reason, require_system, suggest
from memobench.core import plugins
from memobench.version import __version__

_DESCRIPTION = """memobench: how much does a transformer memorize, per parameter?

{}

An EXPERIMENT may be a pattern or a paper: 'dana2025/*', or dana2025, names all of that paper.
It may be a file of yours that declares experiments; --plugin=my_file.py registers its kinds.
memobench COMMAND --help says more of a command."""

# Wide enough for a line for each flag.
_Formatter = functools.partial(
    argparse.RawDescriptionHelpFormatter, max_help_position=25, width=100
)

# Of a disk or quota that is full, and of a folder that may be read alone.
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


def main() -> None:
    """Entry point of the `memobench` command."""
    _escape_output()
    logging.set_verbosity(logging.WARNING)
    _format_warnings()
    try:
        require_system()
        app.run(_run, flags_parser=parse)
    except UserError as error:
        sys.exit(f"memobench: {error}")
    except BrokenPipeError:  # The reader, `head` say, has seen enough.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        place = error.filename or "a file"
        sys.exit(f"memobench: {place} cannot be written ({reason(error)}). Give it another folder.")
    except KeyboardInterrupt as error:
        print(
            f"\nmemobench: {str(error) or 'interrupted; the same command resumes'}", file=sys.stderr
        )
        sys.stdout.flush()
        # A thread of XLA that still compiles would abort an end by way of the interpreter.
        os._exit(130)


def _escape_output() -> None:
    """Escapes characters that a terminal or pipe cannot show, as standard error does."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


def _format_warnings() -> None:
    """Makes a warning one line, without date and file, that is shown once."""
    shown, handler = set[str](), logging.get_absl_handler()
    handler.setFormatter(standard_logging.Formatter("memobench: %(message)s"))

    def is_new(record: standard_logging.LogRecord) -> bool:
        n_shown = len(shown)
        shown.add(record.getMessage())
        return len(shown) > n_shown

    handler.addFilter(is_new)


def _run(chosen: tuple[Command, list[str]]) -> None:
    command, arguments = chosen
    if any(flag is PLUGIN for flag in command.flags):
        from memobench import experiment

        plugins.load_installed(experiment.register_module)
        for file in PLUGIN.value:
            experiment.load_file(file)
    command.run(arguments)


def find() -> dict[str, Command]:
    """The commands by name."""
    found = pkgutil.iter_modules(commands.__path__, f"{commands.__name__}.")
    modules = [importlib.import_module(module.name) for module in found]
    return {x.__name__.rpartition(".")[2].replace("_", "-"): x.COMMAND for x in modules}


def parse(argv: Sequence[str]) -> tuple[Command, list[str]]:
    """The command and its arguments; the flags are set. Raises UserError for any other line."""
    known = find()
    words = [_replace_dashes(word) for word in argv[1:]]
    name = next((word for word in words if not word.startswith("-")), None)
    if name is not None and name not in known:
        raise UserError(f"unknown command {name!r}{suggest(name, known, 0.6)}")
    try:
        parsed, left = _parser(known).parse_known_args(words)
    except flags.Error as error:
        raise UserError(str(error)) from error
    flags.FLAGS.mark_as_parsed()
    if parsed.command is None:
        raise UserError(f"name a command: {', '.join(known)}; memobench --help says more")
    command = known[parsed.command]
    if unknown := [word for word in left if word.startswith("-")]:
        raise UserError(_describe_unknown(parsed.command, command, unknown[0]))
    # argparse leaves over the arguments that follow a flag which follows arguments.
    arguments = [*parsed.arguments, *left]
    if arguments and not command.arguments:
        raise UserError(f"{parsed.command} takes no argument, got {' '.join(arguments)}")
    return command, arguments


def _replace_dashes(word: str) -> str:
    """The word with underscores in the name of a flag.

    >>> _replace_dashes("--dry-run=x-y")
    '--dry_run=x-y'
    """
    if not word.startswith("--"):
        return word
    name, equals, value = word[2:].partition("=")
    return f"--{name.replace('-', '_')}{equals}{value}"


def _describe_unknown(name: str, command: Command, word: str) -> str:
    flag, known = word.partition("=")[0], [f"--{flag.name}" for flag in command.flags]
    if flag in known:
        return f"{flag} belongs after the command: memobench {name} {word}"
    return f"{name} knows no flag {flag}{suggest(flag, known, 0.6)}"


class _Parser(argparse_flags.ArgumentParser):
    """A parser that does not print its usage beside a mistake."""

    def __init__(self, **settings: Any) -> None:
        settings = {"inherited_absl_flags": None, **settings}
        super().__init__(add_help=False, allow_abbrev=False, **settings)
        self.add_argument("-h", "--help", action="help", help="Show this and exit.")

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; {self.prog} --help says more")


def _parser(known: Mapping[str, Command]) -> _Parser:
    descriptions = {name: inspect.getdoc(command.run) or "" for name, command in known.items()}
    width = max(map(len, descriptions))
    # With python -OO there are none.
    first = {name: text.partition("\n")[0] for name, text in descriptions.items()}
    lines = [f"  {name:{width}s}  {text}" for name, text in first.items()]
    parser = _Parser(
        prog="memobench",
        usage="memobench COMMAND [ARGUMENT...] [--FLAG=VALUE...]",
        description=_DESCRIPTION.format("\n".join(lines)),
        formatter_class=_Formatter,
    )
    version = f"memobench {__version__}"
    parser.add_argument("--version", action="version", version=version, help="Show the version.")
    parser.set_defaults(arguments=[])
    each = parser.add_subparsers(prog="memobench", dest="command", help=argparse.SUPPRESS)
    for name, command in known.items():
        of_command = each.add_parser(
            name,
            description=descriptions[name],
            inherited_absl_flags=_flag_values(command),
            formatter_class=_Formatter,
        )
        if command.arguments:
            of_command.add_argument("arguments", nargs="*", metavar=command.arguments)
    return parser


def _flag_values(command: Command) -> flags.FlagValues:
    """The command's own flags, which its help shows."""
    values = flags.FlagValues()
    for holder in command.flags:
        flag = flags.FLAGS[holder.name]
        values[flag.name] = flag
        # Others than the main program's are left out of the help.
        values.register_key_flag_for_module(sys.argv[0], flag)
    return values
