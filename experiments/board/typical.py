"""board/typical: how many bits each family memorizes per parameter, against parameters and steps.

For every budget the shape of each family that `board/shapes` prefers: the mean over label tables
and initial weights after 256, 1,024 and 4,096 steps of the exact gradient, the limit for more
steps, and the largest set that half of the trainings come to know completely. Attention alone, MLP
and both also under the published protocol of Dana et al. (2025).

Expected: MLP and mixed layers know more bits of an overfull set than attention alone.

    memobench run board/typical --preset=quick
    memobench report board/typical --preset=quick
"""

from collections.abc import Iterable, Iterator

from memobench import families, typical
from memobench.experiment import Experiment
from memobench.experiments.board import shapes
from memobench.methods.capacity import Capacity
from memobench.methods.training import Training
from memobench.report.typical import Typical
from memobench.runs import Run

# Label tables of every budget: the more parameters, the less capacities spread.
TABLES = {256: 32, 512: 32, 1024: 24, 2048: 12, 4096: 8}
LEAST_TABLES = 6
TRIALS = 32
_EXACT = Training(protocol="exact", batch_size=None)
# Families under the published protocol, whose budgets it can be afforded for.
_PUBLISHED = (typical.ATTENTION, typical.MLP, "attention + MLP")
_PUBLISHED_BUDGETS = (256, 512)


def exact(budget: int) -> Capacity:
    """The method of the exact gradient; larger models have fewer tables, pilots and trials."""
    small = budget <= 1024
    return Capacity(
        training=_EXACT,
        rate_factors=(3.0, 10.0),
        tables=TABLES.get(budget, LEAST_TABLES),
        pilots=4 if small else 2,
        threshold_trials=TRIALS,
    )


PUBLISHED = Capacity(training=Training(), rate_factors=(1.0,), tables=16, pilots=1, rungs=1)


def _runs(budgets: Iterable[int]) -> Iterator[Run]:
    for budget in budgets:
        for shape in shapes.standard(budget):
            yield Run(task=families.task(budget), architecture=shape, method=exact(budget))
            if budget in _PUBLISHED_BUDGETS and shape.family in _PUBLISHED:
                yield Run(task=families.task(budget), architecture=shape, method=PUBLISHED)


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


EXPERIMENTS = (
    Experiment(
        name="board/typical",
        title="Bits per parameter of every family",
        # A preset is there once `board/shapes` has chosen the shapes of its budgets.
        presets={preset: runs for preset, x in shapes.PRESETS.items() if (runs := tuple(_runs(x)))}
        | {"bench": tuple(_bench())},
        left_out="the budget of 1,024 parameters",
        figure=Typical(),
    ),
)
