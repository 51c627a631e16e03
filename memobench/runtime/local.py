"""Runs packs in this process: on a CPU two side by side, on accelerators one on all at a time."""

import concurrent.futures
import dataclasses
import os
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from memobench.common.errors import Unwritable, describe

if TYPE_CHECKING:
    from memobench.core.run import Pack

# Rows and provenance of one shard.
Shard = tuple[list[dict[str, Any]], dict[str, Any]]
Work = Callable[["Pack", Callable[[int], None]], Sequence[Shard]]


class _Stopped(Exception):
    """The sweep was interrupted; raised inside the workers at their next chunk."""


@dataclasses.dataclass(frozen=True)
class Ended:
    """How the work on a pack ended.

    error: the reason in one line; None where it came to its end. shards: what it made.
    """

    pack: "Pack"
    error: str | None = None
    shards: Sequence[Shard] = ()


class Threads:
    """Threads of this process.

    work: called with the pack and with what it calls, now and then, with model-steps done since.
    on_steps: called with the pack and those steps.
    """

    def __init__(
        self, work: Work, on_steps: Callable[["Pack", int], None] = lambda pack, steps: None
    ) -> None:
        import jax
        import threadpoolctl

        self.platform, self.n_devices = jax.default_backend(), n_devices()
        self._work, self._on_steps = work, on_steps
        self._stop = threading.Event()
        self._futures: dict[concurrent.futures.Future, Pack] = {}
        workers = n_workers()
        # Packs side by side whose linear algebra takes all cores each wait for one another.
        threads = max(1, n_cores() // workers)
        self._blas = threadpoolctl.threadpool_limits(threads, user_api="blas")
        self._pool = concurrent.futures.ThreadPoolExecutor(workers)

    def submit(self, packs: Sequence["Pack"]) -> None:
        """Queues the work on packs and returns at once."""
        self._futures |= {self._pool.submit(self._on, pack): pack for pack in packs}

    def ended(self, timeout: float) -> list[Ended]:
        """Returns what ended since the last call; waits up to `timeout` seconds for the first.

        Raises Unwritable, for the folder is that of all; other errors cost their pack alone.
        """
        done, _ = concurrent.futures.wait(
            self._futures, timeout, return_when=concurrent.futures.FIRST_COMPLETED
        )
        ended = []
        for future in done:
            pack = self._futures.pop(future)
            try:
                ended.append(Ended(pack, shards=future.result()))
            except Unwritable:
                raise
            except Exception as error:
                ended.append(Ended(pack, describe(error)))
        return ended

    def close(self) -> None:
        """Packs stop at their next chunk of steps."""
        self._stop.set()
        self._pool.shutdown(cancel_futures=True)
        self._blas.restore_original_limits()

    def _on(self, pack: "Pack") -> Sequence[Shard]:
        def steps_done(steps: int) -> None:
            if self._stop.is_set():
                raise _Stopped
            self._on_steps(pack, steps)

        return self._work(pack, steps_done)


def n_workers() -> int:
    """How many packs train side by side."""
    import jax

    from memobench.engine import devices

    # Small CPU kernels leave cores idle between them; a second pack fills the gaps.
    alone = jax.default_backend() != "cpu" or devices.count() > 1
    return 1 if alone else min(2, n_cores())


def n_cores() -> int:
    """The cores that this process may use: a cluster's job may have few of its machine's."""
    allowed = getattr(os, "sched_getaffinity", None)  # Linux alone has it.
    return len(allowed(0)) if allowed else os.cpu_count() or 1


def n_devices() -> int:
    """Among how many devices a pack is planned: simulated ones share one memory and its cores."""
    import jax

    from memobench.engine import devices

    return 1 if jax.default_backend() == "cpu" else devices.count()
