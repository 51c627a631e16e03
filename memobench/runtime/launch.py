"""Launchers: the same work in N processes, here, through a command such as srun, or as Ray's tasks.

A launcher starts workers, says how they ended, and stops them. All work on one results folder,
whose leases say who trains what: see `memobench.runtime.workers`. Imports no JAX.
"""

import ast
import collections
import contextlib
import functools
import importlib.util
import itertools
import logging
import math
import os
import pathlib
import pickle
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.parse
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from memobench.common.errors import UserError, in_a_line, require, short_repr
from memobench.core import plugins

# JAX's variable for the part of a GPU's memory that one process takes, and its default; here also
# for the part of this machine's memory that workers have.
MEMORY_VARIABLE, MEMORY_FRACTION = "XLA_PYTHON_CLIENT_MEM_FRACTION", 0.75
# Within which the address of a Ray cluster must answer.
CONNECT_SECONDS = 10
# Within which stopped tasks of Ray save where they are.
STOP_SECONDS = 60
# NVIDIA's MPS, which runs programs of several processes on a GPU at once.
_MPS = "nvidia-cuda-mps-control"
# Within which a tool of NVIDIA's must answer.
_TOOL_SECONDS = 60
# How lines of a worker's log begin that its driver repeats, and how long they may be.
_SAYS, _READ_BYTES = "memobench: ", 2**16

_log = logging.getLogger("memobench")

# What a worker does, called with its number.
Work = Callable[[int], None]


def memory_fraction() -> float:
    """The part of the memory that this process and its workers may take.

    Raises UserError where the variable holds none.
    """
    text = os.environ.get(MEMORY_VARIABLE, "")
    with contextlib.suppress(ValueError):
        if 0 < (found := float(text or MEMORY_FRACTION)) < math.inf:
            return found
    raise UserError(f"{MEMORY_VARIABLE} must be a part of the memory such as 0.5, got {text!r}")


def make_portable(work: Work, modules: Sequence[str] = ()) -> Work:
    """The work for another process, which first imports plugins and these modules as this one."""
    names = tuple(dict.fromkeys((*plugins.names(), *modules)))
    ready = functools.partial(plugins.at_work, names, work)
    path = [os.path.abspath(x) for x in sys.path]
    return functools.partial(_unpickle_and_work, path, pickle.dumps(ready))


def _unpickle_and_work(path: list[str], data: bytes, number: int) -> None:
    sys.path += [x for x in path if x not in sys.path]
    pickle.loads(data)(number)


