"""Workers on one results folder: what each does, and the process that starts and watches them.

Leases say who trains what, so a worker needs to be told nothing but the runs of the sweep. It takes
one pack after another that nobody else has, and ends where none is left; a lease that lapses is
taken up by another. Runs whose training raises an error are leased until the watching process has
heard of it and leases them itself: no other worker tries them.
"""

import contextlib
import functools
import logging
import pathlib
import signal
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jax

from memobench.common import settings
from memobench.common.errors import Unwritable, describe, printable, require
from memobench.core.run import Run
from memobench.planner import costs, packing
from memobench.runtime import launch, local, worker
from memobench.runtime.leases import STALE_SECONDS, Held, Lease, Leases
from memobench.runtime.progress import Progress
from memobench.runtime.provenance import device_name
from memobench.store import results as store

# How often a worker and the process that watches it look at what others did.
POLL_SECONDS = 1.0
# How many workers more than there are at a time may die while no run is done.
RETRIES = 3

_log = logging.getLogger("memobench")


@settings.pinned
def work(
    folder: str,
    since: float,
    sweep: str,
    runs: Iterable[Run],
    missing: Iterable[str],
    number: int,
) -> None:
    """Trains one pack after another, until nothing is left that nobody else has.

    Ctrl-C and SIGTERM stop it at the next steps of its pack, which saves where it is.

    Args:
      folder: of the results.
      since: of shards that may be new.
      sweep: for which it works, as its leases say.
      runs: all of the sweep, by which packs are planned.
      missing: the ids of those that no older shard has.
      number: of the worker, by which workers begin with different packs.
    """
    runs, missing, failures = list(runs), set(missing), list[Lease]()
    workspace = worker.Workspace(
        pathlib.Path(folder), store.Reader(folder, since), Leases(folder), sweep
    )
    leases = workspace.leases
    with contextlib.ExitStack() as stack:
        stop = stack.enter_context(_catch_signals())
        while packs := _plan_free(workspace, runs, missing):
            first = number % len(packs)
            for pack in packs[first:] + packs[:first]:
                try:
                    _raise_if_set(stop, 0)
                    worker.work(workspace, pack, functools.partial(_raise_if_set, stop))
                except KeyboardInterrupt:
                    return
                except Unwritable:
                    raise
                except Exception as error:
                    left = {run.run_id for run in pack.runs} - workspace.reader.rows().keys()
                    why = printable(describe(error))
                    lease = leases.take(left, kind="failed", sweep=sweep, error=why)
                    failures.append(stack.enter_context(lease))
            time.sleep(0.1)
        while any(x.run_ids - leases.taken(besides=x) for x in failures) and not stop.is_set():
            if not any(_is_of(x, sweep, "sweep") for x in leases.all()):
                return  # Nobody listens any more.
            time.sleep(POLL_SECONDS / 2)


def _plan_free(
    workspace: worker.Workspace, runs: list[Run], missing: set[str]
) -> list[packing.Pack]:
    """Returns the packs of the runs that are neither done nor leased."""
    # In this order: what is released between the two is in a shard.
    free = missing - workspace.leases.taken()
    free -= workspace.reader.rows().keys()
    return packing.plan_rest(runs, free, jax.default_backend(), local.n_devices())


def _raise_if_set(stop: threading.Event, steps: int) -> None:
    if stop.is_set():
        raise KeyboardInterrupt


@contextlib.contextmanager
def _catch_signals() -> Iterator[threading.Event]:
    """Yields an event that Ctrl-C, SIGTERM and launchers set. Nothing is raised: JAX may work."""
    stop = threading.Event()
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
    in_main = threading.current_thread() is threading.main_thread()
    before = {x: signal.signal(x, lambda *_: stop.set()) for x in numbers if in_main}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _is_of(held: Held, sweep: str, kind: str) -> bool:
    """Whether a lease of this kind holds and is one of the sweep."""
    return held.alive and held.about.get("sweep") == sweep and held.about.get("kind") == kind


