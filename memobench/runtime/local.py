"""Workers in threads of this process: on a CPU two side by side, on accelerators one on all."""

import concurrent.futures
import itertools
import logging
import math
import os
import pathlib
import threading
import time
from collections.abc import Callable
from typing import Any

import jax
import threadpoolctl

from memobench.common.errors import UserError, in_a_line
from memobench.engine import devices
from memobench.runtime import launch

_log = logging.getLogger("memobench")


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


def memory_bytes(n_workers: int = 1) -> float:
    """The memory that a pack may take where so many workers share what this process may take.

    Workers that a launcher started have their part of it already. A power of two, so that about as
    many workers on another device of about this size plan the same packs.
    """
    if jax.default_backend() == "cpu":
        found = launch.memory_fraction() * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    else:
        found = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit", 0)
    # Not every accelerator says how much it has.
    return 2.0 ** math.floor(math.log2(found / n_workers)) if found else math.inf


def require_device() -> None:
    """Starts JAX. Raises UserError where its device cannot be used.

    What JAX logs as it starts, such as an error of its CUDA without which it takes the CPU, becomes
    one line.
    """
    heard = list[str]()

    def hold_back(record: logging.LogRecord) -> bool:
        if record.levelno >= logging.WARNING:
            error = record.exc_info and record.exc_info[1]
            heard.append(record.getMessage() + (f": {in_a_line(error)}" if error else ""))
        return False

    log = logging.getLogger("jax._src.xla_bridge")
    log.addFilter(hold_back)
    try:
        jax.block_until_ready(jax.device_put(0.0))
    except (RuntimeError, AssertionError) as error:
        raise UserError(
            f"JAX's device must be free and served by its driver, got {in_a_line(error)}. End what "
            "else fills it (see nvidia-smi), update the driver, or set JAX_PLATFORMS=cpu"
        ) from error
    finally:
        log.removeFilter(hold_back)
    if heard:
        _log.warning(
            "this trains on the %s: %s. For a GPU install the CUDA that its driver serves, or "
            "update the driver; JAX_PLATFORMS=cpu spares this line",
            jax.default_backend(),
            heard[0].rstrip("."),
        )
