"""Packs: which runs one compiled program trains together, and the size to which all are padded.

A model whose paired factors are zero-padded is the smaller model: the gradients of the padding
are exactly zero and stay so under Adam. So models of unequal sizes can be padded, stacked and
trained as one. Imports models and specs; trains nothing, touches no files.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import numpy as np

from memobench.core import module as models
from memobench.core.module import Module, enclose, paddable_sizes
from memobench.core.run import Pack, Run
from memobench.planner import accelerators
from memobench.tasks.tokens import EVALUATED_AT_ONCE

# Orders of magnitude that only choose packs; no result depends on them, and measured rates (see
# `costs`) never change them, for a resumed sweep must find the packs that it left. A pack that does
# not fit after all is halved by the executor.
COMPILE_SECONDS = 5.0
FLOPS_PER_SECOND = 2e10
# The least that a step takes.
STEP_SECONDS = {"cpu": 0.0, **{x: accelerators.of(x).step_seconds for x in accelerators.TYPICAL}}
# Trials of searches that train at a time. On a CPU more are no faster, and others wait for them;
# of one alone XLA makes products of matrices without an axis of lanes, which take longer.
LEAST_TRIALS, TRIALS = {"cpu": 2}, {"cpu": 8}
MAX_RUNS = {"cpu": 16, "gpu": 4096, "tpu": 4096}
# Memory that the runs of a pack may take: a CPU works fastest within its caches.
WORKING_SET_BYTES = {"cpu": 2**25}
MEMORY_BYTES = {"cpu": 4 * 2**30, "gpu": 16 * 2**30, "tpu": 8 * 2**30}


def make_pack(
    runs: Sequence[Run],
    module: Module | None = None,
    platform: str = "cpu",
    n_devices: int = 1,
) -> Pack:
    """One pack of these runs, padded to `module` or else to the smallest that holds all.

    Raises ValueError where the runs differ in more than what padding and data can carry.
    """
    modules = [run.module() for run in runs]
    each = zip(modules, runs, strict=True)
    if len({(_structure(module, run), _steps(run)) for module, run in each}) != 1:
        raise ValueError("these runs differ in more than sizes, seeds and learning rates")
    padded = module or enclose(modules)
    work = sum(predicted_work(run, padded) for run in runs)
    true_work = sum(predicted_work(run, m) for m, run in zip(modules, runs, strict=True))
    slots = _slots(runs, padded, platform, n_devices)
    share = math.ceil(slots / n_devices)
    of_step = step_seconds(padded, runs[0], platform)
    steps = [run.method.predicted_steps(run) for run in runs]
    longest = max(run.method.steps_in_turn(run) for run in runs)
    return Pack(
        runs=tuple(runs),
        module=padded,
        slots=slots,
        waste=1 - true_work / work,
        memory_bytes=max(held + share * lane for held, lane in _held(padded, runs, platform)),
        seconds=_seconds(
            of_step * sum(steps) * share / slots, max(longest, sum(steps) / slots), platform
        ),
        platform=platform,
        n_devices=n_devices,
    )


def smaller(pack: Pack) -> list[Pack]:
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
    smaller = make_pack(runs, pack.module, pack.platform, pack.n_devices)
    return dataclasses.replace(smaller, slots=min(smaller.slots, pack.slots))


def signature(pack: Pack) -> Any:
    """What decides the program of a pack, but for its number of lanes."""
    method = pack.runs[0].method
    return method.signature(pack.module, method.program_task(pack.runs, pack.module))


def plan(runs: Sequence[Run], platform: str, n_devices: int = 1) -> list[Pack]:
    """Partitions the runs into packs of least predicted time within MEMORY_BYTES of the platform.

    Runs that can share a program are sorted by size; dynamic programming then chooses where to cut,
    weighing one more compilation against the arithmetic that padding wastes. Memory and MAX_RUNS
    are each device's, and the devices share every pack.
    """
    groups = collections.defaultdict(list)
    for run in runs:
        module = run.module()
        groups[_structure(module, run)].append((module, run))
    packs = [pack for group in groups.values() for pack in _plan_group(group, platform, n_devices)]
    return sorted(packs, key=lambda pack: -pack.seconds)


def plan_rest(
    runs: Sequence[Run], left: Collection[str], platform: str, n_devices: int = 1
) -> list[Pack]:
    """The packs in which those of the runs train that are left.

    A pack of which nothing is done stays as all runs were planned: in another one a run would round
    differently, which some trainings amplify. What is left of the others is planned anew.

    Args:
      runs: all runs of the sweep.
      left: the ids of those that are to be trained.
      platform: see `plan`.
      n_devices: see `plan`.
    """
    if not left:
        return []
    packs = plan(runs, platform, n_devices)
    whole = [pack for pack in packs if all(run.run_id in left for run in pack.runs)]
    kept = {run.run_id for pack in whole for run in pack.runs}
    rest = [run for run in runs if run.run_id in left and run.run_id not in kept]
    found = whole + plan(rest, platform, n_devices)
    return sorted(found, key=lambda pack: -pack.seconds)


def predicted_work(run: Run, module: Module) -> float:
    """Floating-point operations that the run takes, padded to the module."""
    return run.method.predicted_steps(run) * run.method.work_per_step(module, run)


def floats_per_step(module: Module, run: Run) -> float:
    """Numbers that heads and hidden neurons hold in a step because examples do not share them."""
    if run.method.solves:
        return 0.0
    n_rows = run.method.rows_per_step(run) * run.method.starts
    return n_rows * module.floats_per_example(run.task.context_length, run.task.shares_inputs)


def step_seconds(module: Module, run: Run, platform: str) -> float:
    """Seconds by which packs are chosen, of a step of one of their models; 0 if nothing steps."""
    if platform == "cpu" or run.method.solves:
        return run.method.work_per_step(module, run) / FLOPS_PER_SECOND
    return accelerators.seconds_of_traffic(module, run, accelerators.of(platform))


def memory_per_lane(module: Module, run: Run, platform: str = "cpu") -> float:
    """Predicted bytes of a lane: weights, gradient, Adam moments, activations."""
    if platform != "cpu":
        return accelerators.bytes_held(module, run, accelerators.of(platform))
    n_params, _ = models.count_parameters(module, run.task.context_length)
    n_floats = 6 * n_params + run.method.rows_per_step(run) * module.activations()
    return 4.0 * run.method.starts * n_floats


def memory_shared(runs: Sequence[Run]) -> float:
    """Predicted bytes that a pack takes however many runs train at a time.

    The logits of all examples, which are evaluated one run at a time, or the labelled contexts.
    """
    largest = max(4.0 * run.task.floats_shared() for run in runs)
    return largest * len({run.task.seed for run in runs if _holds_contexts(run)} or {0})


def _holds_contexts(run: Run) -> bool:
    """Whether a pack holds the sets of all seeds, and lanes evaluate theirs side by side."""
    return not (run.task.of_tokens or run.method.solves)


def _memory_of_evaluation(module: Module, runs: Sequence[Run], platform: str) -> float:
    """Predicted bytes per lane for evaluating labelled contexts."""
    if not _holds_contexts(runs[0]):
        return 0.0
    n_rows = min(EVALUATED_AT_ONCE, max(run.task.n_examples for run in runs))
    if platform == "cpu":
        return 4.0 * n_rows * module.activations()
    _, padding = module.padding(accelerators.of(platform).vector_width, shared=False)
    return 4.0 * n_rows * padding * module.floats_evaluated()


def _held(module: Module, runs: Sequence[Run], platform: str) -> list[tuple[float, float]]:
    """Predicted bytes that do not grow with lanes, and bytes of a lane, of what is done in turn.

    On accelerators steps and evaluations follow each other. Contexts are held in both, the logits
    of all examples between steps only.
    """
    run, shared = runs[0], memory_shared(runs)
    step = memory_per_lane(module, run, platform)
    evaluation = _memory_of_evaluation(module, runs, platform)
    if platform == "cpu":
        return [(shared, step + evaluation)]
    if _holds_contexts(run):
        return [(shared, max(step, evaluation))]
    weights = accelerators.bytes_of_weights(module, run, accelerators.of(platform))
    return [(0.0, step), (shared, weights)]


def _slots(runs: Sequence[Run], module: Module, platform: str, n_devices: int) -> int:
    """How many lanes train at a time."""
    n_lanes = sum(run.method.lanes for run in runs)
    if not _waits(runs[0]):
        return n_lanes
    fits = _fits(runs, module, platform)
    if runs[0].method.lanes > 1:
        fits = min(max(fits, LEAST_TRIALS.get(platform, 1)), TRIALS.get(platform, fits))
    return min(n_lanes, n_devices * fits)


def _waits(run: Run) -> bool:
    """Whether the run's models may wait for a lane that others leave."""
    return run.method.queues or run.method.lanes > 1


