"""Degrees of freedom: the dimension of the set of functions that a model's weights can have.

It is the rank of the Jacobian of log-probabilities over all inputs with respect to all parameters,
at almost all weights. Modules have formulas for it (`Module.symmetries`). Of a small one that has
none the rank is computed, in double precision.

Shape letters: P parameters, K sums of outputs.
"""

import functools
import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jax.flatten_util import ravel_pytree

from memobench.core import module as models
from memobench.core.cells import from_cells
from memobench.core.module import Module
from memobench.core.task import Task
from memobench.numerics import precision

# Of more parameters a rank takes minutes.
MOST_PARAMETERS = 2200
# Inputs that are looked at, where there are more.
_MOST_INPUTS = 2**13
# Instances of a task whose inputs are not all sequences: enough if they have outputs enough.
_INSTANCES = 16
# Sums at once: more take more memory.
_AT_ONCE = 16
# Singular values over the largest one: rounding is below, and everything else so many times above.
_ROUNDING, _GAP = 1e-13, 100
# Of some weights neurons are silent: the largest rank counts, found twice.
_DRAWS = 4


def add_freedom(table: pd.DataFrame) -> pd.DataFrame:
    """The table of runs with `degrees_of_freedom` of all whose models have a known number."""
    found = [count_freedom(row) for row in table.to_dict("records")]
    return table.assign(degrees_of_freedom=found)


def count_freedom(row: Mapping[Any, Any]) -> float:
    """The degrees of freedom of a row's model, whatever the row says; NaN if they are unknown.

    A user's own kind may raise anything, which leaves them unknown.
    """
    try:
        run = from_cells(row)
        found = degrees_of_freedom(run.architecture.module_for(run.task), run.task.signature())
    except Exception:
        found = None
    return math.nan if found is None else found


@functools.lru_cache(maxsize=4096)
def degrees_of_freedom(module: Module, task: Task) -> int | None:
    """By the module's formula, or the rank where it is small; None where neither is known."""
    found = models.degrees_of_freedom(module, task)
    n_params, _ = models.count_parameters(module, task.context_length)
    if module.symmetries(task) is None and n_params <= MOST_PARAMETERS:
        found = rank(module, task)
    return found


def rank(module: Module, task: Any) -> int | None:
    """The largest rank at random weights; None where no two draws agree on it, or none is clear.

    So it is where inputs are drawn and their outputs are hardly more than parameters.
    """
    found: list[int] = []
    inputs = precision.cast(_inputs(task))
    with jax.enable_x64(True), jax.default_matmul_precision("highest"):
        sums, n_outputs = _sums(module, task, inputs)
        n_params, _ = models.count_parameters(module, task.context_length)
        if n_outputs < 2 * n_params and not _are_sequences(task):
            return None
        for seed in range(_DRAWS):
            drawn = models.init_on_host(module, task.context_length, jax.random.key(seed))
            weights_P, _ = ravel_pytree(_move(drawn["params"], np.random.default_rng(seed)))
            value_K = np.linalg.svd(sums(weights_P, jax.random.key(seed)), compute_uv=False)
            ratio_K = np.append(value_K, 0) / max(value_K[0], np.finfo(float).tiny)
            n_clear = int((ratio_K > _ROUNDING).sum())
            if ratio_K[n_clear - 1] > _GAP * ratio_K[n_clear]:
                found.append(n_clear)
            if len(found) > 1 and found.count(max(found)) > 1:
                return max(found)
    return None


def _sums(module: Module, task: Any, inputs: Any) -> tuple[Callable[..., np.ndarray], int]:
    """A function of weights_P and a key to random sums_KxP of the Jacobian's rows; how many rows.

    There are somewhat more sums than columns, so that they have the Jacobian's rank.
    """
    drawn = models.init_on_host(module, task.context_length, jax.random.key(0))
    variables = precision.cast({"constants": {}, **drawn})
    weights_P, unravel = ravel_pytree(variables["params"])
    n_choices = getattr(task, "n_outputs", None)

    def log_probabilities(weights_P: jax.Array) -> jax.Array:
        held = {**variables, "params": unravel(weights_P)}
        outputs: Any = jax.vmap(lambda *each: module.apply(held, *each))(*inputs)
        is_choice = task.n_choices is not None
        return jax.nn.log_softmax(outputs[..., :n_choices]) if is_choice else outputs

    shape = jax.eval_shape(log_probabilities, weights_P).shape
    n_outputs = math.prod(shape)
    n_sums = min(len(weights_P) + 32, n_outputs)

    def sums(weights_P: jax.Array, key: jax.Array) -> jax.Array:
        _, transpose = jax.vjp(log_probabilities, weights_P)

        def add_up(key: jax.Array) -> jax.Array:
            return transpose(jax.random.normal(key, shape))[0]

        return jax.lax.map(add_up, jax.random.split(key, n_sums), batch_size=_AT_ONCE)

    return jax.jit(sums), n_outputs


def _move(weights: Any, generator: np.random.Generator) -> Any:
    """Weights away from where they start, which may be zero or all the same."""

    def move(x: Any) -> np.ndarray:
        by = 0.2 if np.ndim(x) < 2 else 1 / math.sqrt(max(np.shape(x)[-1], 1))
        return x + by * generator.normal(size=np.shape(x))

    return jax.tree.map(move, precision.cast(weights))


def _are_sequences(task: Any) -> bool:
    """True where any sequence of tokens may be an input."""
    return task.question in ("next token", "every token")


def _inputs(task: Any) -> tuple[Any, ...]:
    """Inputs of tasks of this kind: all sequences of tokens, or so many, or those of instances."""
    if _are_sequences(task):
        n, length = task.vocab_size, task.context_length
        if n**length <= _MOST_INPUTS:
            return (np.array(list(itertools.product(range(n), repeat=length)), np.int32),)
        drawn = np.random.default_rng(0).integers(n, size=(_MOST_INPUTS, length))
        return (drawn.astype(np.int32),)
    found = []
    for seed in range(_INSTANCES):
        instance = task.replace(seed=seed)
        data, index_T = jax.tree.map(jnp.asarray, instance.sample()), jnp.arange(task.n_examples)
        found.append(jax.vmap(functools.partial(instance.inputs, data))(index_T))
    return tuple(np.concatenate(each)[:_MOST_INPUTS] for each in zip(*found, strict=True))
