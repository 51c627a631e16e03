"""Optimum: the least value of an objective that a thorough search in double precision finds.

For floors and other infima, where one descent by Adam in single precision is not enough: Adam from
many starts at once finds the better valleys, L-BFGS goes down to their bottom. One program for a
pack of small models; no files, no printing.

Shape letters: R runs, M starts of each, P flat parameters.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

from memobench.common.errors import require
from memobench.core import columns as col
from memobench.core import module as models
from memobench.core.checkpoints import Checkpoints
from memobench.core.columns import Column, by_name, integer
from memobench.core.run import Cost, Method, OnSteps, Pack, PackResult, Run
from memobench.core.spec import kind
from memobench.engine import compiling, devices, initializing
from memobench.engine.devices import SHARED, SPLIT
from memobench.tasks.tokens import Instance, TokenTask

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
            isinstance(task, TokenTask) and not task.in_blocks,
            f"method: an Optimum does not serve the task {task.name!r}; use a Training",
        )

    def check_model(self, run: Run) -> None:
        n_layers = run.architecture.shared_cells()["n_layers"]
        require(
            n_layers <= MOST_LAYERS,
            f"n_layers of an Optimum's model must be at most {MOST_LAYERS}, got {n_layers}: "
            "compiling the search takes a minute and 1 GB for about as many; lower n_layers, or "
            "use a Training",
        )

    def cost(self, run: Run, module: models.Module | None = None) -> Cost:
        module, n_rows = module or run.module(), self.starts * run.task.n_examples
        steps = self.adam_steps + self.steps
        return dataclasses.replace(
            super().cost(run, module),
            steps=steps,
            sequential_steps=steps,
            rows_per_step=n_rows,
            flops_per_step=6.0 * module.work(n_rows, run.task.context_length),
            starts=self.starts,
        )

    def train(
        self,
        pack: Pack,
        on_steps: OnSteps = lambda steps: None,
        checkpoints: Checkpoints | None = None,
    ) -> PackResult:
        return solve(pack, on_steps)

    @classmethod
    def columns_of_rows(cls) -> dict[str, Column]:
        losses = col.list_of(col.float_between(-1e-5), 100_000)
        return by_name(
            Column(
                "gradient_norm", "largest entry of the gradient in the end", col.float_between(0)
            ),
            Column("iterations", "of L-BFGS from the best start", col.int_between()),
            Column(
                "start_losses",
                "at which polished starts ended, least first; none of those that diverged",
                losses,
                "nats",
            ),
        )


# Which rate finds the better valleys differs between tasks: the starts share them out.
LEARNING_RATES = (0.03, 0.3)
GRADIENT_TOLERANCE = 1e-9
# Beyond it the compiler takes minutes, which nothing stops, and gigabytes, which nothing predicts.
MOST_LAYERS = 8
# Steps that devices take without the host; no result depends on it.
AT_ONCE = 100
_LBFGS = optax.lbfgs(memory_size=30)

Objective = Callable[[jax.Array], tuple[jax.Array, jax.Array]]


def solve(pack: Pack, on_steps: Callable[[int], None] = lambda _: None) -> PackResult:
    """Minimises the exact objective of every run of a pack whose method is an Optimum.

    Args:
      pack: the runs and the module they are padded to.
      on_steps: called with 0 before the search and every AT_ONCE steps of it; what it raises ends
        the search.

    Returns:
      A PackResult in which `columns` holds, for each run, the largest entry of the gradient
      at the best start and the iterations of L-BFGS to it, and the losses (nats) at which all
      polished starts ended, least first. A small gradient and equal losses say that no start was
      merely stopped early; they do not prove a global minimum. `theory.is_certified` says what it
      takes before a run below such a loss counts as wrong.
    """
    task = pack.runs[0].task
    method: Any = pack.runs[0].method
    n_runs = len(pack.runs)
    shape = (pack.module, task.signature(), method, devices.round_up_to_devices(n_runs))
    program, compile_seconds = compiling.call_timed(_compile, *shape)
    variables = _starts(pack, method.starts)
    instances = [run.task.sample() for run in pack.runs]
    with jax.enable_x64(True):
        flat_RxMxP = jax.vmap(jax.vmap(_flatten))(variables["params"])
        constants = jax.tree.map(lambda x: x[:, 0], variables["constants"])
        memorized = jax.tree.map(lambda *xs: jnp.stack(xs), *map(_double, instances))
        flat_RxMxP, *data = map(devices.split, (flat_RxMxP, constants, memorized))
        descent = _Descent(flat_RxMxP, jax.vmap(jax.vmap(optax.scale_by_adam().init))(flat_RxMxP))
        loss_RxM = None
        for start in range(0, method.adam_steps, AT_ONCE):
            on_steps(0)
            descent, loss_RxM = jax.block_until_ready(program.adam(descent, *data, start))
        polish = program.begin(descent.flat_P, loss_RxM, *data)
        for stop in range(AT_ONCE, method.steps + AT_ONCE, AT_ONCE):
            on_steps(0)
            polish, found, goes_on_RxM = program.lbfgs(polish, *data, min(stop, method.steps))
            if not np.any(goes_on_RxM):
                break
        found = devices.without_fill(n_runs, jax.tree.map(np.asarray, found))
        best = jax.vmap(program.unravel)(found.flat_MxP[:, 0])
    loss_R, accuracy_R = found.loss_M[:, 0], found.accuracy_M[:, 0]
    return PackResult.of_ends(
        accuracy_R=accuracy_R,
        loss_R=loss_R,
        compile_seconds=compile_seconds,
        variables={"params": best, "constants": constants},
        columns=tuple(
            {
                "gradient_norm": found.gradient_norm_M[i, 0],
                "iterations": found.iterations_M[i, 0],
                "start_losses": [x for x in found.loss_M[i].tolist() if math.isfinite(x)],
            }
            for i in range(len(pack.runs))
        ),
        # In float32 an optimum in double precision is another number.
        weights=(None,) * n_runs,
    )


class _Descent(NamedTuple):
    """A start while Adam trains it."""

    flat_P: Any
    moments: Any


class _Polish(NamedTuple):
    """A start while L-BFGS polishes it: its parameters, their gradient and iterations so far."""

    flat_P: Any
    memory: Any
    gradient_P: Any
    i: Any


class _Program(NamedTuple):
    """The search for packs of so many runs, compiled.

    Attributes:
      adam: from the descents of all starts and the number of their steps so far, AT_ONCE more
        steps, and losses.
      begin: the best starts, to be polished.
      lbfgs: iterations up to so many in all, what they have found, and which starts go on.
      unravel: from flat parameters to a tree.
    """

    adam: Any
    begin: Any
    lbfgs: Any
    unravel: Any


@functools.lru_cache(maxsize=32)
@compiling.time_calls
def _compile(module: Any, task: Any, method: Optimum, n_runs: int) -> _Program:
    with jax.enable_x64(True):
        variables = models.shapes(module, task.context_length)
        flat, unravel = ravel_pytree(
            jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float64), variables["params"])
        )
        rate_M = jnp.asarray(np.geomspace(*LEARNING_RATES, method.starts))

        def objective_of(constants: Any, memorized: Instance) -> Objective:
            def objective(flat_P: jax.Array) -> tuple[jax.Array, jax.Array]:
                trial = {"params": unravel(flat_P), "constants": constants}
                return task.objective(module, trial, memorized)

            return objective

        def adam(descent: Any, constants: Any, memorized: Instance, start: jax.Array) -> Any:
            one = functools.partial(
                _adam, objective_of(constants, memorized), method.adam_steps, start
            )
            return jax.vmap(one)(descent, rate_M)

        def begin(flat_MxP: Any, loss_M: Any, constants: Any, memorized: Instance) -> Any:
            best_M = jnp.argsort(loss_M)[: method.polished]
            return jax.vmap(functools.partial(_begin, objective_of(constants, memorized)))(
                flat_MxP[best_M]
            )

        def lbfgs(polish: Any, constants: Any, memorized: Instance, stop: jax.Array) -> Any:
            objective = objective_of(constants, memorized)
            polish = jax.vmap(functools.partial(_lbfgs, objective, stop))(polish)
            found = jax.vmap(functools.partial(_evaluate, objective))(polish)
            order_M = jnp.argsort(found.loss_M)
            goes_on_M = jax.vmap(functools.partial(_goes_on, method.steps))(polish)
            return polish, jax.tree.map(lambda x: x[order_M], found), goes_on_M

        def compile_of_all(function: Any, *arguments: Any) -> Any:
            """The function of stacked runs; a number is of all of them."""
            are_split = [not isinstance(x, int) for x in arguments]
            specs = tuple(SPLIT if x else SHARED for x in are_split)
            of_all = jax.vmap(function, in_axes=[0 if x else None for x in are_split])
            return compiling.compile_stacked(of_all, *arguments, specs=specs)

        def stack(*sizes: int) -> Callable[[Any], Any]:
            return lambda x: jax.ShapeDtypeStruct((n_runs, *sizes, *x.shape), x.dtype)

        memorized = jax.eval_shape(_double, task.shapes())
        data = jax.tree.map(stack(), (variables["constants"], memorized))
        descent = _Descent(flat, jax.eval_shape(optax.scale_by_adam().init, flat))
        descent = jax.tree.map(stack(method.starts), descent)
        to_descend = compile_of_all(adam, descent, *data, 0)
        descent, loss_RxM = to_descend.out_info
        to_begin = compile_of_all(begin, descent.flat_P, loss_RxM, *data)
        to_polish = compile_of_all(lbfgs, to_begin.out_info, *data, 0)
        return _Program(to_descend, to_begin, to_polish, unravel)


def _flatten(params: Any) -> jax.Array:
    return ravel_pytree(params)[0].astype(jnp.float64)


def _starts(pack: Pack, n_starts: int) -> Any:
    """Initial variables, at true size and padded, with axes R and M."""
    length = pack.runs[0].task.context_length
    target = models.shapes(pack.module, length)
    trees = [
        models.pad_to(models.init_on_host(run.module(), length, key), target)
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


def _adam(
    objective: Objective, steps: int, start: jax.Array, descent: _Descent, rate: jax.Array
) -> tuple[_Descent, jax.Array]:
    """The next steps of Adam, and the loss after them; the rate falls by a cosine to zero."""
    adam = optax.scale_by_adam()

    def step(i: jax.Array, descent: _Descent) -> _Descent:
        flat_P, moments = descent
        gradient_P = jax.grad(objective, has_aux=True)(flat_P)[0]
        update_P, moments = adam.update(gradient_P, moments)
        falling = rate * (1 + jnp.cos(math.pi * i / steps)) / 2
        return _Descent(flat_P - falling * update_P, moments)

    stop = jnp.minimum(start + AT_ONCE, steps)
    descent = jax.lax.fori_loop(start, stop, step, descent)
    return descent, objective(descent.flat_P)[0]


def _value(objective: Objective, flat_P: jax.Array) -> jax.Array:
    return objective(flat_P)[0]


def _begin(objective: Objective, flat_P: jax.Array) -> _Polish:
    gradient_P = jax.grad(functools.partial(_value, objective))(flat_P)
    return _Polish(flat_P, _LBFGS.init(flat_P), gradient_P, jnp.asarray(0))


def _goes_on(stop: Any, polish: _Polish) -> jax.Array:
    return (polish.i < stop) & (jnp.abs(polish.gradient_P).max() > GRADIENT_TOLERANCE)


def _lbfgs(objective: Objective, stop: jax.Array, polish: _Polish) -> _Polish:
    """Iterates until the gradient vanishes, or there were so many iterations in all."""
    value = functools.partial(_value, objective)
    value_and_gradient = optax.value_and_grad_from_state(value)

    def step(polish: _Polish) -> _Polish:
        flat_P, memory, _, i = polish
        loss, gradient_P = value_and_gradient(flat_P, state=memory)
        update_P, memory = _LBFGS.update(
            gradient_P, memory, flat_P, value=loss, grad=gradient_P, value_fn=value
        )
        flat_P = flat_P + update_P
        return _Polish(flat_P, memory, optax.tree.get(memory, "grad"), i + 1)

    return jax.lax.while_loop(functools.partial(_goes_on, stop), step, polish)


def _evaluate(objective: Objective, polish: _Polish) -> _Found:
    loss, accuracy = objective(polish.flat_P)
    return _Found(polish.flat_P, loss, accuracy, jnp.abs(polish.gradient_P).max(), polish.i)
