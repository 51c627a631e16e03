"""The state of lanes, and how models of unequal sizes are stacked, padded and cropped."""

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from memobench.core import module as models
from memobench.core.checkpoints import Arrays
from memobench.core.module import Module, trains
from memobench.optimizers import Optimizer
from memobench.optimizers.rounded import Rounded


class Best(NamedTuple):
    """The parameters of the least loss so far, or those that end the job by knowing all."""

    params: Any
    loss: Any
    accuracy: Any
    step: Any


class State(NamedTuple):
    """The state that steps carry on, of one model or of lanes stacked along R.

    Attributes:
      variables: parameters and constants.
      opt_state: the optimiser's state of the trainable parameters.
      best: the best weights so far; None where the last weights count.
    """

    variables: Any
    opt_state: Any
    best: Best | None


class Lane(NamedTuple):
    """Inputs of a lane beside its state and batches, as traced numbers.

    Attributes:
      instance: the number of its instance among those that all lanes read.
      n_examples: the job trains on the first so many.
      target: the accuracy at which weights are kept whatever their loss.
      step: steps taken.
      of_shapes: numbers that the optimiser derives from the model's true shapes.
    """

    instance: Any
    n_examples: Any
    target: Any
    step: Any
    of_shapes: Any = None


def begin(
    optimizer: Optimizer | Rounded, is_trainable: Any, keeps_best: bool, variables: Any
) -> State:
    """The state of one model before its first step.

    Args:
      optimizer: of its steps.
      is_trainable: from a parameter's name to True where it is trained.
      keeps_best: whether the best weights are kept.
      variables: initial ones.
    """
    params = variables["params"]
    # A copy, as programs overwrite what they are given.
    copied = jax.tree.map(jnp.copy, params)
    best = Best(copied, jnp.float32(jnp.inf), jnp.float32(0), jnp.int32(0))
    opt_state = optimizer.begin({name: x for name, x in params.items() if is_trainable(name)})
    return State(variables, opt_state, best if keeps_best else None)


@functools.lru_cache(maxsize=4096)
def shapes(
    module: Module,
    context_length: int,
    optimizer: Optimizer | Rounded,
    trained: str | None,
    keeps_best: bool,
) -> Any:
    """The State of one model as shapes and dtypes."""
    variables = models.shapes(module, context_length)
    is_trainable = trains(module, trained)
    return jax.eval_shape(lambda x: begin(optimizer, is_trainable, keeps_best, x), variables)


def stack_shapes(tree: Any, n: int) -> Any:
    """The shapes of n such trees, stacked."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct((n, *x.shape), x.dtype), tree)


def place_rows(trees: Mapping[int, Any], n: int, target: Any) -> Any:
    """Trees padded to shapes and stacked at their places among n; zeros elsewhere."""
    whole = jax.tree.map(lambda x: np.zeros((n, *x.shape), x.dtype), target)
    for i, tree in trees.items():

        def put(into: np.ndarray, x: Any, i: int = i) -> None:
            inside: Any = (i, *(slice(size) for size in np.shape(x)))
            into[inside] = x

        jax.tree.map(put, whole, tree)
    return whole


def crop(tree: Any, i: int, true: Any) -> Any:
    """Row i of a stacked tree at its true size, copied: it does not keep what the others have."""

    def one(x: Any, shape: Any) -> np.ndarray:
        return np.array(x[i][tuple(slice(size) for size in shape.shape)])

    return jax.tree.map(one, tree, true)


def to_arrays(state: State | None) -> Arrays:
    """The leaves of a state by their names."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(state)
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}


def from_arrays(arrays: Arrays, true: Any) -> State:
    """The inverse of `to_arrays`. Raises KeyError or ValueError for arrays of other shapes."""
    expected, tree = jax.tree_util.tree_flatten_with_path(true)
    leaves = [arrays[jax.tree_util.keystr(path)] for path, _ in expected]
    for leaf, (_, x) in zip(leaves, expected, strict=True):
        if (leaf.shape, leaf.dtype) != (x.shape, x.dtype):
            raise ValueError(f"{leaf.dtype}{leaf.shape} in place of {x.dtype}{x.shape}")
    return jax.tree.unflatten(tree, leaves)
