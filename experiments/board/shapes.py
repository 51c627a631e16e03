"""board/shapes: shapes of every family at each budget, trained for a short time.

An architecture is not judged by one arbitrary width: the shape of each family that knows most bits
of an overfull set after 1,024 steps of the exact gradient stands for it in `board/typical`.
`memobench/board/families.py` makes the shapes.

`python -m memobench.experiments.board.shapes [FOLDER]` writes the chosen shapes into `chosen.csv`,
from the published rows and from runs of `board/typical` and `board/peak` in the folder. What looks
best on four label tables is often worse on more, so a shape that was measured as an entry counts
with its measured bits. Another shape takes its place if its search found 2% more than these after
as many steps, and than the search of the one that stands. Once both are measured, the one with more
bits after all steps stands, at its best size of set if `board/peak` has both, and the other is
listed in `passed.csv`.

Expected: shapes with few heads or neurons beside many dimensions, or the reverse, know less.

    memobench run board/shapes --preset=quick
    memobench report board/shapes --preset=quick

Preset `narrow` has heads of fewer dimensions than the residual stream, in one layer and in two.
Preset `blocks` has today's feed-forward blocks at equal parameters instead, plain and gated, and
attention without one, mixtures of experts and product-key memories. Attention alone and the
feed-forward blocks have narrow heads, too: all at 256 and 512 parameters, those without norms at
1,024, and SwiGLU behind one head from 2,048 on. Preset `tied` has those without norms whose
unembedding is the token embedding, with narrow heads.
"""

import collections
import functools
import itertools
import math
import pathlib
import sys
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pandas as pd

from memobench.board import capacity_summary, families, peak
from memobench.board import table as board
from memobench.core.architecture import Architecture, read_family
from memobench.core.run import Run
from memobench.experiment import Experiment
from memobench.methods.capacity import Capacity
from memobench.methods.training import Training
from memobench.report.capacity_summary import Shapes
from memobench.store.published import published
from memobench.store.results import load_results
from memobench.store.rows import architecture_columns, parse_list

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
# Four tables do not tell shapes apart that differ by less.
EQUAL = 0.02
# What two cores measure within half an hour, within some hours, in days, and not at all.
PRESETS = {
    "quick": (256, 512),
    "full": (256, 512, 1024, 2048, 4096),
    "large": (256, 512, 1024, 2048, 4096, 8192),
    "accelerator": (16384, 32768, 65536),
}
SHAPES = {
    "families": families.shapes,
    "narrow": families.narrow_shapes,
    "deep": families.deep_shapes,
    "blocks": families.block_shapes,
    "sparse": families.sparse_shapes,
    "narrow blocks": families.narrow_block_shapes,
    "tied": families.tied_shapes,
}
# Those that the board ranks, with `standard_gated_mlps`; `board/depth`, `board/blocks` and
# `board/tied` measure the others.
RANKED = ("families", "narrow", "blocks", "sparse")
# Budgets at which today's blocks are tried, and narrow heads.
BLOCKS = (256, 512, 1024, 2048)
NARROW = (*BLOCKS, 4096, 8192)
# Budgets at which two layers with narrow heads are tried, and tied embeddings.
DEEP, TIED = (*BLOCKS, 4096), (512, 1024)
CHOSEN = pathlib.Path(__file__).with_name("chosen.csv")
# Shapes that were measured as entries and do not stand.
PASSED = pathlib.Path(__file__).with_name("passed.csv")


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


def choose_shapes(table: pd.DataFrame, entries: pd.DataFrame) -> pd.DataFrame:
    """The shape that stands for each family whose shapes of a budget are all measured.

    Args:
      table: rows of this experiment.
      entries: from `measure_entries`; of several rows of a shape the last counts.
    """
    found = table[table["status"] == "ok"].set_index("run_id")
    rows = []
    for (of, shapes), budget in itertools.product(SHAPES.items(), families.VOCAB_SIZES):
        measured = _by_shape(entries, budget)
        for family, tried in _by_family(budget, shapes).items():
            if not set(tried.values()) <= set(found.index):
                continue
            cells = found.loc[list(tried.values())].set_axis(list(tried))
            known = cells["bits"] / cells["n_params"]
            own = {x: row for x, row in measured.items() if x in tried}
            rest = known.drop(list(own))
            has_peaks = not any(pd.isna(row["at_peak"]) for row in own.values())
            by = "at_peak" if has_peaks else "in_the_end"
            best: Any = max(own, key=lambda x: own[x][by], default=None)
            if best is not None:
                bar = (1 + EQUAL) * np.nanmax([known[best], own[best]["as_searched"]])
            if best is None or rest.max() > bar:
                best = rest.idxmax()
            shape = dict(found.loc[tried[best], architecture_columns()])
            rows.append({"of": of, "budget": budget, "family": family} | shape)
    return pd.DataFrame(rows)


@functools.cache  # All budgets take seconds; nobody changes what it returns.
def _by_family(
    budget: int, shapes: Callable[[int], list[Architecture]]
) -> dict[str, dict[Architecture, str]]:
    """The shapes of each family at a budget, with the ids of their runs."""
    found = collections.defaultdict[str, dict[Architecture, str]](dict)
    for run in runs([budget], shapes):
        found[run.architecture.family][run.architecture] = run.run_id
    return dict(sorted(found.items()))


