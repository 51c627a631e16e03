"""The standard board: what an entry is, and its rows from typical capacities and certified weights.

Version v2, never mixed with another. A row is an architecture at a budget of parameters, all
counted, on a track. Tracks of training say what is typical: means over label tables with their
intervals. The others say what weights can do: weights that were run, whoever found them.
"""

import dataclasses
import logging
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from memobench.analysis import theorems
from memobench.board import families, typical
from memobench.common.errors import in_a_line, printable, require, shown
from memobench.core import columns as col
from memobench.core import module as models
from memobench.core import own_code
from memobench.core.architecture import Architecture
from memobench.core.cells import from_cells
from memobench.core.columns import Column, by_name
from memobench.core.run import Run
from memobench.core.task import Task
from memobench.methods.capacity import Capacity
from memobench.methods.thresholds import is_complete
from memobench.methods.training import Training
from memobench.store.rows import listed, of_architecture
from memobench.tasks.associations import Associations

_log = logging.getLogger("memobench")

VERSION = "v2"
# Half an interval over its mean that entries aim at.
PRECISION = 0.02
# Whose the project's own rows are, and those of the reader's folder.
OWN, YOURS = "memobench", "you"
EXACT, PUBLISHED, CONSTRUCTED, OPEN = "exact", "published", "constructed", "open"
# Of architectures that memobench does not have.
OPEN_OWN = "own"
# How models of a track are trained.
TRAININGS = {EXACT: Training(protocol="exact", batch_size=None), PUBLISHED: Training()}
TRACKS = {
    EXACT: f"trained by the exact gradient, {TRAININGS[EXACT].steps:,} steps at the best learning "
    "rate",
    PUBLISHED: "trained by the published protocol of Dana et al. (2025)",
    CONSTRUCTED: "weights of a proof, for as many associations as it promises",
    OPEN: "the best weights of each entry, found by any means",
    OPEN_OWN: "the same of architectures that memobench does not have, defined by submitted code",
}
# By how much, as a share, weights of others have to know more than those that they rank above.
MARGIN = 0.02
# Label tables of every budget: the more parameters, the less capacities spread. Their seeds are
# 0, 1, .., which nobody chooses; certificates are of one of them.
TABLES = dict.fromkeys(families.VOCAB_SIZES, 6)
TABLES |= {256: 96, 512: 40, 1024: 24, 2048: 12, 4096: 8}
# Fewer decide nothing.
LEAST_TABLES = 4
# Less than twofold apart: of 3 and 10 alone an MLP of 1,024 parameters takes 10, with which some
# initial weights fail. It then knows 4% less than with 5.5, and spreads eight times as much.
RATE_FACTORS = (3.0, 5.5, 10.0)


def run(
    architecture: Architecture,
    budget: int,
    track: str = EXACT,
    inits: int = 1,
    pilots: int | None = None,
) -> Run:
    """The run that puts an architecture on the board.

    Larger models have fewer tables, pilots and trials. Where initial weights spread, `inits` of
    each table narrow the interval, and more `pilots` of each learning rate choose it, if they are
    not given. Raises UserError for an unknown budget or track, and for parameters that miss the
    budget.

    >>> from memobench.models.transformer import MLP
    >>> run(MLP(d_model=3, d_head=3, d_mlp=17, heads="full"), budget=256).method.tables
    96
    """
    task = families.task(budget)
    require(
        isinstance(architecture, Architecture),
        f"architecture={shown(architecture)} is no architecture; give a spec such as MLP(..)",
    )
    require(
        isinstance(track, str) and track in TRAININGS,
        f"track={track!r} is not one of training; choose one of {', '.join(TRAININGS)}",
    )
    n_params, _ = models.count_parameters(architecture.build(task), task.context_length)
    reason = off_board(task, n_params)
    require(not reason, f"architecture {architecture.name}: {reason}")
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
            tables=TABLES[budget],
            inits=inits,
            # What spreads has rates that few pilots cannot tell apart.
            pilots=max(12 if small else 4, min(4 * inits, 32)) if pilots is None else pilots,
            threshold_trials=32 if budget <= 2048 else 16,
            trial_pilots=24 if small else 12,
            give_up="late",
        )
    return Run(task=task, architecture=architecture, method=method)


