"""Packs: which runs one compiled program trains together, and how their sizes become one.

A model whose paired factors are zero-padded is the smaller model: the gradients of the padding
are exactly zero and stay so under Adam. So runs are initialised at their true size, padded,
stacked and trained as one. Imports models and specs; trains nothing, touches no files.
"""

import collections
import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from flax import linen as nn

from memobench import models, tasks
from memobench.specs import Annealing, Construction, LabelledContexts, Run, Search, Task, Training

# Orders of magnitude that only choose packs; no result depends on them, and measured rates (see
# `costs`) never change them, for a resumed sweep must find the packs that it left. A pack that does
# not fit after all is halved by the executor.
COMPILE_SECONDS = 5.0
FLOPS_PER_SECOND = {"cpu": 2e10, "gpu": 1e13, "tpu": 1e13}
# What a step takes at least, however small: starting its kernels.
STEP_SECONDS = {"cpu": 0.0, "gpu": 2e-4, "tpu": 2e-4}
# What even the smallest construction takes, much of it spent on compiling its check.
CONSTRUCTION_WORK = 2e10
# How many examples are evaluated together at most, where evaluation goes block by block.
EVALUATED_AT_ONCE = 1024
MAX_RUNS = {"cpu": 16, "gpu": 4096, "tpu": 4096}
# What the runs of a pack may take together: a CPU works fastest within its caches.
WORKING_SET_BYTES = {"cpu": 2**25}
MEMORY_BYTES = {"cpu": 4 * 2**30, "gpu": 16 * 2**30, "tpu": 8 * 2**30}


@dataclasses.dataclass(frozen=True)
class Pack:
    """Runs trained together, the module they are padded to, and what that is predicted to cost.

    slots: how many of them train at a time; all, but where runs may end early and others follow.
    waste: share of the arithmetic spent on padding. n_devices: how many share the runs.
    memory_bytes: a prediction for each device. seconds: the planner's rough weight, without
    compilation; `costs.predict` knows better.
    """

    runs: tuple[Run, ...]
    module: nn.Module
    slots: int
    waste: float
    memory_bytes: float
    seconds: float
    platform: str = "cpu"
    n_devices: int = 1

    def halves(self) -> tuple["Pack", "Pack"]:
        """The same runs as two packs that train half as many at a time, for too small a device."""
        middle = (len(self.runs) + 1) // 2
        first, second = (
            together(runs, self.module, self.platform, self.n_devices)
            for runs in (self.runs[:middle], self.runs[middle:])
        )
        slots = (self.slots + 1) // 2
        return (
            dataclasses.replace(first, slots=min(slots, len(first.runs))),
            dataclasses.replace(second, slots=min(slots, len(second.runs))),
        )


