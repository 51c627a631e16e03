"""The labelled contexts that performance is measured on, and how their packs start.

Vectors of 64 entries, n = 32, d_model = d_head = 64, values of dimension 1, 100 classes, batches of
256, 8192 examples. What the scripts beside this file share.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from memobench import annealing
from memobench.methods.annealing import Annealing
from memobench.models.query_attention import QueryAttention
from memobench.runs import Run
from memobench.tasks.labelled_contexts import Labelled, LabelledContexts

N_EXAMPLES = 8192
METHOD = Annealing()


@dataclasses.dataclass(frozen=True)
class Setting:
    """Which contexts, and how many heads."""

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


def start(variables: Any) -> annealing.State:
    """Of a pack, from its initial variables."""
    params, n_runs = variables["params"], len(jax.tree.leaves(variables)[0])
    return annealing.State(
        variables=variables,
        moments=jax.vmap(optax.scale_by_adam().init)(params),
        best=jax.tree.map(jnp.copy, params),  # The program overwrites what it is given.
        best_loss=jnp.full(n_runs, jnp.inf),
        best_correct=jnp.zeros(n_runs, jnp.int32),
        best_step=jnp.zeros(n_runs, jnp.int32),
    )


def schedule(step: int) -> annealing.Schedule:
    """Of one run that is at a step."""
    return annealing.Schedule(
        step=np.float32(step),
        steps=np.float32(METHOD.steps),
        warmup_steps=np.float32(round(METHOD.warmup * METHOD.steps)),
        learning_rate=np.float32(METHOD.learning_rate),
        first_share=np.float32(METHOD.first_share),
        n_examples=np.int32(N_EXAMPLES),
        which_set=np.int32(0),
        stops_at=np.int32(N_EXAMPLES + 1),
    )


def stacked_schedule(step: int, n_runs: int, evaluated: int) -> annealing.Schedule:
    """Of a pack whose round ends with an evaluation of so many examples."""
    one = schedule(step)._replace(n_examples=np.int32(evaluated))
    return annealing.Schedule(*(np.repeat(x, n_runs) for x in one))


def program(setting: Setting, n_runs: int, round_steps: int) -> tuple[Any, ...]:
    """What compiles a pack's round of so many steps, and of which shapes."""
    method = dataclasses.replace(METHOD, steps=round_steps, evaluate_every=round_steps)
    module, n_sets = setting.run().module(), 1
    return annealing.compile_round, module, setting.task(), method, n_runs, n_sets
