"""board/neurons: an MLP of SwiGLU neurons, with one narrow head.

The board's MLP has GELU neurons; those of today's models are gated. Here SwiGLU neurons stand
behind one narrow head with rotary positions, without norms: a SwiGLU block of one head, as the page
names it. Shapes are the best of one head in the search of `board/shapes` (preset `blocks`). Sets,
rates and label tables are fewer than the board's. Preset `full` has rates beyond the highest, which
is the best at 1,024 and 2,048 parameters.

Expected: as many bits as of GELU neurons, within a few percent, and fewer than attention alone.
(At 256 parameters 8% more, and as many as attention alone; otherwise so, though fewer is decided at
2,048 alone.)

    memobench run board/neurons
    memobench report board/neurons
"""

import functools
from collections.abc import Iterable, Iterator

from memobench.core.run import Run
from memobench.experiment import Experiment
from memobench.experiments.board.blocks import WITH_NEURONS
from memobench.experiments.board.edges import run_with
from memobench.experiments.board.peak import Peaks
from memobench.models.modern import Modern

# Label tables of each budget.
TABLES = {256: 12, 512: 8, 1024: 6, 2048: 6}
# The shape of each budget: width, and dimensions of the head and numbers of neurons.
SHAPES = {256: (4, 2, 8), 512: (5, 2, 10), 1024: (7, 4, 22), 2048: (7, 4, 50)}
# Factors of the learning rate, and sizes over parameters, beyond the highest rate.
BEYOND = (5.0, 10.0, 14.0), (0.625, 0.75, 1.0)


def runs(
    budgets: Iterable[int] = SHAPES,
    grid: tuple[tuple[float, ...], tuple[float, ...]] = WITH_NEURONS,
) -> Iterator[Run]:
    """One shape at each budget."""
    for budget in budgets:
        d_model, d_head, d_mlp = SHAPES[budget]
        shape = Modern(d_model=d_model, d_head=d_head, n_heads=1, norm="none", d_mlp=d_mlp)
        yield run_with(shape, budget, *grid, TABLES[budget])


EXPERIMENT = Experiment(
    name="board/neurons",
    title="Bits per parameter of an MLP of SwiGLU neurons",
    presets={"quick": runs, "full": functools.partial(runs, (1024, 2048), BEYOND)},
    of_full="all budgets, without rates beyond the highest",
    figure=Peaks(),
)
