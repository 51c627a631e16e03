"""Lion: signs of momentum."""

import optax

from memobench.core.columns import number
from memobench.core.optimizer import Optimizer, decoupled_decay, require_forgetting
from memobench.core.spec import kind


@kind("lion")
class Lion(Optimizer):
    """Lion (Chen et al. 2023): every entry moves by the rate; a third to a tenth of Adam's fits."""

    b1: float = number("share of the mean in the sign of a step", default=0.9, least=0, most=1)
    b2: float = number("decay of the mean of gradients", default=0.99, least=0, most=1)
    weight_decay: float = decoupled_decay(1e-3)

    def check(self) -> None:
        require_forgetting(self, "b1", "b2")

    def transform(self) -> optax.GradientTransformation:
        decay = optax.add_decayed_weights(self.weight_decay)
        return optax.chain(optax.scale_by_lion(self.b1, self.b2), decay)
