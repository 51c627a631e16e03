"""board/depth: attention alone, MLP, and both in two layers, with narrow heads.

Shapes of the board with narrow heads have one layer, those of two have wide heads. Here narrow
heads and neurons are those of the board, half of them in each layer, and those that a search of as
large a grid of shapes found (`board/shapes`, preset `narrow`); up to 2,048 parameters both learn
all sets, at all rates and with all label tables, of the board. Above, by its rates two layers
of the MLP train to more bits than one or to far fewer, from label table to label table: rates and
sets are others, the MLP has a wide head, too, and attention + MLP at 4,096 parameters also the
shape that it had before, which knows less in one layer and more in two.

Expected: the MLP gains by the second layer, attention alone does not. (Up to 1,024 parameters all
know less, at 2,048 the MLP does and attention alone knows as much. At 4,096 attention alone and
attention + MLP gain in one shape each, at 8,192 the MLP may; there trainings of attention alone and
of the MLP scatter.)

    memobench run board/depth
    memobench report board/depth
"""

from collections.abc import Iterator
from typing import Any

from memobench.board import capacity_summary, peak
from memobench.board import table as board
from memobench.core.architecture import Architecture
from memobench.core.run import Run
from memobench.experiment import Experiment
from memobench.experiments.board import shapes
from memobench.experiments.board.edges import run_with
from memobench.experiments.board.peak import Peaks
from memobench.models import transformer

ATTENTION, MLP, BOTH = capacity_summary.SIDES
# Budgets of the board's grid, and of the rates and sizes below.
SMALL, LARGE = (256, 512, 1024, 2048), (4096, 8192)
# Factors of the learning rate. Trainings of the MLP scatter at all of them at 4,096 parameters.
FACTORS: dict[str, dict[int, tuple[float, ...]]] = {
    ATTENTION: dict.fromkeys(LARGE, (1.0, 2.0, 5.0)),
    MLP: {4096: (3.0, 4.0, 5.5, 7.5), 8192: (4.0, 5.5, 7.5)},
    BOTH: dict.fromkeys(LARGE, (2.0, 4.0, 8.0)),
}
# Of the shapes that a search found at these budgets: it had rates of 3 to 10 and preferred 5.5 and
# 10.
FOUND_FACTORS, FOUND_SHARES = (2.0, 5.5, 10.0), (0.5, 0.625, 0.75, 1.0)
# The shape of each side that the search has next, 1% to 3% behind, by rates in between: in the
# first of attention alone trainings fail at 5.5.
SECOND_FACTORS = (2.0, 3.0, 4.0, 5.5)
_SIZES: dict[str, Any] = {"n_layers": 2, "heads": "full"}
SECOND: dict[int, tuple[Architecture, ...]] = {
    4096: (
        transformer.AttentionOnly(d_model=10, d_head=1, n_heads=35, **_SIZES),
        transformer.MLP(d_model=10, d_head=4, n_heads=1, d_mlp=59, **_SIZES),
        transformer.MLP(d_model=10, d_head=1, n_heads=17, d_mlp=34, **_SIZES),
    )
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


def halve_shapes(budget: int) -> Iterator[Architecture]:
    """The board's with narrow heads, in two layers; at LARGE budgets an MLP with a wide head."""
    former = [FORMER[budget]] if budget in FORMER else []
    yield from map(_halve, [*shapes.standard(budget, "narrow"), *former])
    if budget in LARGE:
        yield from (of for of in shapes.standard(budget) if of.family == "MLP, 2 layers")


def _halve(shape: Architecture) -> Architecture:
    """The shape with half of its heads and neurons in each of two layers.

    A single head cannot be halved: each layer has one, and the neurons have less.
    """
    of: Any = shape
    sizes = {"n_layers": 2, "n_heads": max(1, of.n_heads // 2)}
    if shape.side[0] == BOTH:
        sizes["d_mlp"] = of.d_mlp // 2
    elif shape.side[0] == MLP:
        # Parameters of a head, over those of a neuron.
        head = 4 * of.d_model * of.d_head / (2 * of.d_model + 1)
        sizes["d_mlp"] = round((of.d_mlp - head) / 2)
    return shape.replace(**sizes)


def runs() -> Iterator[Run]:
    """Two layers of each at every budget."""
    for budget in SMALL:
        for shape in dict.fromkeys([*halve_shapes(budget), *shapes.standard(budget, "deep")]):
            yield board.run(shape, budget)
    for budget in LARGE:
        for shape in halve_shapes(budget):
            side, _ = shape.side
            factors, shares = FACTORS[side][budget], SHARES[side]
            yield run_with(shape, budget, factors, shares, peak.LEAST_TABLES)
        for shape in shapes.standard(budget, "deep"):
            yield run_with(shape, budget, FOUND_FACTORS, FOUND_SHARES, peak.LEAST_TABLES)
        for shape in SECOND.get(budget, ()):
            yield run_with(shape, budget, SECOND_FACTORS, FOUND_SHARES, peak.LEAST_TABLES)


EXPERIMENT = Experiment(
    name="board/depth",
    title="Bits per parameter of two layers",
    presets={"quick": runs},
    figure=Peaks(),
)
