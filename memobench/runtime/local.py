"""Workers in threads of this process: on a CPU two side by side, on accelerators one on all."""

import concurrent.futures
import itertools
import pathlib
import threading
import time
from collections.abc import Callable
from typing import Any

import jax
import threadpoolctl

from memobench.engine import devices


class Threads:
    """Threads that work until they are stopped; see `launch.Launcher`.

    Attributes:
      n: the largest number of threads at a time.
    """

    def __init__(self) -> None:
        self.n = n_workers()
        self._stop, self._numbers = threading.Event(), itertools.count()
        self._running = set[concurrent.futures.Future[None]]()
        self._pool = concurrent.futures.ThreadPoolExecutor(self.n)

    @property
    def n_running(self) -> int:
        return len(self._running)

    def begin(self, folder: pathlib.Path) -> None:
        """Divides the cores among threads."""
        del folder
        self._blas = limit_blas()

    def start(self, work: Callable[[int, threading.Event], None], n: int) -> None:
        """Starts n further threads."""
        for number in itertools.islice(self._numbers, n):
            self._running.add(self._pool.submit(work, number, self._stop))

    def wait(self, seconds: float) -> None:
        """Waits until a thread ends, but no longer than so many seconds."""
        if self._running:
            first = concurrent.futures.FIRST_COMPLETED
            concurrent.futures.wait(self._running, seconds, return_when=first)
        else:
            time.sleep(seconds)

    def pop_ended(self) -> list[str | None]:
        """None for each thread that ended since the last call. Raises what a thread raised."""
        done = {x for x in self._running if x.done()}
        self._running -= done
        return [future.result() for future in done]

    def close(self) -> None:
        """Stops packs at their next steps, and waits for them."""
        self._stop.set()
        self._pool.shutdown(cancel_futures=True)
        self._blas.restore_original_limits()


def limit_blas() -> Any:
    """Divides the cores among workers; its `restore_original_limits` ends that.

    Packs side by side whose linear algebra takes all cores each wait for one another.
    """
    each = max(1, devices.n_cores() // n_workers())
    return threadpoolctl.threadpool_limits(each, user_api="blas")


def n_workers() -> int:
    """The number of packs that train side by side."""
    # Small CPU kernels leave cores idle between them; a second pack fills the gaps.
    alone = jax.default_backend() != "cpu" or devices.count() > 1
    return 1 if alone else min(2, devices.n_cores())


def n_devices() -> int:
    """The number of devices of a pack: simulated ones share one memory and its cores."""
    return 1 if jax.default_backend() == "cpu" else devices.count()
