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
    """Checkpoints that also say how long each run was trained, by all processes, and on what.

    A process trains the runs of a pack together, and its time is divided evenly among them: what is
    left of a pack may go on as several.

    device: the name of that of this process. n_runs: of the pack.
    """

    def __init__(self, of: Checkpoints, device: str, n_runs: int) -> None:
        self._of, self._device, self._n_runs = of, device, n_runs
        self._started = time.perf_counter()
        # By run, until this process began.
        self._seconds, self._devices = dict[str, float](), dict[str, list[str]]()
        self._saved = set[str]()

    @property
    def earlier(self) -> float:
        """Seconds of earlier processes, of all runs of the pack."""
        return sum(self._seconds.values())

    def earlier_devices(self, run_id: str) -> tuple[str, ...]:
        """The other devices that trained a run, in turn."""
        return tuple(x for x in self._devices.get(run_id, ()) if x != self._device)

    def load(self, run_id: str) -> Arrays | None:
        arrays = self._of.load(run_id)
        if arrays is not None:
            seconds = float(arrays.pop(_SECONDS, 0.0))
            devices = arrays.pop(_DEVICES, np.array([], str)).tolist()
            if run_id not in self._saved:
                self._seconds[run_id], self._devices[run_id] = seconds, devices
        return arrays

    def save(self, run_id: str, arrays: Arrays) -> None:
        self._saved.add(run_id)
        own = (time.perf_counter() - self._started) / self._n_runs
        seconds = np.array(self._seconds.get(run_id, 0.0) + own)
        devices = np.array([*self.earlier_devices(run_id), self._device])
        self._of.save(run_id, {**arrays, _SECONDS: seconds, _DEVICES: devices})
