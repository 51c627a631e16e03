"""Chunks by a module's own kernel, on one NVIDIA GPU: a block a lane, all its state on the chip.

`Kernel.source` is compiled for the lanes' sizes by NVRTC, which comes with JAX on CUDA, and
launched through the driver. Where a signature, the device or an installation does not serve it, the
chunk is XLA's.

Shape letters: R lanes, C steps of a chunk, B batch, T examples, K instances, P parameters.
"""

import ctypes
import functools
import glob
import importlib.util
import logging
import os
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

from memobench.core.kernel import Kernel
from memobench.core.module import KernelModule
from memobench.engine import devices
from memobench.engine.lanes import Lane, State
from memobench.engine.signature import Signature
from memobench.optimizers.adam import Adam
from memobench.tasks.tokens import TokenTask

_log = logging.getLogger("memobench")

# Examples that a block takes at a time, a thread each; the first that fits is taken.
THREADS = (256, 128)
# GPUs on which kernels were measured to be faster.
MEASURED = ("sm_90",)
# An environment variable: "0" leaves all chunks to XLA, "1" takes kernels on other GPUs as well.
VARIABLE = "MEMOBENCH_KERNELS"

# Takes a chunk, given its number of steps, the examples between two steps' batches, and arrays:
# weights_RxP and two moments, count_R of steps before, examples (first | last << 8 | next << 16),
# begin_R and size_R of batches among them, scale_R of scores, rate_RxC, and seen_2xRxC for losses
# and accuracies. The first three and the last are overwritten.
Launch = Callable[[int, int, Sequence[Any]], None]


def find_kernel(signature: Signature, batches: bool = False) -> Kernel | None:
    """The kernel that takes a signature's steps on a GPU; None where XLA does.

    Args:
      signature: of a program.
      batches: to find one for steps on batches, too, which XLA takes faster where heads are wide
        (docs/resident-kernel.md).
    """
    task, optimizer, module = signature.task, signature.optimizer, signature.module
    is_served = (
        isinstance(module, KernelModule)
        # What a subclass changes the kernel does not know.
        and type(optimizer) is Adam
        and optimizer.clip is None
        and isinstance(task, TokenTask)
        and type(task).objective is TokenTask.objective
        and (task.context_length, task.question) == (2, "next token")
        and task.is_even
        and not task.is_fresh
        and task.shapes().next_TxK.shape[1:] == (1,)
        and not (task.only_asked or signature.trained or signature.keeps_best)
        and (batches or not signature.batch_size)
        and task.n_outputs == task.vocab_size
    )
    return module.kernel() if is_served else None


def defines(kernel: Kernel, optimizer: Adam, n_threads: int) -> dict[str, str]:
    """The constants that a kernel's source is compiled with."""
    of_adam = {"B1": optimizer.b1, "B2": optimizer.b2, "EPS": optimizer.eps}
    sizes = {**dict(kernel.sizes), "B": n_threads}
    return {x: str(n) for x, n in sizes.items()} | {x: f"{v!r}f" for x, v in of_adam.items()}


