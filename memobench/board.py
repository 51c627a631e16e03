"""The standard board: what is measured, how, and its rows from a table of runs.

Version v1, never mixed with another. Associations of pairs of tokens; as many of them as an entry
may have parameters, far more than any memorizes; budgets of parameters, all counted, which an entry
meets within 5%. An entry is any architecture searched by a track's method (`memobench.bisection`),
or constructed at the number that its theorem promises.
"""

import itertools
import logging
from collections.abc import Iterable, Iterator
from typing import Any

import pandas as pd

from memobench import theory
from memobench.errors import UserError
from memobench.methods.base import Method
from memobench.methods.construction import Construction
from memobench.methods.search import Search
from memobench.methods.training import Training
from memobench.models.base import Architecture, in_words, sizes_in_words
from memobench.models.sequence_encoder import SequenceEncoder
from memobench.models.transformer import MLP, AttentionOnly
from memobench.runs import Run, cells
from memobench.table import analysis
from memobench.table.rows import COUNTS, of_architecture
from memobench.tasks.associations import Associations
from memobench.tasks.base import Task

_log = logging.getLogger("memobench")

VERSION = "v1"
# Whose the project's own runs are.
OWN = "memobench"
TOLERANCE = 0.05
# Seeds of an entry are 0 .. SEEDS - 1, or the first of them: all, diverged ones included.
SEEDS, LEAST_SEEDS = 5, 3
# Width d of the standard entries for every vocabulary size and budget.
WIDTHS = {
    (16, 256): 4,
    (32, 256): 2,
    (32, 512): 4,
    (64, 512): 2,
    (32, 1024): 4,
    (64, 1024): 4,
    (32, 2048): 8,
    (64, 2048): 8,
    (64, 4096): 10,
    (128, 4096): 10,
    (64, 8192): 16,
    (128, 8192): 16,
}
BUDGETS = tuple(sorted({budget for _, budget in WIDTHS}))
CONSTRUCTED, PUBLISHED, EXACT = "constructed", "trained-published", "trained-exact"
# The published protocol is Dana et al.'s, its learning rate included; the exact gradient searches
# for its own, and begins with a quarter of the steps.
METHODS = {
    PUBLISHED: Search(training=Training(), sizes=4, doublings=1),
    EXACT: Search(
        training=Training(epochs=16, batch_size=None, protocol="exact"),
        rate_factors=(0.3, 1.0, 3.0, 10.0),
        sizes=2,
        doublings=3,
    ),
}
TRACKS = (EXACT, PUBLISHED, CONSTRUCTED)
# The constructions of standard entries.
THEOREMS = ("dana2025", "random_features", "bubeck2020")


def task(vocab_size: int, budget: int, seed: int = 0) -> Task:
    """As many associations of pairs as parameters, or all there are."""
    return Associations(vocab_size=vocab_size, n_sequences=min(budget, vocab_size**2), seed=seed)


def searches(
    architecture: Architecture, vocab_size: int, budget: int, track: str = EXACT, seeds: int = SEEDS
) -> list[Run]:
    """The runs that put an architecture on the board, if its parameters meet the budget.

    Raises UserError for a vocabulary size and budget, or a track, that the board does not have.

    >>> own = MLP(d_model=4, d_head=4, d_mlp=10)
    >>> len(searches(own, vocab_size=16, budget=256))
    5
    """
    if (vocab_size, budget) not in WIDTHS:
        sets = ", ".join(f"{n} with {parameters:,}" for n, parameters in WIDTHS)
        raise UserError(
            f"vocab_size={vocab_size}, budget={budget} is not a set of the board: {sets}"
        )
    if track not in METHODS:
        raise UserError(f"track={track!r} is not searched; choose one of {', '.join(METHODS)}")
    return [
        Run(
            task=task(vocab_size, budget, seed),
            architecture=architecture,
            method=METHODS[track],
            seed=seed,
        )
        for seed in range(seeds)
    ]


def constructions(
    architecture: Architecture, theorem: str, vocab_size: int, seeds: int = SEEDS
) -> list[Run]:
    """A theorem's weights for as many associations as it promises, or no runs if it does not.

    Raises UserError for a theorem that has no place on the board.
    """
    if theorem not in THEOREMS:
        raise UserError(f"theorem={theorem!r} is unknown here; choose one of {', '.join(THEOREMS)}")
    method = Construction.named(theorem)()
    bound = method.bound
    sizes = cells(
        Run(task=Associations(vocab_size=vocab_size), architecture=architecture, method=method)
    )
    if not bound.applies(sizes):
        return []
    n_sequences = min(int(bound.value(sizes)), vocab_size**2)
    return [
        Run(
            task=Associations(vocab_size=vocab_size, n_sequences=n_sequences, seed=seed),
            architecture=architecture,
            method=method,
            seed=seed,
        )
        for seed in range(seeds)
    ]


