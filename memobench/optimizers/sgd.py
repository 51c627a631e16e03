"""Gradient descent with momentum."""

import optax

from memobench.common.errors import require
from memobench.core.columns import flag, number
from memobench.core.optimizer import Optimizer, require_forgetting
from memobench.core.spec import kind


@kind("sgd")
class SGD(Optimizer):
    """Gradient descent with heavy-ball or Nesterov momentum: the velocity is a sum, not a mean."""

    momentum: float = number("decay of the velocity", default=0.9, least=0, most=1)
    nesterov: bool = flag("whether a step looks ahead along the velocity", default=False)

    def check(self) -> None:
        require_forgetting(self, "momentum")
        require(
            self.momentum > 0 or not self.nesterov,
            "nesterov=True means nothing with momentum=0; leave nesterov out",
        )

    def transform(self) -> optax.GradientTransformation:
        return optax.trace(self.momentum, self.nesterov)
