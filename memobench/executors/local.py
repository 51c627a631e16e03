"""Runs packs in this process: on a CPU two side by side, on accelerators one on all at a time."""

import concurrent.futures
import logging
import os
import threading
from collections.abc import Callable, Generator, Sequence

import jax
import threadpoolctl

from memobench import annealing, constructions, devices, optimum, search, training
from memobench.packing import Pack
from memobench.specs import Annealing, Construction, Optimum, Search, Training

_log = logging.getLogger("memobench")

Train = Callable[[Pack, Callable[[int], None]], training.PackResult]


class _Stopped(Exception):
    """The sweep was interrupted; raised inside the workers at their next chunk."""


def train(
    pack: Pack,
    on_steps: Callable[[int], None],
    checkpoints: annealing.Checkpoints | None = None,
) -> training.PackResult:
    """Trains, optimises or constructs a pack, as its runs' method says.

    Long methods keep checkpoints.
    """
    method = pack.runs[0].method
    if isinstance(method, Annealing):
        return annealing.anneal(pack, on_steps, checkpoints)
    if isinstance(method, Search):
        return search.search(pack, on_steps, checkpoints)
    if isinstance(method, Training) and method.start:
        return training.train_many(pack, on_steps, constructions.initial(pack))
    by = {Optimum: optimum.solve, Construction: constructions.construct_pack}
    return by.get(type(method), training.train_many)(pack, on_steps)


def run_packs(
    packs: Sequence[Pack],
    on_steps: Callable[[Pack, int], None],
    train: Train = train,
) -> Generator[tuple[Pack, training.PackResult], None, None]:
    """Yields each pack with its result as it is done.

    A pack that does not fit in memory is halved and tried again, and says so. Closing the iterator
    or an exception stops the workers at their next chunk.
    """
    stop = threading.Event()

    def work(pack: Pack) -> training.PackResult:
        def steps_done(steps: int) -> None:
            if stop.is_set():
                raise _Stopped
            on_steps(pack, steps)

        return train(pack, steps_done)

    workers = _workers()
    # Packs side by side whose linear algebra takes all cores each wait for one another.
    threads = max(1, (os.cpu_count() or 1) // workers)
    with (
        threadpoolctl.threadpool_limits(threads, user_api="blas"),
        concurrent.futures.ThreadPoolExecutor(workers) as pool,
    ):
        futures = {pool.submit(work, pack): pack for pack in packs}
        try:
            while futures:
                done, _ = concurrent.futures.wait(
                    futures, return_when=concurrent.futures.FIRST_COMPLETED
                )
                for future in done:
                    pack = futures.pop(future)
                    error = future.exception()
                    if error is None:
                        yield pack, future.result()
                    elif is_out_of_memory(error) and len(pack.runs) > 1:
                        halves = pack.halves()
                        _log.warning(
                            "a pack of %d runs did not fit in memory; trying %s",
                            len(pack.runs),
                            " and ".join(str(len(half.runs)) for half in halves),
                        )
                        futures.update({pool.submit(work, half): half for half in halves})
                    else:
                        raise error
                    # Its traceback would keep what the failed pack held on the device.
                    del error
                del done, future
        finally:
            stop.set()
            for future in futures:
                future.cancel()


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the device or the host had too little memory."""
    return isinstance(error, MemoryError) or (
        isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" in str(error)
    )


def _workers() -> int:
    # Small CPU kernels leave cores idle between them; a second pack fills the gaps.
    alone = jax.default_backend() != "cpu" or devices.count() > 1
    return 1 if alone else min(2, os.cpu_count() or 1)
