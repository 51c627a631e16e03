"""Optimum: the least value of an objective that a thorough search in double precision finds.

For floors and other infima, where one descent by Adam in single precision is not enough: Adam from
many starts at once finds the better valleys, L-BFGS goes down to their bottom. One program for a
pack of small models; no files, no printing.

Shape letters: R runs, M starts of each, P flat parameters.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

from memobench import columns as col
from memobench.columns import Column, by_name, integer, require, shown
from memobench.engine import compiling, devices, initializing
from memobench.engine.devices import SPLIT
from memobench.methods.base import Method, OnSteps, PackResult
from memobench.models import base as models
from memobench.planner import packing
from memobench.spec import kind
from memobench.table.consistency import REPEATED, check_derived
from memobench.tasks.tokens import Instance

if TYPE_CHECKING:
    from memobench.planner.packing import Pack
    from memobench.runs import Run
    from memobench.runtime.checkpoints import Checkpoints


# The label of its rows.
OPTIMUM = "optimum in double precision"


@kind("optimised")
class Optimum(Method):
    """The least value of the exact objective that a thorough search in double precision finds.

    `starts` initial weights are trained side by side by `adam_steps` of Adam; from the `polished`
    best of them L-BFGS goes on until the gradient vanishes to rounding or for `steps` iterations.
    Meant for small models.
    """

    protocol: ClassVar[str] = "optimal"
    bits_per_weight: ClassVar[float] = 64.0
    # It is searched for by more than its counted iterations.
    stepwise: ClassVar[bool] = False

    starts: int = integer("initial weights", 1, default=64, most=2**20)
    adam_steps: int = integer("steps of Adam from each", 1, default=1000)
    polished: int = integer("best of them that L-BFGS polishes", 1, default=3)
    steps: int = integer("iterations of L-BFGS at most", 1, default=2000)

    @classmethod
    def variant(cls, row: Mapping[str, Any]) -> str:
        del row
        return OPTIMUM

    def check(self) -> None:
        require(
            self.polished <= self.starts,
            f"polished={self.polished} exceeds starts={self.starts}; lower polished",
        )

    def check_run(self, run: Run) -> None:
        task = run.task
        require(
            task.of_tokens and not task.in_blocks,
            f"method: an Optimum does not serve the task {task.name!r}; use a Training",
        )

    def train(
        self,
        pack: Pack,
        on_steps: OnSteps = lambda steps: None,
        checkpoints: Checkpoints | None = None,
    ) -> PackResult:
        return solve(pack, on_steps)

    def check_row(self, run: Run, row: Mapping[str, Any]) -> None:
        losses, iterations = row["start_losses"], row["iterations"]
        if losses and row["loss"] is not None:
            check_derived(row, {"loss": losses[0]}, REPEATED)
            require(
                losses == sorted(losses) and len(losses) == self.polished,
                f"start_losses={shown(losses)} are not {self.polished} that rise; fix them",
            )
        require(
            iterations is None or iterations <= self.steps,
            f"iterations={iterations} are more than steps={self.steps}; fix the wrong one",
        )

    @classmethod
    def columns_of_rows(cls) -> dict[str, Column]:
        losses = col.list_of(col.real(-1e-5), 100_000)
        return by_name(
            Column("gradient_norm", "largest entry of the gradient in the end", col.real(0)),
            Column("iterations", "of L-BFGS from the best start", col.whole()),
            Column("start_losses", "at which polished starts ended, least first", losses, "nats"),
        )


# Which rate finds the better valleys differs between tasks: the starts share them out.
LEARNING_RATES = (0.03, 0.3)
GRADIENT_TOLERANCE = 1e-9

Objective = Callable[[jax.Array], tuple[jax.Array, jax.Array]]


def solve(pack: packing.Pack, on_steps: Callable[[int], None] = lambda _: None) -> PackResult:
    """Minimises the exact objective of every run of a pack whose method is an Optimum.

    Args:
      pack: the runs and the module they are padded to.
      on_steps: called before the search, which cannot be stopped.

    Returns:
      A PackResult in which `columns` holds, for each run, the largest entry of the gradient
      at the best start and the iterations of L-BFGS to it, and the losses (nats) at which all
      polished starts ended, least first. A small gradient and equal losses say that no start was
      merely stopped early; they do not prove a global minimum. `theory.certified` says what it
      takes before a run below such a loss counts as wrong.
    """
    task = pack.runs[0].task
    method: Any = pack.runs[0].method
    n_runs = len(pack.runs)
    shape = (pack.module, task.signature(), method, devices.filled(n_runs))
    (search, unravel), compile_seconds = compiling.timed(_compile, *shape)
    variables = _starts(pack, method.starts)
    on_steps(0)
    instances = [run.task.sample() for run in pack.runs]
    with jax.enable_x64(True):
        flat_RxMxP = jax.vmap(jax.vmap(_flat))(variables["params"])
        constants = jax.tree.map(lambda x: x[:, 0], variables["constants"])
        memorized = jax.tree.map(lambda *xs: jnp.stack(xs), *map(_double, instances))
        found = search(*map(devices.split, (flat_RxMxP, constants, memorized)))
        found = devices.first(n_runs, jax.tree.map(np.asarray, found))
        best = jax.vmap(unravel)(found.flat_MxP[:, 0])
    loss_R, accuracy_R = found.loss_M[:, 0], found.accuracy_M[:, 0]
    return PackResult.of_ends(
        accuracy_R=accuracy_R,
        loss_R=loss_R,
        compile_seconds=compile_seconds,
        variables={"params": best, "constants": constants},
        columns=tuple(
            {
                "gradient_norm": float(found.gradient_norm_M[i, 0]),
                "iterations": int(found.iterations_M[i, 0]),
                "start_losses": found.loss_M[i].tolist(),
            }
            for i in range(len(pack.runs))
        ),
    )


@functools.lru_cache(maxsize=32)
def _compile(module: Any, task: Any, method: Optimum, n_runs: int) -> tuple[Any, Any]:
    """The search for packs of so many runs, and the way from flat parameters back to a tree."""
    with jax.enable_x64(True):
        variables = models.shapes(module, task.context_length)
        flat, unravel = ravel_pytree(
            jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float64), variables["params"])
        )
        rate_M = jnp.asarray(np.geomspace(*LEARNING_RATES, method.starts))

        def search(flat_MxP: jax.Array, constants: Any, memorized: Instance) -> _Found:
            def objective(flat_P: jax.Array) -> tuple[jax.Array, jax.Array]:
                trial = {"params": unravel(flat_P), "constants": constants}
                return task.objective(module, trial, memorized)

            return _search(objective, method, flat_MxP, rate_M)

        def stacked(x: Any) -> Any:
            return jax.ShapeDtypeStruct((n_runs, *x.shape), x.dtype)

        flat_RxMxP = jax.ShapeDtypeStruct((n_runs, method.starts, len(flat)), jnp.float64)
        memorized = jax.eval_shape(_double, task.shapes())
        constants, memorized = jax.tree.map(stacked, (variables["constants"], memorized))
        solving = compiling.compiled(
            jax.vmap(search), flat_RxMxP, constants, memorized, specs=(SPLIT, SPLIT, SPLIT)
        )
        return solving, unravel


def _flat(params: Any) -> jax.Array:
    return ravel_pytree(params)[0].astype(jnp.float64)


def _starts(pack: packing.Pack, n_starts: int) -> Any:
    """Initial variables, at true size and padded, with axes R and M."""
    length = pack.runs[0].task.context_length
    target = models.shapes(pack.module, length)
    trees = [
        models.pad_to(models.init(run.module(), length, key), target)
        for run in pack.runs
        for key in jax.random.split(initializing.init_key(run), n_starts)
    ]
    shape = (len(pack.runs), n_starts)
    return jax.tree.map(lambda *xs: np.stack(xs).reshape(*shape, *xs[0].shape), *trees)


def _double(instance: Instance) -> Instance:
    """Float32 probabilities add up to 1 within 1e-7 only, which would be a floor of its own."""
    probability_TxK = jnp.asarray(instance.probability_TxK, jnp.float64)
    prior_T = jnp.asarray(instance.prior_T, jnp.float64)
    return instance._replace(
        probability_TxK=probability_TxK / probability_TxK.sum(axis=1, keepdims=True),
        prior_T=prior_T / prior_T.sum(),
    )


class _Found(NamedTuple):
    """The polished starts, the least loss first."""

    flat_MxP: jax.Array
    loss_M: jax.Array
    accuracy_M: jax.Array
    gradient_norm_M: jax.Array
    iterations_M: jax.Array


def _search(
    objective: Objective, method: Optimum, flat_MxP: jax.Array, rate_M: jax.Array
) -> _Found:
    adam = functools.partial(_adam, objective, method.adam_steps)
    flat_MxP, loss_M = jax.vmap(adam)(flat_MxP, rate_M)
    best_M = jnp.argsort(loss_M)[: method.polished]
    found = jax.vmap(functools.partial(_lbfgs, objective, method.steps))(flat_MxP[best_M])
    order_M = jnp.argsort(found.loss_M)
    return jax.tree.map(lambda x: x[order_M], found)


def _adam(
    objective: Objective, steps: int, flat_P: jax.Array, rate: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Adam's last parameters and their loss, after a rate that falls by a cosine to zero."""
    adam = optax.scale_by_adam()

    def step(state: Any, i: jax.Array) -> Any:
        flat_P, moments = state
        gradient_P = jax.grad(objective, has_aux=True)(flat_P)[0]
        update_P, moments = adam.update(gradient_P, moments)
        falling = rate * (1 + jnp.cos(math.pi * i / steps)) / 2
        return (flat_P - falling * update_P, moments), None

    (flat_P, _), _ = jax.lax.scan(step, (flat_P, adam.init(flat_P)), jnp.arange(steps))
    return flat_P, objective(flat_P)[0]


def _lbfgs(objective: Objective, steps: int, flat_P: jax.Array) -> _Found:
    def value(flat_P: jax.Array) -> jax.Array:
        return objective(flat_P)[0]

    lbfgs = optax.lbfgs(memory_size=30)
    value_and_gradient = optax.value_and_grad_from_state(value)

    def going_on(state: Any) -> jax.Array:
        _, _, gradient_P, i = state
        return (i < steps) & (jnp.abs(gradient_P).max() > GRADIENT_TOLERANCE)

    def step(state: Any) -> Any:
        flat_P, memory, _, i = state
        loss, gradient_P = value_and_gradient(flat_P, state=memory)
        update_P, memory = lbfgs.update(
            gradient_P, memory, flat_P, value=loss, grad=gradient_P, value_fn=value
        )
        flat_P = flat_P + update_P
        return flat_P, memory, optax.tree.get(memory, "grad"), i + 1

    start = (flat_P, lbfgs.init(flat_P), jax.grad(value)(flat_P), jnp.asarray(0))
    flat_P, _, gradient_P, i = jax.lax.while_loop(going_on, step, start)
    loss, accuracy = objective(flat_P)
    return _Found(flat_P, loss, accuracy, jnp.abs(gradient_P).max(), i)
