"""Packs: which runs one compiled program trains together, and the size to which all are padded.

A model whose paired factors are zero-padded is the smaller model: the gradients of the padding
are exactly zero and stay so under Adam. So models of unequal sizes can be padded, stacked and
trained as one. Which runs may share a program say `pack_key` of their task and method; here it is
chosen which of them do. Imports models and specs; trains nothing, touches no files.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from memobench.core import module as models
from memobench.core.module import KernelModule, Module, enclose, paddable_sizes
from memobench.core.run import Pack, Run
from memobench.engine import Signature
from memobench.engine.resident import find_kernel, find_used, is_used_on_gpu
from memobench.tasks.tokens import EVALUATED_AT_ONCE, TokenTask

# Orders of magnitude that only choose packs; no result depends on them, and what is measured (see
# `costs`) never changes them, for a resumed sweep must find the packs that it left. A pack that
# does not fit after all is halved by the worker that trains it.
COMPILE_SECONDS = {"cpu": 5.0, "gpu": 10.0}
FLOPS_PER_SECOND = 2e10
# Accelerators are bound by memory: seconds of a step for each of its activations, and the share of
# these that they hold, a TPU in tiles of 8 x 128. Within three times what programs took on an H100
# and hold there, and on a TPU v5e, by results/performance/first_light.md and accelerators.md.
ACTIVATION_SECONDS, HELD = 9e-12, {"cpu": 0.8, "gpu": 0.5, "tpu": 1.5}
# Seconds of a step of a kernel that keeps models on the chip, for each weight and example of the
# largest set, on an H200 whose multiprocessors are all busy, and the most weights that a
# multiprocessor has room for, so that no pack is padded to more (docs/resident-kernel.md).
KERNEL_SECONDS, KERNEL_WEIGHTS = 5e-13, 8300
# The least that a step takes: on an accelerator what starts its kernels, and the host between
# chunks, decide. By the packs of published capacities on an H200, as are its compilations. Steps of
# a kernel start none; theirs is that of 2,048 weights (docs/resident-kernel.md).
STEP_SECONDS = {"cpu": 0.0, "gpu": 1.6e-3, "kernel": 3e-4}
# Trials of searches that train at a time. On a CPU more are no faster, and others wait for them;
# of one alone XLA makes products of matrices without an axis of lanes, which take longer.
LEAST_TRIALS, TRIALS = {"cpu": 2}, {"cpu": 8}
MAX_RUNS = {"cpu": 16, "gpu": 4096}
# Memory that the runs of a pack may take: a CPU works fastest within its caches.
WORKING_SET_BYTES = {"cpu": 2**25}
MEMORY_BYTES = {"cpu": 4 * 2**30, "gpu": 16 * 2**30, "tpu": 8 * 2**30}

# A module, and the examples of a step; 0 on a CPU, where those of a pack are about equal.
Size = tuple[Module, int]


def make_pack(
    runs: Sequence[Run],
    module: Module | None = None,
    platform: str = "cpu",
    n_devices: int = 1,
    memory_bytes: float = math.inf,
) -> Pack:
    """One pack of these runs, padded to `module` or else to the smallest that holds all.

    Runs that may wait for a lane have as many as fit in `memory_bytes`. Raises ValueError where the
    runs differ in more than what padding and data can carry.
    """
    modules = [run.module() for run in runs]
    each = zip(modules, runs, strict=True)
    if len({(_pack_key(run, platform), _steps(module, run)) for module, run in each}) != 1:
        raise ValueError("these runs differ in more than sizes, seeds and learning rates")
    padded = module or enclose(modules)
    costs = [run.method.cost(run, padded) for run in runs]
    largest = _find_largest(runs, platform)
    trained = trained_sizes(runs, padded, modules, platform)
    work = sum(
        predicted_work(run, size) * _padding(run, largest)
        for run, size in zip(runs, trained, strict=True)
    )
    true_work = sum(map(predicted_work, runs, modules))
    slots = _slots(runs, padded, platform, n_devices, memory_bytes)
    share = math.ceil(slots / n_devices)
    of_steps = sum(
        step_seconds(size, largest, platform, n_devices) * cost.steps
        for size, cost in zip(trained, costs, strict=True)
    )
    steps, longest = sum(x.steps for x in costs), max(x.sequential_steps for x in costs)
    paced_by = "kernel" if platform == "gpu" and _has_kernel(runs[0], n_devices) else platform
    return Pack(
        runs=tuple(runs),
        module=padded,
        slots=slots,
        waste=1 - true_work / work,
        memory_bytes=memory_shared(runs) + share * _memory_with_evaluation(padded, runs, platform),
        weight=_seconds(of_steps * share / slots, max(longest, steps / slots), paced_by),
        platform=platform,
        n_devices=n_devices,
    )


def halve_pack(pack: Pack) -> list[Pack]:
    """The same runs as packs that train half as many models at a time, for too small a device.

    No packs where one model alone is too large.
    """
    middle, slots = (len(pack.runs) + 1) // 2, (pack.slots + 1) // 2
    if pack.slots == 1 and not pack.runs[middle:]:
        return []
    packs = [
        make_pack(runs, pack.module, pack.platform, pack.n_devices)
        for runs in (pack.runs[:middle], pack.runs[middle:])
        if runs
    ]
    return [dataclasses.replace(x, slots=min(slots, x.slots)) for x in packs]


def subset(pack: Pack, runs: Sequence[Run]) -> Pack:
    """The pack reduced to these of its runs, which may be none."""
    if len(runs) == len(pack.runs) or not runs:
        return dataclasses.replace(pack, runs=tuple(runs))
    reduced = make_pack(runs, pack.module, pack.platform, pack.n_devices)
    return dataclasses.replace(reduced, slots=min(reduced.slots, pack.slots))


def programs(pack: Pack) -> set[tuple[Any, int, int]]:
    """The programs that a pack needs; equal ones are compiled once."""
    run = pack.runs[0]
    if run.method.cost(run, pack.module).closed_form:
        return set()
    if _holds_contexts(run):
        n_instances = len({run.task.seed for run in pack.runs})
    else:
        n_instances = len({task for run in pack.runs for task in run.method.tasks(run)})
    return {(pack.signature, pack.slots, n_instances)}


def plan(
    runs: Sequence[Run], platform: str, n_devices: int = 1, memory_bytes: float = math.inf
) -> list[Pack]:
    """Partitions the runs into packs of least predicted time within MEMORY_BYTES of the platform.

    Or within `memory_bytes` where that is less: a worker's share of a device.

    Runs that can share a program are sorted by size; dynamic programming then chooses where to cut,
    weighing one more compilation against the arithmetic that padding wastes. Memory and MAX_RUNS
    are each device's, and the devices share every pack.
    """
    groups: dict[Hashable, list[tuple[Module, Run]]] = collections.defaultdict(list)
    for run in runs:
        groups[_pack_key(run, platform)].append((run.module(), run))
    packs = [
        pack
        for group in groups.values()
        for pack in _plan_group(group, platform, n_devices, memory_bytes)
    ]
    return sorted(packs, key=lambda pack: -pack.weight)


def takes_kernel(run: Run, module: Module) -> bool:
    """True where a kernel takes the steps of a run, padded to the module, in this process."""
    signature = _signature(run, module)
    return signature is not None and find_used(signature) is not None


def skipped_padding(run: Run, module: Module, platform: str) -> tuple[str, ...]:
    """The sizes whose padding takes a run no time, as a CPU's kernel skips it."""
    may_skip = platform == "cpu" and isinstance(module, KernelModule)
    return module.skipped if may_skip and takes_kernel(run, module) else ()


