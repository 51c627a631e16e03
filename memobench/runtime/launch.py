"""Launchers: the same work in N processes of this machine, of Ray or of Slurm. Imports no JAX.

A launcher starts workers, says how they ended, and stops them. All work on one results folder,
whose leases say who trains what: see `memobench.runtime.workers`.
"""

import ast
import contextlib
import dataclasses
import functools
import importlib.util
import logging
import os
import pathlib
import pickle
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
import urllib.parse
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

from memobench import plugins
from memobench.columns import require, shown
from memobench.errors import UserError, closest, reason

# Workers share a GPU's memory, of which JAX takes this much for one process.
MEMORY_FRACTION = 0.75
# Within which the address of a Ray cluster must answer.
CONNECT_SECONDS = 10
# Within which stopped tasks of Ray save where they are.
STOP_SECONDS = 60
# Between two questions to Slurm's queue, which many users ask.
POLL_SECONDS = 10.0
# States in which a job of Slurm starts no more; one that its queue forgot ended long ago.
_ENDED = {
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "forgotten"),
    *("NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED", "TIMEOUT"),
}

_log = logging.getLogger("memobench")


@dataclasses.dataclass(frozen=True)
class Work:
    """What workers do, as another process can take it: its modules are found where they are here.

    Attributes:
      path: where this process finds modules.
      data: the pickled function, which is called with the number of the worker.
    """

    path: Sequence[str]
    data: bytes

    @classmethod
    def make(cls, function: Callable[[int], None]) -> "Work":
        """Returns the work of a function that can be pickled."""
        ready = functools.partial(plugins.at_work, plugins.names(), function)
        return cls([os.path.abspath(x) for x in sys.path], pickle.dumps(ready))

    def __call__(self, number: int) -> None:
        sys.path += [x for x in self.path if x not in sys.path]
        pickle.loads(self.data)(number)

    def checkpoint(self, number: int) -> Any:
        """Returns what goes on after a job was asked to stop, for submitit."""
        import submitit

        return submitit.helpers.DelayedSubmission(self, number)


