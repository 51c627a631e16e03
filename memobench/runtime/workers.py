"""Workers on one results folder, and the process that starts and watches them.

A worker is given the runs of the sweep, and reads in the leases which of them others train. It
takes one free pack after another, and ends where none is left; a lease that lapses is taken up by
another. Runs whose training raises an error stay leased until the watching process has read the
error and leases them itself: no other worker tries them.
"""

import concurrent.futures
import contextlib
import functools
import logging
import pathlib
import signal
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import jax

from memobench import engine
from memobench.common import settings
from memobench.common.errors import Unwritable, describe, escape_unprintable, require
from memobench.common.notation import pluralize
from memobench.core.run import Run
from memobench.engine import compiling
from memobench.planner import packing
from memobench.runtime import launch, local, provenance, worker
from memobench.runtime.leases import HeldLease, Lease, Leases
from memobench.runtime.progress import Progress
from memobench.store import measures
from memobench.store import results as store

# How often a worker and the process that watches it poll the folder.
POLL_SECONDS = 1.0
# How many workers more than there are at a time may die while no run is done.
RETRIES = 3

# Why runs are given up whose workers end as if none were left.
_NO_RESULT = "its workers ended without a result; results must be a folder that all of them share"

_log = logging.getLogger("memobench")


@settings.pin
def work(
    workspace: worker.Workspace,
    runs: list[Run],
    missing: frozenset[str],
    packs: list[packing.Pack],
    on_steps: Callable[[packing.Pack, int], None],
    ahead: bool,
    memory_bytes: float,
    number: int,
    stop: threading.Event,
) -> None:
    """Trains one free pack after another, until none is left.

    Args:
      workspace: of the sweep.
      runs: all of the sweep, by which packs are planned.
      missing: the ids of those that no older shard has.
      packs: to begin with, if they are planned already.
      on_steps: called with a pack and the number of model-steps done since its last call.
      ahead: whether the program of the next pack is compiled while one trains.
      memory_bytes: that a pack may take.
      number: of the worker, by which workers begin with different packs.
      stop: an event that stops it at the next steps of its pack, which is saved.
    """
    leases, failures = workspace.leases, list[Lease]()

    def count_steps(pack: packing.Pack, later: list[packing.Pack], steps: int) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        while later:  # Not before the first steps: the pack's own program comes first.
            prepare(later.pop())
        on_steps(pack, steps)

    with contextlib.ExitStack() as stack:
        prepare = stack.enter_context(_compile_beside()) if ahead else lambda pack: None
        packs = packs or _plan_free(workspace, runs, missing, memory_bytes)
        while packs:
            first = number % len(packs)
            in_turn = packs[first:] + packs[:first]
            for place, pack in enumerate(in_turn, 1):
                if stop.is_set():
                    return
                later = in_turn[place : place + 1]
                try:
                    worker.work(workspace, pack, functools.partial(count_steps, pack, later))
                except KeyboardInterrupt:
                    if stop.is_set():
                        return
                    raise
                except Unwritable:
                    raise
                except Exception as error:
                    left = {run.run_id for run in pack.runs} - workspace.reader.rows().keys()
                    why = escape_unprintable(describe(error))
                    lease = leases.take(left, kind="failed", sweep=workspace.sweep, error=why)
                    failures.append(stack.enter_context(lease))
            if packs := _plan_free(workspace, runs, missing, memory_bytes):
                stop.wait(0.1)  # Others are about to lease these, or had them leased.
        while any(x.run_ids - leases.leased_ids(besides=x) for x in failures):
            if not any(_is_live(x, workspace.sweep, "sweep") for x in leases.read()):
                return  # The watching process is gone.
            if stop.wait(POLL_SECONDS / 2):
                return


