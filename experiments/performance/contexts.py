"""The labelled contexts that performance is measured on, and how their packs start.

Vectors of 64 entries, n = 32, d_model = d_head = 64, values of dimension 1, 100 classes, batches of
256, 8192 examples. Shared by the scripts beside this file.
"""

import dataclasses
import functools
from collections.abc import Sequence

import jax

from memobench import engine
from memobench.core.run import Run
from memobench.experiments.mahdavi2024 import own_methods as annealing
from memobench.experiments.mahdavi2024.own_methods import Annealing
from memobench.experiments.mahdavi2024.own_models import QueryAttention
from memobench.planner import packing
from memobench.tasks.labelled_contexts import Labelled, LabelledContexts

N_EXAMPLES = 8192
METHOD = Annealing()


@dataclasses.dataclass(frozen=True)
class Setting:
    """A kind of contexts and a number of heads."""

    contexts: str
    n_heads: int

    def task(self) -> LabelledContexts:
        return LabelledContexts(n_examples=N_EXAMPLES, contexts=self.contexts)

    def run(self, seed: int = 0, method: Annealing = METHOD) -> Run:
        architecture = QueryAttention(d_model=64, d_head=64, n_heads=self.n_heads)
        return Run(task=self.task(), architecture=architecture, method=method, seed=seed)


@functools.cache
def data(contexts: str) -> Labelled:
    """The examples, on the device."""
    return jax.device_put(Setting(contexts, 1).task().sample())


def lanes(runs: Sequence[Run]) -> engine.Lanes:
    """All of these runs in training side by side."""
    pack = dataclasses.replace(packing.make_pack(runs), slots=len(runs))
    made = engine.Lanes(annealing.AnnealingPolicy(pack))
    made.fill()
    return made
