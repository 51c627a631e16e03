"""State of unfinished runs, as arrays by name."""

import contextlib
import logging
from collections.abc import Callable
from typing import Protocol, TypeVar

import numpy as np

_log = logging.getLogger("memobench")

Arrays = dict[str, np.ndarray]


class Checkpoints(Protocol):
    """Where the state of unfinished runs is kept, as arrays by name for each run id."""

    def load(self, run_id: str) -> Arrays | None:
        """What was saved last, or None."""

    def save(self, run_id: str, arrays: Arrays) -> None:
        """Replaces what was saved, whole or not at all."""


_Restored = TypeVar("_Restored")


def resumed(
    checkpoints: Checkpoints | None,
    run_id: str,
    restore: Callable[[Arrays], _Restored],
    saved: Callable[[_Restored], Arrays],
) -> _Restored | None:
    """What `restore` makes of a run's checkpoint; None where there is none.

    None, with a warning, where it holds other arrays than would be `saved` of that.
    """
    arrays = checkpoints.load(run_id) if checkpoints else None
    if arrays is None:
        return None
    with contextlib.suppress(Exception):  # Whatever arrays of another version lead to.
        found = restore(arrays)
        if _are_same(arrays, saved(found)):
            return found
    _warn_of_version(run_id)
    return None


def _warn_of_version(run_id: str) -> None:
    _log.warning("the checkpoint of run %s is of another version; it starts anew", run_id)


def _are_same(first: Arrays, second: Arrays) -> bool:
    """Whether names, types, shapes and values of arrays are the same."""
    return first.keys() == second.keys() and all(
        (x.dtype, x.shape, x.tobytes()) == (y.dtype, y.shape, y.tobytes())
        for x, y in ((first[name], second[name]) for name in first)
    )
