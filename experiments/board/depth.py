"""board/depth: attention with narrow heads, alone and beside an MLP, and the MLP, in two layers.

Shapes of the board with narrow heads have one layer. By the rates of the board two layers of the
MLP train to more bits than one or to far fewer, from label table to label table: here rates lie
between. Narrow heads, and neurons beside them, are those of `board/peak`, half of them in each
layer.

Expected: the MLP gains by the second layer, attention alone does not. (Means of four label tables
tell neither from one layer.)

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
from memobench.experiments.board.peak import Peaks, main_shapes

ATTENTION, MLP, BOTH = capacity_summary.SIDES
BUDGETS = (4096, 8192)
# Factors of the learning rate, and sizes over parameters.
TRIED = {
    ATTENTION: ((1.0, 2.0, 5.0), (0.5, 0.625, 0.75)),
    MLP: ((4.0, 5.5, 7.5), (0.5, 0.625, 0.75, 1.0)),
    BOTH: ((2.0, 4.0, 8.0), (0.625, 0.75, 1.0)),
}


def deep_shapes(budget: int) -> Iterator[Architecture]:
    """Attention with narrow heads, alone and beside an MLP, and the MLP, in two layers."""
    for shape in main_shapes(budget):
        of: Any = shape
        if shape.side == (ATTENTION, "narrow"):
            yield shape.replace(n_layers=2, n_heads=of.n_heads // 2)
        elif shape.side == (BOTH, "narrow"):
            yield shape.replace(n_layers=2, n_heads=of.n_heads // 2, d_mlp=of.d_mlp // 2)
    yield from (of for of in shapes.standard(budget) if of.family == "MLP, 2 layers")


def runs() -> Iterator[Run]:
    """Two layers of each at every budget."""
    for budget in BUDGETS:
        for shape in deep_shapes(budget):
            yield run_with(shape, budget, *TRIED[shape.side[0]], peak.LEAST_TABLES)


EXPERIMENT = Experiment(
    name="board/depth",
    title="Bits per parameter of two layers",
    presets={"quick": runs},
    figure=Peaks(),
)