def standard(vocab_size: int, budget: int) -> Iterator[tuple[Architecture, str | None]]:
    """The standard entries of a set, each with the theorem that constructs it, if one does."""
    width = WIDTHS[vocab_size, budget]
    memory = budget - 2 * vocab_size * width - 2 * width
    head, neuron = 4 * width**2, 2 * width + 1

    def full(n_heads: int, n_layers: int = 1) -> Architecture:
        return AttentionOnly(
            d_model=width, d_head=width, n_heads=n_heads, n_layers=n_layers, heads="full"
        )

    def mixed(n_heads: int, n_layers: int = 1, activation: str = "gelu") -> Architecture:
        return MLP(
            d_model=width,
            d_head=width,
            n_heads=n_heads,
            n_layers=n_layers,
            d_mlp=round((memory / n_layers - n_heads * head) / neuron),
            heads="full",
            activation=activation,
        )

    yield full(round(memory / head)), "dana2025"
    half = width // 2
    shared = memory + 2 * width - 2 * half - 2 * width * half
    compressed = AttentionOnly(d_model=width, d_head=half, n_heads=round(shared / (4 * half**2)))
    yield compressed, "dana2025"
    yield mixed(1), "random_features"
    yield mixed(1, activation="relu"), "bubeck2020"
    splits = {max(1, round(share * memory / head)) for share in (0.25, 0.5, 0.75)} - {1}
    for n_heads in sorted(n for n in splits if memory - n * head >= neuron):
        yield mixed(n_heads), None
    n_heads = round(memory / head / 2)
    if n_heads and abs(2 * n_heads * head - memory) <= TOLERANCE * budget:
        yield full(n_heads, n_layers=2), None
    if memory >= 2 * (head + neuron):
        yield mixed(1, n_layers=2), None
    rows = vocab_size**2 + vocab_size
    width_of_encoder = round(budget / rows)
    if abs(rows * width_of_encoder / budget - 1) <= TOLERANCE:
        yield SequenceEncoder(d_model=width_of_encoder), None


# Architectures of the paper whose protocol the published track follows.
_OF_THE_PAPER = 3


def runs(
    budget: int,
    tracks: Iterable[str] = TRACKS,
    seeds: int = SEEDS,
    n_vocab_sizes: int | None = None,
) -> tuple[Run, ...]:
    """All standard entries of a budget; of its first `n_vocab_sizes` vocabulary sizes only."""
    wanted: list[Run] = []
    tracks = list(tracks)
    for vocab_size in [n for n, of_budget in WIDTHS if of_budget == budget][:n_vocab_sizes]:
        entries = list(standard(vocab_size, budget))
        for (architecture, theorem), track in itertools.product(entries, tracks):
            if track == CONSTRUCTED:
                if theorem:
                    wanted += constructions(architecture, theorem, vocab_size, seeds)
            elif track == EXACT or (architecture, theorem) in entries[:_OF_THE_PAPER]:
                wanted += searches(architecture, vocab_size, budget, track, seeds)
    return tuple(dict.fromkeys(wanted))


def build(table: pd.DataFrame) -> pd.DataFrame:
    """The board's rows: means over seeds with half of their 95% intervals, best bits first.

    Args:
      table: of runs; those that are no entry are left out. A column `submitter` says whose they
        are, memobench's own without it.

    Raises theory.Violation where a run is beyond what is possible.
    """
    theory.check(table)
    entries = table if table.empty else _entries(table)
    for line in gaps(entries):
        _log.warning("left out: %s", line)
    if not entries.empty:
        entries = entries[_whole(entries)]
    if entries.empty:
        return pd.DataFrame(columns=COLUMNS)
    board = analysis.capacities(entries, _keys())
    enough = board["seeds"] + board["diverged"] >= LEAST_SEEDS
    board = board[enough].assign(version=VERSION)
    order = ["bits_per_parameter", "complete_99_per_parameter"]
    # Options that some entry has, and the board's own columns do not show.
    options = [x for x in of_architecture() if x not in COLUMNS and board[x].notna().any()]
    return board.sort_values(order, ascending=False, ignore_index=True)[[*COLUMNS, *options]]


def gaps(table: pd.DataFrame) -> list[str]:
    """A line for every entry of a table of runs whose seeds are not 0, 1, .. up to its largest.

    Who chooses among seeds chooses the lucky ones: the best three of five raise a mean by half a
    standard deviation. A run that diverged counts as there.
    """
    entries = table if table.empty or "track" in table else _entries(table)
    if entries.empty:
        return []
    chosen: Any = entries[~_whole(entries)].groupby(_keys(), dropna=False, sort=False)
    return [
        f"{entry(rows.iloc[0])}, {rows['track'].iloc[0]}, N = {rows['vocab_size'].iloc[0]}: its "
        f"seeds are {', '.join(map(str, sorted(rows['seed'])))}; an entry has all from 0 on, "
        "diverged ones too"
        for _, rows in chosen
    ]


