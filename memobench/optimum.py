"""The least value of a run's true objective, searched for in double precision from many starts.

For floors and other infima, where one descent by Adam in single precision is not enough: Adam from
many starts at once finds the better valleys, L-BFGS goes down to their bottom. One run at a time,
on small models; no files, no printing.
"""

import math
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import scipy.optimize
from jax.flatten_util import ravel_pytree

from memobench import metrics, models, packing, tasks, training
from memobench.specs import Optimum, Run

# Which rate finds the better valleys differs between tasks: the starts share them out.
LEARNING_RATES = (0.03, 0.3)
GRADIENT_TOLERANCE = 1e-9

Objective = Callable[[jax.Array], tuple[jax.Array, jax.Array]]


def solve(
    pack: packing.Pack, on_steps: Callable[[int], None] = lambda _: None
) -> training.PackResult:
    """Minimises the exact objective of a pack of one run whose method is an Optimum.

    Args:
      pack: one run.
      on_steps: called while it works; the numbers add up to the method's steps.

    Returns:
      A PackResult in which `certificates` holds, of the best start, the largest entry of the
      gradient and the iterations, and the losses (nats) at which all polished starts ended, least
      first. A small gradient and equal losses say that no start was merely stopped early; they
      do not prove a global minimum.

    Raises:
      ValueError: more than one run.
    """
    (run,) = pack.runs
    method, task = run.method, run.task
    if not isinstance(method, Optimum):
        raise ValueError("solve takes a run whose method is an Optimum")
    started = time.perf_counter()
    module, key = models.build(run), packing.init_key(run)
    starts = [
        models.init(module, task.context_length, jax.random.fold_in(key, start))
        for start in range(method.starts)
    ]
    instance = tasks.sample(task)
    with jax.enable_x64(True):
        flat_RxP = jnp.stack([ravel_pytree(start["params"])[0] for start in starts])
        flat_RxP = flat_RxP.astype(jnp.float64)
        objective, unravel = _objective(run, module, starts[0], instance)
        rate_R = jnp.asarray(np.geomspace(*LEARNING_RATES, method.starts))
        adam = jax.vmap(lambda flat_P, rate: _adam(objective, method.adam_steps, flat_P, rate))
        search = jax.jit(adam).lower(flat_RxP, rate_R).compile()
        evaluate = jax.jit(jax.value_and_grad(objective, has_aux=True)).lower(flat_RxP[0]).compile()
        compiled = time.perf_counter()
        flat_RxP, loss_R = jax.block_until_ready(search(flat_RxP, rate_R))
        results = []
        for polished, start in enumerate(np.argsort(loss_R)[: method.polished]):
            results.append(_lbfgs(evaluate, flat_RxP[start], method.steps, on_steps))
            on_steps(_share(method, polished))
        best, *_ = results = sorted(results, key=lambda result: result.fun)
        (loss, accuracy), gradient = evaluate(jnp.asarray(best.x))
        params = jax.tree.map(lambda x: np.asarray(x)[None], unravel(best.x))
    loss_1, accuracy_1 = np.asarray([loss]), np.asarray([accuracy])
    return training.PackResult(
        accuracy_R=accuracy_1,
        loss_R=loss_1,
        bits_R=metrics.memorized_bits(loss_1, task.n_examples, task.vocab_size),
        step_accuracy_RxL=accuracy_1[:, None],
        step_loss_RxL=loss_1[:, None],
        compile_seconds=compiled - started,
        run_seconds=time.perf_counter() - compiled,
        variables={"params": params, "constants": starts[0]["constants"]},
        certificates=(
            {
                "gradient_norm": float(np.abs(gradient).max()),
                "iterations": int(best.nit),
                "start_losses": [float(result.fun) for result in results],
            },
        ),
    )


def _share(method: Optimum, polished: int) -> int:
    """The part of the method's steps that a polished start counts for in the progress."""
    return (
        method.steps * (polished + 1) // method.polished
        - method.steps * polished // method.polished
    )


def _objective(
    run: Run, module: Any, variables: Any, instance: tasks.Instance
) -> tuple[Objective, Callable[[Any], Any]]:
    """Flat parameters -> (loss, accuracy), and the way back from flat to a tree."""
    double = jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), variables["params"])
    _, unravel = ravel_pytree(double)
    probability_TxK = jnp.asarray(instance.probability_TxK, jnp.float64)
    prior_T = jnp.asarray(instance.prior_T, jnp.float64)
    # Float32 probabilities add up to 1 within 1e-7 only, which would be a floor of its own.
    memorized = instance._replace(
        probability_TxK=probability_TxK / probability_TxK.sum(axis=1, keepdims=True),
        prior_T=prior_T / prior_T.sum(),
    )

    def objective(flat_P: jax.Array) -> tuple[jax.Array, jax.Array]:
        trial = {**variables, "params": unravel(flat_P)}
        return training.objective(module, run.task, trial, memorized, jnp.zeros(0, jnp.int32))

    return objective, unravel


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


def _lbfgs(evaluate: Any, flat_P: Any, steps: int, on_steps: Callable[[int], None]) -> Any:
    def fun(x_P: np.ndarray) -> tuple[float, np.ndarray]:
        (loss, _), gradient_P = evaluate(jnp.asarray(x_P))
        return float(loss), np.asarray(gradient_P)

    return scipy.optimize.minimize(
        fun,
        np.asarray(flat_P),
        jac=True,
        method="L-BFGS-B",
        callback=lambda _: on_steps(0),  # An interrupted sweep stops here.
        options={
            "maxiter": steps,
            "maxfun": 2 * steps,
            "maxcor": 30,
            "ftol": 0,
            "gtol": GRADIENT_TOLERANCE,
        },
    )