def make_chunk(signature: Signature, kernel: Kernel, launch: Launch) -> Callable[..., Any]:
    """`Program.chunk` by a kernel."""
    task, batch_size = signature.task, signature.batch_size
    n_steps = signature.chunk_steps

    @jax.jit
    def prepare(state: State, data: Any, lane_R: Lane, rate_RxC: Any, order_RxCxB: Any) -> Any:
        n_lanes = len(rate_RxC)
        params, constants = state.variables["params"], state.variables["constants"]
        moments = state.opt_state.mu, state.opt_state.nu
        state_3xRxP = [jax.vmap(kernel.flatten)(x) for x in (params, *moments)]
        tokens_KxTxS = jax.vmap(lambda x: task.tokens(x, jnp.arange(task.n_examples)))(
            data["instances"]
        )
        label_KxT = data["instances"].next_TxK[..., 0]
        packed_KxT = tokens_KxTxS[..., 0] | tokens_KxTxS[..., 1] << 8 | label_KxT << 16
        if batch_size:
            draws_RxM = data["draws"][lane_R.instance]
            if signature.subsets:
                n_R = lane_R.n_examples[:, None]
                draws_RxM = jnp.minimum((draws_RxM * n_R).astype(jnp.int32), n_R - 1)
            draws_RxX = jnp.take_along_axis(draws_RxM, order_RxCxB.reshape(n_lanes, -1), axis=1)
            examples = jnp.take_along_axis(packed_KxT[lane_R.instance], draws_RxX, axis=1)
            begin_R = jnp.arange(n_lanes) * n_steps * batch_size
            size_R = jnp.full(n_lanes, batch_size)
        else:
            examples, begin_R = packed_KxT, lane_R.instance * packed_KxT.shape[1]
            size_R = lane_R.n_examples if signature.subsets else jnp.full(n_lanes, task.n_examples)
        scale_R = kernel.scale(constants).reshape(n_lanes)
        seen_2xRxC = jnp.zeros((2, n_lanes, n_steps))
        numbers = state.opt_state.count, examples.reshape(-1), begin_R, size_R
        arrays = [x.astype(jnp.int32) for x in numbers]
        return [*state_3xRxP, *arrays, scale_R, rate_RxC, seen_2xRxC], constants, state.best

    @jax.jit
    def finish(state_3xRxP: Any, count_R: jax.Array, constants: Any) -> Any:
        params, mu, nu = (jax.vmap(kernel.restore)(x) for x in state_3xRxP)
        opt_state = optax.ScaleByAdamState(count_R + n_steps, mu, nu)
        return {"params": params, "constants": constants}, opt_state

    def chunk(state: State, data: Any, lane_R: Lane, rate_RxC: Any, order_RxCxB: Any) -> Any:
        arrays, constants, best = prepare(state, data, lane_R, rate_RxC, order_RxCxB)
        launch(n_steps, batch_size, arrays)
        variables, opt_state = finish(arrays[:3], arrays[3], constants)
        curve = tuple(arrays[-1]) if signature.curve else None
        return State(variables, opt_state, best), curve

    return chunk


# --- NVIDIA's GPUs ------------------------------------------------------------------------------

_SHARED_BYTES, _MOST_SHARED_BYTES, _MAJOR, _MINOR = 8, 97, 75, 76


def find_chunk(signature: Signature, batches: bool = False) -> Callable[..., Any] | None:
    """`Program.chunk` by a kernel, where this process has one GPU that can run it.

    Args:
      signature: of a program.
      batches: see `find_kernel`.
    """
    device, wanted = jax.local_devices()[0], os.environ.get(VARIABLE)
    if device.platform != "gpu" or devices.count() > 1 or wanted == "0":
        return None
    kernel = find_kernel(signature, batches)
    if kernel is None:
        return None
    try:
        driver = _driver(device.local_hardware_id)
        if wanted != "1" and driver.architecture not in MEASURED:
            return None
        launch = _compile(kernel, signature.optimizer, driver)
    except (OSError, RuntimeError) as error:
        _log.warning("steps are XLA's, for a kernel cannot be used: %s", error)
        return None
    return launch and make_chunk(signature, kernel, launch)


def _compile(kernel: Kernel, optimizer: Any, driver: Any) -> Launch | None:
    """The launch of a kernel; None for models that do not fit a multiprocessor."""
    for n_threads in THREADS:
        binary = _compile_source(kernel, optimizer, n_threads, driver.architecture)
        function, n_bytes = driver.load(binary)
        if n_bytes <= driver.most_shared:
            return functools.partial(_launch, driver, function, n_threads, n_bytes)
    return None


def _launch(
    driver: Any, function: Any, n_threads: int, n_bytes: int, n_steps: int, stride: int, arrays: Any
) -> None:
    jax.block_until_ready(arrays)
    pointers = [ctypes.c_void_p(x.unsafe_buffer_pointer()) for x in arrays]
    values = [ctypes.c_int(n_steps), *pointers[:6], ctypes.c_int(stride), *pointers[6:]]
    driver.launch(function, len(arrays[0]), n_threads, n_bytes, values)


