"""A queue for a GPU that is at hand for a quarter of an hour: the cheapest and most telling first.

Whether this device computes what is known, how fast it is, the board, and points of papers that
nobody could pay yet. A step is a command that stands for itself; the same call goes on where the
last one ended, here, on another GPU or on a CPU. A step that fails is named and costs no other.

    make gpu MINUTES=15
    python -m memobench.experiments.performance.gpu --minutes=15 --folder=runs/gpu

The second form needs nothing but this checkout, with the extra [test]; PyTorch is measured where it
is installed. All results lie in --folder: `shards`, which `memobench report NAME
--results=FOLDER/shards` reads, `performance` and `logs`.
"""

import dataclasses
import importlib.util
import math
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from absl import app, flags

from memobench.common import folders
from memobench.common.notation import pluralize

MINUTES = flags.DEFINE_float("minutes", 15.0, "How long in all.", lower_bound=0.0)
flags.register_validator("minutes", math.isfinite, "must be a finite number")
FOLDER = flags.DEFINE_string("folder", "runs/gpu", "Folder of all that comes of it.")
WORKERS = flags.DEFINE_integer(
    "workers",
    None,
    "How many workers share the device; by default one, and up to 15 where MPS lets them.",
    lower_bound=1,
)

# So long before the end nothing begins, and what trains saves where it is.
RESERVED = 20.0
# More workers gain nothing: fifteen of them train three times as much as one.
MOST_PROCESSES = 15


@dataclasses.dataclass(frozen=True)
class Step:
    """A command of the queue, whose words may name {folder}.

    Attributes:
      words: after Python's.
      trains: whether it takes the flags of `memobench run`.
      shares: whether several workers are faster than one.
      on_cpu: whether it leaves the device alone.
    """

    words: str
    trains: bool = False
    shares: bool = False
    on_cpu: bool = False

    @property
    def name(self) -> str:
        """A name for files, of the words that tell the command from others."""
        known = self.words.replace("{folder}", "").replace("memobench run", "run")
        return "-".join("".join(x if x.isalnum() else " " for x in known).split())

    def command(self, folder: pathlib.Path, seconds: float, processes: int) -> list[str]:
        """The command line for so many seconds."""
        found = [sys.executable, *self.words.format(folder=folder).split()]
        if self.trains:
            found += [f"--results={folder}/shards", f"--for={seconds:.0f}s", "--noprogress"]
        return found + [f"--processes={processes}"] * (self.shares and processes > 1)


def _run(experiment: str, preset: str, more: str = "", shares: bool = True) -> Step:
    words = f"-m memobench run {experiment} --preset={preset} {more}".strip()
    return Step(words, trains=True, shares=shares)


def _measure(script: str) -> Step:
    return Step(f"experiments/performance/{script}.py --output={{folder}}/performance")


QUEUE: tuple[Step, ...] = (
    # Right: numbers that are known, and weights that a CPU counts again.
    Step("-m tests.test_golden --here"),
    _run("dana2025/heads", "bench", shares=False),
    _run("board/typical", "bench", shares=False),
    Step("-m memobench verify {folder}/shards --recompute", on_cpu=True),
    # Fast.
    _measure("packed_vs_alone"),
    _measure("labelled_contexts"),
    _measure("kernels"),
    # The best sizes of sets, other designs, and the board, to 8,192 and then 65,536 parameters.
    _run("board/peak", "large", "--unpublished"),
    _run("board/peak", "entries", "--unpublished"),
    _run("board/design", "large", "--unpublished"),
    _run("board/typical", "quick"),
    _run("board/typical", "narrow"),
    _run("board/typical", "full"),
    _run("board/typical", "large"),
    _run("board/shapes", "accelerator"),
    # What papers have and the published tables lack.
    _run("mahdavi2024", "paper", "--seeds=1 --unpublished"),
    _run("dana2025", "paper", "--unpublished"),
    _run("dana2025/vocabularies", "full"),
    _run("dana2025/contexts", "full", "--unpublished"),
    _run("capacity/factual-recall", "full", "--unpublished"),
    # With doubled steps.
    _run("dana2025", "full", "--unpublished"),
    _run("hebbian2026/widths", "d64", "--unpublished"),
    # Planned for days.
    _run("capacity/mlp-memory-released", "paper", "--unpublished"),
    _run("hebbian2026/widths", "paper", "--unpublished"),
)


