"""The exceptions that tell users what to do. Imports no part of memobench."""

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """A mistake in what the user asked for: one line that names the field and the fix."""


class DoesNotFit(UserError):
    """A run for which the device has too little memory even alone."""


class Unwritable(UserError):
    """A folder that can no longer be written, which ends a whole sweep."""


class Lost(UserError):
    """Runs that could not be trained, though tried again; the others are done."""


def closest(name: str, names: Iterable[str], cutoff: float = 0.4, others: str = "") -> str:
    """The end of a line about an unknown name: those that it may mean, or all, or `others`.

    >>> closest("locl", ["local", "ray"])
    '; did you mean local?'
    >>> closest("mpi", ["local", "ray"])
    '; choose one of local, ray'
    """
    names = list(names)
    if close := difflib.get_close_matches(name, names, n=3, cutoff=cutoff):
        return f"; did you mean {' or '.join(close)}?"
    return others or f"; choose one of {', '.join(names)}"


class UnknownKind(UserError):
    """Nobody registered a kind of this name here; another's file may."""