@functools.lru_cache(maxsize=256)
def _compile_source(kernel: Kernel, optimizer: Adam, n_threads: int, architecture: str) -> bytes:
    """The machine code of a kernel for a GPU. Raises RuntimeError with what the compiler says."""
    nvrtc, program, size = _nvrtc(), ctypes.c_void_p(), ctypes.c_size_t()
    constants = defines(kernel, optimizer, n_threads).items()
    words = [
        f"--gpu-architecture={architecture}",
        "-std=c++17",
        "-default-device",
        *(f"-D{x}={v}" for x, v in constants),
    ]
    options = (ctypes.c_char_p * len(words))(*(x.encode() for x in words))
    source = kernel.source.read_bytes()
    _check(nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, b"kernel.cu", 0, None, None))
    if nvrtc.nvrtcCompileProgram(program, len(words), options):
        _check(nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size)))
        log = ctypes.create_string_buffer(size.value)
        _check(nvrtc.nvrtcGetProgramLog(program, log))
        raise RuntimeError(f"{kernel.source.name}: {log.value.decode(errors='replace')}")
    _check(nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size)))
    binary = ctypes.create_string_buffer(size.value)
    _check(nvrtc.nvrtcGetCUBIN(program, binary))
    _check(nvrtc.nvrtcDestroyProgram(ctypes.byref(program)))
    return binary.raw


@functools.cache
def _nvrtc() -> Any:
    """NVIDIA's compiler at run time. Raises OSError where it is missing."""
    spec = importlib.util.find_spec("nvidia")
    folders = list(spec.submodule_search_locations or []) if spec else []
    found = [x for f in folders for x in glob.glob(f"{f}/**/libnvrtc.so*", recursive=True)]
    # Of several the newest; a system's own has no version in its name.
    return ctypes.CDLL(max(found, default="libnvrtc.so"))


@functools.cache
def _driver(device: int) -> Any:
    return _Driver(device)


class _Driver:
    """The CUDA driver on a device, in the context that JAX has there.

    Attributes:
      architecture: of the device, for the compiler.
      most_shared: bytes of shared memory that a block may have.
    """

    def __init__(self, device: int) -> None:
        self._cuda, number, self._context = (
            ctypes.CDLL("libcuda.so.1"),
            ctypes.c_int(),
            ctypes.c_void_p(),
        )
        _check(self._cuda.cuInit(0))
        _check(self._cuda.cuDeviceGet(ctypes.byref(number), device))
        _check(self._cuda.cuDevicePrimaryCtxRetain(ctypes.byref(self._context), number))
        major, minor, self.most_shared = (
            self._attribute(x, number) for x in (_MAJOR, _MINOR, _MOST_SHARED_BYTES)
        )
        self.architecture = f"sm_{major}{minor}"

    def _attribute(self, which: int, device: Any) -> int:
        value = ctypes.c_int()
        _check(self._cuda.cuDeviceGetAttribute(ctypes.byref(value), which, device))
        return value.value

    def load(self, binary: bytes) -> tuple[Any, int]:
        """The function of a binary, and the bytes of shared memory that a block of it needs."""
        self._enter()
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        at, size, n_floats = ctypes.c_uint64(), ctypes.c_size_t(), ctypes.c_int()
        cuda = self._cuda
        _check(cuda.cuModuleLoadData(ctypes.byref(module), binary))
        _check(cuda.cuModuleGetFunction(ctypes.byref(function), module, b"train_chunk"))
        _check(
            cuda.cuModuleGetGlobal_v2(
                ctypes.byref(at), ctypes.byref(size), module, b"shared_floats"
            )
        )
        _check(cuda.cuMemcpyDtoH_v2(ctypes.byref(n_floats), at, ctypes.c_size_t(4)))
        n_bytes = 4 * n_floats.value
        if n_bytes <= self.most_shared:
            _check(cuda.cuFuncSetAttribute(function, _SHARED_BYTES, n_bytes))
        return function, n_bytes

    def launch(
        self, function: Any, n_blocks: int, n_threads: int, n_bytes: int, values: Sequence[Any]
    ) -> None:
        """Runs a function and waits for it."""
        self._enter()
        pointers = [ctypes.cast(ctypes.pointer(x), ctypes.c_void_p) for x in values]
        parameters = (ctypes.c_void_p * len(values))(*pointers)
        shape = n_blocks, 1, 1, n_threads, 1, 1, n_bytes, None
        _check(self._cuda.cuLaunchKernel(function, *shape, parameters, None))
        _check(self._cuda.cuStreamSynchronize(None))

    def _enter(self) -> None:
        _check(self._cuda.cuCtxSetCurrent(self._context))


def _check(status: int) -> None:
    if status:
        raise RuntimeError(f"a call of CUDA ended with status {status}")