def trained_sizes(
    runs: Sequence[Run], padded: Module, modules: Sequence[Module], platform: str
) -> list[Module]:
    """For each run the size that its steps take as long as: padded, but for what is skipped."""
    skipped = skipped_padding(runs[0], padded, platform)
    if not skipped:
        return [padded] * len(runs)
    return [padded.clone(**{name: getattr(own, name) for name in skipped}) for own in modules]


def _has_kernel(run: Run, n_devices: int) -> bool:
    """True where a kernel takes the steps of a run on so many GPUs."""
    return n_devices == 1 and is_used_on_gpu() and _is_served(run)


@functools.lru_cache(maxsize=4096)
def _is_served(run: Run) -> bool:
    signature = _signature(run, run.module())
    return signature is not None and find_kernel(signature, anywhere=False) is not None


def _signature(run: Run, module: Module) -> Signature | None:
    found = Pack((run,), module, 1, 0.0, 0.0, 0.0, "gpu").signature
    return found if isinstance(found, Signature) else None


def plan_rest(
    runs: Sequence[Run],
    left: Collection[str],
    platform: str,
    n_devices: int = 1,
    memory_bytes: float = math.inf,
) -> list[Pack]:
    """The packs in which those of the runs train that are left.

    A pack of which nothing is done stays as all runs were planned: in another one a run would round
    differently, which some trainings amplify. What is left of the others is planned anew.

    Args:
      runs: all runs of the sweep.
      left: the ids of those that are to be trained.
      platform: see `plan`.
      n_devices: see `plan`.
      memory_bytes: see `plan`.
    """
    if not left:
        return []
    packs = plan(runs, platform, n_devices, memory_bytes)
    whole = [pack for pack in packs if all(run.run_id in left for run in pack.runs)]
    kept = {run.run_id for pack in whole for run in pack.runs}
    rest = [run for run in runs if run.run_id in left and run.run_id not in kept]
    found = whole + plan(rest, platform, n_devices, memory_bytes)
    return sorted(found, key=lambda pack: -pack.weight)


