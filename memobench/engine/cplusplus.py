"""Kernels on CPUs: compiled by the system's C++ compiler; each core trains a lane at a time."""

import concurrent.futures
import ctypes
import functools
import hashlib
import os
import pathlib
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from memobench.core.kernel import Launch
from memobench.engine import compiling, devices

# Examples that are taken at a time: fewer leave more sums, more leave the caches.
EXAMPLES = 256
FLAGS = ("-O3", "-std=c++17", "-fno-math-errno", "-shared", "-fPIC", "-x", "c++")
# For this CPU's vectors, and as every compiler can.
TARGETS = (("-march=native",), ())


def find_launch(source: pathlib.Path, constants: Mapping[str, str]) -> Launch:
    """The launch of a kernel. Raises RuntimeError with what the compiler says."""
    compiler = find_compiler()
    if compiler is None:
        raise RuntimeError("no C++ compiler was found")
    words = tuple(f"-D{x}={v}" for x, v in {**constants, "B": EXAMPLES}.items())
    train_lane, _ = compiling.call_timed(_load, compiler, source, words)
    return functools.partial(_launch, train_lane)


@functools.cache
def find_compiler() -> str | None:
    """The C++ compiler: $CXX, or the first that is installed of c++, g++ and clang++."""
    names = (os.environ.get("CXX"), "c++", "g++", "clang++")
    return next((found for x in names if x and (found := shutil.which(x))), None)


@functools.lru_cache(maxsize=256)
def _load(compiler: str, source: pathlib.Path, words: Sequence[str]) -> Any:
    """The function of a kernel, compiled unless the user's cache folder has it."""
    key = "\n".join([compiler, *FLAGS, *words, compiling.describe_cpu(), source.read_text("utf-8")])
    name = f"kernel-{hashlib.sha256(key.encode()).hexdigest()[:32]}.so"
    with tempfile.TemporaryDirectory() as own:
        folder = compiling.kept_folder() or pathlib.Path(own)
        library = folder / name
        if not library.exists():
            # Others may be writing it, too.
            with tempfile.TemporaryDirectory(dir=folder) as beside:
                compiled = pathlib.Path(beside, name)
                _compile(compiler, source, words, compiled)
                os.replace(compiled, library)
        return ctypes.CDLL(str(library)).train_lane


def _compile(
    compiler: str, source: pathlib.Path, words: Sequence[str], library: pathlib.Path
) -> None:
    for target in TARGETS:
        command = [compiler, *FLAGS, *target, *words, str(source), "-o", str(library)]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace")
        if not done.returncode:
            return
    lines = [x for x in done.stderr.splitlines() if "error" in x] or [f"status {done.returncode}"]
    raise RuntimeError(f"{compiler}: {lines[0]}")


def _launch(train_lane: Any, n_steps: int, stride: int, arrays: list[Any]) -> None:
    written = (0, 1, 2, len(arrays) - 1)
    held = [np.array(x) if i in written else np.asarray(x) for i, x in enumerate(arrays)]
    pointers = [x.ctypes.data_as(ctypes.c_void_p) for x in held]
    n_lanes = len(held[0])

    def train(lane: int) -> None:
        train_lane(lane, n_lanes, n_steps, *pointers[:6], stride, *pointers[6:])

    list(_pool().map(train, range(n_lanes)))
    for i in written:
        arrays[i] = jnp.asarray(held[i])


@functools.cache
def _pool() -> concurrent.futures.ThreadPoolExecutor:
    """A thread a core, for the lanes of all packs that train side by side."""
    return concurrent.futures.ThreadPoolExecutor(devices.n_cores(), "lanes")
