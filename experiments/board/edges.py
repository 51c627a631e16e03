"""board/edges: learning rates and set sizes beyond the ends of those of `board/peak`.

From 2,048 parameters on the MLP's best learning rate is the highest that `board/peak` tries, and
that of attention alone with wide heads the lowest, on the smallest sets. Here they go beyond.

Expected: no more bits; the MLP's trainings fail above, and wide heads know the same below.

    memobench run board/edges
    memobench report board/edges
"""

from collections.abc import Iterator, Sequence

from memobench.board import capacity_summary, peak
from memobench.core.architecture import Architecture
from memobench.core.run import Run
from memobench.experiment import Experiment
from memobench.experiments.board.peak import Peaks, main_shapes
from memobench.methods.peak import Peak
from memobench.methods.training import Training

ATTENTION, MLP, _ = capacity_summary.SIDES
# Factors of the learning rate, and sizes over parameters.
BEYOND = {
    ATTENTION: ((0.25, 0.5, 1.0), (0.25, 0.375, 0.5, 0.75)),
    MLP: ((7.0, 10.0, 14.0), (0.5, 0.625, 0.75)),
}
# Label tables of each budget.
TABLES = {1024: 8, 2048: 6, 4096: 6, 8192: 4}


def runs() -> Iterator[Run]:
    """Wide heads of attention alone, and the MLP's forms, at each budget."""
    for budget, tables in TABLES.items():
        for shape in main_shapes(budget):
            side, heads = shape.side
            if side not in BEYOND or (side, heads) == (ATTENTION, "narrow"):
                continue
            yield run_with(shape, budget, *BEYOND[side], tables)


def run_with(
    shape: Architecture,
    budget: int,
    factors: Sequence[float],
    shares: Sequence[float],
    tables: int,
    training: Training = peak.TRAINING,
) -> Run:
    """The run of an entry of the board by other learning rates, set sizes and label tables.

    Args:
      shape: of the entry.
      budget: of parameters.
      factors: of the learning rate.
      shares: sizes of sets over the budget, rising.
      tables: how many label tables.
      training: of each, but for the learning rate's factor.
    """
    sizes = [round(share * budget) for share in shares]
    method = Peak(
        training=training,
        shares=tuple(size / sizes[-1] for size in sizes),
        rate_factors=tuple(factors),
        tables=tables,
    )
    task = peak.task(budget).replace(n_sequences=sizes[-1])
    return Run(task=task, architecture=shape, method=method)


EXPERIMENT = Experiment(
    name="board/edges",
    title="Bits per parameter at learning rates beyond those of the board",
    presets={"quick": runs},
    figure=Peaks(),
)
