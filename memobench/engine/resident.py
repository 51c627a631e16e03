"""Chunks by a module's own kernel: all steps of a lane in one call, with all its state at hand.

`Kernel.source` is compiled for the lanes' sizes: for one NVIDIA GPU, where a block trains a lane on
its multiprocessor, or for the CPU. Where a signature, the device or an installation does not serve
it, the chunk is XLA's.

Shape letters: R lanes, C steps of a chunk, B batch, T examples, K instances, P parameters.
"""

import collections
import dataclasses
import functools
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from memobench.core import module as models
from memobench.core.kernel import Kernel, Launch
from memobench.core.module import KernelModule
from memobench.engine import cplusplus, cuda, devices
from memobench.engine.lanes import Lane, State
from memobench.engine.signature import Signature
from memobench.optimizers.adam import Adam
from memobench.optimizers.muon import Muon
from memobench.tasks.tokens import TokenTask

_log = logging.getLogger("memobench")

# An environment variable: "0" leaves all chunks to XLA, "1" takes kernels wherever they run.
VARIABLE = "MEMOBENCH_KERNELS"
# On a CPU a kernel starts later than XLA's program does, by half a millisecond, and gains it by so
# many steps of a chunk, or so many examples times weights of all of them (docs/resident-kernel.md).
LEAST_STEPS, LEAST_WORK = 16, 1e6
# The optimisers that kernels know. What a subclass changes they do not.
OPTIMIZERS = (Adam, Muon)


def find_kernel(signature: Signature, anywhere: bool = True) -> Kernel | None:
    """The kernel that takes a signature's steps; None where XLA does.

    Args:
      signature: of a program.
      anywhere: False leaves to XLA what was not measured to be faster on a GPU: steps on batches,
        other contexts than two tokens, unequal frequencies, several layers, compressed heads, and
        other optimisers than Adam (docs/resident-kernel.md).
    """
    optimizer: Any = signature.optimizer
    task, module = signature.task, signature.module
    is_served = (
        isinstance(module, KernelModule)
        and type(optimizer) in OPTIMIZERS
        and optimizer.clip is None
        and isinstance(task, TokenTask)
        and type(task).objective is TokenTask.objective
        and task.question == "next token"
        and not task.is_fresh
        and task.shapes().next_TxK.shape[1:] == (1,)
        and not (task.only_asked or signature.trained or signature.keeps_best)
        and (anywhere or _was_measured(signature))
        and task.n_outputs == task.vocab_size
    )
    return module.kernel() if is_served else None


def _was_measured(signature: Signature) -> bool:
    """True for what a kernel trains faster on a GPU than XLA does."""
    task, module = signature.task, signature.module
    is_flat = getattr(module, "n_layers", 1) == 1 and not getattr(module, "compress", False)
    is_exact_adam = type(signature.optimizer) is Adam and not signature.batch_size
    return is_flat and is_exact_adam and task.is_even and task.context_length == 2


def find_used(signature: Signature) -> Kernel | None:
    """The kernel that takes a signature's steps in this process; it may yet fail to compile."""
    platform, wanted = jax.local_devices()[0].platform, os.environ.get(VARIABLE)
    is_able = platform == "gpu" or (platform == "cpu" and cplusplus.find_compiler() is not None)
    if wanted == "0" or devices.count() > 1 or not is_able:
        return None
    kernel = find_kernel(signature, anywhere=platform == "cpu" or wanted == "1")
    is_worth = kernel is None or platform != "cpu" or wanted == "1" or _has_long_chunks(signature)
    return kernel if is_worth else None


def _has_long_chunks(signature: Signature) -> bool:
    """True where a kernel gains more by a chunk's steps than it takes before and after them."""
    n_steps, task = signature.chunk_steps, signature.task
    n_weights, _ = models.count_parameters(signature.module, task.context_length)
    n_examples = signature.batch_size or task.n_examples
    return n_steps >= LEAST_STEPS or n_steps * n_examples * n_weights >= LEAST_WORK


