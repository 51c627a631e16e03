"""AdamW: Adam with decoupled weight decay."""

import optax

from memobench.core.optimizer import decoupled_decay
from memobench.core.spec import kind
from memobench.optimizers.adam import Adam


@kind("adamw")
class AdamW(Adam):
    """AdamW (Loshchilov & Hutter 2019), with the decay of optax."""

    weight_decay: float = decoupled_decay(1e-4)

    def transform(self) -> optax.GradientTransformation:
        return optax.chain(super().transform(), optax.add_decayed_weights(self.weight_decay))
