"""board/neurons: an MLP by its neurons, also at rates beyond those of `board/peak`.

The MLP of Dana et al. has GELU neurons; those of today's models are gated. SwiGLU neurons behind
one narrow head with rotary positions, without norms, are on the board (`board/peak`, preset
`entries`). From 1,024 parameters on they learn here at higher rates than there, too. In the same
shapes are GEGLU neurons, whose gate is a GELU, and at 1,024 parameters ReGLU, bilinear and squared
ReLU neurons, all on fewer sets, rates and label tables than the board's.

Expected: no more bits. (From 512 parameters on GEGLU neurons know more than SwiGLU.)

    memobench run board/neurons
    memobench report board/neurons
"""

from collections.abc import Iterator
from typing import Any

from memobench.core.run import Run
from memobench.experiment import Experiment
from memobench.experiments.board import shapes
from memobench.experiments.board.edges import run_with
from memobench.experiments.board.peak import Peaks
from memobench.models import feed_forward
from memobench.models.modern import Modern

# Neurons, the budget, factors of the learning rate, sizes over parameters, and label tables.
TRIED = (
    ("swiglu", 1024, (5.0, 10.0, 14.0), (0.625, 0.75, 1.0), 6),
    ("swiglu", 2048, (5.0, 10.0, 14.0), (0.625, 0.75, 1.0), 6),
    ("swiglu", 4096, (10.0, 14.0, 20.0), (0.5, 0.625, 0.75), 4),
    ("swiglu", 8192, (10.0, 14.0, 20.0), (0.5, 0.625, 0.75), 4),
    ("geglu", 256, (5.0, 10.0, 14.0), (0.625, 0.75, 1.0), 12),
    ("geglu", 512, (5.0, 10.0, 14.0), (0.625, 0.75, 1.0), 12),
    ("geglu", 1024, (10.0, 14.0, 20.0), (0.625, 0.75, 1.0), 12),
    ("geglu", 2048, (5.0, 10.0, 14.0), (0.625, 0.75, 1.0), 6),
    ("geglu", 4096, (10.0, 14.0, 20.0), (0.5, 0.625, 0.75), 4),
    ("geglu", 8192, (10.0, 14.0), (0.5, 0.625, 0.75), 4),
    ("reglu", 1024, (5.0, 10.0), (0.5, 0.625, 0.75), 4),
    ("bilinear", 1024, (5.0, 10.0), (0.5, 0.625, 0.75), 4),
    ("relu_squared", 1024, (5.0, 10.0), (0.5, 0.625, 0.75), 4),
)


def runs() -> Iterator[Run]:
    """The shape of each budget that the board has, with each kind of neurons."""
    for activation, budget, *grid in TRIED:
        for shape in shapes.standard_gated_mlps(budget):
            yield run_with(_with_neurons(shape, activation), budget, *grid)


def _with_neurons(shape: Any, activation: str) -> Modern:
    """A block of gated neurons with others of as many parameters."""
    per_neuron = 3 if activation in feed_forward.GATES else 2
    return shape.replace(activation=activation, d_mlp=round(3 * shape.d_mlp / per_neuron))


EXPERIMENT = Experiment(
    name="board/neurons",
    title="Bits per parameter of an MLP by its neurons",
    presets={"quick": runs},
    figure=Peaks(),
)
