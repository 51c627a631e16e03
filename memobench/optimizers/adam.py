"""Adam."""

import optax

from memobench.core.columns import number
from memobench.core.optimizer import Optimizer, require_forgetting
from memobench.core.spec import kind


@kind("adam")
class Adam(Optimizer):
    """Adam (Kingma & Ba 2015), with the usual constants."""

    b1: float = number("decay of the mean of gradients", default=0.9, least=0, most=1)
    b2: float = number("decay of the mean of their squares", default=0.999, least=0, most=1)
    eps: float = number("added to the root of the squares", default=1e-8, above=0)

    def check(self) -> None:
        require_forgetting(self, "b1", "b2")

    def transform(self) -> optax.GradientTransformation:
        return optax.scale_by_adam(self.b1, self.b2, self.eps)
