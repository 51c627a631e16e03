"""Sweeps: the runs that are missing, packed, trained here or by workers, and kept shard by shard.

The same call resumes: what a results folder holds is never trained again. Several drivers may work
at one folder.
"""

import collections
import contextlib
import dataclasses
import functools
import logging
import math
import os
import tempfile
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Any

import jax
import pandas as pd

from memobench.analysis import theorems
from memobench.checks import architectures as checking
from memobench.checks import optimizers as padding
from memobench.checks import schedules
from memobench.checks import tasks as task_checking
from memobench.common import settings
from memobench.common.errors import RunsFailed, require, short_repr
from memobench.common.notation import pluralize
from memobench.core.cells import check_code
from memobench.core.columns import text_matching
from memobench.core.run import Pack, Run
from memobench.engine import compiling
from memobench.optimizers import Optimizer
from memobench.planner import costs
from memobench.runtime import launch, local, provenance, worker, workers
from memobench.runtime.leases import STALE_SECONDS, Leases
from memobench.runtime.progress import Progress
from memobench.schedules import Schedule
from memobench.store import measures
from memobench.store import results as store

_log = logging.getLogger("memobench")
_ID = text_matching(r"[0-9a-f]{16}", "the id of a run")


class Interrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM during a sweep; its message says what is saved and how to resume."""


class TimeUp(Interrupted):
    """A sweep took as long as it was given."""


@settings.pin
def run(
    runs: Iterable[Run],
    results: store.Path | None = None,
    progress: bool = True,
    seconds: float = math.inf,
    processes: int | None = None,
    on: str = "",
) -> pd.DataFrame:
    """Trains the runs that the folder does not hold yet and returns the table of all of them.

    Args:
      runs: in any order; equal runs count once.
      results: folder of shards to resume from and to write to; None keeps nothing.
      progress: whether to show one progress line on standard error.
      seconds: after which packs in training stop; checkpoints keep most of what they have done.
      processes: how many workers train, each a process of its own; None trains in this one.
      on: where workers are: on this machine, or what a command such as "srun --gpus=1" starts them
        on, or "ray" with options, such as "ray address=auto num_gpus=0.5".

    Returns:
      One row per run, in the order of `runs`; its columns are those of a shard's rows.

    Raises:
      UserError: a run names an unknown task or architecture, the folder cannot be written, or
        workers cannot start.
      RunsFailed: runs could not be trained, though tried again; all others are in the folder.
      theory.Violation: a run measured more than is possible; its pack is kept in the folder.
      Interrupted: Ctrl-C or SIGTERM; packs that were done are in the folder.
      TimeUp: `seconds` are over.

    >>> from memobench.methods.training import Training
    >>> from memobench.models.transformer import AttentionOnly
    >>> from memobench.tasks.associations import Associations
    >>> architecture = AttentionOnly(d_model=2, d_head=2, n_heads=3)
    >>> method = Training(n_batches=8, epochs=2).exact()
    >>> wanted = [Run(task=Associations(vocab_size=5), architecture=architecture, method=method)]
    >>> str(run(wanted, progress=False).loc[0, "status"])
    'ok'
    """
    is_time = isinstance(seconds, int | float) and seconds >= 0
    require(is_time, f"seconds must be a number >= 0, got {short_repr(seconds)}. Or leave it out")
    launcher = launch.make(processes, on)
    if launcher:
        require(results is not None, "processes=N needs results=FOLDER, one that all workers share")
        # What this process takes of a GPU's memory, workers lack.
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    local.require_device()
    compiling.keep_programs()
    provenance.read_commit()
    wanted = {run.run_id: run for run in _list_runs(runs)}
    _check(wanted.values())
    if launcher:
        workers.require_importable(wanted.values())
    with contextlib.ExitStack() as stack:
        path = stack.enter_context(tempfile.TemporaryDirectory()) if results is None else results
        folder = store.check_writable(path).resolve()
        workspace = worker.Workspace(
            folder, store.Reader(folder), Leases(folder), uuid.uuid4().hex[:8], results is None
        )
        require(wanted, "runs is empty. Pass at least one Run: [run, ...]")
        rows: dict[str, dict] = {}
        deadline = time.monotonic() + seconds
        try:
            for done in _train_missing(wanted, workspace, progress, launcher, deadline):
                rows |= done
                theorems.check(store.to_table(list(done.values())))
        except KeyboardInterrupt as error:
            kind = TimeUp if isinstance(error, TimeUp) else Interrupted
            why = "the time is up" if kind is TimeUp else "interrupted"
            raise kind(f"{why}: {_describe_saved(wanted.keys(), workspace, results)}") from error
        return store.to_table([rows[run_id] for run_id in wanted])


def _describe_saved(wanted: Set[str], workspace: worker.Workspace, results: Any) -> str:
    """A line that says how many runs are saved, and how to resume."""
    if workspace.is_temporary:
        return "nothing was saved, for no results folder was given"
    done = wanted & workspace.reader.rows().keys()
    begun = (wanted & workspace.checkpoints.run_ids()) - done
    text = f"{len(done)} of {len(wanted)} runs are saved in {results}"
    text += f", {len(begun)} more as far as they were trained" if begun else ""
    return f"{text}; the same command resumes there"


@settings.pin
def plan(runs: Iterable[Run], done: Iterable[str] = ()) -> list[Pack]:
    """The packs in which runs would train on this machine, each with its predicted `seconds`.

    `memobench run --dry_run` also learns from the times of runs that --results holds.

    Args:
      runs: in any order; equal runs count once.
      done: ids of runs that are left out.

    Raises:
      UserError: no task or architecture can serve a run.
    """
    runs, done = _list_runs(runs), set(done)
    for x in done:
        known = _ID.holds(x)
        require(known, f"done must hold ids of runs, got {short_repr(x)}. Give table['run_id']")
    local.require_device()
    _check(runs)
    missing = {run.run_id for run in runs} - done
    packs = workers.plan(runs, missing, local.memory_bytes(local.n_workers()))
    each = zip(packs, predict(packs).seconds, strict=True)
    return [dataclasses.replace(pack, seconds=seconds) for pack, seconds in each]


def predict(
    packs: Iterable[Pack], rows: Iterable[dict[str, Any]] = (), workers: int | None = None
) -> costs.Prediction:
    """The predicted cost of packs on this machine.

    Args:
      packs: from `plan`.
      rows: of shards, whose times on this machine make the prediction better.
      workers: their number on other machines, if they are there, as fast as this one.
    """
    name, packs = provenance.device_name(jax.devices()[0]), list(packs)
    found = costs.predict(packs, name, workers or local.n_workers(), rows)
    return dataclasses.replace(found, device=f"machines like {name}") if workers else found


def _list_runs(runs: Iterable[Run]) -> list[Run]:
    """The runs as a list. Raises UserError for anything else, such as a single run."""
    listed = list(runs) if isinstance(runs, Iterable) else [None]
    known = all(isinstance(x, Run) for x in listed)
    require(known, f"runs must be a list of runs, got {short_repr(runs)}. Give one: [run, ...]")
    return listed


def _check(runs: Iterable[Run]) -> None:
    """Raises UserError for runs that cannot train, before any of them does."""
    runs = list(runs)
    check_code(runs)
    task_checking.require_sound(run.task for run in runs)
    checking.require_sound((run.architecture, run.task) for run in runs)
    specs = dict.fromkeys(spec for run in runs for spec in run.method.with_nested())
    padding.require_sound(spec for spec in specs if isinstance(spec, Optimizer))
    schedules.require_sound(spec for spec in specs if isinstance(spec, Schedule))
    for run in runs:
        run.method.check_model(run)
    of_kinds = {tuple(map(type, run.method.with_nested())): run.method for run in runs}
    for method in of_kinds.values():
        method.cells()  # Fields of a user's optimizer may be columns of the method already.
    measures.require_sound(runs)


def _train_missing(
    wanted: Mapping[str, Run],
    workspace: worker.Workspace,
    progress: bool,
    launcher: launch.Launcher | None,
    deadline: float,
) -> Iterator[dict[str, dict]]:
    """Yields rows by run id, first those that the folder holds, until no more can be trained.

    Raises:
      RunsFailed: runs could not be trained.
      TimeUp: `time.monotonic()` is past the deadline.
    """
    known = workspace.reader.rows()
    for line in _describe_edited(wanted.values(), known.values()):
        _log.warning("%s", line)
    yield {run_id: known[run_id] for run_id in wanted if run_id in known}
    missing = {run_id: run for run_id, run in wanted.items() if run_id not in known}
    _discard_remains(workspace)
    if not missing:
        return
    runs, ids = list(wanted.values()), frozenset(missing)
    memory = local.memory_bytes(launcher.n_sharing if launcher else local.n_workers())
    packs = workers.plan(runs, ids, memory)
    with contextlib.ExitStack() as stack:
        bar = stack.enter_context(Progress(len(wanted), progress))
        # Both outlast the workers, which take a while to save where they are.
        lease = stack.enter_context(workspace.leases.take((), kind="sweep", sweep=workspace.sweep))
        interrupted = stack.enter_context(workers.catch_signals())
        place: launch.Launcher | local.Threads
        if launcher:
            # A shard's date is older than its name, by as much as it took to write; one that was
            # copied from a clock that runs ahead says nothing.
            since = min(workspace.reader.newest, lease.path.stat().st_mtime) - STALE_SECONDS
            work: Any = functools.partial(
                workers.work_apart, str(workspace.folder), since, workspace.sweep, runs, ids
            )
            place, work = launcher, launch.make_portable(work, measures.modules())
        else:
            place = local.Threads()
            # On a CPU it would take the cores that train.
            ahead = jax.default_backend() != "cpu"
            steps = bar.add_steps
            work = functools.partial(
                workers.work, workspace, runs, ids, packs, steps, ahead, memory
            )
        bar.add(packs, costs.predict(packs, provenance.device_name(jax.devices()[0]), place.n))
        try:
            place.begin(workspace.folder)
        except OSError as error:
            raise store.unwritable_error(workspace.folder, error) from error
        stack.enter_context(contextlib.closing(place))
        driver = workers.Watcher(missing, packs, workspace, place, work, lease, bar)
        try:
            for rows in driver.rows():
                if interrupted.is_set():
                    raise KeyboardInterrupt
                bar.show(len(wanted) - len(missing))
                lease.update(line=bar.line)
                if rows:
                    yield rows
                if time.monotonic() > deadline and driver.has_work:
                    raise TimeUp
        except (KeyboardInterrupt, GeneratorExit):  # Raised here, or while rows were looked at.
            stopping = "stopping: packs save where they are at their next steps"
            _log.warning("%s", stopping)
            lease.update(line=stopping)
            lease.renew()
            raise
    _discard_remains(workspace)
    if driver.lost:
        others = "; the same command tries these again"
        raise RunsFailed(
            _describe_lost(driver.lost, len(wanted)) + others * (not workspace.is_temporary)
        )


def _discard_remains(workspace: worker.Workspace) -> None:
    """Removes leases of dead processes, and checkpoints of runs that are done."""
    workspace.leases.clear()
    done = workspace.reader.rows().keys()
    workspace.checkpoints.discard(workspace.checkpoints.run_ids() & done)


def _describe_lost(reasons: Mapping[str, str], n_wanted: int) -> str:
    """A line with the number of runs that could not be trained, and the most frequent reasons."""
    most = collections.Counter(reasons.values()).most_common(3)
    listed = "; ".join(f"{pluralize(n, 'run')}: {reason}" for reason, n in most)
    return f"{len(reasons)} of {n_wanted} runs could not be trained ({listed})"


def _describe_edited(runs: Iterable[Run], rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yields a line for every user's kind of which the folder has rows by other code."""
    specs = (x for run in runs for spec in run.specs for x in spec.with_nested())
    here = {(x.noun, x.name): x.code for x in specs if hasattr(x, "code")}
    found = collections.Counter(
        (noun, name)
        for row in (rows if here else ())
        for (noun, name), code in here.items()
        if row.get(noun) == name and row.get(f"{noun}_code") != code
    )
    for (noun, name), count in found.items():
        yield (
            f"{pluralize(count, 'run')} of the {noun} {name!r} were made by other code, before it "
            "was edited; the folder keeps them as another entry"
        )
