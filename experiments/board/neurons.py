"""board/neurons: an MLP of SwiGLU neurons at rates beyond those of `board/peak`.

The MLP of Dana et al. has GELU neurons; those of today's models are gated. SwiGLU neurons behind
one narrow head with rotary positions, without norms, are on the board (`board/peak`, preset
`entries`). From 1,024 parameters on they learn here at higher rates than there, too, on fewer sets
and label tables.

Expected: no more bits.

    memobench run board/neurons
    memobench report board/neurons
"""

from collections.abc import Iterator

from memobench.core.run import Run
from memobench.experiment import Experiment
from memobench.experiments.board import shapes
from memobench.experiments.board.edges import run_with
from memobench.experiments.board.peak import Peaks

# Of each budget, factors of the learning rate, sizes over parameters, and label tables.
BEYOND = {
    1024: ((5.0, 10.0, 14.0), (0.625, 0.75, 1.0), 6),
    2048: ((5.0, 10.0, 14.0), (0.625, 0.75, 1.0), 6),
    4096: ((10.0, 14.0, 20.0), (0.5, 0.625, 0.75), 4),
    8192: ((10.0, 14.0), (0.375, 0.5, 0.625), 4),
}


def runs() -> Iterator[Run]:
    """The shape of each budget that the board has."""
    for budget, beyond in BEYOND.items():
        for shape in shapes.standard_gated_mlps(budget):
            yield run_with(shape, budget, *beyond)


EXPERIMENT = Experiment(
    name="board/neurons",
    title="Bits per parameter of an MLP of SwiGLU neurons at higher learning rates",
    presets={"quick": runs},
    figure=Peaks(),
)
