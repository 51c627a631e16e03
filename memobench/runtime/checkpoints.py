"""Checkpoints of unfinished runs: one file per run id, replaced whole or not at all.

Imports no JAX. Arrays by name in NumPy's own format, never pickled; its checksums tell of a file
that was changed.
"""

import io
import logging
import pathlib
import time
from collections.abc import Iterable

import jax.numpy as jnp
import numpy as np

from memobench.common import atomic, strict_json
from memobench.common.errors import in_a_line
from memobench.core.checkpoints import Arrays, Checkpoints, _warn_of_version

_log = logging.getLogger("memobench")

# Beside the arrays of a run, which are of any names below their own.
_ARRAYS, _SECONDS, _DEVICES = "arrays/", "seconds", "devices"


class Folder:
    """Checkpoints in a folder, which is made when the first is saved."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder

    def load(self, run_id: str) -> Arrays | None:
        """The arrays that were saved last; None where no file is, or, with a warning, a bad one."""
        path = self._path(run_id)
        try:
            data = strict_json.contents(path, path.stat().st_size)
            with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
                return dict(_read(*item) for item in arrays.items())
        except FileNotFoundError:
            return None
        except Exception as error:  # Whatever is there, MemoryError of its size included.
            _log.warning("skipped %s: %s; its run starts anew", path, in_a_line(error))
            return None

    def save(self, run_id: str, arrays: Arrays) -> None:
        """Replaces the run's file, or warns where that cannot be: training goes on without."""
        written = io.BytesIO()
        np.savez(written, allow_pickle=False, **dict(_write(*item) for item in arrays.items()))
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with atomic.replace(self._path(run_id)) as file:
                file.write(written.getbuffer())
        except OSError as error:
            _log.warning("no checkpoint of run %s: %s", run_id, error)

    def reject(self, run_id: str) -> None:
        """Keeps the file until the run is saved again."""

    def run_ids(self) -> set[str]:
        """The ids of the runs that have a checkpoint."""
        return {path.stem for path in self.folder.glob("*.npz")}

    def discard(self, run_ids: Iterable[str]) -> None:
        """Deletes the checkpoints of runs."""
        for run_id in run_ids:
            atomic.remove(self._path(run_id))

    def _path(self, run_id: str) -> pathlib.Path:
        return self.folder / f"{run_id}.npz"


def _write(name: str, array: np.ndarray) -> tuple[str, np.ndarray]:
    """An array and its name as NumPy's files hold them, which know no bfloat16."""
    if array.dtype.kind != "V" and "@" not in name:
        return name, array
    known = array.view(f"u{array.dtype.itemsize}") if array.dtype.kind == "V" else array
    return f"{name}@{array.dtype}", known


def _read(name: str, array: np.ndarray) -> tuple[str, np.ndarray]:
    """The inverse of `_write`."""
    of, at, dtype = name.rpartition("@")
    return (of, array.view(jnp.dtype(dtype))) if at else (name, array)


class Timed:
    """Checkpoints that also keep the seconds and devices that each run was trained on so far.

    A process trains the runs of a pack together, and its time is divided evenly among them: what is
    left of a pack may go on as several.

    Args:
      inner: where arrays are loaded and saved.
      device: the name of this process's device.
      n_runs: the number of runs of the pack.
    """

    def __init__(self, inner: Checkpoints, device: str, n_runs: int) -> None:
        self._inner, self._device, self._n_runs = inner, device, n_runs
        self._started = time.perf_counter()
        # By run, until this process began.
        self._seconds, self._devices = dict[str, float](), dict[str, list[str]]()
        self._saved = set[str]()

    @property
    def earlier_seconds(self) -> float:
        """Seconds that earlier processes trained the pack's runs, all together."""
        return sum(self._seconds.values())

    def earlier_devices(self, run_id: str) -> tuple[str, ...]:
        """The names of other devices that trained a run, in turn."""
        return tuple(x for x in self._devices.get(run_id, ()) if x != self._device)

    def load(self, run_id: str) -> Arrays | None:
        saved = self._inner.load(run_id)
        if saved is None:
            return None
        names = {x for x in saved if x.startswith(_ARRAYS)}
        if saved.keys() - names != {_SECONDS, _DEVICES}:
            _warn_of_version(run_id)
            return None
        if run_id not in self._saved:
            self._seconds[run_id] = float(saved[_SECONDS])
            self._devices[run_id] = saved[_DEVICES].tolist()
        return {x.removeprefix(_ARRAYS): saved[x] for x in names}

    def reject(self, run_id: str) -> None:
        self._seconds.pop(run_id, None)
        self._devices.pop(run_id, None)
        self._inner.reject(run_id)

    def save(self, run_id: str, arrays: Arrays) -> None:
        self._saved.add(run_id)
        own = (time.perf_counter() - self._started) / self._n_runs
        seconds = np.array(self._seconds.get(run_id, 0.0) + own)
        devices = np.array([*self.earlier_devices(run_id), self._device])
        below = {f"{_ARRAYS}{name}": x for name, x in arrays.items()}
        self._inner.save(run_id, {**below, _SECONDS: seconds, _DEVICES: devices})