class Launcher:
    """Processes of this machine, which share its cores or its GPUs evenly.

    Attributes:
      n: the most workers at a time.
      options: of the launcher, by name.
      n_started: how many were started so far.
      platform: "cpu" or "gpu", where that of workers is known; None for that of this process.
    """

    platform: str | None = None
    own_options: ClassVar[tuple[str, ...]] = ()

    def __init__(self, n: int, options: Mapping[str, Any]) -> None:
        self.n, self.options, self.n_started = n, dict(options), 0
        self._running: dict[Any, Any] = {}

    @property
    def n_running(self) -> int:
        return len(self._running)

    def check_machine(self) -> None:
        """Raises UserError where an option is unknown or this machine lacks what `begin` needs."""
        for name in self.options:
            raise UserError(f"option {shown(name)} needs on='ray' or on='slurm'")

    def begin(self, folder: pathlib.Path) -> None:
        """Prepares workers on a results folder. Raises UserError where that cannot be."""
        self._logs = folder / ".logs"
        self._gpus = _list_gpus()
        self._each = -(-self.n // max(1, len(self._gpus)))
        self._serves_gpu = bool(self._gpus) and self._each > 1 and _start_mps()

    def start(self, work: Work, n: int) -> None:
        """Starts so many workers more. Raises UserError where that is refused."""
        used = {place for place, _ in self._running.values()}
        for place in [x for x in range(self.n) if x not in used][:n]:
            self._logs.mkdir(exist_ok=True)
            log = self._logs / f"worker-{uuid.uuid4().hex[:8]}.log"
            with open(log, "wb") as file:
                child = subprocess.Popen(
                    [sys.executable, "-c", "from memobench.runtime.launch import main; main()"],
                    stdin=subprocess.PIPE,
                    stdout=file,
                    stderr=file,
                    env=self._environment(place),
                )
            self._running[child] = (place, log)
            assert child.stdin
            with contextlib.suppress(BrokenPipeError):  # How it ended is seen later.
                child.stdin.write(pickle.dumps((self._cores(place), work, self.n_started)))
                child.stdin.flush()
            self.n_started += 1

    def ended(self) -> list[str | None]:
        """Returns why each worker that ended since the last call did; None for one that is done."""
        reasons: list[str | None] = []
        for child in [x for x in self._running if x.poll() is not None]:
            _, log = self._running.pop(child)
            child.stdin.close()
            if child.returncode:
                said = (log.read_text(errors="replace").splitlines() or [""])[-1]
                status = f"status {child.returncode}"
                if child.returncode < 0:
                    status = signal.Signals(-child.returncode).name
                reasons.append(f"a worker ended with {status}: {said}; log: {log}")
            else:
                log.unlink(missing_ok=True)
                reasons.append(None)
        return reasons

    def close(self) -> None:
        """Stops workers, which save where they are, and waits; a second Ctrl-C kills them."""
        try:
            for child in self._running:
                child.terminate()
            for child in self._running:
                child.wait()
        finally:
            for child, (_, log) in self._running.items():
                child.kill()
                child.stdin.close()
                if child.wait() in (0, -signal.SIGTERM):
                    log.unlink(missing_ok=True)
            self._running.clear()
            if self._serves_gpu:
                subprocess.run(["nvidia-cuda-mps-control"], input=b"quit", check=False)

    def _environment(self, place: int) -> dict[str, str]:
        """Returns the variables of a worker: its GPUs, and its part of their memory."""
        if not self._gpus:
            return {**os.environ}
        few = len(self._gpus) <= self.n
        gpus = [self._gpus[place % len(self._gpus)]] if few else self._gpus[place :: self.n]
        return {
            **{x: y for x, y in os.environ.items() if x != "XLA_PYTHON_CLIENT_PREALLOCATE"},
            "CUDA_VISIBLE_DEVICES": ",".join(gpus),
            "XLA_PYTHON_CLIENT_MEM_FRACTION": f"{MEMORY_FRACTION / self._each:.3f}",
        }

    def _cores(self, place: int) -> list[int]:
        """Returns the cores of a worker; empty for all of them."""
        if self._gpus or not hasattr(os, "sched_setaffinity"):
            return []
        cores = sorted(os.sched_getaffinity(0))
        first, last = (len(cores) * x // self.n for x in (place, place + 1))
        return cores[first:last] or [cores[place % len(cores)]]


def main() -> None:
    """Does the work that standard input brings, and stops where that ends: its parent is gone."""
    cores, work, number = pickle.load(sys.stdin.buffer)
    if cores:
        os.sched_setaffinity(0, cores)

    def follow() -> None:
        while os.read(0, 1):  # Python cannot end while a thread reads from a file of its own.
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=follow, daemon=True).start()
    work(number)


def _list_gpus() -> list[str]:
    """Returns the GPUs that JAX would find, as CUDA_VISIBLE_DEVICES names them."""
    if os.environ.get("JAX_PLATFORMS", "").startswith("cpu"):
        return []
    if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return [x for x in visible.split(",") if x]
    if not shutil.which("nvidia-smi"):
        return []
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    return re.findall(r"^GPU (\d+):", listed.stdout, re.MULTILINE)


def _start_mps() -> bool:
    """Starts NVIDIA's MPS, which runs programs of several processes at once; True if it did."""
    if not shutil.which("nvidia-cuda-mps-control"):
        _log.warning("workers take turns on a GPU: its driver has no nvidia-cuda-mps-control")
        return False
    command = ["nvidia-cuda-mps-control", "-d"]
    return not subprocess.run(command, capture_output=True, check=False).returncode


class Ray(Launcher):
    """Tasks of Ray, on this machine or on a cluster; options are its address and of `ray.remote`.

    Ray starts none of them again of itself.
    """

    own_options = (
        *("address", "num_cpus", "num_gpus", "memory", "resources", "accelerator_type"),
        *("label_selector", "scheduling_strategy", "runtime_env"),
    )

    def check_machine(self) -> None:
        if importlib.util.find_spec("ray") is None:
            raise UserError("on='ray' needs the extra: pip install 'memobench[ray]'")
        _require_known(self.options, self.own_options, "ray")
        _check_answers(self.options.get("address"))

    def begin(self, folder: pathlib.Path) -> None:
        import ray

        options = dict(self.options)
        address = options.pop("address", None)
        # A Ray that the caller started is theirs to stop.
        self._ray, self._own = ray, not ray.is_initialized()
        if self._own:
            _start_ray(ray, address)
        there = ray.cluster_resources()
        needed = {"num_cpus": 1, "num_gpus": min(1, there.get("GPU", 0)), **options}
        self.platform = "gpu" if needed["num_gpus"] else "cpu"
        try:
            for name, of in {"num_cpus": "CPU", "num_gpus": "GPU"}.items():
                # A cluster may grow, this machine does not.
                require(
                    address is not None or needed[name] <= there.get(of, 0),
                    f"{name}={needed[name]} is more than there is here, {there.get(of, 0):g}",
                )
            # Asked for here and not by options(), a GPU is given to a fresh process each time: an
            # idle one would keep its memory.
            self._task: Any = ray.remote(max_retries=0, **needed)(_work_in_ray)
        except Exception as error:
            self.close()
            raise UserError(f"on='ray' refuses: {_line(error)}") from error
        self._memory = f"{MEMORY_FRACTION * min(1, needed['num_gpus']):.3f}"

    def start(self, work: Work, n: int) -> None:
        put = self._ray.put(work)
        for _ in range(n):
            task = self._task.remote(put, self.platform, self._memory, self.n_started)
            self._running[task] = self.n_started
            self.n_started += 1

    def ended(self) -> list[str | None]:
        tasks = list(self._running)
        done, _ = self._ray.wait(tasks, num_returns=len(tasks), timeout=0) if tasks else ([], [])
        return [self._reason(task) for task in done if self._running.pop(task) is not None]

    def close(self) -> None:
        tasks = list(self._running)
        for force in (False, True) if tasks else ():
            for task in tasks:
                with contextlib.suppress(ValueError):  # It has ended.
                    self._ray.cancel(task, force=force)
            _, tasks = self._ray.wait(tasks, num_returns=len(tasks), timeout=STOP_SECONDS)
            if not tasks:
                break
        self._running.clear()
        if self._own:
            self._ray.shutdown()

    def _reason(self, task: Any) -> str | None:
        try:
            self._ray.get(task)
        except self._ray.exceptions.RayTaskError as error:
            return f"{type(error.cause).__name__}: {_line(error.cause)}"
        except self._ray.exceptions.RayError as error:
            return f"{type(error).__name__}: {_line(error)}"
        return None


def _start_ray(ray: Any, address: str | None) -> None:
    if address is None:
        # Reports of use would go out from where no one asked for them.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    quiet: dict[str, Any] = {} if address else {"include_dashboard": False}
    try:
        ray.init(address or "local", log_to_driver=False, logging_level="warning", **quiet)
    except (ConnectionError, ValueError, ray.exceptions.RayError) as error:
        raise UserError(f"address={address!r}: {_line(error)}") from error


def _check_answers(address: Any) -> None:
    """Raises UserError where nothing listens at a host and port: Ray would try it for minutes."""
    require(isinstance(address, str | None), f"address={shown(address)} is not text")
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


def _work_in_ray(work: Work, platform: str, memory: str, number: int) -> None:
    """Does the work where JAX keeps to the platform that was asked for and to its share of it."""
    import jax

    # Whatever the driver's JAX_PLATFORMS, which workers take over, says of its own machine.
    jax.config.update("jax_platforms", "cpu" if platform == "cpu" else None)
    if platform != "cpu":
        os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"] = memory
    work(number)


class Slurm(Launcher):
    """Jobs of Slurm in arrays, through submitit, whose settings are the options.

    Slurm starts a preempted job again, and submitit one whose time is over, up to three times.
    Their files and logs are in a folder of the user's own (the option `folder`, which all nodes
    see), for they are unpickled, and a folder of results may be anybody's. A job's state is asked
    of the queue (every `poll_seconds`), not of accounting, which not every cluster has.
    """

    own_options = ("folder", "poll_seconds")

    def check_machine(self) -> None:
        if importlib.util.find_spec("submitit") is None:
            raise UserError("on='slurm' needs the extra: pip install 'memobench[slurm]'")
        for command in ("sbatch", "squeue", "srun", "scancel"):
            if not shutil.which(command):
                raise UserError(f"on='slurm' needs Slurm's {command} on this machine")
        import submitit

        known = submitit.SlurmExecutor._valid_parameters()
        _require_known(self.options, [*self.own_options, *known], "slurm")

    def begin(self, folder: pathlib.Path) -> None:
        import submitit

        options = dict(self.options)
        own = _make_private(options.pop("folder", "~/.memobench"))
        self._poll_seconds, self._next_poll = options.pop("poll_seconds", POLL_SECONDS), 0.0
        self._folder, self._held = own / f"slurm-{uuid.uuid4().hex[:8]}", set[str]()
        self.platform = "gpu" if {"gpus_per_node", "gpus_per_task", "gres"} & {*options} else "cpu"
        # Of this process's environment, which jobs take over, this does not fit their machine.
        platform = "unset JAX_PLATFORMS" if self.platform == "gpu" else "export JAX_PLATFORMS=cpu"
        setup = options.pop("setup", ())
        cores = options.setdefault("cpus_per_task", 1)
        self._executor = submitit.SlurmExecutor(self._folder)
        self._executor.update_parameters(
            **{
                **{"job_name": "memobench", "time": 60, "array_parallelism": self.n},
                # Since 22.05 a step no longer takes over what its job reserved.
                **{"srun_args": [f"--cpus-per-task={cores}"], "stderr_to_stdout": True},
                "setup": [platform, *([setup] if isinstance(setup, str) else setup)],
                **options,
            }
        )

    def start(self, work: Work, n: int) -> None:
        numbers = range(self.n_started, self.n_started + n)
        try:
            jobs = self._executor.map_array(work, numbers)
        except RuntimeError as error:
            raise UserError(f"on='slurm' could not hand in jobs: {_line(error)}") from error
        self._running |= dict(zip(jobs, numbers, strict=True))
        self.n_started += n

    def ended(self) -> list[str | None]:
        if not self._running or time.monotonic() < self._next_poll:
            return []
        self._next_poll = time.monotonic() + self._poll_seconds
        states = _ask_queue()
        if states is None:
            return []
        known = {job: states.get(job.job_id, ("forgotten", "")) for job in self._running}
        held = {
            why for state, why in known.values() if state == "PENDING" and "held" in why.lower()
        }
        for why in held - self._held:  # Nothing else would show it.
            _log.warning("Slurm holds jobs: %s; release or cancel them (scontrol, scancel)", why)
        self._held |= held
        done = {job: state for job, state in known.items() if state[0] in _ENDED}
        return [self._reason(job, *state) for job, state in done.items()]

    def close(self) -> None:
        if self._running:
            ids = [job.job_id for job in self._running]
            subprocess.run(["scancel", "--quiet", *ids], check=False)
        self._running.clear()
        # Slurm has its own copy of the scripts; what else there is says what went wrong.
        for script in self._folder.glob("*.sh"):
            script.unlink()
        with contextlib.suppress(OSError):
            self._folder.rmdir()

    def _reason(self, job: Any, state: str, why: str) -> str | None:
        """Returns what went wrong; the files of a job that went well are removed."""
        del self._running[job]
        paths = job.paths
        if state in ("COMPLETED", "forgotten"):
            for path in (paths.submitted_pickle, paths.result_pickle, paths.stdout):
                path.unlink(missing_ok=True)
            return None
        return f"Slurm job {job.job_id} is {state} ({why}); log: {paths.stdout}"


def _make_private(name: str) -> pathlib.Path:
    """Returns the folder. Raises UserError where others could put files into it."""
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


def _ask_queue() -> dict[str, tuple[str, str]] | None:
    """Returns state and reason of each job in the queue; None where Slurm does not answer."""
    command = ["squeue", "--me", "--array", "--noheader", "--states=all", "--format=%i|%T|%r"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    lines = (line.split("|") for line in done.stdout.splitlines())
    return {name: (state, reason) for name, state, reason in lines}


def _require_known(options: Iterable[str], known: Iterable[str], on: str) -> None:
    for name in options:
        hint = closest(name, known, others="")
        require(name in known, f"option {shown(name)} is unknown to on={on!r}{hint}")


LAUNCHERS: dict[str, type[Launcher]] = {"here": Launcher, "ray": Ray, "slurm": Slurm}


def make(processes: int | None, on: str, options: Mapping[str, Any]) -> Launcher | None:
    """Returns the launcher of so many workers; None for a sweep in this process alone.

    Raises UserError for another number, place or option, and where this machine lacks something.
    """
    known = isinstance(on, str) and on in LAUNCHERS
    require(known, f"on={shown(on)} must be one of {', '.join(LAUNCHERS)}")
    if processes is None:
        for name in options:
            raise UserError(f"option {shown(name)} needs processes=N, and on='ray' or on='slurm'")
        require(on == "here", f"on={on!r} needs processes=N, the number of workers")
        return None
    is_number = type(processes) is int and processes >= 1
    require(is_number, f"processes={shown(processes)} must be an integer >= 1")
    launcher = LAUNCHERS[on](processes, options)
    launcher.check_machine()
    return launcher


def read(options: Iterable[str]) -> dict[str, Any]:
    """Returns options as given to the command line, NAME=VALUE. Raises UserError for others."""
    values = {}
    for text in options:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise UserError(
                f"--option={shown(text)[1:-1]} must be NAME=VALUE, such as --option=partition=gpu"
            )
        try:
            values[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            values[name] = value
    return values


def describe() -> str:
    """Returns what --on and --option choose."""
    return """workers on one results folder, --processes=N of them:
  --on=here   share this machine's cores or GPUs
  --on=ray    tasks of Ray; options are address=auto (else Ray starts here) and those of
              ray.remote: num_cpus=1, num_gpus=0.5
  --on=slurm  jobs of Slurm; options are folder=~/.memobench for their logs, and submitit's:
              partition=gpu, gpus_per_node=1, cpus_per_task=4, time=60 (minutes, then requeued)"""