# --- Columns ----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Shown(Column):
    """A column of the board.

    label: on pages. first: whether pages open with it. of_range: whether `_low` and `_high` are
    beside it. is_measure: whether entries are compared by it.
    """

    label: str = ""
    first: bool = False
    of_range: bool = False
    is_measure: bool = False

    @property
    def names(self) -> list[str]:
        """Its columns of a CSV file."""
        return [self.name, *self._ends]

    @property
    def _ends(self) -> list[str]:
        return [f"{self.name}_low", f"{self.name}_high"] if self.of_range else []

    def text(self, row: Mapping[str, Any]) -> str:
        """What pages show of it.

        >>> COLUMNS["bits_per_byte"].text({"bits_per_byte": 1.98765})
        '1.988'
        """
        cells: list[Any] = [row.get(name) for name in self.names]
        if pd.isna(cells[0]):
            return "–"
        texts = [self._text(cell) for cell in cells]
        known = self.of_range and not pd.isna(cells[1])
        return f"{texts[0]} [{texts[1]}, {texts[2]}]" if known else texts[0]

    def _text(self, cell: Any) -> str:
        return str(cell) if self.digits is None else f"{cell:,.{self.digits}f}".replace("inf", "∞")


class Ranks(Shown):
    """A column of ranks: a range is all of it."""

    @property
    def names(self) -> list[str]:
        """Its columns of a CSV file."""
        return self._ends

    def text(self, row: Mapping[str, Any]) -> str:
        """What pages show of it.

        >>> COLUMNS["rank"].text({"rank_low": 2, "rank_high": 5})
        '2–5'
        """
        low, high = (row.get(name) for name in self.names)
        if pd.isna(low):
            return "–"
        return f"{low:.0f}" if low == high else f"{low:.0f}–{high:.0f}"


_TEXT, _NUMBER = col.text_of(400), col.real()


def _number(name: str, label: str, meaning: str, digits: int = 0, **more: Any) -> Shown:
    return Shown(name, meaning, _NUMBER, digits=digits, label=label, **more)


def _word(name: str, label: str, meaning: str, **more: Any) -> Shown:
    return Shown(name, meaning, _TEXT, label=label, **more)


COLUMNS: dict[str, Any] = by_name(
    Ranks(
        "rank",
        "entries that cannot be told apart at 95%, after Holm's correction for all pairs, share a "
        "range",
        _NUMBER,
        digits=0,
        label="rank",
        first=True,
        of_range=True,
    ),
    _word("entry", "entry", "family and sizes of the architecture", first=True),
    _number(
        "bits_per_parameter",
        "bits / parameter",
        "mean bits of an overfull set after the last step, with 95% interval",
        3,
        first=True,
        of_range=True,
        is_measure=True,
    ),
    _number(
        "bits_per_distinct",
        "bits / degree of freedom",
        "the same over the parameters less those that products make redundant",
        3,
        first=True,
        of_range=True,
        is_measure=True,
    ),
    _number(
        "half_99",
        "half know",
        "associations of which half of the trainings come to know 99%, with 95% interval",
        first=True,
        of_range=True,
        is_measure=True,
    ),
    _number(
        "certified_bits_per_parameter",
        "certified bits / parameter",
        "the most that any weights that were kept know, of any set of the board",
        3,
        first=True,
        is_measure=True,
    ),
    _number(
        "certified_set",
        "certified set",
        "the most associations of which any weights that were kept know 99%",
        first=True,
        is_measure=True,
    ),
    _number(
        "bits_per_byte",
        "bits / byte",
        "certified bits over the bytes of the weights, at the best of float32, bfloat16, int8 and "
        "int4; the most of any of the entry's weights, which may not be those of most bits",
        3,
        first=True,
        is_measure=True,
    ),
    _number("n_params", "parameters", "all of them", first=True),
    _number(
        "limit_per_parameter",
        "limit",
        "bits per parameter that the means approach with more steps, with 95% interval",
        3,
        of_range=True,
        is_measure=True,
    ),
    _word(
        "converged",
        "converged",
        "whether the last step is within 2% of the limit; undecided if of a part of the limit's "
        "interval only",
    ),
    _number(
        "memorized",
        "associations",
        "known beyond guessing, a mean, with 95% interval",
        0,
        of_range=True,
        is_measure=True,
    ),
    _number("steps", "steps", "of the optimiser"),
    _number("tables", "tables", "label tables"),
    _number("inits", "starts", "initial weights of each label table"),
    _number("learning_rate", "learning rate", "that pilots chose", 4),
    _word("by", "by", "who found the weights; `you` for those of your folder"),
    _word("theorem", "theorem", "whose proof makes the weights"),
    _word("weights", "weights", "the file of the best weights"),
    _word("family", "family", "of architectures"),
    _number("vocab_size", "N", "vocabulary size"),
    _word("device", "device", "that trained"),
    _word("memobench", "memobench", "version"),
    _word("commit", "commit", "of the code"),
    _word("date", "date", "when the run ended"),
)
FIRST = tuple(column for column in COLUMNS.values() if column.first)


def shown_columns(rows: pd.DataFrame) -> list[Any]:
    """The columns that tables of these rows have: the first, and whose they are if not all ours."""
    columns = [column for column in FIRST if rows[column.names[0]].notna().any()]
    return columns if (rows["by"] == OWN).all() else [*columns, COLUMNS["by"]]


