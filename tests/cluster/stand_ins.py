"""Work in the place of training, each with a diary in a folder that the test reads."""

import functools
import json
import os
import pathlib
import signal
import time
import uuid

SECONDS = 120


def diary(folder, pack=None):
    """What was written by each start of the work on a pack, or of all."""
    name = "*" if pack is None else pack.runs[0].run_id
    paths = sorted(
        pathlib.Path(folder).glob(f"{name}.*.start"), key=lambda path: path.stat().st_mtime
    )
    return [json.loads(path.read_text()) for path in paths]


def _started(function):
    """Work that tells on its start where it runs and which others do, and takes that back."""

    @functools.wraps(function)
    def work(folder, pack):
        folder, name = pathlib.Path(folder), f"{pack.runs[0].run_id}.{uuid.uuid4().hex}"
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
        function(folder, pack)
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
def nothing(folder, pack):
    pass


@_started
def meet(folder, pack):
    """Ends only where two packs are at work at once."""
    (folder / f"{pack.runs[0].run_id}.here").touch()
    until(lambda: len(list(folder.glob("*.here"))) >= 2, "another pack at work at the same time")


@_started
def wait(folder, pack):
    until((folder / "go").exists, "go")


@_started
def killed_once(folder, pack):
    if len(diary(folder, pack)) == 1:
        os.kill(os.getpid(), signal.SIGKILL)


@_started
def fails(folder, pack):
    raise ValueError("of no use\nat all")
