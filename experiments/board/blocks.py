"""board/blocks: today's blocks with narrow heads.

Blocks of the board have heads as wide as the model, half of whose parameters are redundant. Here
attention alone and the GELU, squared ReLU, SwiGLU and bilinear blocks have the narrow heads that a
search found (`board/shapes`, preset `blocks`), at 256 and 512 parameters, at 1,024 those without
norms; feed-forward blocks have one head, too. Sets and label tables are fewer than the board's,
rates others. SwiGLU without norms behind one head is on the board (`board/peak`).

Expected: narrow heads add bits to every block, fewest where neurons hold most of the parameters,
and no block knows as much as attention + MLP with narrow heads. (Heads hold three quarters of the
block that gains least at 512, SwiGLU without norms, which at 1,024 cannot be told from attention +
MLP.)

    memobench run board/blocks
    memobench report board/blocks
"""

from collections.abc import Iterator
from typing import Any

from memobench.core.run import Run
from memobench.experiment import Experiment
from memobench.experiments.board import shapes
from memobench.experiments.board.edges import run_with
from memobench.experiments.board.peak import Peaks

# Factors of the learning rate, and sizes over parameters: with norms, and without neurons, blocks
# know fewer bits, at smaller rates.
WITH_NORMS = (0.5, 1.0, 2.0, 5.0), (0.375, 0.5, 0.625)
ALONE = (1.0, 2.0, 5.0), (0.375, 0.5, 0.625, 0.75)
WITH_NEURONS = (2.0, 5.0, 10.0), (0.5, 0.625, 0.75, 1.0)
# Label tables of each budget.
TABLES = {256: 12, 512: 8, 1024: 6}


def runs() -> Iterator[Run]:
    """Every block in its shapes with narrow heads that the board does not have."""
    for budget, tables in TABLES.items():
        on_board = shapes.standard_gated_mlps(budget)
        for shape in shapes.standard(budget, "narrow blocks"):
            if shape not in on_board:
                yield run_with(shape, budget, *_grid(shape), tables)


def _grid(shape: Any) -> tuple[tuple[float, ...], tuple[float, ...]]:
    if shape.norm != "none":
        return WITH_NORMS
    return WITH_NEURONS if shape.d_mlp else ALONE


EXPERIMENT = Experiment(
    name="board/blocks",
    title="Bits per parameter of today's blocks with narrow heads",
    presets={"quick": runs},
    # The best MLP of such blocks, SwiGLU without norms behind one head, is on the board instead.
    figure=Peaks(compares=False),
)
