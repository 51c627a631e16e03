"""The standard board: its columns, entries and rows, of typical capacities and certified weights.

Version v2, never mixed with another. A row is an architecture at a budget of parameters, all
counted, on a track. Tracks of training say what is typical: means over label tables with their
intervals. The others say what weights can do: weights that were run, whoever found them.
"""

import dataclasses
import functools
import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from memobench.analysis import theorems
from memobench.board import capacity_summary, families
from memobench.checks import architectures as checking
from memobench.common.errors import UserError, escape_unprintable, in_a_line, require, short_repr
from memobench.core import module as models
from memobench.core import own_code
from memobench.core.architecture import Architecture
from memobench.core.cells import OF_RUNS, from_cells
from memobench.core.columns import Column
from memobench.core.run import Run
from memobench.core.task import Task
from memobench.methods.capacity import Capacity
from memobench.methods.thresholds import FAILING, is_complete
from memobench.methods.training import Training
from memobench.store.rows import PROVENANCE, architecture_columns, parse_list
from memobench.tasks.associations import Associations

_log = logging.getLogger("memobench")

VERSION = "v2"
# What pages put behind a number of trainings of which many fail.
FAILED = "†"
# Half an interval over its mean that entries aim at.
PRECISION = 0.02
# Submitters of our rows, and of those of the user's folder.
OWN, YOURS = capacity_summary.OWN, "you"
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
    not given.

    Raises:
      UserError: the budget or track is unknown, or the parameters miss the budget.

    >>> from memobench.models.transformer import MLP
    >>> run(MLP(d_model=3, d_head=3, d_mlp=17, heads="full"), budget=256).method.tables
    96
    """
    task = families.task(budget)
    require(
        isinstance(architecture, Architecture),
        f"architecture must be a spec such as MLP(..), got {short_repr(architecture)}.",
    )
    require(
        isinstance(track, str) and track in TRAININGS,
        f"track must be one of training, {' or '.join(TRAININGS)}, got {track!r}.",
    )
    checking.require_sound([(architecture, task)])
    n_params, _ = models.count_parameters(architecture.module_for(task), task.context_length)
    if reason := placement_error(task, n_params):
        # Of the board's own task it is the number of parameters.
        fit = families.sizes_that_fit(architecture, budget)
        such = f", such as {' or '.join(fit)}" * bool(fit)
        raise UserError(f"architecture {architecture.name}: {reason.rstrip('.')}{such}.")
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
class BoardColumn:
    """A column of the board.

    Attributes:
      name: in rows, and in a CSV file.
      label: on pages.
      meaning: in one line.
      digits: of a number on pages; None for text.
      first: whether pages open with it.
      of_range: whether `_low` and `_high` are beside it.
      is_measure: whether entries are compared by it.
      failed: the share of failed trainings from which on it is marked.
    """

    name: str
    label: str
    meaning: str
    digits: int | None = None
    first: bool = False
    of_range: bool = False
    is_measure: bool = False
    failed: float | None = None

    @property
    def names(self) -> list[str]:
        """Its columns of a CSV file."""
        return [self.name, *self._ends]

    @property
    def _ends(self) -> list[str]:
        return [f"{self.name}_low", f"{self.name}_high"] if self.of_range else []

    def text(self, row: Mapping[Any, Any]) -> str:
        """The text of it on pages.

        >>> COLUMNS["bits_per_byte"].text({"bits_per_byte": 1.98765})
        '1.988'
        """
        cells: list[Any] = [row.get(name) for name in self.names]
        if pd.isna(cells[0]):
            return "–"
        texts = [self._text(cell) for cell in cells]
        known = self.of_range and not pd.isna(cells[1])
        text = f"{texts[0]} [{texts[1]}, {texts[2]}]" if known else texts[0]
        is_marked = self.failed is not None and row.get("failed", 0) >= self.failed
        return text + FAILED * is_marked

    def _text(self, cell: Any) -> str:
        return str(cell) if self.digits is None else f"{cell:,.{self.digits}f}".replace("inf", "∞")


class RankColumn(BoardColumn):
    """A column of ranks, of which a range is all."""

    @property
    def names(self) -> list[str]:
        """Its columns of a CSV file."""
        return self._ends

    def text(self, row: Mapping[Any, Any]) -> str:
        """The text of it on pages.

        >>> COLUMNS["rank"].text({"rank_low": 2, "rank_high": 5})
        '2–5'
        """
        low, high = (row.get(name) for name in self.names)
        if pd.isna(low):
            return "–"
        return f"{low:.0f}" if low == high else f"{low:.0f}–{high:.0f}"


_measure = functools.partial(BoardColumn, first=True, is_measure=True)


def _of_rows(column: Column, label: str = "", digits: int | None = None) -> BoardColumn:
    """A column that entries have from a row: what it means is declared there."""
    return BoardColumn(column.name, label or column.name, column.meaning, digits)


COLUMNS: dict[str, BoardColumn] = {
    column.name: column
    for column in (
        RankColumn(
            "rank",
            "rank",
            "entries that cannot be told apart at 95%, after Holm's correction for all pairs and "
            "with room for failures that few label tables lack, share a range",
            0,
            first=True,
            of_range=True,
        ),
        BoardColumn("entry", "entry", "family and sizes of the architecture", first=True),
        _measure(
            "bits_per_parameter",
            "bits / parameter",
            "mean bits of an overfull set after the last step, with 95% interval; "
            f"{FAILED} where a tenth of the trainings or more fail: they know less than "
            f"{FAILING:.0%} of their median",
            3,
            of_range=True,
            failed=0.1,
        ),
        _measure(
            "bits_per_degree_of_freedom",
            "bits / degree of freedom",
            "the same over the dimensions of the set of functions that the weights can have; – "
            "where they differ between weights",
            3,
            of_range=True,
        ),
        _measure(
            "half_99",
            "half know",
            "associations of which half of the trainings come to know 99%, with 95% interval; "
            f"{FAILED} where a fifth of them or more fail on any set",
            0,
            of_range=True,
            failed=0.2,
        ),
        _measure(
            "certified_bits_per_parameter",
            "certified bits / parameter",
            "the most that any weights that were kept know, of any set of the board",
            3,
        ),
        _measure(
            "certified_set",
            "certified set",
            "the most associations of which any weights that were kept know 99%",
            0,
        ),
        _measure(
            "bits_per_byte",
            "bits / byte",
            "certified bits over the bytes of the weights, at the best of float32, bfloat16, int8 "
            "and int4; the most of any of the entry's weights, which may not be those of most bits",
            3,
        ),
        BoardColumn("n_params", "parameters", "all of them", 0, first=True),
        _measure(
            "gain",
            "gain",
            "bits over those after a quarter of the steps, with 95% interval; above 1 more steps "
            "may know more",
            3,
            of_range=True,
            first=False,
        ),
        _measure(
            "memorized",
            "associations",
            "known beyond guessing, a mean, with 95% interval",
            0,
            of_range=True,
            first=False,
        ),
        BoardColumn(
            "failed", "fail", f"share of trainings that know under {FAILING:.0%} of the median", 2
        ),
        _of_rows(OF_RUNS["steps"], "steps", 0),
        BoardColumn("tables", "tables", "label tables", 0),
        BoardColumn("inits", "starts", "initial weights of each label table", 0),
        BoardColumn("learning_rate", "learning rate", "that pilots chose", 4),
        BoardColumn("by", "by", "who found the weights; `you` for those of your folder"),
        BoardColumn("theorem", "theorem", "whose proof makes the weights"),
        BoardColumn("weights", "weights", "the file of the best weights"),
        BoardColumn("family", "family", "of architectures"),
        _of_rows(Task.shared_columns["vocab_size"], "N", 0),
        *(_of_rows(PROVENANCE[name]) for name in ("device", "memobench", "commit", "date")),
    )
}
FIRST = tuple(column for column in COLUMNS.values() if column.first)


def shown_columns(rows: pd.DataFrame) -> list[BoardColumn]:
    """The columns that tables of these rows have, the first ones, and `by` if not all are ours."""
    columns = [column for column in FIRST if rows[column.names[0]].notna().any()]
    return columns if (rows["by"] == OWN).all() else [*columns, COLUMNS["by"]]


# What entries of a track are ranked by: the first that they have.
MAIN = ["bits_per_parameter", "certified_bits_per_parameter"]
# What a row has before its columns.
PLACE = ("version", "budget", "track")


def names() -> list[str]:
    """The columns of every board, after which come options that some entry has."""
    own = [name for column in COLUMNS.values() for name in column.names]
    return [*PLACE, *own, Architecture.noun, *Architecture.shared_columns]


# --- Rows -------------------------------------------------------------------------------------


class _Key(NamedTuple):
    """The fields that tell entries apart."""

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

    Raises:
      theory.Violation: a run is beyond what is possible.
    """
    theorems.check(runs)
    best = _best_weights(certified)
    rows = [_row(key, {**row, **best.get(key, {})}) for key, row in _training_entries(runs)]
    rows += [_row(key, row) for key, row in best.items() if key.track not in TRAININGS]
    options = [name for name in architecture_columns() if name not in names()]
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
    sizes = {"architecture": architecture.name, "family": escape_unprintable(architecture.family)}
    sizes |= {**architecture.shared_cells(), **architecture.cells()}
    own = {"track": key.track, "budget": key.budget, "by": key.by, "version": VERSION}
    own |= {"entry": escape_unprintable(architecture.full_name)}
    return {**values, **sizes, **own, "vocab_size": families.VOCAB_SIZES[key.budget]}


