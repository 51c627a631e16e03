"""An optimiser: SGD with momentum and weight decay, beside Adam on one task.

memobench run tests/extending/optimizer.py
"""

import optax

import memobench as mb


@mb.kind("momentum_sgd")
class MomentumSGD(mb.Optimizer):
    """Stochastic gradient descent: zero gradients and zero weights give zero steps."""

    momentum: float = mb.number("decay of the velocity", default=0.9, least=0, most=1)
    weight_decay: float = mb.number(
        "share of the weights that a step takes away", default=0, least=0
    )

    def transform(self) -> optax.GradientTransformation:
        decay = optax.add_decayed_weights(self.weight_decay)
        return optax.chain(decay, optax.trace(self.momentum))


ADAM = mb.Training(batch_size=16, n_batches=4, epochs=2)
SGD = ADAM.replace(optimizer=MomentumSGD(weight_decay=1e-4), learning_rate=0.1)
RUNS = mb.grid(
    [mb.Associations(vocab_size=5)],
    [mb.AttentionOnly(d_model=4, d_head=4, n_heads=n) for n in (1, 2)],
    [ADAM, SGD],
    seeds=2,
)

EXPERIMENT = mb.Experiment(
    name="mine/optimizers",
    title="Momentum beside Adam",
    presets={"quick": RUNS},
    figure=mb.Figure(x="n_params", hue="optimizer", bounds=False),
)
