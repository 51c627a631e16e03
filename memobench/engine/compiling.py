"""Compiled programs: shared by threads with compile times, and kept on disk for later processes."""

import contextlib
import functools
import hashlib
import os
import pathlib
import platform
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from memobench.engine import devices
from memobench.numerics import lookup

# Threads that want the same value wait for the one that makes it.
_LOCKS: dict[Any, threading.Lock] = {}
_SPENT = threading.local()

# A scatter by atomics, as GPUs do by default, would give a run other bits each time. On CPUs a
# library makes what surrounds a matrix product and nothing else: what it makes of short sums, as in
# a softmax over two tokens, takes many times longer than XLA's own code.
OPTIONS: dict[str, Any] = {
    "xla_gpu_deterministic_ops": True,
    "xla_gpu_dot_merger_threshold_mb": 0,
    "xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_DOT",
}

# Programs that were written longer ago are deleted: of older code and of older JAX, most of them.
KEPT_SECONDS = 30 * 24 * 3600.0


def keep_programs() -> None:
    """Keeps what is compiled in the user's cache folder, where JAX is not told otherwise.

    JAX_COMPILATION_CACHE_DIR names another folder, JAX_ENABLE_COMPILATION_CACHE=false keeps none. A
    folder that cannot be written is done without.
    """
    config: Any = jax.config
    if config.jax_compilation_cache_dir is not None or not config.jax_enable_compilation_cache:
        return
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = pathlib.Path(cache, "memobench", f"programs-{describe_cpu()}")
    if not folder.is_absolute():
        return
    try:
        # What lies there is run: it is the user's alone.
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    # Files before the folders that they leave empty.
    for path in sorted(folder.parent.rglob("*"), reverse=True):
        with contextlib.suppress(OSError):  # Others may be deleting, too.
            if path != folder and path.stat().st_mtime < time.time() - KEPT_SECONDS:
                path.unlink() if path.is_file() else path.rmdir()


def kept_folder() -> pathlib.Path | None:
    """The folder of this machine in which programs are kept, if any is."""
    config: Any = jax.config
    kept = config.jax_enable_compilation_cache and config.jax_compilation_cache_dir
    return pathlib.Path(kept) if kept and os.path.isdir(kept) else None


def describe_cpu() -> str:
    """A name of all of the CPU that decides machine code: instructions, and cores to divide work.

    JAX's own keys are not known to have them, and code for other instructions would fail or round
    otherwise.
    """
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    known = sorted({x for x in lines if x.lower().startswith(("flags", "features", "model name"))})
    n_cores = str(devices.n_cores())
    text = "\n".join([platform.machine(), platform.processor(), n_cores, *known])
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def options() -> dict[str, Any]:
    """Those of OPTIONS that this XLA has: experimental ones come and go with versions."""
    return {name: value for name, value in OPTIONS.items() if _is_known(name, value)}


@functools.cache
def _is_known(name: str, value: Any) -> bool:
    try:
        jax.jit(lambda: 0).lower().compile(compiler_options={name: value})
    except jax.errors.JaxRuntimeError:
        return False
    return True


def time_calls(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, whose calls `call_timed` times."""

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        started = time.perf_counter()
        made = function(*arguments)
        _SPENT.seconds = time.perf_counter() - started
        return made

    return call


def call_timed(cached: Callable[..., Any], *shape: Any) -> tuple[Any, float]:
    """The value of an lru-cached function of `time_calls`, and its seconds; 0 if it was cached."""
    with _LOCKS.setdefault((cached, shape), threading.Lock()):
        _SPENT.seconds = 0.0
        return cached(*shape), _SPENT.seconds


def compile_stacked(
    function: Callable[..., Any], *arguments: Any, specs: Any, donate: tuple[int, ...] = ()
) -> Any:
    """The function of stacked runs compiled for these shapes; specs as those of `devices.jit`."""
    jitted = devices.jit(function, specs, donate_argnums=donate, compiler_options=options())
    with lookup.traced_for_here():
        lowered = jitted.lower(*arguments)
    return lowered.compile()


class Part(NamedTuple):
    """A function of stacked runs, and the shapes it is compiled for.

    Attributes:
      function: of stacked runs.
      arguments: shapes of its arguments.
      specs: SPLIT or SHARED for each of them.
      donate: numbers of the arguments that are overwritten.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    specs: tuple[Any, ...]
    donate: tuple[int, ...] = ()

    def compile(self) -> Any:
        """The function compiled for the devices of this process."""
        return compile_stacked(self.function, *self.arguments, specs=self.specs, donate=self.donate)