# What entries of a track are ranked by: the first that they have.
MAIN = ["bits_per_parameter", "certified_bits_per_parameter"]
# What a row has before its columns.
PLACE = ("version", "budget", "track")


def names() -> list[str]:
    """The columns of every board; options that some entry has come after them."""
    own = [name for column in COLUMNS.values() for name in column.names]
    return [*PLACE, *own, Architecture.noun, *Architecture.shared_columns()]


# --- Rows -------------------------------------------------------------------------------------


class _Key(NamedTuple):
    """What tells entries apart."""

    track: str
    budget: int
    by: str
    architecture: Architecture


def build(runs: pd.DataFrame, certified: Iterable[Mapping[str, Any]] = ()) -> pd.DataFrame:
    """The board's rows, by budget and track, the first rank first.

    Args:
      runs: those of Capacities on the board's sets; others are left out. A column `by` says whose
        they are, memobench's own without it.
      certified: a row for every file of weights, as `certificates.counting.certify` gives it.
        Columns `submitter`, memobench without it, `track`, open without it, `weights` (the path
        that pages link to) and `theorem` say more.

    Raises theory.Violation where a run is beyond what is possible.
    """
    theorems.check(runs)
    best = _best(certified)
    rows = [_row(key, {**row, **best.get(key, {})}) for key, row in _typical(runs)]
    rows += [_row(key, row) for key, row in best.items() if key.track not in TRAININGS]
    options = [name for name in of_architecture() if name not in names()]
    board = pd.DataFrame(rows, columns=[*names(), *options])
    known = -board[MAIN].bfill(axis=1).iloc[:, 0].astype(float)
    board = board.assign(place=board["track"].map(list(TRACKS).index), known=known)
    board = board.assign(**_ranks(board))
    # Means are in order; of weights those that others have to pass come first.
    is_weights = ~board["track"].isin(TRAININGS)
    first = board["rank_low"].where(is_weights, 0)
    board = board.assign(first=first, is_others=is_weights & (board["by"] != OWN))
    shown = [*names(), *(name for name in options if board[name].notna().any())]
    order = ["budget", "place", "first", "is_others", "known"]
    return board.sort_values(order, ignore_index=True)[shown]


# What tells runs of several folders apart.
_SAME = ["run_id", "by"]


def _row(key: _Key, values: Mapping[str, Any]) -> dict[str, Any]:
    architecture = key.architecture
    sizes = {"architecture": architecture.name, "family": printable(architecture.family)}
    sizes |= {**architecture.shared_cells(), **architecture.cells()}
    own = {"track": key.track, "budget": key.budget, "by": key.by, "version": VERSION}
    own |= {"entry": printable(architecture.full_name)}
    return {**values, **sizes, **own, "vocab_size": families.VOCAB_SIZES[key.budget]}


def _ranks(board: pd.DataFrame) -> pd.DataFrame:
    """Ranks, of weights too, which are counted exactly: of our own only equal ones share one.

    Any others are told apart where they differ by more than MARGIN.

    Shape letters: E entries of a budget and track.
    """
    ranks = board[COLUMNS["rank"].names].astype(float)
    weights = board[~board["track"].isin(TRAININGS)]
    for _, rows in weights.groupby(["budget", "track"]):
        known_E = rows["certified_bits_per_parameter"].to_numpy(float)
        is_ours_E = (rows["by"] == OWN).to_numpy()
        margin_ExE = np.where(is_ours_E[:, None] & is_ours_E, 0.0, MARGIN * known_E[:, None])
        # Whether the entry of a column is better than that of a row.
        better_ExE = known_E > known_E[:, None] + margin_ExE
        ranks.loc[rows.index, "rank_low"] = 1.0 + better_ExE.sum(axis=1)
        ranks.loc[rows.index, "rank_high"] = len(rows) - better_ExE.sum(axis=0)
    return ranks


def _typical(runs: pd.DataFrame) -> Iterator[tuple[_Key, dict[str, Any]]]:
    """The entries on tracks of training."""
    measured = typical.measured(runs).copy()
    if "by" not in measured:
        measured["by"] = OWN
    measured = measured.drop_duplicates(_SAME)
    records: list[Any] = measured.to_dict("records")
    tracks = np.array([track_of(row) for row in records], object)
    for track in TRAININGS:
        of_track = measured[tracks == track]
        rows: dict[Any, Any] = of_track.set_index(_SAME).to_dict("index")
        summaries: list[Any] = typical.summary(of_track).to_dict("records")
        for found in summaries:
            row = rows[found["run_id"], found["by"]] | {"run_id": found["run_id"]}
            per = {
                f"{name}_per_parameter{end}": found.get(f"{name}{end}", math.nan) / row["n_params"]
                for name in ("bits", "limit")
                for end in ("", "_low", "_high")
            }
            per |= {
                f"bits_per_distinct{end}": found[f"bits{end}"] / row["n_params_distinct"]
                for end in ("", "_low", "_high")
            }
            per |= {"converged": found.get("converged"), "learning_rate": found["rate"]}
            architecture = from_cells(row).architecture
            key = _Key(track, found["budget"], found["by"], architecture)
            yield key, {**row, **found, **per}