def predicted_work(run: Run, module: Module) -> float:
    """Floating-point operations that the run takes, padded to the module."""
    cost = run.method.cost(run, module)
    return cost.steps * cost.flops_per_step


def step_seconds(module: Module, run: Run, platform: str, n_devices: int) -> float:
    """Estimated seconds of a step of one model, used only to choose packs."""
    cost = run.method.cost(run, module)
    if platform == "cpu" or cost.closed_form:
        return cost.flops_per_step / FLOPS_PER_SECOND
    if platform == "gpu" and _has_kernel(run, n_devices):
        n_params, _ = models.count_parameters(module, run.task.context_length)
        if n_params <= KERNEL_WEIGHTS:
            return cost.rows_per_step * n_params * KERNEL_SECONDS
    return cost.rows_per_step * module.activations() * ACTIVATION_SECONDS


def memory_per_lane(module: Module, run: Run, platform: str = "cpu") -> float:
    """Predicted bytes of a lane: weights, gradient, Adam moments, activations."""
    cost = run.method.cost(run, module)
    n_params, _ = models.count_parameters(module, run.task.context_length)
    held = _of_platform(HELD, platform) * cost.rows_per_step * module.activations()
    return 4.0 * (6 * cost.starts * n_params + held)


def memory_shared(runs: Sequence[Run]) -> float:
    """Predicted bytes that a pack takes however many runs train at a time.

    The logits of all examples, which are evaluated one run at a time, or the labelled contexts.
    """
    largest = max(4.0 * run.task.floats_shared() for run in runs)
    return largest * len({run.task.seed for run in runs if _holds_contexts(run)} or {0})


def _pack_key(run: Run, platform: str) -> Hashable:
    method = run.method
    return method.pack_key(run) if platform == "cpu" else method.pack_key_of_accelerators(run)


def _find_largest(runs: Sequence[Run], platform: str) -> Run:
    """The run whose steps read most examples, to which those of the others are padded.

    On a CPU sets of a pack are of about one size.
    """
    return runs[0] if platform == "cpu" else max(runs, key=_n_rows)


def _n_rows(run: Run) -> int:
    return run.method.cost(run).rows_per_step


def _padding(run: Run, largest: Run) -> float:
    """The factor by which a run's work grows where it is padded to the examples of another."""
    return max(1.0, _n_rows(largest) / _n_rows(run))


def _holds_contexts(run: Run) -> bool:
    """True where a pack holds the sets of all seeds, and lanes evaluate theirs side by side."""
    return not (isinstance(run.task, TokenTask) or run.method.cost(run).closed_form)


def _memory_with_evaluation(module: Module, runs: Sequence[Run], platform: str) -> float:
    """Predicted bytes of a lane that evaluates too.

    On accelerators steps and evaluations follow each other.
    """
    lane = memory_per_lane(module, _find_largest(runs, platform), platform)
    if platform != "cpu" or not _holds_contexts(runs[0]):
        return lane
    n_rows = min(EVALUATED_AT_ONCE, max(run.task.n_examples for run in runs))
    return lane + 4.0 * n_rows * module.activations()