def _fits(runs: Sequence[Run], module: Module, platform: str) -> int:
    """How many lanes a device can train at a time."""
    each, memory = memory_per_lane(module, runs[0], platform), _memory(platform)
    fits = min((memory - held) / lane for held, lane in _held(module, runs, platform))
    return max(1, int(min(fits, WORKING_SET_BYTES.get(platform, math.inf) / each)))


def _structure(module: Module, run: Run) -> tuple:
    """Everything that must agree within a pack, but for numbers of steps."""
    method = run.method
    signature = method.signature(models.structure(module), method.task_key(run.task))
    return signature, method.pack_key(run)


def _steps(run: Run) -> int | None:
    """The number of steps that runs of a pack share; None where others take a lane that is free."""
    return None if _waits(run) else run.method.steps


def _plan_group(group: list[tuple[Module, Run]], platform: str, n_devices: int) -> Iterator[Pack]:
    by_module: dict[Module, list[Run]] = collections.defaultdict(list)
    for module, run in group:
        by_module[module].append(run)
    example = group[0][1]
    work = functools.lru_cache(maxsize=None)(lambda module: step_seconds(module, example, platform))
    modules = sorted(by_module, key=lambda module: (work(module), repr(module)))
    total = [sum(run.method.predicted_steps(run) for run in by_module[x]) for x in modules]
    longest = [max(run.method.steps_in_turn(run) for run in by_module[x]) for x in modules]

    stops = _cuts(modules, work, total, longest, platform, n_devices)
    for start, stop in reversed(list(itertools.pairwise([0, *stops]))):
        chosen = modules[start:stop]
        longest_first = sorted(
            itertools.chain.from_iterable(by_module[module] for module in chosen),
            key=lambda run: -run.method.steps,
        )
        by_steps = collections.defaultdict(list)
        for run in longest_first:
            by_steps[_steps(run)].append(run)
        for runs in by_steps.values():
            for fitting in _by_seeds(runs, platform):
                yield from _split(fitting, enclose(chosen), platform, n_devices)