@contextlib.contextmanager
def _compile_beside() -> Iterator[Callable[[packing.Pack], Any]]:
    """Yields a function that has another thread compile the program of a pack."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        try:
            yield functools.partial(pool.submit, _compile)
        finally:
            pool.shutdown(cancel_futures=True)


@settings.pin
def _compile(pack: packing.Pack) -> None:
    # What cannot be compiled raises where the pack trains.
    with contextlib.suppress(Exception):
        for signature, n_lanes, n_instances in packing.programs(pack):
            if isinstance(signature, engine.Signature):
                engine.compile_ahead(signature, n_lanes, n_instances)


def work_apart(
    folder: str,
    since: float,
    sweep: str,
    runs: list[Run],
    missing: frozenset[str],
    number: int,
) -> None:
    """Does the same in a process of its own, which Ctrl-C and SIGTERM stop.

    Args:
      folder: of the results.
      since: the date of the oldest shard that may be new.
      sweep: its name, which leases give.
      runs: see `work`.
      missing: see `work`.
      number: see `work`.
    """
    local.require_device()
    compiling.keep_programs()
    provenance.read_commit()
    reader, leases = store.Reader(folder, since), Leases(folder)
    workspace = worker.Workspace(pathlib.Path(folder), reader, leases, sweep)
    with catch_signals() as stop:
        begin = functools.partial(work, workspace, runs, missing, [], lambda pack, steps: None)
        begin(False, local.memory_bytes(), number, stop)


def _plan_free(
    workspace: worker.Workspace, runs: list[Run], missing: frozenset[str], memory_bytes: float
) -> list[packing.Pack]:
    """The packs of the runs that are neither done nor leased."""
    # In this order: what is released between the two is in a shard.
    free = missing - workspace.leases.leased_ids()
    free -= workspace.reader.rows().keys()
    return plan(runs, free, memory_bytes)


def plan(runs: list[Run], left: Collection[str], memory_bytes: float) -> list[packing.Pack]:
    """The packs in which the runs that are left train here, each within so much memory."""
    platform = jax.default_backend()
    return packing.plan_rest(runs, left, platform, local.n_devices(), memory_bytes)


@contextlib.contextmanager
def catch_signals() -> Iterator[threading.Event]:
    """Yields an event that Ctrl-C, SIGTERM and launchers set.

    Nothing is raised at first, which JAX may lose or take amiss; a second Ctrl-C raises
    KeyboardInterrupt. Handlers of the caller's stay in place, and so do signals that are ignored.
    """
    stop, default = threading.Event(), (signal.SIG_DFL, signal.default_int_handler)

    def set_stop(number: int, frame: Any) -> None:
        del frame
        stop.set()
        if number == signal.SIGINT:
            signal.signal(number, signal.default_int_handler)

    replaced = {}
    if threading.current_thread() is threading.main_thread():
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
        replaced = {x: signal.getsignal(x) for x in numbers if signal.getsignal(x) in default}
    for number in replaced:
        signal.signal(number, set_stop)
    try:
        yield stop
    finally:
        for number, handler in replaced.items():
            signal.signal(number, handler)


def _is_live(held: HeldLease, sweep: str, kind: str) -> bool:
    """True for a live lease of the sweep and of this kind."""
    return held.alive and held.about.get("sweep") == sweep and held.about.get("kind") == kind


def require_importable(runs: Iterable[Run]) -> None:
    """Raises UserError for what a notebook or a script defines, which no worker could import."""
    specs = (x for run in runs for spec in run.specs for x in spec.with_nested())
    for cls in {type(spec) for spec in specs}:
        require(
            cls.__module__ != "__main__",
            f"{cls.noun} {cls.name!r} must be in a file that other processes can import, got one "
            "of a notebook or script; move it to a file and import that, or leave out processes",
        )
    for name, each in measures.registered_measures().items():
        require(
            each.value.__module__ != "__main__",
            f"measure {name!r} must be in a file that other processes can import, got one of a "
            "notebook or script; move it to a file and import that, or leave out processes",
        )


class Watcher:
    """Starts workers and polls the folder until no run is missing that they could train.

    Attributes:
      missing: the runs that no shard has, by id.
      lost: the reason for each run that cannot be trained, by id.
      has_work: whether runs are left to train or to wait for.
    """

    def __init__(
        self,
        missing: dict[str, Run],
        packs: list[packing.Pack],
        workspace: worker.Workspace,
        launcher: launch.Launcher | local.Threads,
        work: Any,
        lease: Lease,
        bar: Progress,
    ) -> None:
        self.missing, self.lost = missing, dict[str, str]()
        self._packs, self._workspace, self._launcher = packs, workspace, launcher
        self._work, self._bar, self._lease = work, bar, lease
        # Workers that died since a run was done, and the reason of the last.
        self._deaths, self._why = 0, _NO_RESULT

    @property
    def has_work(self) -> bool:
        return bool(self.missing.keys() - self.lost.keys())

    def rows(self) -> Iterator[dict[str, dict[str, Any]]]:
        """Yields rows by run id as they arrive, and an empty dict now and then."""
        held = self._workspace.leases.read()
        while self.has_work:
            self._start(held)
            self._launcher.wait(POLL_SECONDS)
            ended = self._launcher.pop_ended()
            held = self._workspace.leases.read()
            # Only now: what was released before is in a shard.
            found = self._workspace.reader.rows()
            new = {x: found[x] for x in self.missing if x in found}
            self._settle(new, held, ended)
            yield new

    def _settle(
        self, new: Mapping[str, Any], held: list[HeldLease], ended: list[str | None]
    ) -> None:
        for run_id in new:
            del self.missing[run_id]
        self._deaths = 0 if new else self._deaths
        n_busy = self._count_busy(held)
        for why in ended:
            if why:
                _log.warning("%s", why)
            # One that found all runs leased is not dead.
            if why or not (new or n_busy):
                self._deaths, self._why = self._deaths + 1, why or _NO_RESULT
        failed = [x for x in held if _is_live(x, self._workspace.sweep, "failed")]
        for lease in failed:
            self._give_up(lease.run_ids, lease.about.get("error", "its lease does not say why"))
        self._bar.read_leases(held)
        packs, self._packs = self._packs, []
        for pack in packs:
            if any(self._is_open(run.run_id) for run in pack.runs):
                self._packs.append(pack)
            else:
                self._bar.finish(pack)

    def _count_busy(self, held: list[HeldLease]) -> int:
        """The number of packs that workers of this sweep train."""
        return sum(_is_live(x, self._workspace.sweep, "pack") for x in held)

    def _is_open(self, run_id: str) -> bool:
        return run_id in self.missing and run_id not in self.lost

    def _give_up(self, run_ids: Iterable[str], why: str) -> None:
        """Leases runs that cannot be trained, so that no worker tries them again."""
        new = {x for x in run_ids if self._is_open(x)}
        if new:
            _log.warning("%s failed: %s", pluralize(len(new), "run"), why)
            self.lost |= dict.fromkeys(new, why)
            self._lease.run_ids |= new
            self._lease.renew()

    def _start(self, held: list[HeldLease]) -> None:
        """Starts workers for free runs, or gives these up where too many workers died."""
        n_running, n = self._launcher.n_running, self._launcher.n
        if n_running == n:
            return
        taken = frozenset[str]().union(*(x.run_ids for x in held if x.alive))
        free = {x for x in self.missing if x not in self.lost and x not in taken}
        n_packs = sum(any(run.run_id in free for run in pack.runs) for pack in self._packs)
        if not free and not n_running:
            self._bar.wait_for(len(self.missing) - len(self.lost))
        elif self._deaths < n + RETRIES:
            # Those that have only begun, or wait for a machine, will take packs, too.
            n_idle = max(0, n_running - self._count_busy(held))
            self._launcher.start(self._work, max(0, min(n - n_running, n_packs - n_idle)))
        elif not n_running:
            self._give_up(free, self._why)
