"""Compile cache shared by threads, with compile times."""

import functools
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from memobench.engine import devices

_LOCK = threading.Lock()

# A scatter by atomics, as GPUs do by default, would give a run other bits each time. On CPUs a
# library makes what surrounds a matrix product and nothing else: what it makes of short sums, as in
# a softmax over two tokens, takes many times longer than XLA's own code.
OPTIONS: dict[str, Any] = {
    "xla_gpu_deterministic_ops": True,
    "xla_gpu_dot_merger_threshold_mb": 0,
    "xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_DOT",
}


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


def call_timed(cached: Any, *shape: Any) -> tuple[Any, float]:
    """The value of an lru-cached function, and the seconds it took; 0 if it was cached."""
    with _LOCK:
        misses, started = cached.cache_info().misses, time.perf_counter()
        made = cached(*shape)
        seconds = time.perf_counter() - started
        return made, seconds if cached.cache_info().misses > misses else 0.0


def compile_stacked(
    function: Callable[..., Any], *arguments: Any, specs: Any, donate: tuple[int, ...] = ()
) -> Any:
    """The function of stacked runs compiled for these shapes; specs as those of `devices.jit`."""
    jitted = devices.jit(function, specs, donate_argnums=donate, compiler_options=options())
    return jitted.lower(*arguments).compile()


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