def track_of(row: Mapping[str, Any]) -> str | None:
    """The track of training that a Capacity's row is on; None where it is no entry.

    A row is one where task and training are the board's, the parameters meet the budget, and the
    label tables are those of seeds 0, 1, .., LEAST_TABLES of them at least.
    """
    if reason := unreadable(row):
        _log.warning("left out of the board: run %s: %s", row["run_id"], reason)
        return None
    made = from_cells(row)
    method: Any = made.method
    if made.task.seed or off_board(made.task, row["n_params"]) or method.tables < LEAST_TABLES:
        return None
    for track, training in TRAININGS.items():
        # The published protocol has its own learning rate.
        if method.training == training and (track == EXACT or method.rate_factors == (1.0,)):
            return track
    return None


def unreadable(row: Mapping[str, Any]) -> str | None:
    """Why a Capacity's row cannot be read, in a line: of an unknown kind, or with wrong lists."""
    try:
        made = from_cells(row)
        method: Any = made.method
        method.check_lists(made, {name: listed(row[name]) for name in method.row_columns()})
        # A user's own, whose code may raise anything.
        str(made.architecture.full_name)
    except Exception as error:
        return in_a_line(error)
    return None


def off_board(task: Task, n_params: int) -> str | None:
    """Why weights have no place on the board, in a line; None where they have one.

    >>> off_board(families.task(512, seed=40), n_params=512)
    'task_seed=40 is none of the 40 label tables of 512 parameters; choose one from 0 to 39'
    """
    # A user's kind may say of itself that it equals any other.
    budget = task.n_examples if type(task) is Associations else None
    if budget not in TABLES or task != families.task(budget, task.seed):
        sets = ", ".join(f"{n} tokens at {each:,}" for each, n in families.VOCAB_SIZES.items())
        return (
            "its task is none of the board's, as many associations of pairs as parameters; choose "
            f"one of {sets}"
        )
    if task.seed >= TABLES[budget]:
        return (
            f"task_seed={task.seed} is none of the {TABLES[budget]} label tables of {budget:,} "
            f"parameters; choose one from 0 to {TABLES[budget] - 1}"
        )
    if abs(n_params / budget - 1) > families.TOLERANCE:
        return (
            f"n_params={n_params:,} is not within {families.TOLERANCE:.0%} of the budget of "
            f"{budget:,}; choose other sizes"
        )
    return None


def _best(certified: Iterable[Mapping[str, Any]]) -> dict[_Key, dict[str, Any]]:
    """Of every entry the most that its weights know: on their track, and on an open one."""
    found: dict[_Key, list[Mapping[str, Any]]] = {}
    for row in certified:
        try:
            architecture = Architecture.of_row(row)
            reason = off_board(Task.of_row(row), int(row["n_params"]))
            str(architecture.full_name)
        except Exception as error:
            reason = in_a_line(error)
        if reason:
            _log.warning("left out of the board: %s: %s", row["file"], reason)
            continue
        by = _given(row, "submitter", OWN)
        budget = int(row["n_sequences"])
        opened = OPEN if own_code.in_tree(type(architecture)) else OPEN_OWN
        for track in dict.fromkeys((_given(row, "track", opened), opened)):
            found.setdefault(_Key(track, budget, by, architecture), []).append(row)
    return {key: _of_weights(rows) for key, rows in found.items()}


def _given(row: Mapping[str, Any], name: str, default: str) -> str:
    value = row.get(name)
    return default if value is None or value != value else str(value)


def _of_weights(rows: list[Mapping[str, Any]]) -> dict[str, Any]:
    best = max(rows, key=lambda row: row["bits_per_parameter"])
    per_byte = [x for row in rows for name, x in row.items() if "bits_per_byte" in str(name)]
    sets = [row["n_examples"] for row in rows if is_complete(row["known"], row["n_examples"])]
    return {
        "n_params": best["n_params"],
        "certified_bits_per_parameter": best["bits_per_parameter"],
        "certified_set": max(sets, default=None),
        "bits_per_byte": max(x for x in per_byte if not pd.isna(x)),
        "weights": best.get("weights"),
        "theorem": best.get("theorem"),
    }
