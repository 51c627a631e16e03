"""board/typical: how many bits each family memorizes per parameter, against parameters and steps.

For every budget the shape of each family that `board/shapes` prefers: the mean over label tables
and initial weights after 256, 1,024 and 4,096 steps of the exact gradient, the limit for more
steps, and the largest set that half of the trainings come to know completely. Attention alone, MLP
and both also under the published protocol of Dana et al. (2025), and only these beyond 2,048
parameters.

Preset `blocks` has today's feed-forward blocks of 256 parameters instead, plain, gated and sparse.

Expected: MLP and mixed layers know more bits of an overfull set than attention alone.

    memobench run board/typical --preset=quick
    memobench report board/typical --preset=quick
    memobench leaderboard
"""

from collections.abc import Iterable, Iterator

from memobench import board, families, typical
from memobench.experiment import Experiment
from memobench.experiments.board import shapes
from memobench.methods.capacity import Capacity
from memobench.methods.training import Training
from memobench.report.typical import Typical
from memobench.runs import Run

# What can be afforded: all families, and main ones under the published protocol, up to a budget.
_MAIN = (typical.ATTENTION, typical.MLP, "attention + MLP")
_ALL_UP_TO, _PUBLISHED_UP_TO = 2048, 512


def _runs(budgets: Iterable[int]) -> Iterator[Run]:
    for budget in budgets:
        for shape in shapes.standard(budget):
            if budget <= _ALL_UP_TO or shape.family in _MAIN:
                yield board.run(shape, budget)
            if budget <= _PUBLISHED_UP_TO and shape.family in _MAIN:
                yield board.run(shape, budget, board.PUBLISHED)


# A minute of `make bench`: attention alone and an MLP, a quarter of the steps.
BENCH = Capacity(
    training=Training(protocol="exact", batch_size=None, epochs=16),
    rate_factors=(3.0, 10.0),
    tables=8,
    pilots=2,
    rungs=1,
)


def _bench() -> Iterator[Run]:
    for budget in (256, 512, 1024):
        for shape in shapes.standard(budget):
            if shape.family in (typical.ATTENTION, typical.MLP):
                yield Run(task=families.task(budget), architecture=shape, method=BENCH)


def _blocks(budgets: Iterable[int]) -> tuple[Run, ...]:
    return tuple(
        board.run(shape, budget)
        for budget in budgets
        for of in ("blocks", "sparse")
        for shape in shapes.standard(budget, of)
    )


EXPERIMENTS = (
    Experiment(
        name="board/typical",
        title="Bits per parameter of every family",
        # A preset is there once `board/shapes` has chosen the shapes of its budgets.
        presets={preset: runs for preset, x in shapes.PRESETS.items() if (runs := tuple(_runs(x)))}
        | {"blocks": _blocks((256, 512)), "bench": tuple(_bench())},
        left_out="the budgets of 1,024 to 4,096 parameters",
        figure=Typical(),
    ),
)
