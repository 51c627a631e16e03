"""Faults of a user's optimiser, which must go down and leave padding alone, told before training.

Weights of unlike sizes are padded with zeros and packed. An optimiser that centres gradients, say,
or takes the norm of a matrix by its padded size, would step elsewhere in a pack than alone.
"""

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from memobench.common.errors import name_source, require
from memobench.core import own_code
from memobench.core.module import pad_to
from memobench.core.optimizer import Optimizer

# Shapes of parameters, and what they are padded to: a matrix, stacked heads, a vector.
_SHAPES: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "embedding": ((3, 4), (5, 6)),
    "heads": ((2, 3, 4), (4, 5, 6)),
    "bias": ((4,), (6,)),
}
_STEPS, _RATE, _OFF = 3, 0.03, 1e-4


def require_sound(optimizers: Iterable[Optimizer]) -> None:
    """Raises UserError for the first optimiser whose steps go uphill or depend on padding.

    Each is checked once. Those of memobench itself are checked by its tests.
    """
    for optimizer in optimizers:
        if own_code.in_tree(type(optimizer)) or optimizer in _SOUND:
            continue
        with name_source(f"optimizer {optimizer.name}: its code"):
            made: Any = optimizer.transform()
            require(
                isinstance(made, optax.GradientTransformation),
                f"optimizer {optimizer.name}: transform gives {type(made).__name__!r}, not an "
                "optax transformation; return one, such as optax.scale_by_adam()",
            )
            fault = _find_fault(optimizer)
            require(not fault, f"optimizer {optimizer.name}: {fault}")
        _SOUND.add(optimizer)


_SOUND: set[Optimizer] = set()


def _find_fault(optimizer: Optimizer) -> str:
    """A line on the fault that the steps of an optimiser have, empty where they have none."""
    random = np.random.default_rng(0)
    weights, slopes = (
        {name: random.normal(size=true).astype(np.float32) for name, (true, _) in _SHAPES.items()}
        for _ in range(2)
    )
    zeros, larger = (
        {name: np.zeros(shapes[i], np.float32) for name, shapes in _SHAPES.items()} for i in (0, 1)
    )
    of_shapes = optimizer.of_shapes(weights)
    alone = _take_steps(optimizer, weights, slopes, of_shapes)
    if not all(np.isfinite(x).all() for x in alone.values()):
        return "its steps are not finite numbers"
    padded = _take_steps(optimizer, pad_to(weights, larger), pad_to(slopes, larger), of_shapes)
    if not all(
        np.allclose(padded[name], x, rtol=_OFF, atol=_OFF * _RATE)
        for name, x in pad_to(alone, larger).items()
    ):
        return (
            "its steps of weights that are padded with zeros are others than alone; act entry by "
            "entry, or take true shapes from of_shapes"
        )
    # From zero a decay of weights changes little.
    reached = _take_steps(optimizer, zeros, slopes, of_shapes)
    if sum(np.sum(x * slopes[name]) for name, x in reached.items()) > 0:
        return (
            "its steps go up the gradient; transform gives what is subtracted, without rate and "
            "sign: optax.scale_by_adam(), say, where optax.adam(1.0) has both"
        )
    return ""


def _take_steps(optimizer: Optimizer, weights: Any, slopes: Any, of_shapes: Any) -> Any:
    """The weights after some steps, by a gradient that is zero where weights and slopes are."""

    def step(weights: Any, state: Any) -> Any:
        point = optimizer.point(weights, state, of_shapes)
        gradient = jax.tree.map(lambda x, slope: slope + 0.1 * x, point, slopes)
        return optimizer.step(weights, gradient, state, jnp.float32(_RATE), of_shapes)

    with jax.default_matmul_precision("highest"):
        compiled, state = jax.jit(step), optimizer.begin(weights)
        for _ in range(_STEPS):
            weights, state = compiled(weights, state)
    return jax.tree.map(np.asarray, weights)
