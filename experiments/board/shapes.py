"""board/shapes: every shape of every family at each budget, trained for a short time.

An architecture is not judged by one arbitrary width: the shape of each family that knows most bits
of an overfull set after 1,024 steps of the exact gradient stands for it in `board/typical`.
`memobench/families.py` makes the shapes; `python -m memobench.experiments.board.shapes` writes the
best of the published ones into `chosen.csv`, where a shape stays that knows nearly as much.

Expected: shapes with few heads or neurons beside many dimensions, or the reverse, know less.

    memobench run board/shapes --preset=quick
    memobench report board/shapes --preset=quick

Preset `blocks` has today's feed-forward blocks at equal parameters instead, plain and gated, and
attention without one, mixtures of experts and product-key memories.
"""

import itertools
import pathlib
from collections.abc import Callable, Iterable
from typing import Any

import pandas as pd

from memobench import families
from memobench.experiment import Experiment
from memobench.methods.capacity import Capacity
from memobench.methods.training import Training
from memobench.models.base import Architecture
from memobench.report.typical import Shapes
from memobench.runs import Run
from memobench.table.published import published
from memobench.table.rows import of_architecture

METHOD = Capacity(
    training=Training(protocol="exact", batch_size=None, epochs=16),
    rate_factors=(3.0, 10.0),
    tables=4,
    pilots=2,
    rungs=1,
)
# At these sizes some initial weights of an MLP fail at the larger rate, and a shape would be judged
# by how many of its own did.
_FINE_FROM, _FINE = 4096, METHOD.replace(rate_factors=(3.0, 5.5, 10.0))
# Four tables do not tell shapes apart that differ by less, and those that stand have been measured.
EQUAL = 0.02
# What two cores measure within half an hour, within some hours, in days, and not at all.
PRESETS = {
    "quick": (256, 512),
    "full": (256, 512, 1024, 2048, 4096),
    "large": (256, 512, 1024, 2048, 4096, 8192),
    "accelerator": (16384, 32768, 65536),
}
SHAPES = {"families": families.shapes, "blocks": families.blocks, "sparse": families.sparse}
CHOSEN = pathlib.Path(__file__).with_name("chosen.csv")


def runs(
    budgets: Iterable[int], shapes: Callable[[int], list[Architecture]] = families.shapes
) -> tuple[Run, ...]:
    """Every shape of these budgets."""
    return tuple(
        Run(
            task=families.task(budget),
            architecture=shape,
            method=_FINE if budget >= _FINE_FROM else METHOD,
        )
        for budget in budgets
        for shape in shapes(budget)
    )


def chosen(table: pd.DataFrame, stands: pd.DataFrame) -> pd.DataFrame:
    """The architecture of most bits per parameter of each family, at budgets all measured.

    That which stands, in a table like this one, stays if it knows nearly as many.
    """
    found = table[table["status"] == "ok"].set_index("run_id")
    rows = []
    for (of, shapes), budget in itertools.product(SHAPES.items(), families.VOCAB_SIZES):
        of_budget = {run.run_id: run.architecture for run in runs([budget], shapes)}
        if not set(of_budget) <= set(found.index):
            continue
        of_runs = found.loc[list(of_budget)]
        known = of_runs["bits"] / of_runs["n_params"]
        standing = _architectures(stands, budget, of)
        for family, of_family in known.groupby({x: y.family for x, y in of_budget.items()}):
            nearly = of_family[of_family >= (1 - EQUAL) * of_family.max()]
            stay = [run_id for run_id in nearly.index if of_budget[run_id] in standing]
            run_id = (stay or [of_family.idxmax()])[0]
            cells = dict(found.loc[run_id, of_architecture()])
            rows.append({"of": of, "budget": budget, "family": family} | cells)
    return pd.DataFrame(rows).dropna(axis=1, how="all")


def standard(budget: int, of: str = "families") -> list[Architecture]:
    """The shapes that stand for their families at a budget; none where none was searched.

    of: a key of SHAPES.
    """
    return _architectures(pd.read_csv(CHOSEN), budget, of)


def _architectures(chosen: pd.DataFrame, budget: int, of: str) -> list[Architecture]:
    rows: list[Any] = chosen.query("budget == @budget and of == @of").to_dict("records")
    return [Architecture.named(row["architecture"]).from_cells(row) for row in rows]


EXPERIMENTS = (
    Experiment(
        name="board/shapes",
        title="Shapes of every family at each budget",
        presets={preset: runs(budgets) for preset, budgets in PRESETS.items()}
        | {"blocks": sum((runs(PRESETS["quick"], SHAPES[x]) for x in ("blocks", "sparse")), ())},
        left_out="the budgets of 1,024 to 4,096 parameters",
        figure=Shapes(),
    ),
)


def _main() -> None:
    """Writes `chosen.csv` from the published tables."""
    # Sizes that some have stay whole numbers.
    found = chosen(published("board/shapes"), pd.read_csv(CHOSEN))
    found.convert_dtypes().to_csv(CHOSEN, index=False)


if __name__ == "__main__":
    _main()
