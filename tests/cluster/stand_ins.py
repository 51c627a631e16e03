"""Work in the place of training, each with a diary in a folder that the test reads."""

import functools
import json
import os
import pathlib
import signal
import time
import uuid

SECONDS = 120


def diary(folder, number="*"):
    """What was written by each start of the worker of a number, or of all."""
    paths = sorted(
        pathlib.Path(folder).glob(f"{number}.*.start"), key=lambda path: path.stat().st_mtime
    )
    return [json.loads(path.read_text()) for path in paths]


def _started(function):
    """Work that tells on its start where it runs and which others do, and takes that back."""

    @functools.wraps(function)
    def work(folder, number):
        folder, name = pathlib.Path(folder), f"{number}.{uuid.uuid4().hex}"
        running = folder / f"{name}.running"
        running.touch()
        told = {
            "pid": os.getpid(),
            "node": os.environ.get("SLURMD_NODENAME") or _ray_node(),
            "cuda": os.environ.get("CUDA_VISIBLE_DEVICES"),
            "jax_platforms": os.environ.get("JAX_PLATFORMS"),
            "at_once": len(list(folder.glob("*.running"))),
        }
        written = folder / f"{name}.new"
        written.write_text(json.dumps(told))
        written.rename(folder / f"{name}.start")
        function(folder, number)
        running.unlink()

    return work


def _ray_node():
    import ray

    return ray.get_runtime_context().get_node_id()


def until(true, what):
    """Waits for what must happen sooner or later."""
    deadline = time.monotonic() + SECONDS
    while not (value := true()):
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.1)
    return value


@_started
def nothing(folder, number):
    pass


@_started
def meet(folder, number):
    """Ends only where two workers are at work at once."""
    (folder / f"{number}.here").touch()
    until(lambda: len(list(folder.glob("*.here"))) >= 2, "another worker at the same time")


@_started
def wait(folder, number):
    """Heeds no Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    until((folder / "go").exists, "go")
    signal.signal(signal.SIGINT, before)


@_started
def wait_for_ctrl_c(folder, number):
    """Notes that it was stopped as Ctrl-C does."""
    try:
        until((folder / "go").exists, "go")
    except KeyboardInterrupt:
        (folder / f"{number}.saved").touch()


@_started
def wait_for_sigusr1(folder, number):
    """Notes that it was stopped as launchers do."""
    signal.signal(signal.SIGUSR1, lambda *_: (folder / f"{number}.saved").touch())
    until((folder / f"{number}.saved").exists, "SIGUSR1")


@_started
def killed(folder, number):
    os.kill(os.getpid(), signal.SIGKILL)


@_started
def fails(folder, number):
    raise ValueError("of no use\nat all")