def is_used_on_gpu() -> bool:
    """True unless kernels are off, or were not measured on this process's GPU, if it has one."""
    wanted, device = os.environ.get(VARIABLE), jax.local_devices()[0]
    if wanted in ("0", "1"):
        return wanted == "1"
    return device.platform != "gpu" or cuda.is_measured(device.local_hardware_id)


def find_chunk(signature: Signature) -> Callable[..., Any] | None:
    """`Program.chunk` by a kernel, where this process has one device that can run it."""
    kernel = find_used(signature)
    if kernel is None:
        return None
    device, constants = jax.local_devices()[0], defines(kernel, signature)
    launch: Launch | None
    try:
        if device.platform == "cpu":
            launch = cplusplus.find_launch(kernel.source, constants)
        else:
            number, anywhere = device.local_hardware_id, os.environ.get(VARIABLE) == "1"
            launch = cuda.find_launch(kernel.source, constants, number, anywhere)
    except (OSError, RuntimeError) as error:
        _log.warning("steps are XLA's, for a kernel cannot be used: %s", error)
        return None
    return make_chunk(signature, kernel, launch) if launch else None


def defines(kernel: Kernel, signature: Signature) -> dict[str, str]:
    """The constants that a kernel's source is compiled with.

    Of the optimiser its name, its numbers, and its choices, each by the field's name and its own.
    """
    optimizer: Any = signature.optimizer
    found = {**dict(kernel.sizes), "WEIGHTED": int(_has_weights(signature)), optimizer.name: 1}
    for field in dataclasses.fields(optimizer):
        value = getattr(optimizer, field.name)
        found |= {f"{field.name}_{value}": 1} if isinstance(value, str) else {field.name: value}
    return {
        name.upper(): f"{value!r}f" if isinstance(value, float) else str(int(value))
        for name, value in found.items()
        if value is not None
    }


def _has_weights(signature: Signature) -> bool:
    """True where examples count by their frequency, by which those of batches are drawn."""
    return not (signature.task.is_even or signature.batch_size)


def pack_bytes(x: jax.Array) -> jax.Array:
    """Bytes along the last axis, four to an int32, the first of them lowest."""
    padded = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -x.shape[-1] % 4)]).astype(jnp.int32)
    return functools.reduce(jnp.bitwise_or, [padded[..., i::4] << 8 * i for i in range(4)])