def measure_entries(table: pd.DataFrame) -> pd.DataFrame:
    """Bits per parameter that entries of `board/typical` know by the exact gradient.

    The columns are budget, family, those of architectures, `as_searched` (after as many steps as
    the search has, if that was measured), `in_the_end`, and `at_peak` (at the best size of set, if
    the table has that run of the board).
    """
    on_board = table[[board.track_of(row) is not None for row in _rows(table)]]
    peaks = {(row["budget"], row["model"]): row["bits"] for row in _rows(peak.peaks(on_board))}
    of_exact = table.query("method == 'capacity' and protocol == 'exact' and status == 'ok'")
    found = []
    for row in _rows(of_exact):
        steps = parse_list(row["rung_steps"])
        bits_K = capacity_summary.models(row, "rung_bits").mean((1, 2)) / row["n_params"]
        if METHOD.steps == steps[-1]:
            continue
        budget = capacity_summary.budget(row["n_params"])
        of = {"budget": budget, "family": read_family(row)}
        cells = {name: row[name] for name in architecture_columns()}
        bits = {
            "as_searched": bits_K[steps.index(METHOD.steps)] if METHOD.steps in steps else math.nan,
            "in_the_end": bits_K[-1],
            "at_peak": peaks.get((budget, capacity_summary.architecture(row)), math.nan),
        }
        found.append(of | cells | bits)
    return pd.DataFrame(found)


def _rows(table: pd.DataFrame) -> list[Any]:
    return table.to_dict("records")


def _by_shape(entries: pd.DataFrame, budget: int) -> dict[Architecture, dict[str, Any]]:
    rows = _rows(entries.query("budget == @budget"))
    return {Architecture.from_row(row): row for row in rows}


@functools.cache  # Presets of several experiments ask again and again.
def standard(budget: int, of: str = "families") -> tuple[Architecture, ...]:
    """The shapes that stand for their families at a budget; empty where none was searched.

    Args:
      budget: of parameters.
      of: a key of SHAPES.
    """
    return tuple(_architectures(pd.read_csv(CHOSEN), budget, of))


def _architectures(chosen: pd.DataFrame, budget: int, of: str) -> list[Architecture]:
    rows = _rows(chosen.query("budget == @budget and of == @of"))
    return [Architecture.from_row(row) for row in rows]


def _narrow_runs() -> tuple[Run, ...]:
    """Shapes with narrow heads, in one layer and in two."""
    return runs(NARROW, families.narrow_shapes) + runs(DEEP, families.deep_shapes)


def _block_runs() -> tuple[Run, ...]:
    """Shapes of today's blocks, with wide and with narrow heads, and of sparse ones."""
    known = sum((runs(BLOCKS, SHAPES[x]) for x in ("blocks", "sparse")), ())
    return known + runs((*BLOCKS, 4096, 8192), select_narrow_blocks)


def standard_gated_mlps(budget: int) -> list[Architecture]:
    """The MLP of SwiGLU neurons without norms, behind one narrow head, if one was searched."""
    of_blocks = standard(budget, "narrow blocks")
    return [x for x in of_blocks if x.family == "modern (norm=none), narrow head"]


def select_narrow_blocks(budget: int) -> list[Architecture]:
    """The shapes of today's blocks with narrow heads that are tried, fewer at larger budgets."""
    found: list[Any] = families.narrow_block_shapes(budget)
    if budget > 512:
        found = [x for x in found if x.norm == "none"]
    if budget > 1024:
        found = [x for x in found if x.n_heads == 1 and x.d_mlp and x.activation == "swiglu"]
    return found


EXPERIMENTS = (
    Experiment(
        name="board/shapes",
        title="Shapes of every family at each budget",
        presets={preset: functools.partial(runs, budgets) for preset, budgets in PRESETS.items()}
        | {"narrow": _narrow_runs, "blocks": _block_runs}
        | {"tied": functools.partial(runs, TIED, families.tied_shapes)},
        of_full="256 and 512 parameters of up to 4,096",
        figure=Shapes(),
    ),
)


def _main() -> None:
    """Writes `chosen.csv` and `passed.csv`."""
    # Where a folder has other runs of a published entry, the published one counts.
    of_entries = map(published, ("board/typical", "board/peak"))
    rows = pd.concat([*map(load_results, sys.argv[1:]), *of_entries])
    entries = pd.concat([pd.read_csv(PASSED), measure_entries(rows)], ignore_index=True)
    found = choose_shapes(published("board/shapes"), entries)
    passed = []
    for budget in families.VOCAB_SIZES:
        stand = {x.family: x for of in SHAPES for x in _architectures(found, budget, of)}
        passed += [
            row for x, row in _by_shape(entries, budget).items() if stand.get(x.family, x) != x
        ]
    for path, table in ((CHOSEN, found), (PASSED, pd.DataFrame(passed, columns=entries.columns))):
        # Sizes that some have stay whole numbers.
        whole = table.dropna(axis=1, how="all").convert_dtypes()
        whole.to_csv(path, index=False, float_format="%.6g")


if __name__ == "__main__":
    _main()
