"""Training for a precision: steps move float32 weights, and the model has them rounded."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from memobench.core.optimizer import Optimizer
from memobench.numerics import precision


class RoundedState(NamedTuple):
    """The state of `Rounded`.

    Attributes:
      masters: the float32 weights.
      state: the optimiser's.
    """

    masters: Any
    state: Any


@dataclasses.dataclass(frozen=True)
class Rounded:
    """Steps of an optimiser whose model's own weights, evaluated and kept, are rounded masters.

    The gradient is that of the rounded weights, given to the masters as it is (straight-through,
    Bengio et al. 2013); or, without `straight_through`, that of the masters, whose training
    rounding does not touch. Blocks that share a scale are those of true weights, which a padded
    program does not see: the block of each weight is data. Padding is 0, and is rounded to 0.
    """

    optimizer: Optimizer
    precision: str
    straight_through: bool

    def of_shapes(self, shapes: Any) -> Mapping[str, Any]:
        """The block of each weight, and what the optimiser asks for."""
        blocks = jax.tree.map(lambda x: precision.block_of(x.shape), shapes)
        return {"blocks": blocks, "of_shapes": self.optimizer.of_shapes(shapes)}

    def begin(self, params: Any) -> RoundedState:
        """The state before the first step."""
        # A copy, as programs overwrite what they are given.
        return RoundedState(jax.tree.map(jnp.copy, params), self.optimizer.begin(params))

    def point(self, params: Any, state: RoundedState, of_shapes: Mapping[str, Any]) -> Any:
        """The weights at which a step takes its gradient."""
        del params
        point = self.optimizer.point(state.masters, state.state, of_shapes["of_shapes"])
        return self._round(point, of_shapes) if self.straight_through else point

    def step(
        self,
        params: Any,
        gradient: Any,
        state: RoundedState,
        rate: jax.Array,
        of_shapes: Mapping[str, Any],
    ) -> tuple[Any, RoundedState]:
        """The parameters and the state after a step, from the gradient at their `point`."""
        del params
        moved = self.optimizer.step(
            state.masters, gradient, state.state, rate, of_shapes["of_shapes"]
        )
        return self._round(moved[0], of_shapes), RoundedState(*moved)

    def _round(self, params: Any, of_shapes: Mapping[str, Any]) -> Any:
        def one(weights: jax.Array, block: jax.Array) -> jax.Array:
            return round_blocks(weights, block, self.precision)

        return jax.tree.map(one, params, of_shapes["blocks"])


def round_blocks(weights: jax.Array, block: jax.Array, kind: str) -> jax.Array:
    """The weights, float32, as `precision.round_to` rounds them, given the block of each."""
    if kind == "bfloat16":
        # A compiler may leave out a conversion there and back.
        return jax.lax.reduce_precision(weights, exponent_bits=8, mantissa_bits=7)
    # By comparison: a scatter would be a loop on a TPU.
    own_BxW = block.reshape(1, -1) == jnp.arange(precision.n_blocks(weights.size))[:, None]
    largest_B = jnp.where(own_BxW, jnp.abs(weights).reshape(1, -1), 0).max(axis=1, initial=0)
    return precision.round_to_levels(weights, largest_B[block], kind, jnp)
