"""The programs that accelerators are studied with, and packs of their runs."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import associations
import contexts

from memobench.core.module import count_parameters, has_attention
from memobench.core.run import Run
from memobench.experiments import EXPERIMENTS
from memobench.planner import packing

# Larger sets of the board have few runs, which would not fill an accelerator.
MOST_EXAMPLES = 1024


def _runs(experiment: str) -> list[Run]:
    """Runs of an experiment that are packed with many others."""
    declared = EXPERIMENTS[experiment].presets["full"]
    if experiment != "board/typical":
        return list(declared)
    # However many initial weights entries take for their precision.
    return [
        dataclasses.replace(x, method=x.method.replace(inits=1))
        for x in declared
        if x.task.n_examples <= MOST_EXAMPLES
    ]


def _largest_run(experiment: str) -> Run:
    """The largest Transformer of an experiment."""
    return max(
        (run for run in _runs(experiment) if has_attention(run.module())),
        key=lambda run: count_parameters(run.module(), run.task.context_length)[0],
    )


# The first run of each program's packs.
FIRST: dict[str, Callable[[], Run]] = {
    "heads, published": lambda: associations.run(10, 21, associations.METHOD),
    "heads, exact": lambda: associations.run(10, 21, associations.METHOD.exact()),
    "shared contexts": lambda: contexts.Setting("shared", 20).run(),
    "random contexts": lambda: contexts.Setting("random", 20).run(),
    "deeper": lambda: _largest_run("dana2025/heads-deeper"),
    "larger": lambda: _largest_run("dana2025/heads-larger"),
    "capacity": lambda: _largest_run("board/typical"),
}

# Experiments whose largest packs they are in.
EXPERIMENT = {
    "heads, published": "dana2025/heads",
    "deeper": "dana2025/heads-deeper",
    "larger": "dana2025/heads-larger",
    "capacity": "board/typical",
}


@functools.cache
def planned_runs(program: str, platform: str) -> int:
    """Runs of the largest pack that the planner makes of a program's experiment."""
    packs = packing.plan(_runs(EXPERIMENT[program]), platform)
    return len(max(packs, key=lambda pack: pack.memory_bytes).runs)


def packed(program: str, n_runs: int, platform: str) -> tuple[packing.Pack, Any, int, int]:
    """A pack of so many runs of a program, and its signature, lanes and instances."""
    first = FIRST[program]()
    runs = [dataclasses.replace(first, seed=seed) for seed in range(n_runs)]
    pack = packing.make_pack(runs, platform=platform)
    needed: Any = packing.programs(pack)
    ((signature, n_lanes, n_instances),) = needed
    return pack, signature, n_lanes, n_instances