def count_processes() -> int:
    """The number of workers that train on this device."""
    if WORKERS.value is not None:
        return WORKERS.value
    shared = not _is_on_cpu() and shutil.which("nvidia-cuda-mps-control")
    return min(MOST_PROCESSES, max(1, (os.cpu_count() or 1) - 1)) if shared else 1


def _is_on_cpu() -> bool:
    return os.environ.get("JAX_PLATFORMS", "").startswith("cpu") or not shutil.which("nvidia-smi")


def work(queue: Sequence[Step], folder: pathlib.Path, seconds: float, processes: int) -> list[str]:
    """Does what is left of a queue for so long; the lines that say how each step ended."""
    end, lines = time.monotonic() + seconds - RESERVED, list[str]()
    for name in ("done", "logs", "performance"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for step in queue:
        done, left = folder / "done" / step.name, end - time.monotonic()
        if done.exists():
            lines.append(f"done before: {step.name}")
            continue
        if left <= 1:
            lines.append(f"left: {step.name}")
            continue
        print(f"{left:5.0f} s left: {step.name}", flush=True)
        code = _do(step, folder, left, processes)
        if code == 0 and time.monotonic() < end:
            done.touch()
        ended = "the time is up" if time.monotonic() >= end else code and f"status {code}"
        lines.append(f"{f'not done, {ended}' if ended else 'done'}: {step.name}")
    return lines


def _do(step: Step, folder: pathlib.Path, seconds: float, processes: int) -> int:
    """The exit status of a step, which is told to stop after so many seconds."""
    more: dict[str, str] = {"PYTHONPATH": str(folders.CHECKOUT)}
    if step.on_cpu:
        more["JAX_PLATFORMS"] = "cpu"
    command = step.command(folder, seconds, processes)
    with open(folder / "logs" / f"{step.name}.log", "ab") as log:
        child = subprocess.Popen(
            command, cwd=folders.CHECKOUT, env=os.environ | more, stdout=log, stderr=log
        )
        try:
            return child.wait(seconds + RESERVED / 2 * step.trains)
        except subprocess.TimeoutExpired:
            return _stop(child)
        except KeyboardInterrupt:
            _stop(child)
            raise


def _stop(child: Any) -> int:
    """The exit status of a command that is told to end, and is killed if it does not."""
    child.send_signal(signal.SIGTERM)
    try:
        return child.wait(RESERVED / 2)
    except subprocess.TimeoutExpired:
        child.kill()
        return child.wait()


def main(argv: Sequence[str]) -> None:
    """Works on the queue, and says what became of it."""
    del argv
    # A scheduler's SIGTERM ends it as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    folder = pathlib.Path(FOLDER.value).resolve()
    if _is_on_cpu():
        print("no GPU: there is no nvidia-smi, or JAX_PLATFORMS=cpu; this trains on what JAX finds")
    if not importlib.util.find_spec("torch"):
        print("PyTorch is not installed: what is fast here is compared without it")
    try:
        lines = work(QUEUE, folder, 60 * MINUTES.value, count_processes())
    except KeyboardInterrupt:
        sys.exit(f"interrupted; the same command goes on with what is in {FOLDER.value}")
    except OSError as error:
        sys.exit(f"folder={FOLDER.value!r} cannot be written: {error}; name another")
    n_left = sum(not line.startswith("done") for line in lines)
    print("\n".join(lines))
    print(f"{pluralize(n_left, 'step')} of {len(lines)} left; results are in {FOLDER.value}")


if __name__ == "__main__":
    app.run(main)
