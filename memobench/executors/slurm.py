"""Packs as jobs of a Slurm cluster, in arrays, through submitit.

A job's state is asked of the queue, not of accounting, which not every cluster has. What is asked
decides only when to look for shards.
"""

import ast
import contextlib
import dataclasses
import importlib.util
import logging
import os
import pathlib
import shutil
import stat
import subprocess
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from memobench.common.errors import UserError, reason, require, short_repr
from memobench.core.columns import declare, integer, number, value_where
from memobench.core.spec import kind
from memobench.executors import TEXT, Ended, Executor, OnPackSteps, Pool, Work

if TYPE_CHECKING:
    from memobench.core.run import Pack

# Arrays of more than 1000 need a cluster whose MaxArraySize was raised.
ARRAY_SIZE = 1000
# Between two questions to the queue, which many users ask.
POLL_SECONDS = 10.0

# States in which a job starts no more; a job that is unknown to the queue ended long ago.
_ENDED = {
    "BOOT_FAIL",
    "CANCELLED",
    "COMPLETED",
    "DEADLINE",
    "FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PREEMPTED",
    "REVOKED",
    "TIMEOUT",
}

_log = logging.getLogger("memobench")
_SETTINGS: Any = declare(
    value_where("a mapping of names", lambda value: isinstance(value, Mapping)),
    "any other option is submitit's: slurm_account, slurm_qos, slurm_mem",
)


@kind("slurm")
class Slurm(Executor):
    """Trains each pack in a job of Slurm, which starts it again where it is preempted.

    Slurm starts a preempted job again, but not one whose process was killed.

    Jobs' files and logs are in a folder of the user's own, for what jobs bring back is unpickled,
    and a folder of results may be anybody's; those of jobs that went well are removed. Jobs of a
    driver that was killed go on and write their shards.

    settings: any other options, as submitit knows them.
    """

    workers: int = integer("jobs of an array that run at a time", default=256)
    array_size: int = integer(
        "jobs of an array; the next one follows when fewer than workers are left",
        default=ARRAY_SIZE,
    )
    partition: str | None = declare(
        TEXT, "where jobs run; None is the cluster's default", default=None
    )
    timeout_minutes: int = integer(
        "after which a job is asked to stop; it goes on up to three times", default=60
    )
    cpus_per_pack: int = integer("cores that a job reserves", default=1)
    gpus_per_pack: int = integer("GPUs that a job reserves", 0, default=0)
    folder: str = declare(
        TEXT,
        "of jobs' files and logs: all nodes see it, and nobody but you can write there",
        default="~/.memobench",
    )
    poll_seconds: float = number(
        "between two questions to the queue", default=POLL_SECONDS, least=0
    )
    settings: Mapping[str, Any] = dataclasses.field(
        default_factory=dict, metadata=_SETTINGS.metadata
    )

    @classmethod
    def make(cls, options: Mapping[str, Any]) -> Self:
        """What is no field is a setting of submitit's."""
        own = {field.name for field in dataclasses.fields(cls)} - {"settings"}
        made = super().make({name: x for name, x in options.items() if name in own})
        others = {name: x for name, x in options.items() if name not in own}
        return dataclasses.replace(made, settings=others)

    @classmethod
    def read(cls, name: str, text: str) -> Any:
        """A setting of submitit's may be any literal."""
        if name in (field.name for field in dataclasses.fields(cls)):
            return super().read(name, text)
        try:
            return ast.literal_eval(text)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            return text

    def check_machine(self) -> None:
        if importlib.util.find_spec("submitit") is None:
            raise UserError("executor='slurm' needs the extra: pip install 'memobench[slurm]'")
        for command in ("sbatch", "squeue", "srun", "scancel"):
            if not shutil.which(command):
                raise UserError(f"executor='slurm' needs Slurm's {command} on this machine")
        import submitit

        known = submitit.SlurmExecutor._valid_parameters()
        for name, value in self.settings.items():
            if name.removeprefix("slurm_") not in known:
                raise UserError(f"{name}={short_repr(value)} is not a setting of executor='slurm'")

    def start(self, work: Work, folder: pathlib.Path | None, on_steps: OnPackSteps) -> "Jobs":
        """Raises UserError where Slurm is not here."""
        self.check_machine()
        return Jobs(work, self)