def _cuts(
    modules: Sequence[Module],
    work: Callable[[Module], float],
    total: Sequence[int],
    longest: Sequence[int],
    platform: str,
    n_devices: int,
) -> list[int]:
    """Where the packs of least predicted time end, in a list of modules M of sizes P.

    work: seconds of a step of a module, by `step_seconds`.
    total, longest: steps of all runs of each module, and the most of one that follow one another.
    """
    if len(modules) == 1:
        return [1]
    sizes = [paddable_sizes(module) for module in modules]
    size_MxP = np.array([list(size.values()) for size in sizes]).reshape(len(sizes), -1)
    done_M, longest_M = np.cumsum([0, *total]), np.asarray(longest)

    @functools.cache
    def padded_work(*padded: int) -> float:
        largest: dict[str, Any] = dict(zip(sizes[0], padded, strict=True))
        return work(modules[0].clone(**largest))

    best_M, begins = np.zeros(len(modules) + 1), [0]
    for stop in range(1, len(modules) + 1):
        # What a pack of all from `start` to `stop` is padded to: with falling start it only grows.
        padded_MxP = np.maximum.accumulate(size_MxP[:stop][::-1])
        grows = 1 + np.flatnonzero((padded_MxP[1:] != padded_MxP[:-1]).any(axis=1))
        firsts = np.concatenate([[0], grows])
        works = [padded_work(*padded) for padded in padded_MxP[firsts].tolist()]
        work_M = np.repeat(works, np.diff([*firsts, stop]))[::-1]
        steps_M = np.maximum.accumulate(longest_M[:stop][::-1])[::-1]
        all_work_M = work_M * (done_M[stop] - done_M[:stop]) / n_devices
        seconds_M = _seconds(all_work_M, steps_M, platform)
        seconds_M += best_M[:stop] + COMPILE_SECONDS
        begins.append(int(np.argmin(seconds_M)))
        best_M[stop] = seconds_M[begins[-1]]

    stops = [len(modules)]
    while (start := begins[stops[-1]]) > 0:
        stops.append(start)
    return stops[::-1]


def _seconds(work: Any, steps: Any, platform: str) -> Any:
    """Of so many seconds of work in so many steps of a pack; numbers or arrays."""
    return work + steps * STEP_SECONDS.get(platform, STEP_SECONDS["gpu"])


def _by_seeds(runs: list[Run], platform: str) -> Iterator[list[Run]]:
    """All of the runs, or those of each seed where the sets of all would fill half the memory."""
    if not _holds_contexts(runs[0]) or memory_shared(runs) <= _memory(platform) / 2:
        yield runs
        return
    by_seed = collections.defaultdict(list)
    for run in runs:
        by_seed[run.task.seed].append(run)
    yield from by_seed.values()


def _memory(platform: str) -> float:
    return MEMORY_BYTES.get(platform, MEMORY_BYTES["gpu"])


def _split(runs: list[Run], module: Module, platform: str, n_devices: int) -> Iterator[Pack]:
    """Cuts runs of one padded module into packs that fit, of one size as far as possible.

    Packs of one size share a compilation, which is worth packs up to half as small.
    """
    most = MAX_RUNS.get(platform, MAX_RUNS["gpu"])
    if not _waits(runs[0]):
        most = min(most, _fits(runs, module, platform))
    most = min(n_devices * most, len(runs))
    even = [size for size in range(most, (most - 1) // 2, -1) if len(runs) % size == 0]
    size = even[0] if even else math.ceil(len(runs) / math.ceil(len(runs) / most))
    for start in range(0, len(runs), size):
        yield make_pack(runs[start : start + size], module, platform, n_devices)