class Launcher:
    """Processes that share this machine's cores or GPUs evenly, or that a command starts elsewhere.

    Attributes:
      n: the largest number of workers at a time.
      words: the words of the command; empty for processes of this machine.
    """

    def __init__(self, n: int, words: Sequence[str]) -> None:
        self.n, self.words, self._n_started = n, words, 0
        self._running: dict[Any, Any] = {}

    @property
    def n_running(self) -> int:
        return len(self._running)

    @property
    def n_sharing(self) -> int:
        """The number of workers that share one memory: a GPU's, or this machine's on a CPU."""
        return 1 if self.words else -(-self.n // max(1, len(self._gpus)))

    @functools.cached_property
    def _gpus(self) -> list[str]:
        return [] if self.words else _list_gpus()

    def check_machine(self) -> None:
        """Raises UserError where this machine lacks what `begin` needs."""
        for word in self.words[:1]:
            require(shutil.which(word), f"on={word!r} must be ray, or a command of this machine")

    def begin(self, folder: pathlib.Path) -> None:
        """Prepares for workers on a results folder. Raises OSError where that cannot be."""
        self._logs = folder / ".logs"
        self._logs.mkdir(exist_ok=True)
        self._work_file = self._logs / f"work-{uuid.uuid4().hex[:8]}.pickle"
        self._said = set[str]()
        # Bytes of each log.
        self._n_read = collections.Counter[pathlib.Path]()
        self._started_mps = bool(self._gpus) and self.n_sharing > 1 and _start_mps()

    def start(self, work: Work, n: int) -> None:
        """Starts n further workers."""
        # More than a pipe takes would wait here until a worker reads it, which may be in a queue.
        if n > 0 and not self._work_file.exists():
            self._work_file.write_bytes(pickle.dumps(work))
        path = os.path.abspath(self._work_file)
        used = {place for place, _ in self._running.values()}
        command = [*self.words, sys.executable, "-c"]
        command += ["from memobench.runtime.launch import main; main()"]
        for place in [x for x in range(self.n) if x not in used][:n]:
            log = self._logs / f"worker-{uuid.uuid4().hex[:8]}.log"
            with open(log, "wb") as file:
                child = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=file,
                    stderr=file,
                    env=self._environment(place),
                )
            self._running[child] = (place, log)
            assert child.stdin
            with contextlib.suppress(BrokenPipeError):  # How it ended is seen later.
                child.stdin.write(pickle.dumps((self._cores(place), path, self._n_started)))
                child.stdin.flush()
            self._n_started += 1

    def wait(self, seconds: float) -> None:
        """Waits so long, or until a worker ends where that is seen at once."""
        time.sleep(seconds)

    def pop_ended(self) -> list[str | None]:
        """The error of each worker that ended since the last call; None for one that is done."""
        over = [child for child in self._running if child.poll() is not None]
        for _, log in self._running.values():
            self._repeat_warnings(log)
        return [self._reason(child, *self._running.pop(child)) for child in over]

    def close(self) -> None:
        """Stops workers, which save their state, and waits; a second Ctrl-C kills them."""
        try:
            for child in self._running:
                # srun passes it on, or ends if it waits for a node; SIGTERM it takes for SIGKILL.
                child.send_signal(signal.SIGUSR1)
            for child in self._running:
                child.wait()
        finally:
            for child, (_, log) in self._running.items():
                child.kill()
                child.wait()
                _close_input(child)
                log.unlink(missing_ok=True)
            self._work_file.unlink(missing_ok=True)
            if self._started_mps:
                _ask([_MPS], "quit")

    def _repeat_warnings(self, log: pathlib.Path) -> None:
        """Says once what a worker warns of, whose log goes with it."""
        with contextlib.suppress(OSError), open(log, "rb") as file:
            file.seek(self._n_read[log])
            # A part of a line, unless none may be that long, is read again.
            while (line := file.readline(_READ_BYTES)).endswith(b"\n") or len(line) == _READ_BYTES:
                self._n_read[log] = file.tell()
                text = line.decode(errors="replace").strip()
                if text.startswith(_SAYS) and text not in self._said:
                    self._said.add(text)
                    _log.warning("%s", text.removeprefix(_SAYS))

    def _reason(self, child: Any, place: int, log: pathlib.Path) -> str | None:
        _close_input(child)
        if not child.returncode:
            log.unlink(missing_ok=True)
            return None
        lines = [x for x in log.read_text(errors="replace").splitlines() if x.strip()]
        code = child.returncode
        status = f"status {code}" if code > 0 else signal.Signals(-code).name
        return f"a worker ended with {status}: {lines[-1] if lines else ''}; log: {log}"

    def _environment(self, place: int) -> dict[str, str]:
        """The environment variables of a worker: its GPUs, and its part of the memory."""
        # Set for this process alone.
        found = {x: y for x, y in os.environ.items() if x != "XLA_PYTHON_CLIENT_PREALLOCATE"}
        if not self.words:
            found[MEMORY_VARIABLE] = f"{memory_fraction() / self.n_sharing:.3f}"
        if self._gpus:
            gpus = self._gpus[place :: self.n] or [self._gpus[place % len(self._gpus)]]
            found["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
        return found

    def _cores(self, place: int) -> list[int]:
        """The cores of a worker; empty for all of them."""
        if self.words or self._gpus or not hasattr(os, "sched_setaffinity"):
            return []
        cores = sorted(os.sched_getaffinity(0))
        first, last = (len(cores) * x // self.n for x in (place, place + 1))
        return cores[first:last] or [cores[place % len(cores)]]


def _close_input(child: Any) -> None:
    with contextlib.suppress(BrokenPipeError):  # It ended before it had read all.
        child.stdin.close()


def main() -> None:
    """Does the work that standard input names; ends when that closes, for its parent is gone."""
    cores, path, number = pickle.load(sys.stdin.buffer)
    try:
        work = pickle.loads(pathlib.Path(path).read_bytes())
    except OSError as error:
        sys.exit(f"results must be a folder that workers share, got {in_a_line(error)}")
    if cores:
        os.sched_setaffinity(0, cores)
    to_driver = logging.StreamHandler()
    to_driver.setFormatter(logging.Formatter(f"{_SAYS}%(message)s"))
    _log.addHandler(to_driver)

    def follow() -> None:
        while os.read(0, 1):  # Python cannot end while a thread reads from a file of its own.
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=follow, daemon=True).start()
    work(number)


def _list_gpus() -> list[str]:
    """The GPUs that JAX would find, as CUDA_VISIBLE_DEVICES names them."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if os.environ.get("JAX_PLATFORMS", "").startswith("cpu") or not shutil.which("nvidia-smi"):
        return []
    if visible is not None:
        # CUDA takes those before the first that is none.
        return [*itertools.takewhile(lambda x: x not in ("", "-1"), visible.split(","))]
    listed = _ask(["nvidia-smi", "-L"])
    require(listed, f"nvidia-smi must answer within {_TOOL_SECONDS} s; see to the GPU's driver")
    return re.findall(r"^GPU (\d+):", listed.stdout, re.MULTILINE)


def _start_mps() -> bool:
    """Starts MPS if it does not run, which a warning says where it cannot; True if this did."""
    refused = "this machine does not have it"
    if shutil.which(_MPS):
        started = _ask([_MPS, "-d"])
        if started and not started.returncode:
            return True
        asked = _ask([_MPS], "get_server_list")
        if asked and not asked.returncode:  # Someone else's.
            return False
        said = " ".join((started.stderr or started.stdout).split()) if started else "no answer"
        refused = said or f"{_MPS} ended with status {started and started.returncode}"
    _log.warning("workers take turns on a GPU, for MPS does not start: %s", refused)
    return False


def _ask(command: list[str], line: str = "") -> Any:
    """The end of a command that was given a line of input; None where it takes too long."""
    try:
        return subprocess.run(
            command, input=line, capture_output=True, text=True, timeout=_TOOL_SECONDS
        )
    except subprocess.TimeoutExpired:
        return None


class Ray(Launcher):
    """Tasks of Ray; words are the address of its cluster and options of `ray.remote`.

    Ray does not restart them by itself. Without an address it starts on this machine.
    """

    def check_machine(self) -> None:
        if importlib.util.find_spec("ray") is None:
            raise UserError("on='ray' needs the extra: pip install '.[ray]' in the clone")
        for word in self.words:
            name, equals, _ = word.partition("=")
            require(equals and name.isidentifier(), f"on='ray {word}' must be 'ray NAME=VALUE ...'")
        _require_answer(self._options().get("address"))

    def _options(self) -> dict[str, Any]:
        options: dict[str, Any] = dict(word.split("=", 1) for word in self.words)
        for name, text in options.items():
            with contextlib.suppress(ValueError, SyntaxError):
                options[name] = ast.literal_eval(text)
        return options

    def begin(self, folder: pathlib.Path) -> None:
        import ray

        options = self._options()
        address = options.pop("address", None)
        # A Ray that the caller started is theirs to stop.
        self._ray, self._is_ours = ray, not ray.is_initialized()
        try:
            if self._is_ours:
                _start_ray(ray, address)
            resources = ray.cluster_resources()
            needed = {"num_cpus": 1, "num_gpus": min(1, resources.get("GPU", 0)), **options}
            for name, resource in {"num_cpus": "CPU", "num_gpus": "GPU"}.items():
                most = resources.get(resource, 0)
                # A cluster may grow, this machine does not.
                fits = address is not None or needed[name] <= most
                require(fits, f"{name}={needed[name]} is more than is here, {most:g}")
            # Asked for here and not by options(), a GPU is given to a fresh process each time: an
            # idle one would keep its memory.
            self._task: Any = ray.remote(max_retries=0, **needed)(_work_in_ray)
        except Exception as error:
            self.close()
            raise UserError(f"on='ray': {in_a_line(error)}") from error
        self._share = min(1.0, needed["num_gpus"])

    def start(self, work: Work, n: int) -> None:
        put = self._ray.put(work)
        for _ in range(n):
            self._running[self._task.remote(put, self._share, self._n_started)] = None
            self._n_started += 1

    def pop_ended(self) -> list[str | None]:
        tasks = list(self._running)
        done, _ = self._ray.wait(tasks, num_returns=len(tasks), timeout=0) if tasks else ([], [])
        for task in done:
            del self._running[task]
        return [self._error(task) for task in done]

    def close(self) -> None:
        tasks = list(self._running)
        for force in (False, True):
            for task in tasks:
                with contextlib.suppress(ValueError):  # It has ended.
                    self._ray.cancel(task, force=force)
            if tasks:
                _, tasks = self._ray.wait(tasks, num_returns=len(tasks), timeout=STOP_SECONDS)
        if self._is_ours:
            self._ray.shutdown()

    def _error(self, task: Any) -> str | None:
        try:
            self._ray.get(task)
        except self._ray.exceptions.RayError as error:
            cause = getattr(error, "cause", None) or error
            return in_a_line(cause)
        return None


def _start_ray(ray: Any, address: str | None) -> None:
    if address is None:
        # Reports of use would go out from where no one asked for them.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    quiet: dict[str, Any] = {} if address else {"include_dashboard": False}
    ray.init(address or "local", log_to_driver=False, logging_level="warning", **quiet)


def _require_answer(address: str | None) -> None:
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
            f"address={address!r} does not answer ({in_a_line(error)}); "
            "start a cluster there or leave address out"
        ) from error


def _work_in_ray(work: Work, share: float, number: int) -> None:
    """Does the work on the platform that was asked for, on a share of its memory."""
    import jax

    # Workers inherit the driver's JAX_PLATFORMS, which is about its own machine.
    jax.config.update("jax_platforms", None if share else "cpu")
    if share:
        os.environ[MEMORY_VARIABLE] = f"{memory_fraction() * share:.3f}"
    work(number)


def make(processes: int | None, on: str) -> Launcher | None:
    """The launcher of workers; None for a sweep in this process alone.

    Args:
      processes: the largest number of workers at a time; None for none.
      on: the command that starts them, "ray" with options, or "" for this machine.

    Raises:
      UserError: an argument is of another form, or this machine lacks what it needs.
    """
    require(isinstance(on, str), f"on={short_repr(on)} must be text, such as 'srun --gpus=1'")
    if processes is None:
        require(not on, f"on={short_repr(on)} needs processes=N, the number of workers")
        return None
    is_number = type(processes) is int and processes >= 1
    require(is_number, f"processes={short_repr(processes)} must be an integer >= 1")
    try:
        words = shlex.split(on)
    except ValueError as error:
        raise UserError(
            f"on={short_repr(on)} must be words ({error}); quote them as in a shell"
        ) from error
    launcher = Ray(processes, words[1:]) if words[:1] == ["ray"] else Launcher(processes, words)
    launcher.check_machine()
    return launcher
