"""Optimisers: what turns gradients into steps. One frozen spec each, registered by its name.

A zero-padded parameter has a gradient of exactly zero: an optimiser keeps it zero if it maps zero
gradients, moments and weights to a zero step, as all that act entry by entry do.
"""

import dataclasses
from typing import ClassVar

import optax

from memobench.columns import number, require
from memobench.spec import Spec, kind


@dataclasses.dataclass(frozen=True, kw_only=True)
class Optimizer(Spec):
    """Base of all optimisers. The learning rate is the method's, and multiplies the update."""

    noun: ClassVar[str] = "optimizer"
    registry: ClassVar[dict[str, type[Spec]]] = {}

    def transform(self) -> optax.GradientTransformation:
        """From gradients to updates of rate 1: parameters move by minus rate times update."""
        raise NotImplementedError


@kind("adam")
class Adam(Optimizer):
    """Adam (Kingma & Ba 2015), with the usual constants."""

    b1: float = number("decay of the mean of gradients", default=0.9, least=0, most=1)
    b2: float = number("decay of the mean of their squares", default=0.999, least=0, most=1)
    eps: float = number("added to the root of the squares", default=1e-8, above=0)

    def check(self) -> None:
        for name in ("b1", "b2"):
            value = getattr(self, name)
            require(value < 1, f"{name}={value!r} never forgets; give {name} a value below 1")

    def transform(self) -> optax.GradientTransformation:
        return optax.scale_by_adam(self.b1, self.b2, self.eps)
