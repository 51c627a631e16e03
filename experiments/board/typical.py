"""board/typical: how many bits each family memorizes per parameter, against parameters and steps.

For every budget the shape of each family that `board/shapes` prefers: the mean over label tables
and initial weights after 256, 1,024 and 4,096 steps of the exact gradient, and the largest set that
half of the trainings come to know completely. Attention alone, MLP and both also under the
published protocol of Dana et al. (2025), up to 512 parameters.

Where the interval of a mean is wider than 2% of it, more initial weights of each table narrow it:
`python -m memobench.experiments.board.typical` finds in the published rows how many, and writes
`inits.csv`.

Preset `narrow` has heads of fewer dimensions than the residual stream, up to 8,192 parameters, up
to 1,024 before SwiGLU neurons, too. Preset `blocks` has today's feed-forward blocks with wide heads
instead, plain, gated and sparse, up to 2,048.

Expected: MLP and mixed layers know more bits of an overfull set than attention alone.

    memobench run board/typical --preset=quick
    memobench report board/typical --preset=quick
"""

import dataclasses
import functools
import pathlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from memobench.board import capacity_summary, families, peak
from memobench.board import table as board
from memobench.core.architecture import Architecture
from memobench.core.run import Run
from memobench.experiment import Experiment
from memobench.experiments.board import shapes
from memobench.methods.capacity import Capacity
from memobench.methods.training import Training
from memobench.report.capacity_summary import Typical
from memobench.store.published import published

# What can be afforded under the published protocol: main families, up to a budget.
_MAIN = ("attention-only, full heads", "MLP", "attention + MLP")
_PUBLISHED_UP_TO = 512
# Budgets of MLPs of SwiGLU neurons.
_GATED = (256, 512, 1024)
INITS = pathlib.Path(__file__).with_name("inits.csv")
# The protocol of Dana et al. has its own learning rate.
PUBLISHED = "published"
TRAININGS = {board.EXACT: peak.TRAINING, PUBLISHED: Training()}
# Less than twofold apart: of 3 and 10 alone an MLP of 1,024 parameters takes 10, with which some
# initial weights fail. It then knows 4% less than with 5.5, and spreads eight times as much.
RATE_FACTORS = (3.0, 5.5, 10.0)
# Half an interval over its mean that entries aim at, and somewhat less, as intervals vary too.
PRECISION = 0.02
_AIM = 0.9 * PRECISION
# More starts than these would take too long.
MOST_INITS = 36
_OF_INITS = ["budget", "track", "family"]


def inits(table: pd.DataFrame, budgets: Iterable[int] = families.VOCAB_SIZES) -> pd.DataFrame:
    """The number of initial weights of each table that an entry takes, where one is not enough.

    Args:
      table: rows of the experiment.
      budgets: entries of others keep the numbers that they have.
    """
    records: list[Any] = table.to_dict("records")
    of_board = [row for row in records if track_of(row)]
    entries = capacity_summary.summarize(pd.DataFrame(of_board, columns=table.columns))
    entries = entries.rename(columns={"protocol": "track"})
    half = (entries["bits_high"] - entries["bits_low"]) / 2 / entries["bits"]
    needed = np.ceil(entries["inits"] * (half / _AIM) ** 2)
    wide = (half > PRECISION) & entries["budget"].isin(list(budgets))
    more = np.clip(needed, entries["inits"], MOST_INITS)
    wanted = entries["inits"].where(~wide, more).astype(int)
    found = entries.assign(inits=wanted)[wanted > 1][[*_OF_INITS, "inits"]].sort_values(_OF_INITS)
    return found.merge(_read_inits(), how="left")


def track_of(row: Mapping[str, Any]) -> str | None:
    """The track of TRAININGS that a Capacity's row is on; None where it is on none."""
    for track, training in TRAININGS.items():
        if board.is_of_overfull_set(row, training):
            return track
    return None


def _runs(budgets: Iterable[int]) -> Iterator[Run]:
    for budget in budgets:
        for shape in shapes.standard(budget):
            yield _run(shape, budget)
            if budget <= _PUBLISHED_UP_TO and shape.family in _MAIN:
                yield _run(shape, budget, PUBLISHED)


def _run(shape: Architecture, budget: int, track: str = board.EXACT) -> Run:
    return run(shape, budget, track, **_by_entry().get((budget, track, shape.family), {}))