def require_importable(runs: Iterable[Run]) -> None:
    """Raises UserError for a kind of a notebook or a script, which no worker could import."""
    specs = (x for run in runs for spec in run.specs for x in spec.with_nested())
    for cls in {type(spec) for spec in specs}:
        require(
            cls.__module__ != "__main__",
            f"{cls.noun} {cls.name!r} must be in a file that other processes can import, got one "
            "of a notebook or script; move it to a file and import that, or leave out processes",
        )


class Watcher:
    """Starts workers and looks at the folder until no run is missing that they could train.

    Attributes:
      missing: what no shard has.
      lost: what cannot be trained, with the reason.
      works: whether something is left to train or to wait for.
    """

    def __init__(
        self,
        runs: Iterable[Run],
        missing: dict[str, Run],
        workspace: worker.Workspace,
        launcher: launch.Launcher,
        lease: Lease,
        bar: Progress,
    ) -> None:
        self.missing, self.lost, self._runs = missing, dict[str, str](), list(runs)
        self._workspace, self._launcher, self._bar, self._lease = workspace, launcher, bar, lease
        # Workers that died since a run was done, and the reason of the last.
        self._deaths, self._why = 0, "its workers ended without a result"
        # A shard's date is older than its name, by as much as it took to write.
        since = workspace.reader.newest - STALE_SECONDS
        of = (str(workspace.folder), since, workspace.sweep, self._runs, frozenset(missing))
        self._work = launch.Work.make(functools.partial(work, *of))
        # Only for the progress line: workers plan for what they run on.
        platform, name = jax.default_backend(), device_name(jax.devices()[0])
        self._packs = packing.plan_rest(self._runs, missing, platform, local.n_devices())
        self._bar.add(self._packs, costs.predict(self._packs, name, launcher.n))

    @property
    def works(self) -> bool:
        return bool(self.missing.keys() - self.lost.keys())

    def rows(self) -> Iterator[dict[str, dict[str, Any]]]:
        """Yields rows by run id as they arrive, and an empty dict now and then."""
        while True:
            ended = self._launcher.ended()
            held = self._workspace.leases.all()
            # Only now: what was released before is in a shard.
            found = self._workspace.reader.rows()
            new = {x: found[x] for x in self.missing if x in found}
            self._settle(new, held, ended)
            yield new
            if not self.works:
                return
            self._start(held)
            time.sleep(POLL_SECONDS)

    def _settle(self, new: Mapping[str, Any], held: list[Held], ended: list[str | None]) -> None:
        for run_id in new:
            del self.missing[run_id]
        self._deaths = 0 if new else self._deaths
        for why in filter(None, ended):
            self._deaths, self._why = self._deaths + 1, why
            _log.warning("%s", why)
        failed = [x for x in held if _is_of(x, self._workspace.sweep, "failed")]
        self._give_up({x: lease.about["error"] for lease in failed for x in lease.run_ids})
        self._bar.look(held)
        packs, self._packs = self._packs, []
        for pack in packs:
            if any(self._is_open(run.run_id) for run in pack.runs):
                self._packs.append(pack)
            else:
                self._bar.ended(pack)

    def _is_open(self, run_id: str) -> bool:
        return run_id in self.missing and run_id not in self.lost

    def _give_up(self, reasons: Mapping[str, str]) -> None:
        """Takes runs from all workers, for as long as this process watches."""
        new = {x: why for x, why in reasons.items() if self._is_open(x)}
        self.lost |= new
        if new:
            self._lease.run_ids |= new.keys()
            self._lease.beat()

    def _start(self, held: list[Held]) -> None:
        """Starts workers for what nobody has in hand, or gives that up where too many died."""
        n_running, n = self._launcher.n_running, self._launcher.n
        if n_running == n:
            return
        taken = frozenset[str]().union(*(x.run_ids for x in held if x.alive))
        free = {x for x in self.missing if x not in self.lost and x not in taken}
        n_packs = sum(any(run.run_id in free for run in pack.runs) for pack in self._packs)
        if not free and not n_running:
            self._bar.waits_for(len(self.missing) - len(self.lost))
        elif self._deaths < n + RETRIES:
            self._launcher.start(self._work, min(n - n_running, n_packs))
        elif not n_running:
            self._give_up(dict.fromkeys(free, self._why))
