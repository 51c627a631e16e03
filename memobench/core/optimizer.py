"""The contract of optimisers: a frozen spec, and the steps that follow from it.

A zero-padded parameter has a gradient of exactly zero: an optimiser keeps it zero if it maps zero
gradients, moments and weights to a zero step, as all that act entry by entry do. So do products of
whole matrices, whose padding is blocks of zeros; what they need of true shapes is data.

SOAP is not here. A mask and eigenvectors of L - c (I - P), with P on true coordinates, would keep
padding zero, but a padded matrix would not move as alone: directions without gradient, which one
that is not square has from the first step on, have arbitrary eigenvectors, other ones when padded,
and in these Adam makes full steps of whatever comes, be it rounding. Nor is Shampoo: roots of
matrices by products alone would keep padding zero, at some ten times the products of Muon.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import optax

from memobench.common.errors import UserError, require
from memobench.core.columns import number
from memobench.core.spec import Spec


@dataclasses.dataclass(frozen=True, kw_only=True)
class Optimizer(Spec, noun="optimizer", package="memobench.optimizers"):
    """Base of all optimisers. The learning rate is the method's, and multiplies the update.

    Attributes:
      holds_rate: whether it serves only methods whose rate does not fall.
    """

    holds_rate: ClassVar[bool] = False

    clip: float | None = number(
        "largest norm of a gradient, over all parameters; longer ones are shortened to it",
        default=None,
        above=0,
        omit=None,
    )

    def transform(self) -> optax.GradientTransformation:
        """Maps gradients to updates of rate 1: parameters move by minus rate times update."""
        raise UserError(f"optimizer {self.name} has no method transform; define transform(self)")

    def of_shapes(self, shapes: Any) -> Mapping[str, Any]:
        """Further arguments of the transformation's update, NumPy's, from parameters' true shapes.

        A program sees padded shapes alone: what depends on true ones reaches it as data.
        """
        del shapes
        return {}

    def begin(self, params: Any) -> Any:
        """The state before the first step."""
        return self.transform().init(params)

    def point(self, params: Any, state: Any, of_shapes: Mapping[str, Any]) -> Any:
        """The weights at which a step takes its gradient."""
        del state, of_shapes
        return params

    def step(
        self, params: Any, gradient: Any, state: Any, rate: jax.Array, of_shapes: Mapping[str, Any]
    ) -> tuple[Any, Any]:
        """The parameters and the state after a step, from the gradient at their `point`."""
        update, state = self.update(params, gradient, state, of_shapes)
        return jax.tree.map(lambda p, u: p - rate * u, params, update), state

    def update(
        self, params: Any, gradient: Any, state: Any, of_shapes: Mapping[str, Any]
    ) -> tuple[Any, Any]:
        """The update of rate 1 and the state of the transformation, from the clipped gradient."""
        if self.clip is not None:
            norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(gradient)))
            shrink = self.clip / jnp.maximum(norm, self.clip)
            gradient = jax.tree.map(lambda g: shrink * g, gradient)
        transform = optax.with_extra_args_support(self.transform())
        return transform.update(gradient, state, params, **of_shapes)


def require_forgetting(optimizer: Optimizer, *names: str) -> None:
    """Raises UserError for a decay of 1."""
    for name in names:
        value = getattr(optimizer, name)
        require(value < 1, f"{name}={value!r} never forgets; give {name} a value below 1")


def decoupled_decay(default: float) -> Any:
    """A field: decoupled weight decay (Loshchilov & Hutter 2019), which the rate multiplies."""
    meaning = "share of the weights that a step of rate 1 takes away"
    return number(meaning, default=default, least=0)