def run(
    architecture: Architecture,
    budget: int,
    track: str = board.EXACT,
    inits: int = 1,
    pilots: int | None = None,
) -> Run:
    """The run of an entry; larger models have fewer tables, pilots and trials.

    Where initial weights spread, `inits` of each table narrow the interval, and more `pilots` of
    each learning rate choose it, if they are not given.
    """
    if track == PUBLISHED:
        method = Capacity(
            training=TRAININGS[track],
            rate_factors=(1.0,),
            tables=16,
            inits=inits,
            pilots=1,
            rungs=1,
        )
    else:
        small = budget <= 1024
        method = Capacity(
            training=TRAININGS[track],
            rate_factors=RATE_FACTORS,
            tables=board.LABEL_TABLES[budget],
            inits=inits,
            # What spreads has rates that few pilots cannot tell apart.
            pilots=max(12 if small else 4, min(4 * inits, 32)) if pilots is None else pilots,
            threshold_trials=32 if budget <= 2048 else 16,
            trial_pilots=24 if small else 12,
            give_up="late",
        )
    return Run(task=families.task(budget), architecture=architecture, method=method)


@functools.cache
def _by_entry() -> dict[Any, dict[str, Any]]:
    """Arguments of `run`, of entries with more than one initial weight of a table."""
    by_entry = _read_inits().set_index(_OF_INITS)
    return {entry: dict(row.dropna()) for entry, row in by_entry.iterrows()}


def _read_inits() -> pd.DataFrame:
    """`inits.csv`, with the pilots of each learning rate where they are not as many as usual."""
    return pd.read_csv(INITS, dtype={"pilots": "Int64"})


# A minute of `make bench`: each side with wide and narrow heads, of an MLP also SwiGLU neurons, a
# quarter of the steps.
BENCH = Capacity(
    training=Training(protocol="exact", batch_size=None, epochs=16),
    rate_factors=(3.0, 10.0),
    tables=8,
    pilots=2,
    rungs=1,
)


def _bench(budgets: Iterable[int]) -> Iterator[Run]:
    for budget in budgets:
        wide = [x for x in shapes.standard(budget) if x.family in _MAIN[:2]]
        narrow = [*shapes.standard(budget, "narrow"), *shapes.standard_gated_mlps(budget)]
        for shape in [*wide, *narrow]:
            yield Run(task=families.task(budget), architecture=shape, method=BENCH)


def _standard(budgets: Iterable[int], *kinds: str) -> tuple[Run, ...]:
    """The runs of shapes that stand for their families; `kinds` are keys of `shapes.SHAPES`."""
    return tuple(
        _run(shape, budget)
        for budget in budgets
        for of in kinds
        for shape in shapes.standard(budget, of)
    )


def _brief_run(shape: Architecture, budget: int) -> Run:
    """The run of an entry without shorter trainings and sets that fit, a sixth of the work."""
    whole = run(shape, budget, pilots=2)
    method: Any = whole.method
    brief = method.replace(rungs=1, threshold_trials=0, trial_pilots=None, give_up=None)
    return dataclasses.replace(whole, method=brief)


def _narrow_runs() -> Iterator[Run]:
    for budget in shapes.NARROW:
        for shape in shapes.standard(budget, "narrow"):
            yield (_brief_run if budget > 4096 else _run)(shape, budget)
    for budget in _GATED:
        for shape in shapes.standard_gated_mlps(budget):
            yield _run(shape, budget)


EXPERIMENTS = (
    Experiment(
        name="board/typical",
        title="Capacity by family",
        presets={
            # Others once `board/shapes` has chosen the shapes of their budgets.
            **{x: functools.partial(_runs, shapes.PRESETS[x]) for x in ("quick", "full", "large")},
            "narrow": _narrow_runs,
            "blocks": functools.partial(_standard, shapes.BLOCKS, "blocks", "sparse"),
            "bench": functools.partial(_bench, (256, 512, 1024)),
            # What `make bench` has on a GPU.
            "bench-gpu": functools.partial(_bench, (256, 512, 1024, 2048)),
        },
        of_full="256 and 512 parameters of up to 4,096",
        figure=Typical(families={"narrow": "narrow heads", "blocks": "today's blocks"}),
    ),
)


def _main() -> None:
    """Writes `inits.csv` from the published rows of the budgets named, or of all."""
    budgets = [int(budget) for budget in sys.argv[1:]] or families.VOCAB_SIZES
    inits(published("board/typical"), budgets).to_csv(INITS, index=False)


if __name__ == "__main__":
    _main()
