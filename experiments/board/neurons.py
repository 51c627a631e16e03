"""board/neurons: an MLP of SwiGLU neurons at rates beyond those of `board/peak`.

The MLP of Dana et al. has GELU neurons; those of today's models are gated. SwiGLU neurons behind
one narrow head with rotary positions, without norms, are on the board (`board/peak`, preset
`entries`). At 1,024 and 2,048 parameters they learn here at a higher rate than there, too, on fewer
sets and label tables.

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

# Factors of the learning rate, and sizes over parameters.
BEYOND = (5.0, 10.0, 14.0), (0.625, 0.75, 1.0)


def runs() -> Iterator[Run]:
    """The shape of each budget that the board has."""
    for budget in (1024, 2048):
        for shape in shapes.standard_gated_mlps(budget):
            yield run_with(shape, budget, *BEYOND, tables=6)


EXPERIMENT = Experiment(
    name="board/neurons",
    title="Bits per parameter of an MLP of SwiGLU neurons at higher learning rates",
    presets={"quick": runs},
    figure=Peaks(),
)
