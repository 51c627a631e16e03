"""board/depth: attention with narrow heads, alone and beside an MLP, and the MLP, in two layers.

Shapes of the board with narrow heads have one layer. By its rates two layers of the MLP train to
more bits than one or to far fewer, from label table to label table. Narrow heads, and neurons
beside them, are those of the board, half of them in each layer; of attention + MLP at 4,096
parameters also those that it had before, which know less in one layer and more in two.

Expected: the MLP gains by the second layer, attention alone does not. (The MLP does at 8,192
parameters, with neurons attention does at 4,096; trainings of attention alone scatter.)

    memobench run board/depth
    memobench report board/depth
"""

from collections.abc import Iterator
from typing import Any

from memobench.board import capacity_summary, peak
from memobench.core.architecture import Architecture
from memobench.core.run import Run
from memobench.experiment import Experiment
from memobench.experiments.board import shapes
from memobench.experiments.board.edges import run_with
from memobench.experiments.board.peak import Peaks
from memobench.models import transformer

ATTENTION, MLP, BOTH = capacity_summary.SIDES
BUDGETS = (4096, 8192)
# Factors of the learning rate. Trainings of the MLP scatter at all of them at 4,096 parameters.
FACTORS: dict[str, dict[int, tuple[float, ...]]] = {
    ATTENTION: dict.fromkeys(BUDGETS, (1.0, 2.0, 5.0)),
    MLP: {4096: (3.0, 4.0, 5.5, 7.5), 8192: (4.0, 5.5, 7.5)},
    BOTH: dict.fromkeys(BUDGETS, (2.0, 4.0, 8.0)),
}
# The shape of attention + MLP that the board had before.
FORMER = {
    4096: transformer.MLP(d_model=10, d_head=1, n_heads=52, n_layers=1, d_mlp=34, heads="full")
}
# Sizes over parameters.
SHARES = {
    ATTENTION: (0.5, 0.625, 0.75),
    MLP: (0.5, 0.625, 0.75, 1.0),
    BOTH: (0.625, 0.75, 1.0),
}


def deep_shapes(budget: int) -> Iterator[Architecture]:
    """Attention with narrow heads, alone and beside an MLP, and the MLP, in two layers."""
    former = [FORMER[budget]] if budget in FORMER else []
    for shape in [*shapes.standard(budget, "narrow"), *former]:
        of: Any = shape
        if shape.side[0] == ATTENTION:
            yield shape.replace(n_layers=2, n_heads=of.n_heads // 2)
        elif shape.side[0] == BOTH:
            yield shape.replace(n_layers=2, n_heads=of.n_heads // 2, d_mlp=of.d_mlp // 2)
    yield from (of for of in shapes.standard(budget) if of.family == "MLP, 2 layers")


def runs() -> Iterator[Run]:
    """Two layers of each at every budget."""
    for budget in BUDGETS:
        for shape in deep_shapes(budget):
            side, _ = shape.side
            factors, shares = FACTORS[side][budget], SHARES[side]
            yield run_with(shape, budget, factors, shares, peak.LEAST_TABLES)


EXPERIMENT = Experiment(
    name="board/depth",
    title="Bits per parameter of two layers",
    presets={"quick": runs},
    figure=Peaks(),
)
