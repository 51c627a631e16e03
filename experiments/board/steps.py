"""board/steps: the best forms of the board on finer sets, and after four times its steps.

`board/peak` tries sets an eighth of the budget apart, and stops after 4,096 steps. Here the form of
each side with narrow heads learns sets half as far apart around its best one, for as many steps
and, in preset `full`, for 16,384, at learning rates around its best.

Expected: all know more, and attention alone stays ahead of the MLP. (After more steps they do; on
finer sets alone all know about the same.)

    memobench run board/steps
    memobench report board/steps
"""

import functools
from collections.abc import Iterable, Iterator

from memobench.board import capacity_summary, peak
from memobench.core.run import Run
from memobench.experiment import Experiment
from memobench.experiments.board import shapes
from memobench.experiments.board.edges import run_with
from memobench.experiments.board.peak import Peaks

ATTENTION, MLP, BOTH = capacity_summary.SIDES
SHARES = (0.5, 0.5625, 0.625, 0.75)
# Of the learning rate.
FACTORS = {ATTENTION: (1.0, 2.0, 4.0), MLP: (3.0, 5.0, 10.0), BOTH: (3.0, 5.0, 10.0)}
# Label tables of each budget.
TABLES = {1024: 8, 2048: 6, 4096: 4}


def runs(budgets: Iterable[int], longer: int) -> Iterator[Run]:
    """The form of each side with narrow heads, with so many times the steps of the board."""
    training = peak.TRAINING.replace(epochs=longer * peak.TRAINING.epochs)
    for budget in budgets:
        for shape in shapes.standard(budget, "narrow"):
            factors = FACTORS[shape.side[0]]
            yield run_with(shape, budget, factors, SHARES, TABLES[budget], training)


EXPERIMENT = Experiment(
    name="board/steps",
    title="Bits per parameter on finer sets, and after more steps",
    presets={
        "quick": functools.partial(runs, TABLES, 1),
        "full": functools.partial(runs, TABLES, 4),
    },
    figure=Peaks(),
)