def _slots(
    runs: Sequence[Run], module: Module, platform: str, n_devices: int, memory_bytes: float
) -> int:
    """The number of lanes that train at a time."""
    each = [run.method.cost(run, module).lanes for run in runs]
    if not _waits(module, runs[0]):
        return sum(each)
    fits = _fits(runs, module, platform, memory_bytes)
    if platform == "cpu" and takes_kernel(runs[0], module):
        # It needs no caches for lanes side by side, and each is a thread's.
        fits = max(fits, TRIALS["cpu"])
    if each[0] > 1:
        fits = min(max(fits, LEAST_TRIALS.get(platform, 1)), TRIALS.get(platform, fits))
    return min(sum(each), n_devices * fits)


def _waits(module: Module, run: Run) -> bool:
    """True where the run's models may wait for a lane that others leave."""
    cost = run.method.cost(run, module)
    return cost.queues or cost.lanes > 1


def _fits(runs: Sequence[Run], module: Module, platform: str, memory_bytes: float) -> int:
    """The number of lanes that a device can train at a time."""
    left = min(_of_platform(MEMORY_BYTES, platform), memory_bytes) - memory_shared(runs)
    fits = left / _memory_with_evaluation(module, runs, platform)
    each = memory_per_lane(module, runs[0], platform)
    return max(1, int(min(fits, WORKING_SET_BYTES.get(platform, math.inf) / each)))


def _steps(module: Module, run: Run) -> int | None:
    """The number of steps that runs of a pack share; None where others take a lane that is free."""
    return None if _waits(module, run) else run.method.steps


def _plan_group(
    group: list[tuple[Module, Run]], platform: str, n_devices: int, memory_bytes: float
) -> Iterator[Pack]:
    by_size: dict[Size, list[Run]] = collections.defaultdict(list)
    for module, run in group:
        by_size[module, 0 if platform == "cpu" else _n_rows(run)].append(run)
    example = {n_rows: runs[0] for (_, n_rows), runs in by_size.items()}

    @functools.cache
    def work(module: Module, n_rows: int) -> float:
        return step_seconds(module, example[n_rows], platform, n_devices)

    def skipped(module: Module) -> tuple[str, ...]:
        return skipped_padding(group[0][1], module, platform)

    largest = enclose([module for module, _ in by_size])

    def order(size: Size) -> tuple[float, float, str]:
        # Sizes that a pack is padded to come first; what is skipped is as large as any.
        skips = {name: getattr(largest, name) for name in skipped(size[0])}
        padded = size[0].clone(**skips) if skips else size[0]
        return work(padded, size[1]), work(*size), repr(size)

    sizes = sorted(by_size, key=order)
    costs = [[run.method.cost(run, x[0]) for run in by_size[x]] for x in sizes]
    total = [sum(cost.steps for cost in each) for each in costs]
    longest = [max(cost.sequential_steps for cost in each) for each in costs]

    stops = _cuts(sizes, work, total, longest, platform, n_devices, skipped)
    for start, stop in reversed(list(itertools.pairwise([0, *stops]))):
        chosen = sizes[start:stop]
        module = enclose([each for each, _ in chosen])
        longest_first = sorted(
            itertools.chain.from_iterable(by_size[size] for size in chosen),
            key=lambda run: -run.method.steps,
        )
        by_steps = collections.defaultdict(list)
        for run in longest_first:
            by_steps[_steps(chosen[0][0], run)].append(run)
        for runs in by_steps.values():
            for fitting in _by_seeds(runs, platform, memory_bytes):
                yield from _split(fitting, module, platform, n_devices, memory_bytes)


