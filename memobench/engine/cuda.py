"""Kernels on one NVIDIA GPU: compiled by NVRTC, which comes with JAX on CUDA; a block a lane."""

import contextlib
import ctypes
import functools
import glob
import hashlib
import importlib.util
import os
import pathlib
import re
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from memobench.core.kernel import Launch
from memobench.engine import compiling

# Examples that a block takes at a time, a thread each; the first that fits is taken.
THREADS = (256, 128)
# GPUs on which kernels were measured to be faster.
MEASURED = ("sm_90",)

FLAGS = ("-std=c++17", "-default-device")

_OUT_OF_MEMORY = 2
_SHARED_BYTES, _MOST_SHARED_BYTES, _MAJOR, _MINOR = 8, 97, 75, 76


def find_launch(
    source: pathlib.Path, constants: Mapping[str, str], device: int, anywhere: bool = False
) -> Launch | None:
    """The launch of a kernel; None for models that do not fit a multiprocessor.

    Args:
      source: of the kernel.
      constants: that it is compiled with.
      device: the GPU's number.
      anywhere: True for GPUs as well on which kernels were not measured.

    Raises:
      OSError: where CUDA's compiler or driver is missing.
      MemoryError: where the GPU has too little.
      RuntimeError: with what one of them says.
    """
    driver = _driver(device)
    if not anywhere and driver.architecture not in MEASURED:
        return None
    for n_threads in THREADS:
        words = tuple(f"-D{x}={v}" for x, v in {**constants, "B": n_threads}.items())
        binary = _load(source, words, driver.architecture)
        function, n_bytes = driver.load(binary)
        if n_bytes <= driver.most_shared:
            return functools.partial(_launch, driver, function, n_threads, n_bytes)
    return None


def is_measured(device: int) -> bool:
    """True if kernels were measured on GPUs like this one, and its driver answers."""
    try:
        return _driver(device).architecture in MEASURED
    except (OSError, RuntimeError):
        return False


def _launch(
    driver: Any, function: Any, n_threads: int, n_bytes: int, n_steps: int, stride: int, arrays: Any
) -> None:
    jax.block_until_ready(arrays)
    pointers = [ctypes.c_void_p(x.unsafe_buffer_pointer()) for x in arrays]
    values = [ctypes.c_int(n_steps), *pointers[:6], ctypes.c_int(stride), *pointers[6:]]
    driver.launch(function, len(arrays[0]), n_threads, n_bytes, values)


@functools.lru_cache(maxsize=256)
def _load(source: pathlib.Path, words: Sequence[str], architecture: str) -> bytes:
    """The machine code of a kernel for a GPU, compiled unless the user's cache folder has it."""
    text = source.read_text("utf-8")
    key = "\n".join([_nvrtc_version(), architecture, *FLAGS, *words, text])
    name = f"kernel-{hashlib.sha256(key.encode()).hexdigest()[:32]}.cubin"
    kept = compiling.kept_folder()
    if kept:
        with contextlib.suppress(OSError):
            digest, binary = (found := (kept / name).read_bytes())[:32], found[32:]
            if digest == hashlib.sha256(binary).digest():
                return binary
    binary, _ = compile_source(source, words, architecture)
    if kept:
        # Nothing may be writable there; and others may be writing it, too.
        with contextlib.suppress(OSError), tempfile.TemporaryDirectory(dir=kept) as beside:
            new = pathlib.Path(beside, name)
            new.write_bytes(hashlib.sha256(binary).digest() + binary)
            os.replace(new, kept / name)
    return binary


def _nvrtc_version() -> str:
    major, minor = ctypes.c_int(), ctypes.c_int()
    _check(_nvrtc().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
    return f"{major.value}.{minor.value}"


def compile_source(
    source: pathlib.Path, words: Sequence[str], architecture: str
) -> tuple[bytes, str]:
    """The machine code of a kernel for a GPU, and what the compiler says of it; needs no GPU.

    Raises:
      OSError: where CUDA's compiler is missing.
      RuntimeError: with what it says, where it fails.
    """
    nvrtc, program, size = _nvrtc(), ctypes.c_void_p(), ctypes.c_size_t()
    words = [f"--gpu-architecture={architecture}", *FLAGS, *words]
    options = (ctypes.c_char_p * len(words))(*(x.encode() for x in words))
    text = source.read_bytes()
    _check(nvrtc.nvrtcCreateProgram(ctypes.byref(program), text, b"kernel.cu", 0, None, None))
    failed = nvrtc.nvrtcCompileProgram(program, len(words), options)
    _check(nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size)))
    buffer = ctypes.create_string_buffer(size.value)
    _check(nvrtc.nvrtcGetProgramLog(program, buffer))
    log = buffer.value.decode(errors="replace")
    if failed:
        raise RuntimeError(f"{source.name}: {log}")
    _check(nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size)))
    binary = ctypes.create_string_buffer(size.value)
    _check(nvrtc.nvrtcGetCUBIN(program, binary))
    _check(nvrtc.nvrtcDestroyProgram(ctypes.byref(program)))
    return binary.raw, log


@functools.cache
def _nvrtc() -> Any:
    """NVIDIA's compiler at run time. Raises OSError where it is missing."""
    spec = importlib.util.find_spec("nvidia")
    folders = list(spec.submodule_search_locations or []) if spec else []
    found = [x for f in folders for x in glob.glob(f"{f}/**/libnvrtc.so*", recursive=True)]
    # Of several the newest; a system's own has no version in its name.
    newest = max(found, key=_version, default="libnvrtc.so")
    # It asks for this one by its name alone, which the system may not know.
    for beside in glob.glob(f"{os.path.dirname(newest)}/libnvrtc-builtins.so*"):
        with contextlib.suppress(OSError):
            ctypes.CDLL(beside)
    return ctypes.CDLL(newest)


def _version(path: str) -> list[int]:
    return [int(x) for x in re.findall(r"\d+", path.rpartition(".so")[2])]


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
    if status == _OUT_OF_MEMORY:
        raise MemoryError("CUDA is out of memory")
    if status:
        raise RuntimeError(f"a call of CUDA ended with status {status}")