def together(
    runs: Sequence[Run],
    module: nn.Module | None = None,
    platform: str = "cpu",
    n_devices: int = 1,
) -> Pack:
    """One pack of these runs, padded to `module` or else to the smallest that holds all.

    Raises ValueError where the runs differ in more than what padding and data can carry.
    """
    modules = [models.build(run) for run in runs]
    if len({_structure(module, run) for module, run in zip(modules, runs, strict=True)}) != 1:
        raise ValueError("these runs differ in more than sizes, seeds and learning rates")
    padded = module or enclosing(modules)
    work = sum(predicted_steps(run) * work_per_step(padded, run) for run in runs)
    true_work = sum(
        predicted_steps(run) * work_per_step(m, run) for m, run in zip(modules, runs, strict=True)
    )
    slots = _slots(runs, padded, platform, n_devices)
    share = math.ceil(slots / n_devices)
    steps = [predicted_steps(run) // lanes(run) for run in runs]
    return Pack(
        runs=tuple(runs),
        module=padded,
        slots=slots,
        waste=1 - true_work / work,
        memory_bytes=memory_shared(runs)
        + share * (memory_per_run(padded, runs[0]) + _memory_of_evaluation(padded, runs)),
        seconds=_seconds(work * share / slots, max(max(steps), sum(steps) / slots), platform),
        platform=platform,
        n_devices=n_devices,
    )


def some(pack: Pack, runs: Sequence[Run]) -> Pack:
    """The pack with only these of its runs, which may be none."""
    if len(runs) == len(pack.runs) or not runs:
        return dataclasses.replace(pack, runs=tuple(runs))
    smaller = together(runs, pack.module, pack.platform, pack.n_devices)
    return dataclasses.replace(smaller, slots=min(smaller.slots, pack.slots))


def largest_task(pack: Pack) -> LabelledContexts:
    """Labelled contexts of which, for its own seed, every run of the pack memorizes a prefix.

    Their number is rounded up to 2^i or 3 * 2^i, so that more packs share a compilation. Raises
    ValueError for other tasks.
    """
    tasks = [run.task for run in pack.runs if isinstance(run.task, LabelledContexts)]
    if len(tasks) < len(pack.runs):
        raise ValueError("only labelled contexts are prefixes of each other")
    module: Any = pack.module
    return dataclasses.replace(
        tasks[0],
        n_examples=_rounded(max(task.n_examples for task in tasks)),
        context_length=module.context_length,
        seed=0,
    )


def _rounded(n_examples: int) -> int:
    unit = 1 << max(n_examples.bit_length() - 2, 0)
    return math.ceil(n_examples / unit) * unit


def width(slots: int, n_runs: int) -> int:
    """How many slots so few runs are given: half as many, again and again, while they suffice.

    >>> [width(6, n) for n in range(1, 7)]
    [1, 2, 3, 6, 6, 6]
    """
    while slots > 1 and n_runs <= (half := (slots + 1) // 2):
        slots = half
    return slots


def pad_to(tree: Any, shapes: Any) -> Any:
    """Zero-pads every leaf at the end of each axis to the leaf of the same place in `shapes`."""

    def pad(x: Any, target: Any) -> np.ndarray:
        padded = np.zeros(target.shape, target.dtype)
        padded[tuple(slice(size) for size in x.shape)] = x
        return padded

    return jax.tree.map(pad, tree, shapes)


def enclosing(modules: Sequence[nn.Module]) -> nn.Module:
    """The smallest module of the same structure that holds all of them by padding."""
    sizes = [_paddable_sizes(module) for module in modules]
    largest: dict[str, Any] = {name: max(size[name] for size in sizes) for name in sizes[0]}
    return modules[0].clone(**largest)


def init_pack(pack: Pack) -> Any:
    """Initial variables of every run, initialised at true size, padded and stacked: axis R."""
    context_length = pack.runs[0].task.context_length
    target = models.shapes(pack.module, context_length)
    trees = [
        pad_to(models.init_on_host(models.build(run), context_length, init_key(run)), target)
        for run in pack.runs
    ]
    return jax.tree.map(lambda *xs: np.stack(xs), *trees)


def init_key(run: Run) -> jax.Array:
    """The key of the run's initial weights, from its seed alone."""
    return jax.random.fold_in(jax.random.key(run.seed), 0)


def shuffle_key(run: Run) -> jax.Array:
    """The key of the run's shuffles, from its seed alone."""
    return jax.random.fold_in(jax.random.key(run.seed), 1)


def plan(runs: Sequence[Run], platform: str, n_devices: int = 1) -> list[Pack]:
    """Partitions the runs into packs of least predicted time within MEMORY_BYTES of the platform.

    Runs that can share a program are sorted by size; dynamic programming then chooses where to cut,
    weighing one more compilation against the arithmetic that padding wastes. Memory and MAX_RUNS
    are each device's, and the devices share every pack.
    """
    groups = collections.defaultdict(list)
    for run in runs:
        module = models.build(run)
        groups[_program(module, run)].append((module, run))
    packs = [pack for group in groups.values() for pack in _plan_group(group, platform, n_devices)]
    return sorted(packs, key=lambda pack: -pack.seconds)


def predicted_steps(run: Run) -> int:
    """Optimiser steps that the run takes, over all its lanes; of a search about as many."""
    if not isinstance(run.method, Search):
        return run.method.steps
    # Rounds of trials: the first budget narrows a wide bracket, each later one opens it little.
    rounds = 4 + sum(2 * 2**i for i in range(1, run.method.doublings + 1))
    return run.method.lanes * rounds * run.method.steps


def lanes(run: Run) -> int:
    """How many models the run trains side by side."""
    return getattr(run.method, "lanes", 1)


def search_task(runs: Sequence[Run], module: Any) -> Task:
    """The largest task of a pack's searches; every trial of theirs is on a part of its examples.

    Raises ValueError for other tasks.
    """
    tasks = [run.task for run in runs if isinstance(run.task, Task)]
    if len(tasks) < len(runs):
        raise ValueError("only sets of token sequences are searched")
    task = dataclasses.replace(max(tasks, key=lambda task: task.n_examples), seed=0)
    if task.name == "bijection":
        task = dataclasses.replace(task, vocab_size=module.vocab_size)
    return task


def work_per_step(module: Any, run: Run) -> float:
    """Predicted floating-point operations of one training step, forward and backward.

    Of a construction, of solving for all its examples.
    """
    if isinstance(run.method, Construction):
        return CONSTRUCTION_WORK + 12.0 * run.task.n_examples**3
    n_rows = _rows_per_step(run) * _starts(run)
    if not hasattr(module, "work"):
        n_params, _ = models.count_parameters(module, run.task.context_length)
        return 6.0 * n_rows * n_params
    step = 6.0 * module.work(n_rows)
    if isinstance(run.method, Annealing):
        step += 2.0 * module.work(run.task.n_examples) / run.method.evaluate_every
    return step


def floats_per_step(module: Any, run: Run) -> float:
    """Numbers that heads and hidden neurons hold in a step if they hold them at every place.

    0 where most are computed once for each token and not for every example: one layer that reads
    all sequences, or a context's own vectors. Deeper layers and listed sequences share nothing.
    """
    task, n_layers = run.task, run.architecture.n_layers
    each = n_layers > 1 or (isinstance(task, Task) and tasks.listed(task))
    if isinstance(run.method, Construction) or not each:
        return 0.0
    n_heads, d_head, d_model, d_mlp = (
        getattr(module, name, 0) for name in ("n_heads", "d_head", "d_model", "d_mlp")
    )
    n_places = _rows_per_step(run) * _starts(run) * task.context_length * n_layers
    return float(n_places * (n_heads * min(d_head, d_model) + d_mlp))


def memory_per_run(module: Any, run: Run) -> float:
    """Predicted bytes of one run in training: weights, gradient, Adam moments, activations."""
    n_params, _ = models.count_parameters(module, run.task.context_length)
    if isinstance(run.task, LabelledContexts) or hasattr(module, "activations"):
        per_row = module.activations()
    else:
        n_layers = run.architecture.n_layers * run.task.context_length
        per_row = 4 * run.task.vocab_size + 8 * n_layers * sum(_paddable_sizes(module).values())
    return 4.0 * _starts(run) * lanes(run) * (6 * n_params + _rows_per_step(run) * per_row)


def memory_shared(runs: Sequence[Run]) -> float:
    """Predicted bytes that a pack takes however many runs train at a time.

    The logits of all examples, which are evaluated one run at a time, or the labelled contexts.
    """
    largest = max(map(_memory_shared, runs))
    return largest * len({run.task.seed for run in runs if _queues(run)} or {0})


def _memory_shared(run: Run) -> float:
    task = run.task
    if not isinstance(task, LabelledContexts):
        n_rows = EVALUATED_AT_ONCE if tasks.in_blocks(task) else task.n_examples
        n_logits = min(n_rows, task.n_examples) * task.n_predicted // task.n_examples
        return 4.0 * 3 * n_logits * task.vocab_size
    own = {"random": task.context_length * task.input_dim, "bag": task.context_length}
    return 4.0 * _rounded(task.n_examples) * (task.input_dim + own.get(task.contexts, 0))


def _memory_of_evaluation(module: Any, runs: Sequence[Run]) -> float:
    """Predicted bytes that evaluating labelled contexts takes of every run at a time."""
    if not _queues(runs[0]):
        return 0.0
    n_rows = min(EVALUATED_AT_ONCE, max(run.task.n_examples for run in runs))
    return 4.0 * n_rows * module.activations()


def _slots(runs: Sequence[Run], module: nn.Module, platform: str, n_devices: int) -> int:
    """How many of the runs train at a time."""
    if not _queues(runs[0]):
        return len(runs)
    return min(len(runs), n_devices * _fits(runs, module, platform))


def _queues(run: Run) -> bool:
    """Whether runs of this kind may end early, so that others take their place."""
    return isinstance(run.method, Annealing)


def _fits(runs: Sequence[Run], module: nn.Module, platform: str) -> int:
    """How many of the runs a device can train at a time."""
    each, memory = memory_per_run(module, runs[0]), _memory(platform) - memory_shared(runs)
    fits = memory / (each + _memory_of_evaluation(module, runs))
    return max(1, int(min(fits, WORKING_SET_BYTES.get(platform, math.inf) / each)))


def _rows_per_step(run: Run) -> int:
    return getattr(run.method, "batch_size", None) or run.task.n_examples


def _starts(run: Run) -> int:
    return getattr(run.method, "starts", 1)


def _paddable_sizes(module: nn.Module) -> dict[str, Any]:
    names = getattr(module, "paddable", models.PADDABLE)
    return {name: getattr(module, name) for name in names if hasattr(module, name)}


def _structure(module: nn.Module, run: Run) -> tuple:
    """Everything that must agree within a pack: all that is static but the padded sizes."""
    method, task = run.method, run.task
    if isinstance(method, Training):
        method = dataclasses.replace(method, learning_rate=0, final_learning_rate=0)
    elif isinstance(method, Construction):
        # Made one by one: nothing of it decides a program.
        method = Construction(theorem=method.theorem)
    elif isinstance(method, Annealing):
        every, batch_size = method.evaluate_every, method.batch_size
        method = Annealing(batch_size=batch_size, evaluate_every=every, steps=every)
    if isinstance(task, LabelledContexts):
        task = dataclasses.replace(task, n_examples=1, context_length=1)
    size = 0
    if isinstance(method, Search):
        training = dataclasses.replace(method.training, learning_rate=0, final_learning_rate=0)
        method = dataclasses.replace(method, training=training)
        # Of sets of about one size the smaller are padded to the largest.
        size = _rounded(task.n_examples)
        counts: dict[str, Any] = (
            {"vocab_size": 2} if task.name == "bijection" else {"n_sequences": 1}
        )
        task = dataclasses.replace(task, **counts)
    task = dataclasses.replace(task, seed=0)
    zeros: dict[str, Any] = dict.fromkeys(_paddable_sizes(module), 0)
    return module.clone(**zeros), task, method, size


def _program(module: nn.Module, run: Run) -> tuple:
    """Everything that must agree within a program, which serves any number of epochs."""
    module, task, method, size = _structure(module, run)
    if isinstance(method, Training):
        method = dataclasses.replace(method, epochs=1)
    return module, task, method, size


def _plan_group(
    group: list[tuple[nn.Module, Run]], platform: str, n_devices: int
) -> Iterator[Pack]:
    by_module: dict[nn.Module, list[Run]] = collections.defaultdict(list)
    for module, run in group:
        by_module[module].append(run)
    example = group[0][1]
    work = functools.lru_cache(maxsize=None)(lambda module: work_per_step(module, example))
    modules = sorted(by_module, key=lambda module: (work(module), repr(module)))
    steps = [[predicted_steps(run) for run in by_module[module]] for module in modules]
    total, longest = [sum(each) for each in steps], [max(each) for each in steps]

    stops = _cuts(modules, work, total, longest, platform, n_devices)
    for start, stop in reversed(list(itertools.pairwise([0, *stops]))):
        chosen = modules[start:stop]
        longest_first = sorted(
            itertools.chain.from_iterable(by_module[module] for module in chosen),
            key=lambda run: -run.method.steps,
        )
        by_steps = collections.defaultdict(list)
        for run in longest_first:
            by_steps[_queues(run) or run.method.steps].append(run)
        for runs in by_steps.values():
            for fitting in _by_seeds(runs, platform):
                yield from _split(fitting, enclosing(chosen), platform, n_devices)


def _cuts(
    modules: Sequence[nn.Module],
    work: Callable[[nn.Module], float],
    total: Sequence[int],
    longest: Sequence[int],
    platform: str,
    n_devices: int,
) -> list[int]:
    """Where the packs of least predicted time end, in a list of modules M of sizes P.

    total, longest: steps of all runs of each module, and of the longest.
    """
    if len(modules) == 1:
        return [1]
    sizes = [_paddable_sizes(module) for module in modules]
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
    """Of so many floating-point operations in so many steps of a pack; numbers or arrays."""
    known = platform if platform in FLOPS_PER_SECOND else "gpu"
    return work / FLOPS_PER_SECOND[known] + steps * STEP_SECONDS[known]


def _by_seeds(runs: list[Run], platform: str) -> Iterator[list[Run]]:
    """All of the runs, or those of each seed where the sets of all would fill half the memory."""
    if not _queues(runs[0]) or memory_shared(runs) <= _memory(platform) / 2:
        yield runs
        return
    by_seed = collections.defaultdict(list)
    for run in runs:
        by_seed[run.task.seed].append(run)
    yield from by_seed.values()


def _memory(platform: str) -> float:
    return MEMORY_BYTES.get(platform, MEMORY_BYTES["gpu"])


def _split(runs: list[Run], module: nn.Module, platform: str, n_devices: int) -> Iterator[Pack]:
    """Cuts runs of one padded module into packs that fit, of one size as far as possible.

    Packs of one size share a compilation, which is worth packs up to half as small.
    """
    most = MAX_RUNS.get(platform, MAX_RUNS["gpu"])
    if not _queues(runs[0]):
        most = min(most, _fits(runs, module, platform))
    most = min(n_devices * most, len(runs))
    even = [size for size in range(most, (most - 1) // 2, -1) if len(runs) % size == 0]
    size = even[0] if even else math.ceil(len(runs) / math.ceil(len(runs) / most))
    for start in range(0, len(runs), size):
        yield together(runs[start : start + size], module, platform, n_devices)
