"""Packs as tasks of Ray Core, on this machine or on a cluster that runs already."""

import functools
import importlib.util
import os
import pathlib
import socket
import urllib.parse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from memobench.common.errors import UserError
from memobench.core.columns import declare, integer, number
from memobench.core.spec import kind
from memobench.executors import TEXT, Ended, Executor, OnPackSteps, Pool, Work

if TYPE_CHECKING:
    from memobench.core.run import Pack

# Each card's memory is shared as the cards are; JAX would else take most of it for one pack.
MEMORY_FRACTION = 0.75
# Within which a cluster's address must answer.
CONNECT_SECONDS = 10


@kind("ray")
class Ray(Executor):
    """Trains each pack in a task of Ray, on this machine or on a cluster.

    Ray repeats nothing of itself: it would train again what was lost after its shard was written.
    """

    address: str | None = declare(
        TEXT,
        'of a running cluster, "auto" for this machine\'s; None starts Ray here, and stops it',
        default=None,
    )
    workers: int = integer(
        "packs that Ray is given at a time; its cores and GPUs decide how many run", default=64
    )
    cpus_per_pack: float = number("cores that a pack reserves", default=1.0, least=0)
    gpus_per_pack: float | None = number(
        "GPUs that a pack reserves, or a part of one; None is one where there are any",
        default=None,
        least=0,
    )

    def check_machine(self) -> None:
        if importlib.util.find_spec("ray") is None:
            raise UserError("executor='ray' needs the extra: pip install 'memobench[ray]'")
        _check_answers(self.address)

    def start(self, work: Work, folder: pathlib.Path | None, on_steps: OnPackSteps) -> "Tasks":
        """Raises UserError where Ray cannot give what a pack needs."""
        self.check_machine()
        return Tasks(work, self)


class Tasks(Pool):
    """Tasks of Ray Core, a pack each."""

    def __init__(self, work: Work, options: Ray) -> None:
        import ray

        address, gpus_per_pack = options.address, options.gpus_per_pack
        self._ray, self._workers = ray, options.workers
        self._waiting: list[Pack] = []
        self._running: dict[Any, Pack] = {}
        # A Ray that the caller started is theirs to stop.
        self._own = not ray.is_initialized()
        if self._own:
            _start(ray, address)
        there = ray.cluster_resources()
        if gpus_per_pack is None:
            gpus_per_pack = min(1, there.get("GPU", 0))
        self.platform = "gpu" if gpus_per_pack else "cpu"
        self.n_devices = max(1, int(gpus_per_pack))
        needed = {"CPU": options.cpus_per_pack, "GPU": gpus_per_pack}
        for name, amount in needed.items():
            # A cluster may grow, this machine does not.
            if address is None and amount > there.get(name, 0):
                self.close()
                raise UserError(
                    f"{name.lower()}s_per_pack={amount:g} is more than there is here, "
                    f"{there.get(name, 0):g}"
                )
        # Asked for here and not by options(), a GPU is given to a fresh process each time: an idle
        # one would keep its memory.
        task = ray.remote(num_cpus=options.cpus_per_pack, num_gpus=gpus_per_pack, max_retries=0)(
            _train
        )
        memory = f"{MEMORY_FRACTION * min(1, gpus_per_pack):.3f}"
        self._task = functools.partial(task.remote, ray.put(work), self.platform, memory)

    def submit(self, packs: Sequence["Pack"]) -> None:
        self._waiting.extend(packs)
        self._fill()

    def ended(self, timeout: float) -> list[Ended]:
        if not self._running:
            return []
        tasks = list(self._running)
        self._ray.wait(tasks, timeout=timeout)
        done, _ = self._ray.wait(tasks, num_returns=len(tasks), timeout=0)
        ended = [Ended(self._running.pop(task), self._error(task)) for task in done]
        self._fill()
        return ended

    def close(self) -> None:
        self._waiting.clear()
        for task in self._running:
            self._ray.cancel(task, force=True)
        self._running.clear()
        if self._own:
            self._ray.shutdown()

    def _fill(self) -> None:
        n = self._workers - len(self._running)
        for pack in self._waiting[:n]:
            self._running[self._task(pack)] = pack
        del self._waiting[:n]

    def _error(self, task: Any) -> str | None:
        try:
            self._ray.get(task)
        except self._ray.exceptions.RayTaskError as error:
            return f"{type(error.cause).__name__}: {_line(error.cause)}"
        except self._ray.exceptions.RayError as error:
            return f"{type(error).__name__}: {_line(error)}"
        return None


def _start(ray: Any, address: str | None) -> None:
    if address is None:
        # Reports of use would go out from where no one asked for them.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    quiet: dict[str, Any] = {} if address else {"include_dashboard": False}
    try:
        ray.init(address or "local", log_to_driver=False, logging_level="warning", **quiet)
    except (ConnectionError, ValueError, ray.exceptions.RayError) as error:
        raise UserError(f"address={address!r}: {_line(error)}") from error


def _check_answers(address: str | None) -> None:
    """Raises UserError where nothing listens at a host and port: Ray would try it for minutes."""
    if address is None or ":" not in address:
        return
    try:
        at = urllib.parse.urlsplit(address if "://" in address else f"//{address}")
        # A port is left out of the address of a client alone.
        with socket.create_connection((at.hostname or "", at.port or 10001), CONNECT_SECONDS):
            pass
    except (OSError, ValueError) as error:
        raise UserError(
            f"address={address!r} does not answer ({_line(error)}); "
            "start a cluster there or leave address out"
        ) from error


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]


def _train(work: Work, platform: str, memory: str, pack: "Pack") -> None:
    """The task: JAX keeps to the platform that the pack was planned for and to its share of it."""
    import jax

    # Whatever the driver's JAX_PLATFORMS, which workers take over, says of its own machine.
    jax.config.update("jax_platforms", "cpu" if platform == "cpu" else None)
    if platform != "cpu":
        os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"] = memory
    work(pack)
