"""Kernels on CPUs: compiled by the system's C++ compiler; each core trains a lane at a time."""

import concurrent.futures
import contextlib
import ctypes
import functools
import hashlib
import logging
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
# What kernels need of a compiler: g++ has it since version 9.
PROBE = """
typedef float real __attribute__((vector_size(16)));
typedef int whole __attribute__((vector_size(16)));
extern "C" whole convert(real x) { return __builtin_convertvector(x, whole); }
"""

_log = logging.getLogger("memobench")


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
    """The C++ compiler: $CXX, or the first of c++, g++ and clang++ that compiles PROBE.

    A line in the log says why those that are installed cannot be used.
    """
    faults = list[str]()
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder, "probe.cpp")
        source.write_text(PROBE, "utf-8")
        for name in (os.environ.get("CXX"), "c++", "g++", "clang++"):
            if name and (compiler := shutil.which(name)):
                try:
                    _compile(compiler, source, (), source.with_suffix(".so"))
                except (OSError, RuntimeError) as error:
                    faults.append(str(error))
                else:
                    return compiler
    if faults:
        _log.warning("steps are XLA's, for no compiler can be used: %s", "; ".join(faults))
    return None


@functools.lru_cache(maxsize=256)
def _load(compiler: str, source: pathlib.Path, words: Sequence[str]) -> Any:
    """The function of a kernel, compiled unless the user's cache folder has it."""
    key = "\n".join([compiler, *FLAGS, *words, compiling.describe_cpu(), source.read_text("utf-8")])
    name = f"kernel-{hashlib.sha256(key.encode()).hexdigest()[:32]}.so"
    with tempfile.TemporaryDirectory() as own:
        if kept := compiling.kept_folder():
            # It may be damaged, or made for another system that shares the folder.
            with contextlib.suppress(OSError):
                return ctypes.CDLL(str(kept / name)).train_lane
            with contextlib.suppress(OSError):  # Nothing can be written or run there.
                return _compile_into(kept, name, compiler, source, words)
        return _compile_into(pathlib.Path(own), name, compiler, source, words)


def _compile_into(
    folder: pathlib.Path, name: str, compiler: str, source: pathlib.Path, words: Sequence[str]
) -> Any:
    # Others may be writing it, too.
    with tempfile.TemporaryDirectory(dir=folder) as beside:
        compiled = pathlib.Path(beside, name)
        _compile(compiler, source, words, compiled)
        os.replace(compiled, folder / name)
    return ctypes.CDLL(str(folder / name)).train_lane


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

    # One lane gains nothing by waiting for a thread of others.
    list(_pool().map(train, range(n_lanes)) if n_lanes > 1 else map(train, range(1)))
    for i in written:
        arrays[i] = jnp.asarray(held[i])


@functools.cache
def _pool() -> concurrent.futures.ThreadPoolExecutor:
    """A thread a core, for the lanes of all packs that train side by side."""
    return concurrent.futures.ThreadPoolExecutor(devices.n_cores(), "lanes")