class Jobs(Pool):
    """Jobs of Slurm, a pack each."""

    def __init__(self, work: Work, options: Slurm) -> None:
        import submitit

        self.platform = "gpu" if options.gpus_per_pack else "cpu"
        self.n_devices = max(1, options.gpus_per_pack)
        self._folder = _private(options.folder) / f"slurm-{uuid.uuid4().hex[:8]}"
        self._executor = submitit.SlurmExecutor(self._folder)
        # Of the driver's environment, which jobs take over, this does not fit their machine.
        platform = "unset JAX_PLATFORMS" if options.gpus_per_pack else "export JAX_PLATFORMS=cpu"
        wanted: dict[str, Any] = {
            "job_name": "memobench",
            "partition": options.partition,
            "time": options.timeout_minutes,
            "array_parallelism": options.workers,
            "cpus_per_task": options.cpus_per_pack,
            "gpus_per_node": options.gpus_per_pack or None,
            # Since 22.05 a step no longer takes over what its job reserved.
            "srun_args": [f"--cpus-per-task={options.cpus_per_pack}"],
            "stderr_to_stdout": True,
            **{name.removeprefix("slurm_"): x for name, x in options.settings.items()},
        }
        setup = wanted.get("setup", ())
        wanted["setup"] = [platform, *([setup] if isinstance(setup, str) else setup)]
        self._executor.update_parameters(**wanted)
        self._work, self._options, self._next_poll = work, options, 0.0
        self._handed_in, self._held = False, set[str]()
        self._waiting: list[Pack] = []
        self._running: dict[Any, Pack] = {}

    def submit(self, packs: Sequence["Pack"]) -> None:
        """Raises UserError where Slurm refuses them."""
        self._waiting.extend(packs)
        self._fill()

    def ended(self, timeout: float) -> list[Ended]:
        deadline = time.monotonic() + timeout
        while self._running or self._waiting:
            until = min(self._next_poll, deadline)
            time.sleep(max(0.0, until - time.monotonic()))
            if until < self._next_poll:
                break
            self._next_poll = time.monotonic() + self._options.poll_seconds
            ended = self._look()
            self._fill()
            if ended:
                return ended
        return []

    def close(self) -> None:
        self._waiting.clear()
        if self._running:
            ids = [job.job_id for job in self._running]
            subprocess.run(["scancel", "--quiet", *ids], check=False)
        self._running.clear()
        # Slurm has its own copy of the scripts; what else there is says what went wrong.
        for script in self._folder.glob("*.sh"):
            script.unlink()
        with contextlib.suppress(OSError):
            self._folder.rmdir()

    def _fill(self) -> None:
        """Hands in one more array where there is room for it."""
        batch = self._waiting[: self._options.array_size]
        if not batch or len(self._running) >= self._options.workers:
            return
        try:
            jobs = self._executor.submit_array([_Work(self._work, pack) for pack in batch])
        except RuntimeError as error:
            said = " ".join(str(error).split())
            if not self._handed_in:
                raise UserError(f"executor='slurm' could not hand in jobs: {said}") from error
            # Many clusters limit a user's jobs; there is room when some have ended.
            _log.warning("Slurm took no more jobs for now: %s", said)
            return
        self._handed_in = True
        del self._waiting[: len(batch)]
        self._running |= dict(zip(jobs, batch, strict=True))

    def _look(self) -> list[Ended]:
        states = _states()
        if states is None:
            return []
        # A job that the queue has forgotten ended long ago.
        known = {job: states.get(job.job_id, ("forgotten", "")) for job in self._running}
        self._warn(known.values())
        ended = {job: state for job, state in known.items() if state[0] in {*_ENDED, "forgotten"}}
        return [Ended(self._running.pop(job), _reason(job, *ended[job])) for job in ended]

    def _warn(self, states: Iterable[tuple[str, str]]) -> None:
        """Says once of every reason why jobs are held: nothing else would show it."""
        held = {why for state, why in states if state == "PENDING" and "held" in why.lower()}
        for why in held - self._held:
            _log.warning("Slurm holds jobs: %s; release or cancel them (scontrol, scancel)", why)
        self._held |= held


def _private(name: str) -> pathlib.Path:
    """The folder. Raises UserError where others than the user could put files into it."""
    folder = pathlib.Path(os.path.expanduser(name)).resolve()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
    except OSError as error:
        raise UserError(f"folder={name!r} cannot be made ({reason(error)}); choose one") from error
    is_own = found.st_uid == os.getuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    require(
        is_own,
        f"folder={name!r} must be yours alone to write, got one of user {found.st_uid} with mode "
        f"{stat.S_IMODE(found.st_mode):o}; chmod 700 it, or choose another",
    )
    return folder


@dataclasses.dataclass(frozen=True)
class _Work:
    """The work on one pack; what submitit pickles."""

    work: Work
    pack: "Pack"

    def __call__(self) -> None:
        self.work(self.pack)

    def checkpoint(self) -> Any:
        """What goes on after a job was asked to stop: the same, from its own checkpoints."""
        import submitit

        return submitit.helpers.DelayedSubmission(self)


def _states() -> dict[str, tuple[str, str]] | None:
    """State and its reason by the id of each job in the queue; None where Slurm does not answer."""
    command = ["squeue", "--me", "--array", "--noheader", "--states=all", "--format=%i|%T|%r"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    lines = (line.split("|") for line in done.stdout.splitlines())
    return {name: (state, reason) for name, state, reason in lines}


def _reason(job: Any, state: str, why: str) -> str | None:
    """What went wrong in one line; the files of a job that went well are removed."""
    from submitit.core import utils

    paths = job.paths
    outcome, trace = "", ""
    with contextlib.suppress(OSError, EOFError):
        outcome, trace = utils.pickle_load(paths.result_pickle)
    if outcome == "success":
        for path in (paths.submitted_pickle, paths.result_pickle, paths.stdout):
            path.unlink(missing_ok=True)
        return None
    if outcome == "error":
        lines = trace.strip().splitlines()
        frames = [i for i, line in enumerate(lines) if line.startswith(" ")]
        return f"{' '.join(lines[max(frames, default=-1) + 1 :])}; log: {paths.stdout}"
    if state in ("COMPLETED", "forgotten"):
        return None
    return f"Slurm job {job.job_id} is {state} ({why}); log: {paths.stdout}"
