"""Checkpoints of unfinished runs: one file per run id, replaced whole or not at all.

Imports no JAX. Arrays by name in NumPy's own format, never pickled.
"""

import logging
import pathlib
import time
import zipfile
from collections.abc import Iterable
from typing import Protocol

import numpy as np

from memobench import atomic

_log = logging.getLogger("memobench")

Arrays = dict[str, np.ndarray]
# Beside the arrays of a run.
_SECONDS, _DEVICES = "seconds", "devices"


class Checkpoints(Protocol):
    """Where the state of unfinished runs is kept, as arrays by name for each run id."""

    def load(self, run_id: str) -> Arrays | None:
        """What was saved last, or None."""

    def save(self, run_id: str, arrays: Arrays) -> None:
        """Replaces what was saved, whole or not at all."""


def warn_of_version(run_id: str) -> None:
    """Says that a run's checkpoint lacks what this version needs."""
    _log.warning("the checkpoint of run %s is of another version; it starts anew", run_id)


class Folder:
    """Checkpoints in a folder, which is made when the first is saved."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder

    def load(self, run_id: str) -> Arrays | None:
        """What was saved last; None where there is nothing or, with a warning, a corrupt file."""
        path = self._path(run_id)
        try:
            # Opened here, for NumPy leaves a corrupt file open.
            with open(path, "rb") as file, np.load(file, allow_pickle=False) as arrays:
                return dict(arrays)
        except FileNotFoundError:
            return None
        # RuntimeError of bits that say: encrypted, or compressed in an unknown way.
        except (OSError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile) as error:
            _log.warning("skipped %s: %s; its run starts anew", path, error)
            return None

    def save(self, run_id: str, arrays: Arrays) -> None:
        """Replaces what was saved, or warns where that cannot be: training goes on without."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with atomic.replace(self._path(run_id)) as file:
                np.savez(file, allow_pickle=False, **arrays)
        except OSError as error:
            _log.warning("no checkpoint of run %s: %s", run_id, error)

    def run_ids(self) -> set[str]:
        """The runs of which something is saved."""
        return {path.stem for path in self.folder.glob("*.npz")}

    def discard(self, run_ids: Iterable[str]) -> None:
        """Forgets runs whose results are kept elsewhere."""
        for run_id in run_ids:
            atomic.remove(self._path(run_id))

    def _path(self, run_id: str) -> pathlib.Path:
        return self.folder / f"{run_id}.npz"


class Timed:
    """Checkpoints that also say how long their runs were trained, by all processes, and on what.

    device: the name of that of this process.
    """

    def __init__(self, of: Checkpoints, device: str = "") -> None:
        self._of, self._device, self._saved = of, device, set[str]()
        self._started = time.perf_counter()
        # Seconds of earlier processes, until they saved, and their devices if these are others.
        self.earlier = 0.0
        self.other_devices: tuple[str, ...] = ()

    def load(self, run_id: str) -> Arrays | None:
        arrays = self._of.load(run_id)
        if arrays is not None:
            earlier = float(arrays.pop(_SECONDS, 0.0))
            # Runs of a pack were trained together.
            self.earlier = max(self.earlier, 0.0 if run_id in self._saved else earlier)
            devices = arrays.pop(_DEVICES, np.array([], str)).tolist()
            others = [*self.other_devices, *(x for x in devices if x != self._device)]
            self.other_devices = tuple(dict.fromkeys(others))
        return arrays

    def save(self, run_id: str, arrays: Arrays) -> None:
        self._saved.add(run_id)
        seconds = self.earlier + time.perf_counter() - self._started
        devices = np.array([*self.other_devices, self._device])
        self._of.save(run_id, {**arrays, _SECONDS: np.array(seconds), _DEVICES: devices})
