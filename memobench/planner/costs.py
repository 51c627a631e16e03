"""Predicted seconds of packs: the planner's counts of their work, times one factor of the device.

The factor is learned from what a results folder holds of the device, and from `FACTORS`. It never
chooses packs, for a resumed sweep must find the packs it left. Trains nothing.
"""

import collections
import dataclasses
import heapq
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from memobench.common.errors import UserError
from memobench.core.cells import from_cells
from memobench.core.run import Pack
from memobench.planner import packing

# Seconds on two CPU cores of a compilation, the start of a step, a floating-point operation, and a
# number that is held for an example: orders of magnitude.
PROGRAM_SECONDS, STEP_SECONDS, FLOP_SECONDS, ACTIVATION_SECONDS = 3.0, 5e-4, 3e-11, 1.5e-9
# Those of an operation of a kernel, which holds nothing else (docs/resident-kernel.md), and of the
# host's part of a chunk of its steps.
KERNEL_FLOP_SECONDS, CHUNK_SECONDS = 5e-11, 1e-3
# Measured seconds over those estimated, by the beginning of a device's name: by the packs of
# published rows, on the H100 beside up to fourteen other processes.
FACTORS = {
    "AMD EPYC, 2 cores": 1.0,
    "Intel(R) Xeon(R) Processor, 2 cores": 1.0,
    "NVIDIA H100": 3.3,
    "NVIDIA H200": 1.0,
}


@dataclasses.dataclass(frozen=True)
class Prediction:
    """Predicted seconds of packs, each with the compilations that it is the first to need.

    Attributes:
      seconds: of each pack.
      guessed: whether nothing was measured on the device.
      device: where the packs train.
      workers: the number of packs that train side by side.
      wall_seconds: of all packs.
    """

    seconds: tuple[float, ...]
    guessed: bool
    device: str
    workers: int
    wall_seconds: float


def predict(
    packs: Sequence[Pack], device: str, workers: int, rows: Iterable[Mapping[str, Any]] = ()
) -> Prediction:
    """Predicted seconds of packs on a device, in this order.

    Args:
      packs: to be trained.
      device: the name of the device.
      workers: how many packs train side by side.
      rows: of shards, which hold what was measured.
    """
    factor = learn_factor(rows, device)
    seen: set[Hashable] = set()
    seconds = []
    for pack in packs:
        new = packing.programs(pack) - seen
        seen |= new
        seconds.append((factor or 1.0) * estimate_seconds(pack, len(new)))
    return Prediction(
        tuple(seconds), factor is None, device, workers, wall_seconds(seconds, workers)
    )


def estimate_seconds(pack: Pack, n_programs: int) -> float:
    """Seconds of a pack that compiles so many programs, on a device whose factor is 1."""
    if pack.platform != "cpu":
        return n_programs * packing.COMPILE_SECONDS["gpu"] + pack.weight
    costs = [run.method.cost(run, pack.module) for run in pack.runs]
    in_turn = max(*(x.sequential_steps for x in costs), sum(x.steps for x in costs) / pack.slots)
    if packing.takes_kernel(pack.runs[0], pack.module):
        modules = [run.module() for run in pack.runs]
        trained = packing.trained_sizes(pack.runs, pack.module, modules, "cpu")
        n_flops = sum(map(packing.predicted_work, pack.runs, trained))
        of_chunks = in_turn / pack.signature.chunk_steps * CHUNK_SECONDS
        return n_programs * PROGRAM_SECONDS + of_chunks + n_flops * KERNEL_FLOP_SECONDS
    n_flops = sum(x.steps * x.flops_per_step for x in costs)
    n_activations = sum(x.steps * x.rows_per_step for x in costs) * pack.module.activations()
    work = (n_flops * FLOP_SECONDS + n_activations * ACTIVATION_SECONDS) / pack.n_devices
    return n_programs * PROGRAM_SECONDS + in_turn * STEP_SECONDS + work


def wall_seconds(seconds: Iterable[float], workers: int) -> float:
    """Seconds until the last pack is done, if each goes to the first worker that is free.

    >>> wall_seconds([3.0, 2.0, 2.0], workers=2)
    4.0
    """
    free_at = [0.0] * workers
    for each in seconds:
        heapq.heapreplace(free_at, free_at[0] + each)
    return max(free_at)


def learn_factor(rows: Iterable[Mapping[str, Any]], device: str) -> float | None:
    """The median of measured over estimated seconds; None where nothing was measured on a device.

    What is known beforehand counts as one more pack.
    """
    known = [factor for name, factor in FACTORS.items() if device.startswith(name)]
    ratios = known + [
        seconds / estimate_seconds(pack, n_programs)
        for pack, n_programs, seconds in measured_packs(rows, device)
    ]
    return math.exp(np.median(np.log(ratios))) if ratios else None


def measured_packs(rows: Iterable[Mapping[str, Any]], device: str) -> list[tuple[Pack, int, float]]:
    """Packs of whole shards of a device, how many programs each compiled, and its seconds.

    Packs that the planner would no longer make are left out.
    """
    names = ("date", "pack_size", "compile_seconds", "run_seconds")
    shards = collections.defaultdict(list)
    for row in rows:
        if row.get("device") == device and all(row.get(name) is not None for name in names):
            # Of an installed package no commit is known.
            shards[tuple(row.get(name) for name in (*names, "commit"))].append(row)
    found = []
    for of_shard in shards.values():
        _, size, compile_seconds, run_seconds = (of_shard[0][name] for name in names)
        seconds = compile_seconds + run_seconds
        if len(of_shard) != size or not seconds > 0:
            continue
        platform = of_shard[0].get("platform") or "cpu"
        # Simulated devices of a CPU share its cores.
        n_devices = 1 if platform == "cpu" else of_shard[0].get("n_devices") or 1
        try:
            runs = sorted(map(from_cells, of_shard), key=lambda run: run.run_id)
            pack = packing.make_pack(runs, platform=platform, n_devices=n_devices)
        except (UserError, ValueError):
            continue
        found.append((pack, int(compile_seconds > 0), seconds))
    return found
