"""The exceptions that tell users what to do. Imports no part of memobench."""

import contextlib
import dataclasses
import difflib
import functools
import math
import os
import pathlib
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

_Class = TypeVar("_Class", bound=type)
# Characters that are kept of a message of others' code.
_LONGEST = 300
# Folders, with a separator behind them. Experiments of a checkout stand beside the package.
_PACKAGE = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")
_OURS: tuple[str, ...] = (_PACKAGE,)
if not os.path.isdir(os.path.join(_PACKAGE, "experiments")):
    _OURS += (os.path.join(os.path.dirname(os.path.dirname(_PACKAGE)), "experiments", ""),)
_STANDARD = os.path.join(sysconfig.get_path("stdlib"), "")


class UserError(ValueError):
    """A mistake in what the user asked for: one line that names the field and the fix."""


class WrongArgument(UserError, TypeError):
    """Fields of a dataclass that it does not have, or does not do without."""


def require_system() -> None:
    """Raises UserError on Windows, which has no such files and processes as the rest relies on."""
    if sys.platform == "win32":
        raise UserError(
            "the system must be Linux or macOS, got Windows; run memobench in WSL 2, its Linux"
        )


class DoesNotFit(UserError):
    """A run for which the device has too little memory even alone."""


class Unwritable(UserError):
    """A folder that can no longer be written, which ends a whole sweep."""


class RunsFailed(UserError):
    """Runs that could not be trained, though tried again; the others are done."""


def in_a_line(error: BaseException) -> str:
    """The text of an error in one line; of others than a UserError with its class, and cut short.

    >>> in_a_line(KeyError("bit")), in_a_line(UserError("steps=0 is too few; give more"))
    ("KeyError: 'bit'", 'steps=0 is too few; give more')
    """
    text = " ".join(str(error).split())
    if isinstance(error, UserError):
        return text
    text = text if text.isprintable() else repr(text)[1:-1]
    text = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
    return ": ".join(filter(None, [type(error).__name__, text]))


def describe(error: BaseException) -> str:
    """A line on what was raised and where: in the user's code if it passed there, else in ours."""
    files = _files(error)
    *_, place = [None, *files, *(x for x in files if not is_ours(x[0]))]
    if place is None or isinstance(error, UserError):
        return in_a_line(error)
    return f"{in_a_line(error)} ({place[0]}, line {place[1]})"


def is_from_user_code(error: BaseException) -> bool:
    """True where what was raised passed through a user's code; else it is a bug of ours."""
    return not all(is_ours(file) for file, _ in _files(error))


def _files(error: BaseException) -> list[tuple[str, int | None]]:
    """Files and lines that what was raised passed through, in our code and the user's."""
    return [
        (frame.filename, frame.lineno)
        for frame in traceback.extract_tb(error.__traceback__)
        if is_ours(frame.filename) or not _is_library(frame.filename)
    ]


@contextlib.contextmanager
def name_place(place: str) -> Iterator[None]:
    """Turns whatever is raised inside into a UserError: one line that begins with the place.

    At borders where others' files are read: what nobody foresaw costs that file alone. A kind of
    UserError stays that kind.
    """
    try:
        yield
    except Exception as error:
        kind = type(error) if isinstance(error, UserError) else UserError
        raise kind(f"{place}: {in_a_line(error)}") from error


@contextlib.contextmanager
def name_source(whose: str) -> Iterator[None]:
    """Makes one line of whatever a user's code raises within it: its owner, the error and where.

    Args:
      whose: the code that runs, as the subject of the line: "optimizer mine: its code".
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{whose} raises {describe(error)}; fix it") from error


def is_ours(file: str) -> bool:
    """True for a file of memobench or of its experiments."""
    return file.startswith(_OURS)


def _is_library(file: str) -> bool:
    parts = pathlib.PurePath(file).parts
    installed = {"site-packages", "dist-packages"} & set(parts)
    return bool(installed) or file.startswith(("<frozen", _STANDARD))


def reason(error: BaseException) -> str:
    """The cause of a failed read, without the file's name where the system tells it.

    >>> reason(FileNotFoundError(2, "No such file or directory", "a.json"))
    'No such file or directory'
    """
    return getattr(error, "strerror", None) or in_a_line(error)


def suggest(name: str, names: Iterable[str], cutoff: float = 0.4, others: str = "") -> str:
    """The end of a line about an unknown name: those that it may mean, or all, or `others`.

    >>> suggest("locl", ["local", "ray"])
    '; did you mean local?'
    >>> suggest("mpi", ["local", "ray"])
    '; choose one of local, ray'
    """
    names = list(names)
    if close := difflib.get_close_matches(name, names, n=3, cutoff=cutoff):
        return f"; did you mean {' or '.join(close)}?"
    return others or f"; choose one of {', '.join(names)}"


class UnknownKind(UserError):
    """Nobody registered a kind of this name here; another's file may."""


def check_arguments(cls: _Class) -> _Class:
    """The keyword-only dataclass, which says in one line which of its fields is unknown or missing.

    >>> @check_arguments
    ... @dataclasses.dataclass(kw_only=True)
    ... class Size:
    ...     width: int
    >>> try:
    ...     Size(widt=3)
    ... except WrongArgument as error:
    ...     print(error)
    Size: unexpected keyword argument 'widt'; did you mean width?
    """
    made: Any = cls
    fields = [field for field in dataclasses.fields(made) if field.init]
    known = dict.fromkeys(field.name for field in fields)
    needed = [
        field.name
        for field in fields
        if field.default is field.default_factory is dataclasses.MISSING
    ]
    init = made.__init__

    @functools.wraps(init)
    def init_by_name(self: Any, *unnamed: Any, **named: Any) -> None:
        if unnamed:
            raise WrongArgument(f"{cls.__name__} takes fields by name only: {', '.join(known)}")
        for name in named:
            if name not in known:
                raise WrongArgument(
                    f"{cls.__name__}: unexpected keyword argument {name!r}{suggest(name, known)}"
                )
        for name in needed:
            if name not in named:
                raise WrongArgument(f"{cls.__name__}: {name} is missing; give {name} a value")
        init(self, **named)

    made.__init__ = init_by_name
    return cls


def short_repr(value: Any) -> str:
    """A value for a message: one line of bounded length in which nothing is invisible."""
    try:
        # The text of an array has several lines.
        text = " ".join(repr(value).split())
    except ValueError:  # Python does not write numbers of thousands of digits.
        return "a number of thousands of digits"
    except RecursionError:
        return "a value of thousands of levels"
    return text if len(text) <= 80 else f"{text[:60]}… ({len(text):,} characters)"


def escape_unprintable(text: Any) -> str:
    r"""A name or path as it is, or as Python writes it where something in it cannot be printed.

    >>> escape_unprintable("a b"), escape_unprintable("a\x1b")
    ('a b', 'a\\x1b')
    """
    text = str(text)
    return text if text.isprintable() else repr(text)[1:-1]


def agree(a: Any, b: Any, within: float, zero: float = 0.0) -> bool:
    """True for equal values, numbers up to a relative `within` or an absolute `zero`.

    >>> agree(1.0, 1.001, within=1e-2), agree("ok", "diverged", within=1e-2)
    (True, False)
    """
    if {type(a), type(b)} <= {int, float}:
        return math.isclose(a, b, rel_tol=within, abs_tol=zero)
    return bool(a == b)


def require(holds: Any, message: str) -> None:
    """Raises UserError with the message unless it holds."""
    if not holds:
        raise UserError(message)
