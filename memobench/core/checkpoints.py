"""State of unfinished runs, as arrays by name."""

import contextlib
import logging
from collections.abc import Callable
from typing import Protocol, TypeVar

import numpy as np

_log = logging.getLogger("memobench")

Arrays = dict[str, np.ndarray]


class Checkpoints(Protocol):
    """A store of the state of unfinished runs: arrays by name for each run id."""

    def load(self, run_id: str) -> Arrays | None:
        """The arrays that were saved last, or None."""

    def reject(self, run_id: str) -> None:
        """Takes note that the arrays loaded last are of no use, and the run starts anew."""

    def save(self, run_id: str, arrays: Arrays) -> None:
        """Replaces what was saved, whole or not at all."""


_Restored = TypeVar("_Restored")


def resume(
    checkpoints: Checkpoints | None,
    run_id: str,
    restore: Callable[[Arrays], _Restored],
    saved: Callable[[_Restored], Arrays],
) -> _Restored | None:
    """A run's state as its checkpoint has it; None without a checkpoint.

    Args:
      checkpoints: the store, if there is one.
      run_id: the run's.
      restore: makes the state of arrays.
      saved: the arrays of a state. Where the checkpoint holds others, a warning says so, and the
        state is None.
    """
    if checkpoints is None or (arrays := checkpoints.load(run_id)) is None:
        return None
    with contextlib.suppress(Exception):  # Whatever arrays of another version lead to.
        found = restore(arrays)
        if _are_same(arrays, saved(found)):
            return found
    checkpoints.reject(run_id)
    _warn_of_version(run_id)
    return None


def _warn_of_version(run_id: str) -> None:
    _log.warning("the checkpoint of run %s is of another version; it starts anew", run_id)


def _are_same(first: Arrays, second: Arrays) -> bool:
    """True where names, types, shapes and values of arrays are equal."""
    return first.keys() == second.keys() and all(
        (x.dtype, x.shape, x.tobytes()) == (y.dtype, y.shape, y.tobytes())
        for x, y in ((first[name], second[name]) for name in first)
    )
