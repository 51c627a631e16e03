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
class Outcome:
    """The end of the work on a pack.

    Attributes:
      pack: the pack.
      error: the reason in one line; None where it came to its end.
      shards: of its runs.
    """

    pack: "Pack"
    error: str | None = None
    shards: Sequence[Shard] = ()


class Threads:
    """Threads of this process that train packs.

    Args:
      work: trains a pack; its second argument is to be called now and then with the number of
        model-steps done since the last call.
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
        self._futures |= {self._pool.submit(self._train, pack): pack for pack in packs}

    def pop_ended(self, timeout: float) -> list[Outcome]:
        """The packs that ended since the last call; waits up to `timeout` seconds for the first.

        Raises:
          Unwritable: no pack can be written; other errors cost their pack alone.
        """
        done, _ = concurrent.futures.wait(
            self._futures, timeout, return_when=concurrent.futures.FIRST_COMPLETED
        )
        ended = []
        for future in done:
            pack = self._futures.pop(future)
            try:
                ended.append(Outcome(pack, shards=future.result()))
            except Unwritable:
                raise
            except Exception as error:
                ended.append(Outcome(pack, describe(error)))
        return ended

    def close(self) -> None:
        """Stops packs at their next chunk of steps, and waits for them."""
        self._stop.set()
        self._pool.shutdown(cancel_futures=True)
        self._blas.restore_original_limits()

    def _train(self, pack: "Pack") -> Sequence[Shard]:
        def count_steps(steps: int) -> None:
            if self._stop.is_set():
                raise _Stopped
            self._on_steps(pack, steps)

        return self._work(pack, count_steps)


def n_workers() -> int:
    """The number of packs that train side by side."""
    import jax

    from memobench.engine import devices

    # Small CPU kernels leave cores idle between them; a second pack fills the gaps.
    alone = jax.default_backend() != "cpu" or devices.count() > 1
    return 1 if alone else min(2, n_cores())


def n_cores() -> int:
    """The number of cores this process may use: a cluster's job may have few of its machine's."""
    allowed = getattr(os, "sched_getaffinity", None)  # Linux alone has it.
    return len(allowed(0)) if allowed else os.cpu_count() or 1


def n_devices() -> int:
    """The number of devices of a pack: simulated ones share one memory and its cores."""
    import jax

    from memobench.engine import devices

    return 1 if jax.default_backend() == "cpu" else devices.count()