def _cuts(
    modules: Sequence[Size],
    work: Callable[[Module, int], float],
    total: Sequence[int],
    longest: Sequence[int],
    platform: str,
    n_devices: int,
    skipped: Callable[[Module], tuple[str, ...]] = lambda module: (),
) -> list[int]:
    """The ends of the packs of least predicted time, in a list of models M of sizes P.

    Args:
      modules: with the examples of a step, in the order of their work.
      work: seconds of a step of both, by `step_seconds`.
      total: steps of all runs of each.
      longest: the most of these that follow one another.
      platform: see `plan`.
      n_devices: see `plan`.
      skipped: the sizes whose padding costs a module nothing.
    """
    if len(modules) == 1:
        return [1]
    sizes = [paddable_sizes(module) for module, _ in modules]
    size_MxP = np.array([[*size.values(), n] for size, (_, n) in zip(sizes, modules, strict=True)])
    done_M, longest_M = np.cumsum([0, *total]), np.asarray(longest)

    @functools.cache
    def make_module(*padded: int) -> Module:
        of_module: dict[str, Any] = dict(zip(sizes[0], padded, strict=False))
        return modules[0][0].clone(**of_module)

    @functools.cache
    def padded_work(*padded: int) -> float:
        return work(make_module(*padded), padded[-1])

    @functools.cache
    def are_skipped_P(*padded: int) -> tuple[bool, ...]:
        names = skipped(make_module(*padded))
        return (*(name in names for name in sizes[0]), False)

    @functools.cache
    def work_before_M(skips_P: tuple[bool, ...], *padded: int) -> np.ndarray:
        """The work before each size, each padded but for what is skipped."""
        each_M = [padded_work(*row) for row in np.where(skips_P, size_MxP, padded).tolist()]
        return np.cumsum([0, *np.multiply(each_M, total)])

    def sum_work(stop: int, starts: slice, padded_P: np.ndarray) -> np.ndarray:
        """The work from each start to the stop, padded to these sizes."""
        skips_P = are_skipped_P(*padded_P.tolist())
        if not any(skips_P):
            return padded_work(*padded_P.tolist()) * (done_M[stop] - done_M[starts])
        before_M = work_before_M(skips_P, *np.where(skips_P, 0, padded_P).tolist())
        return before_M[stop] - before_M[starts]

    best_M, begins = np.zeros(len(modules) + 1), [0]
    for stop in range(1, len(modules) + 1):
        # What a pack of all from `start` to `stop` is padded to: with falling start it only grows.
        padded_MxP = np.maximum.accumulate(size_MxP[:stop][::-1])
        grows = 1 + np.flatnonzero((padded_MxP[1:] != padded_MxP[:-1]).any(axis=1))
        firsts = np.concatenate([[0], grows])
        all_work_M = np.concatenate(
            [
                sum_work(stop, slice(stop - end, stop - first), padded_MxP[first])
                for first, end in reversed([*itertools.pairwise([*firsts, stop])])
            ]
        )
        steps_M = np.maximum.accumulate(longest_M[:stop][::-1])[::-1]
        seconds_M = _seconds(all_work_M / n_devices, steps_M, platform)
        seconds_M += best_M[:stop] + _of_platform(COMPILE_SECONDS, platform)
        begins.append(int(np.argmin(seconds_M)))
        best_M[stop] = seconds_M[begins[-1]]

    stops = [len(modules)]
    while (start := begins[stops[-1]]) > 0:
        stops.append(start)
    return stops[::-1]


def _seconds(work: Any, steps: Any, platform: str) -> Any:
    """Of so many seconds of work in so many steps of a pack; numbers or arrays."""
    return work + steps * _of_platform(STEP_SECONDS, platform)


def _by_seeds(runs: list[Run], platform: str, memory_bytes: float) -> Iterator[list[Run]]:
    """All of the runs, or those of each seed where the sets of all would fill half the memory."""
    half = min(_of_platform(MEMORY_BYTES, platform), memory_bytes) / 2
    if not _holds_contexts(runs[0]) or memory_shared(runs) <= half:
        yield runs
        return
    by_seed = collections.defaultdict(list)
    for run in runs:
        by_seed[run.task.seed].append(run)
    yield from by_seed.values()


def _of_platform(values: Mapping[str, float], platform: str) -> float:
    """The value of a platform; that of GPUs where it has none of its own."""
    return values.get(platform, values["gpu"])


def _split(
    runs: list[Run], module: Module, platform: str, n_devices: int, memory_bytes: float
) -> Iterator[Pack]:
    """Cuts runs of one padded module into packs that fit, of one size as far as possible.

    Packs of one size share a compilation, which is worth packs up to half as small.
    """
    most = int(_of_platform(MAX_RUNS, platform))
    if not _waits(module, runs[0]):
        most = min(most, _fits(runs, module, platform, memory_bytes))
    most = min(n_devices * most, len(runs))
    even = [size for size in range(most, (most - 1) // 2, -1) if len(runs) % size == 0]
    size = even[0] if even else math.ceil(len(runs) / math.ceil(len(runs) / most))
    for start in range(0, len(runs), size):
        yield make_pack(runs[start : start + size], module, platform, n_devices, memory_bytes)
