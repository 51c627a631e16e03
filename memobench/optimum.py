"""The least value of a run's true objective: L-BFGS in double precision from several starts.

For floors and other infima, where Adam's last digits are not enough. One model at a time, on small
ones; no files, no printing.
"""

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
from jax.flatten_util import ravel_pytree

from memobench import metrics, models, packing, tasks, training
from memobench.specs import Optimum, Run

GRADIENT_TOLERANCE = 1e-9


def solve(
    pack: packing.Pack, on_steps: Callable[[int], None] = lambda _: None
) -> training.PackResult:
    """Minimises the exact objective of a pack of one run whose method is an Optimum.

    Args:
      pack: one run.
      on_steps: called while it works; the numbers add up to the method's steps.

    Returns:
      A PackResult in which `certificates` holds, for the best start, the largest entry of the
      gradient and its iterations, and the losses (nats) that all starts ended with. A small
      gradient and equal losses say that no start was merely stopped early.

    Raises:
      ValueError: more than one run.
    """
    (run,) = pack.runs
    if not isinstance(run.method, Optimum):
        raise ValueError("solve takes a run whose method is an Optimum")
    started = time.perf_counter()
    module, task = models.build(run), run.task
    keys = [packing.init_key(run)]
    keys += [jax.random.fold_in(keys[0], start) for start in range(1, run.method.starts)]
    variables = [models.init(module, task.context_length, key) for key in keys]
    instance = tasks.sample(task)
    with jax.enable_x64(True):
        evaluate, unravel = _objective(run, module, variables[0], instance)
        jax.block_until_ready(evaluate(_flat(variables[0]["params"])))
        compiled = time.perf_counter()
        results = []
        for start, initial in enumerate(variables):
            results.append(
                _minimize(evaluate, _flat(initial["params"]), run.method.steps, on_steps)
            )
            on_steps(_share(run.method, start))
        best = min(results, key=lambda result: result.fun)
        (loss, accuracy), gradient = evaluate(best.x)
        params = jax.tree.map(lambda x: np.asarray(x)[None], unravel(best.x))
    loss_R, accuracy_R = np.asarray([loss]), np.asarray([accuracy])
    return training.PackResult(
        accuracy_R=accuracy_R,
        loss_R=loss_R,
        bits_R=metrics.memorized_bits(loss_R, task.n_examples, task.vocab_size),
        step_accuracy_RxL=accuracy_R[:, None],
        step_loss_RxL=loss_R[:, None],
        compile_seconds=compiled - started,
        run_seconds=time.perf_counter() - compiled,
        variables={"params": params, "constants": variables[0]["constants"]},
        certificates=(
            {
                "gradient_norm": float(np.abs(gradient).max()),
                "iterations": int(best.nit),
                "start_losses": [float(result.fun) for result in results],
            },
        ),
    )


def _share(method: Optimum, start: int) -> int:
    """The part of the method's steps that a start counts for in the progress."""
    return method.steps * (start + 1) // method.starts - method.steps * start // method.starts


def _flat(params: Any) -> np.ndarray:
    return np.asarray(ravel_pytree(params)[0], np.float64)


def _objective(run: Run, module: Any, variables: Any, instance: tasks.Instance) -> Any:
    """Compiled: flat parameters -> (loss, accuracy), flat gradient; and the way back to a tree."""
    double = jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), variables["params"])
    _, unravel = ravel_pytree(double)
    probability_TxK = jnp.asarray(instance.probability_TxK, jnp.float64)
    prior_T = jnp.asarray(instance.prior_T, jnp.float64)
    # Float32 probabilities add up to 1 within 1e-7 only, which would be a floor of its own.
    memorized = instance._replace(
        probability_TxK=probability_TxK / probability_TxK.sum(axis=1, keepdims=True),
        prior_T=prior_T / prior_T.sum(),
    )

    def objective(flat: jax.Array) -> Any:
        trial = {**variables, "params": unravel(flat)}
        return training.objective(module, run.task, trial, memorized, jnp.zeros(0, jnp.int32))

    return jax.jit(jax.value_and_grad(objective, has_aux=True)), unravel


def _minimize(evaluate: Any, flat: np.ndarray, steps: int, on_steps: Callable[[int], None]) -> Any:
    def fun(x: np.ndarray) -> tuple[float, np.ndarray]:
        (loss, _), gradient = evaluate(x)
        return float(loss), np.asarray(gradient, np.float64)

    return scipy.optimize.minimize(
        fun,
        flat,
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