def _ranks(board: pd.DataFrame) -> pd.DataFrame:
    """Ranks of all entries, those of weights by counts, which are exact.

    Of our own weights only equal ones share a rank. Any others are told apart where they differ by
    more than MARGIN.

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


def _training_entries(runs: pd.DataFrame) -> Iterator[tuple[_Key, dict[str, Any]]]:
    """The entries on tracks of training."""
    measured = capacity_summary.capacity_runs(runs).copy()
    if "by" not in measured:
        measured["by"] = OWN
    measured = measured.drop_duplicates(_SAME)
    records: list[Any] = measured.to_dict("records")
    tracks = np.array([track_of(row) for row in records], object)
    for track in TRAININGS:
        of_track = measured[tracks == track]
        rows: dict[Any, Any] = of_track.set_index(_SAME).to_dict("index")
        summaries: list[Any] = capacity_summary.summarize(of_track).to_dict("records")
        for found in summaries:
            row = rows[found["run_id"], found["by"]] | {"run_id": found["run_id"]}
            per = {
                f"bits_per_parameter{end}": found[f"bits{end}"] / row["n_params"]
                for end in ("", "_low", "_high")
            }
            per |= {f"gain{end}": found.get(f"gain{end}") for end in ("", "_low", "_high")}
            per |= {
                f"bits_per_degree_of_freedom{end}": found[f"bits{end}"]
                / found["degrees_of_freedom"]
                for end in ("", "_low", "_high")
            }
            per |= {"learning_rate": found["rate"]}
            per |= {"failed": found["failed"] / (found["tables"] * found["inits"])}
            architecture = from_cells(row).architecture
            key = _Key(track, found["budget"], found["by"], architecture)
            yield key, {**row, **found, **per}


def track_of(row: Mapping[str, Any]) -> str | None:
    """The track of training that a Capacity's row is on; None where it is not an entry.

    A row is one where task and training are the board's, the parameters meet the budget, and the
    label tables are those of seeds 0, 1, .., LEAST_TABLES of them at least.
    """
    if reason := reading_error(row):
        _log.warning("left out of the board: run %s: %s", row["run_id"], reason)
        return None
    made = from_cells(row)
    method: Any = made.method
    if (
        made.task.seed
        or placement_error(made.task, row["n_params"])
        or method.tables < LEAST_TABLES
    ):
        return None
    for track, training in TRAININGS.items():
        # The published protocol has its own learning rate.
        if method.training == training and (track == EXACT or method.rate_factors == (1.0,)):
            return track
    return None


def reading_error(row: Mapping[str, Any]) -> str | None:
    """The reason why a Capacity's row cannot be read, in a line; None where it can.

    Its kinds may be unknown, or its lists wrong.
    """
    try:
        made = from_cells(row)
        method: Any = made.method
        method.check_lists(made, {name: parse_list(row[name]) for name in method.row_columns()})
        # A user's own, whose code may raise anything.
        str(made.architecture.full_name)
        checking.require_true_fields(made.architecture, made.task)
    except Exception as error:
        return in_a_line(error)
    return None


def placement_error(task: Task, n_params: int) -> str | None:
    """The reason why weights have no place on the board, in a line; None where they have one.

    >>> placement_error(families.task(512, seed=40), n_params=512)
    'task_seed must be one of the 40 label tables of 512 parameters, 0 to 39, got 40.'
    """
    # A user's kind may say of itself that it equals any other.
    budget = task.n_examples if type(task) is Associations else None
    if budget not in TABLES or task != families.task(budget, task.seed):
        sets = ", ".join(f"{n} tokens at {each:,}" for each, n in families.VOCAB_SIZES.items())
        return (
            "its task must be one of the board's, as many associations of pairs as parameters: "
            f"{sets}."
        )
    if task.seed >= TABLES[budget]:
        return (
            f"task_seed must be one of the {TABLES[budget]} label tables of {budget:,} parameters, "
            f"0 to {TABLES[budget] - 1}, got {task.seed}."
        )
    if abs(n_params / budget - 1) > families.TOLERANCE:
        return (
            f"n_params must be within {families.TOLERANCE:.0%} of the budget of {budget:,}, got "
            f"{n_params:,}. Choose other sizes."
        )
    return None


def _best_weights(certified: Iterable[Mapping[str, Any]]) -> dict[_Key, dict[str, Any]]:
    """The most that the weights of every entry know, on their track and on an open one."""
    found: dict[_Key, list[Mapping[str, Any]]] = {}
    for row in certified:
        try:
            architecture, task = Architecture.from_row(row), Task.from_row(row)
            reason = placement_error(task, int(row["n_params"]))
            str(architecture.full_name)
            checking.require_true_fields(architecture, task)
        except Exception as error:
            reason = in_a_line(error)
        if reason:
            _log.warning("left out of the board: %s: %s", row["file"], reason)
            continue
        by = _text_or(row, "submitter", OWN)
        budget = int(row["n_sequences"])
        opened = OPEN if own_code.in_tree(type(architecture)) else OPEN_OWN
        for track in dict.fromkeys((_text_or(row, "track", opened), opened)):
            found.setdefault(_Key(track, budget, by, architecture), []).append(row)
    return {key: summarize_weights(rows) for key, rows in found.items()}


def _text_or(row: Mapping[str, Any], name: str, default: str) -> str:
    value = row.get(name)
    return default if value is None or value != value else str(value)


def summarize_weights(rows: list[Mapping[str, Any]]) -> dict[str, Any]:
    """The most that weights of one entry know, as columns of the board, from their certificates."""
    best = max(rows, key=lambda row: row["bits_per_parameter"])
    per_byte = [x for row in rows for name, x in row.items() if "bits_per_byte" in str(name)]
    # Of other tasks than the board's nothing may be known.
    counted = [row for row in rows if row["known"] is not None]
    sets = [row["n_examples"] for row in counted if is_complete(row["known"], row["n_examples"])]
    return {
        "n_params": best["n_params"],
        "certified_bits_per_parameter": best["bits_per_parameter"],
        "certified_set": max(sets, default=None),
        "bits_per_byte": max((x for x in per_byte if not pd.isna(x)), default=None),
        "weights": best.get("weights"),
        "theorem": best.get("theorem"),
    }