def _whole(entries: pd.DataFrame) -> pd.Series:
    """Of each run, whether its entry's seeds are 0, 1, .. without a gap."""
    seeds = entries.groupby(_keys(), dropna=False, sort=False)["seed"]
    return seeds.transform("max") + 1 == seeds.transform("nunique")


def _keys() -> list[str]:
    """What tells entries apart."""
    keys = ["track", "family", "budget", "submitter", "source", "theorem", "steps"]
    return [*keys, *_sizes()]


def _sizes() -> list[str]:
    """What tells the models and tasks of two entries apart."""
    counts = [name for name in COUNTS if name not in of_architecture()]
    return ["task", "vocab_size", "context_length", *of_architecture(), *counts]


COLUMNS = [
    *("version", "submitter", "track", "family", "budget", "vocab_size", "context_length", "task"),
    *("n_examples", "architecture", "heads", "activation", "d_model", "d_head", "n_heads"),
    *("n_layers", "d_mlp", *COUNTS, "theorem", "seeds", "diverged", "verdict", "gain_99"),
    *("gain_known", "gain_bits", "rate_at_edge"),
    *(name for x in analysis.CAPACITIES for name in (x, f"{x}_interval")),
    *("bits_per_parameter", "complete_99_per_parameter", "memorized_per_parameter", "proven"),
    *("complete_99_over_proven", "final_steps", "seconds", "device", "memobench", "commit"),
    *("date",),
]


def _entries(table: pd.DataFrame) -> pd.DataFrame:
    """The runs on the board, each with its track, budget and family."""
    track = _track(table)
    table = table.assign(track=track, budget=_budget(table, track))
    table = table[table["track"].notna() & table["budget"].notna()]
    # Each seed has an instance of its own, which nobody chooses either.
    table = table[(table["seed"] == table["task_seed"]) & (table["seed"] < SEEDS)]
    own = {"submitter": OWN, "source": ""}
    table = table.assign(**{name: x for name, x in own.items() if name not in table})
    return table.assign(
        family=[family(row) for row in table[_sizes()].to_dict("records")],
        budget=table["budget"].astype(int),
        # Beside tasks without a vocabulary it is a float.
        vocab_size=table["vocab_size"].astype(int),
    )


def _track(table: pd.DataFrame) -> pd.Series:
    """The track whose method each run has; None for other methods and tasks."""
    track = pd.Series(None, index=table.index, dtype=object)
    pairs = (table["task"] == Associations.name) & (table["context_length"] == 2)
    pairs &= table["zipf_exponent"].isna() & table["n_sequences"].notna()
    for name, method in METHODS.items():
        track[pairs & _by(table, method)] = name
    promised = pairs & (table["n_examples"] == table["promises"])
    for theorem in THEOREMS:
        track[promised & _by(table, Construction.named(theorem)())] = CONSTRUCTED
    return track


def _by(table: pd.DataFrame, method: Method) -> pd.Series:
    """Whether the weights of runs came about by a method, in whatever number of steps."""
    same = table["method"] == method.row_name
    for column, value in method.cells().items():
        same &= table[column].isna() if value is None else table[column] == value
    return same


def _budget(table: pd.DataFrame, track: pd.Series) -> pd.Series:
    """The budget that each run's parameters meet, NaN where none is met."""
    met = pd.Series(float("nan"), index=table.index)
    for vocab_size, budget in WIDTHS:
        near = (table["n_params"] / budget - 1).abs() <= TOLERANCE
        near &= table["vocab_size"] == vocab_size
        whole = table["n_examples"] == task(vocab_size, budget).n_examples
        met[near & (whole | (track == CONSTRUCTED))] = budget
    return met


def family(row: Any) -> str:
    """What kind of architecture a row is, in words.

    >>> from memobench.models.transformer import MLP
    >>> own = MLP(d_model=4, d_head=4, n_layers=2, d_mlp=8, heads="full")
    >>> family(cells(Run(task=task(16, 256), architecture=own)))
    'MLP, 2 layers'
    """
    known = _architecture(row)
    return known.family if known else in_words(str(row["architecture"]), row)


def entry(row: Any) -> str:
    """A row's family, and the sizes by which entries of one family differ."""
    known = _architecture(row)
    return f"{row['family']} ({' '.join(known.shown_sizes if known else sizes_in_words(row))})"


def _architecture(row: Any) -> Architecture | None:
    """The architecture of a row; None for one that is not registered here."""
    try:
        return Architecture.named(row["architecture"]).from_cells(row)
    except UserError:
        return None
