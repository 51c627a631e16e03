"""Schedule-free AdamW: an average of weights in place of a falling rate."""

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax

from memobench.core.columns import number
from memobench.core.optimizer import Optimizer, decoupled_decay, require_forgetting
from memobench.core.spec import kind


class ScheduleFreeState(NamedTuple):
    """The state of `ScheduleFreeAdamW`.

    Attributes:
      fast: weights that AdamW moves.
      highest: the highest rate so far.
      total: the sum of the steps' weights in the mean.
      moments: Adam's state.
    """

    fast: Any
    highest: jax.Array
    total: jax.Array
    moments: Any


@kind("schedule_free_adamw")
class ScheduleFreeAdamW(Optimizer):
    """Schedule-free AdamW (Defazio et al. 2024), for rates that may rise but do not fall.

    AdamW without momentum moves `fast` weights. The model's own are the mean of these, each step
    weighed by the square of the highest rate so far: they are what is evaluated and kept. The
    gradient, and the loss and accuracy of a step's batch, are those of weights between the two.
    """

    holds_rate: ClassVar[bool] = True

    b1: float = number("share of the mean where gradients are taken", default=0.9, least=0, most=1)
    b2: float = number("decay of the mean of squares", default=0.999, least=0, most=1)
    eps: float = number("added to the root of the squares", default=1e-8, above=0)
    weight_decay: float = decoupled_decay(0)

    def check(self) -> None:
        require_forgetting(self, "b2")

    def transform(self) -> optax.GradientTransformation:
        # Adam of no momentum.
        adam = optax.scale_by_adam(0.0, self.b2, self.eps)
        return optax.chain(adam, optax.add_decayed_weights(self.weight_decay))

    def begin(self, params: Any) -> ScheduleFreeState:
        zero = jnp.float32(0)
        # A copy, as programs overwrite what they are given.
        fast = jax.tree.map(jnp.copy, params)
        return ScheduleFreeState(fast, zero, zero, super().begin(params))

    def point(self, params: Any, state: ScheduleFreeState, of_shapes: Mapping[str, Any]) -> Any:
        del of_shapes
        return jax.tree.map(lambda x, z: self.b1 * x + (1 - self.b1) * z, params, state.fast)

    def step(
        self,
        params: Any,
        gradient: Any,
        state: ScheduleFreeState,
        rate: jax.Array,
        of_shapes: Mapping[str, Any],
    ) -> tuple[Any, ScheduleFreeState]:
        point = self.point(params, state, of_shapes)
        update, moments = self.update(point, gradient, state.moments, of_shapes)
        fast = jax.tree.map(lambda z, u: z - rate * u, state.fast, update)
        highest = jnp.maximum(state.highest, rate)
        total = state.total + highest**2
        share = jnp.where(total > 0, highest**2 / total, 0)
        params = jax.tree.map(lambda x, z: x + share * (z - x), params, fast)
        return params, ScheduleFreeState(fast, highest, total, moments)