def make_chunk(signature: Signature, kernel: Kernel, launch: Launch) -> Callable[..., Any]:
    """`Program.chunk` by a kernel."""
    task, batch_size = signature.task, signature.batch_size
    n_steps = signature.chunk_steps

    @jax.jit
    def prepare(state: State, data: Any, lane_R: Lane, rate_RxC: Any, order_RxCxB: Any) -> Any:
        n_lanes = len(rate_RxC)
        params, constants = state.variables["params"], state.variables["constants"]
        *moments, count_R = split_state(state.opt_state, params)
        state_3xRxP = [jax.vmap(kernel.flatten)(x) for x in (params, *moments)]
        factors = (lane_R.of_shapes or {}).get("factors", {})
        factor_RxP = jax.vmap(lambda params, factors: kernel.flatten(_spread(params, factors)))(
            params, factors
        )
        tokens_KxTxS = jax.vmap(lambda x: task.tokens(x, jnp.arange(task.n_examples)))(
            data["instances"]
        )
        packed_KxTxW = pack_bytes(
            jnp.concatenate([tokens_KxTxS, data["instances"].next_TxK], axis=-1)
        )
        if _has_weights(signature):
            weight_KxT = jax.lax.bitcast_convert_type(data["instances"].prior_T, jnp.int32)
            packed_KxTxW = jnp.concatenate([packed_KxTxW, weight_KxT[..., None]], axis=-1)
        if batch_size:
            draws_RxM = data["draws"][lane_R.instance]
            if signature.subsets:
                n_R = lane_R.n_examples[:, None]
                draws_RxM = jnp.minimum((draws_RxM * n_R).astype(jnp.int32), n_R - 1)
            draws_RxX = jnp.take_along_axis(draws_RxM, order_RxCxB.reshape(n_lanes, -1), axis=1)
            of_lane_RxTxW = packed_KxTxW[lane_R.instance]
            examples = jnp.take_along_axis(of_lane_RxTxW, draws_RxX[..., None], axis=1)
            begin_R = jnp.arange(n_lanes) * n_steps * batch_size
            size_R = jnp.full(n_lanes, batch_size)
        else:
            examples, begin_R = packed_KxTxW, lane_R.instance * packed_KxTxW.shape[1]
            size_R = lane_R.n_examples if signature.subsets else jnp.full(n_lanes, task.n_examples)
        scale_R = kernel.scale(constants).reshape(n_lanes)
        seen_2xRxC = jnp.zeros((2, n_lanes, n_steps))
        numbers = count_R, examples.reshape(-1), begin_R, size_R
        arrays = [x.astype(jnp.int32) for x in numbers]
        return [*state_3xRxP, *arrays, scale_R, rate_RxC, factor_RxP, seen_2xRxC]

    @jax.jit
    def finish(state_3xRxP: Any, state: State) -> State:
        params, *moments = (jax.vmap(kernel.restore)(x) for x in state_3xRxP)
        opt_state = join_state(state.opt_state, moments, n_steps)
        return State({**state.variables, "params": params}, opt_state, state.best)

    def chunk(state: State, data: Any, lane_R: Lane, rate_RxC: Any, order_RxCxB: Any) -> Any:
        arrays = prepare(state, data, lane_R, rate_RxC, order_RxCxB)
        launch(n_steps, batch_size, arrays)
        curve = tuple(arrays[-1]) if signature.curve else None
        return finish(arrays[:3], state), curve

    return chunk


# --- States of optimisers ------------------------------------------------------------------------

# Of each parameter an optimiser keeps at most two arrays of its shape, and else counts steps.
MOMENTS = 2


def split_state(opt_state: Any, params: Mapping[str, jax.Array]) -> tuple[Any, ...]:
    """Two arrays of every parameter's shape, zeros where an optimiser keeps none, and its steps."""
    zeros = {name: jnp.zeros_like(x) for name, x in params.items()}
    moments, counts = [dict(zeros) for _ in range(MOMENTS)], []
    for (name, which), x in zip(_name_leaves(opt_state), jax.tree.leaves(opt_state), strict=True):
        if name in params:
            moments[which][name] = x
        else:
            counts.append(x)
    return *moments, counts[0]


def join_state(opt_state: Any, moments: Sequence[Mapping[str, jax.Array]], n_steps: int) -> Any:
    """An optimiser's state after so many steps, with other moments."""
    leaves, tree = jax.tree.flatten(opt_state)
    moved = [
        moments[which][name] if name in moments[0] else x + n_steps
        for (name, which), x in zip(_name_leaves(opt_state), leaves, strict=True)
    ]
    return jax.tree.unflatten(tree, moved)


def _name_leaves(opt_state: Any) -> list[tuple[Any, int]]:
    """Of every leaf the key where it is kept, and how many of its before it."""
    seen: collections.Counter[Any] = collections.Counter()
    found = []
    for path, _ in jax.tree.leaves_with_path(opt_state):
        name = getattr(path[-1], "key", None)
        found.append((name, seen[name]))
        seen[name] += 1
    return found


def _spread(params: Mapping[str, jax.Array], factors: Mapping[str, Any]) -> dict[str, jax.Array]:
    """A parameter's factor at each of its entries; 1 by default."""
    return {name: jnp.full(x.shape, factors.get(name, 1.0)) for name, x in params.items()}
