"""What the scripts of this folder share that is about measuring, not about what is measured."""

import datetime
import shlex
import sys

import jax

from memobench import worker

try:
    import torch
except ImportError:
    torch = None  # type: ignore[assignment]


def say(text: str) -> None:
    """A line of progress, with the time."""
    print(f"{datetime.datetime.now():%H:%M:%S} {text}", file=sys.stderr, flush=True)


def about(script: str) -> dict[str, str]:
    """On what and when a script measured, and the command that repeats it."""
    return {
        "device": worker.device_name(jax.devices()[0]),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "jax": jax.__version__,
        "torch": "not installed" if torch is None else torch.__version__,
        "command": shlex.join(["python", script, *sys.argv[1:]]),
    }
