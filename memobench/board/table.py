"""The standard board: its columns, entries and rows, of typical capacities and certified weights.

Version v3, never mixed with another. A row is an architecture at a budget of parameters, all
counted, on a track. The track of training says what is typical: the most over set sizes of means
over label tables, with its interval. The others say what weights can do: weights that were run,
whoever found them.
"""

import dataclasses
import functools
import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from memobench.analysis import theorems
from memobench.analysis.freedom import count_freedom
from memobench.board import capacity_summary, families, peak
from memobench.checks import architectures as checking
from memobench.common.errors import UserError, escape_unprintable, in_a_line, require, short_repr
from memobench.core import module as models
from memobench.core import own_code
from memobench.core.architecture import Architecture
from memobench.core.cells import from_cells
from memobench.core.columns import Column
from memobench.core.run import Run
from memobench.core.task import Task
from memobench.methods.capacity import Capacity
from memobench.methods.peak import Peak
from memobench.methods.thresholds import FAILING, is_complete
from memobench.methods.training import Training
from memobench.store.rows import PROVENANCE, architecture_columns, parse_list
from memobench.tasks.associations import Associations

_log = logging.getLogger("memobench")

VERSION = "v3"
# What pages put behind a number of trainings of which many fail.
FAILED = "†"
# And behind a best setting beyond which none was tried.
EDGE = "‡"
# Submitters of our rows, and of those of the user's folder.
OWN, YOURS = capacity_summary.OWN, "you"
EXACT, CONSTRUCTED, OPEN = "exact", "constructed", "open"
# Of architectures that memobench does not have.
OPEN_OWN = "own"
TRACKS = {
    EXACT: f"trained by the exact gradient, {peak.TRAINING.steps:,} steps, at the set size and "
    "learning rate of most bits",
    CONSTRUCTED: "weights of a proof, for as many associations as it promises",
    OPEN: "the best weights of each entry, found by any means",
    OPEN_OWN: "the same of architectures that memobench does not have, defined by submitted code",
}
# By how much, as a share, weights of others have to know more than those that they rank above.
MARGIN = 0.02
# Label tables of every budget on which weights count, of seeds 0, 1, ..: those of the trainings of
# `board/typical`.
LABEL_TABLES = dict.fromkeys(families.VOCAB_SIZES, 6)
LABEL_TABLES |= {256: 96, 512: 40, 1024: 24, 2048: 12, 4096: 8}
# The sets of the board with their budgets: as many associations as parameters, and those of peaks.
_SETS: dict[Task, int] = {
    of(budget): budget for of in (families.task, peak.task) for budget in families.VOCAB_SIZES
}


def run(architecture: Architecture, budget: int) -> Run:
    """The run that puts an architecture on the board.

    Raises:
      UserError: the budget is unknown, or the parameters miss it.

    >>> from memobench.models.transformer import MLP
    >>> run(MLP(d_model=3, d_head=3, d_mlp=17, heads="full"), budget=256).method.tables
    24
    """
    task = peak.task(budget)
    require(
        isinstance(architecture, Architecture),
        f"architecture must be a spec such as MLP(..), got {short_repr(architecture)}.",
    )
    checking.require_sound([(architecture, task)])
    n_params, _ = models.count_parameters(architecture.module_for(task), task.context_length)
    if reason := placement_error(task, n_params):
        # Of the board's own task it is the number of parameters.
        fit = families.sizes_that_fit(architecture, budget)
        such = f", such as {' or '.join(fit)}" * bool(fit)
        raise UserError(f"architecture {architecture.name}: {reason.rstrip('.')}{such}.")
    return Run(task=task, architecture=architecture, method=peak.method(budget))


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
      failed: the column of the share of failed trainings, and from which share on it is marked.
    """

    name: str
    label: str
    meaning: str
    digits: int | None = None
    first: bool = False
    of_range: bool = False
    is_measure: bool = False
    failed: tuple[str, float] | None = None

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
        is_marked = self.failed is not None and row.get(self.failed[0], 0) >= self.failed[1]
        return text + FAILED * is_marked

    def _text(self, cell: Any) -> str:
        return str(cell) if self.digits is None else f"{cell:,.{self.digits}f}".replace("inf", "∞")


class SetColumn(BoardColumn):
    """A column of sizes of sets, which says where one is the largest of its budget."""

    def text(self, row: Mapping[Any, Any]) -> str:
        """The text of it on pages.

        >>> COLUMNS["set_size"].text({"set_size": 256.0, "budget": 256})
        '256‡'
        """
        is_edge = row.get(self.name) == peak.sizes(row["budget"])[-1]
        return super().text(row) + EDGE * is_edge


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
            "with room for failures that few label tables lack, share a range; a single ratio with "
            "its interval, as in the answer above, may be decided where ranks overlap",
            0,
            first=True,
            of_range=True,
        ),
        BoardColumn("entry", "entry", "family and sizes of the architecture", first=True),
        _measure(
            "bits_per_parameter",
            "bits / parameter",
            "the mean over label tables at the best set size, and the learning rate best over all "
            "sizes, with a 95% interval: half of the tables choose both for the other half; "
            f"{FAILED} where a tenth of the trainings there or more fail: they know less than "
            f"{FAILING:.0%} of their median",
            3,
            of_range=True,
            failed=("failed", 0.1),
        ),
        SetColumn(
            "set_size",
            "set size",
            f"associations of the set on which it knows most; {EDGE} where that is the largest one",
            0,
            first=True,
        ),
        BoardColumn("set_size_per_parameter", "set / parameters", "the same over parameters", 2),
        BoardColumn("share_known", "known", "share of that set that is known, a mean", 2, True),
        _measure(
            "overfull_bits_per_parameter",
            "overfull bits / parameter",
            "mean bits / parameter of a set as large as the budget; by chance it may be more than "
            "those of the best size, as no size was chosen for it",
            3,
        ),
        BoardColumn(
            "bits_per_degree_of_freedom",
            "bits / degree of freedom",
            "bits at the peak over the dimensions of the set of functions that the weights can "
            "have; – where they differ between weights",
            3,
            first=True,
        ),
        _measure(
            "half_99",
            "half know",
            "associations of which half of the trainings come to know 99%, with 95% interval, "
            f"where board/typical measured it; {FAILED} where a fifth or more of its trainings on "
            f"sets below {FAILING:.0%} of that do not, so that some fail at any size",
            0,
            of_range=True,
            failed=("failed_sets", 0.2),
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
        BoardColumn(
            "failed",
            "fail",
            f"share of trainings at the peak that know under {FAILING:.0%} of their median",
            2,
        ),
        BoardColumn(
            "failed_sets",
            "fail on smaller sets",
            f"share of trainings on sets below {FAILING:.0%} of what half know that do not come to "
            "know 99%; of five or more",
            2,
        ),
        BoardColumn("tables", "tables", "label tables", 0),
        BoardColumn("learning_rate", "learning rate", "at the peak", 4),
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
      runs: of them Peaks on the board's grid are entries, and Capacities on its sets say which
        sets half of the trainings know; others are left out. A column `by` says whose they are,
        memobench's own without it.
      certified: a row for every file of weights, as `certificates.counting.certify` gives it.
        Columns `submitter`, memobench without it, `track`, open without it, `weights` (the path
        that pages link to) and `theorem` say more.

    Raises:
      theory.Violation: a run is beyond what is possible.
    """
    theorems.check(runs)
    best = _best_weights(certified)
    rows = [_row(key, {**row, **best.get(key, {})}) for key, row in _training_entries(runs)]
    rows += [_row(key, row) for key, row in best.items() if key.track != EXACT]
    options = [name for name in architecture_columns() if name not in names()]
    board = pd.DataFrame(rows, columns=[*names(), *options])
    board = board.assign(**_ranks(board))
    # Means are in order; of weights those that others have to pass come first.
    is_weights = board["track"] != EXACT
    keys = {
        "budget": board["budget"],
        "track": board["track"].map(list(TRACKS).index),
        "first": board["rank_low"].where(is_weights, 0),
        "is_others": is_weights & (board["by"] != OWN),
        "known": -board[MAIN].bfill(axis=1).iloc[:, 0].astype(float),
    }
    order = pd.DataFrame(keys).sort_values(list(keys)).index
    shown = [*names(), *(name for name in options if board[name].notna().any())]
    return board.loc[order, shown].reset_index(drop=True)


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
    weights = board[board["track"] != EXACT]
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
    """The entries on the track of training."""
    if "by" not in runs:
        runs = runs.assign(by=OWN)
    measured = runs[(runs["status"] == "ok") & runs["method"].isin([Peak.name, Capacity.name])]
    measured = measured.drop_duplicates(_SAME)
    records: list[Any] = measured.to_dict("records")
    entries = [row for row in records if track_of(row)]
    typical = {
        _key(row): capacity_summary.summarize_run(row) for row in records if is_of_overfull_set(row)
    }
    rows = {(row["run_id"], row["by"]): row for row in entries}
    table = pd.DataFrame(entries, columns=runs.columns)
    summaries: list[Any] = peak.peaks(table).to_dict("records")
    for found in summaries:
        row = rows[found["run_id"], found["by"]]
        key, freedom = _key(row), count_freedom(row)
        row |= {name: found[name] for name in ("rank_low", "rank_high", "learning_rate")}
        for end in ("", "_low", "_high"):
            row[f"bits_per_parameter{end}"] = found[f"bits{end}"]
        if (of_set := typical.get(key)) is not None and "half_99" in of_set:
            row |= {name: of_set[name] for name in (*COLUMNS["half_99"].names, "failed_sets")}
        row |= {
            "bits_per_degree_of_freedom": found["bits"] * row["n_params"] / freedom,
            "set_size": found["n_examples"],
            "set_size_per_parameter": found["n_examples"] / row["n_params"],
            "share_known": found["known"],
            "overfull_bits_per_parameter": found["of_budget"],
            "failed": found["failed"] / found["tables"],
        }
        yield key, row


def _key(row: Mapping[str, Any]) -> _Key:
    """The entry of a row of training."""
    made = from_cells(row)
    return _Key(EXACT, _SETS[made.task.replace(seed=0)], row["by"], made.architecture)


def track_of(row: Mapping[str, Any]) -> str | None:
    """The track of training that a Peak's row is on; None where it is not an entry."""
    if row["method"] != Peak.name or (made := _read(row)) is None:
        return None
    return None if entry_error(made, row["n_params"]) else EXACT


def entry_error(run: Run, n_params: int) -> str | None:
    """The reason why the run of a Peak is not an entry, in a line; None where it is one.

    It is one of the board's grid whose parameters meet the budget, whose label tables are those of
    seeds 0, 1, .., as many as an estimate needs, and whose initial weights nobody chose.
    """
    method: Any = run.method
    if reason := placement_error(run.task, n_params):
        return reason
    if run.seed or run.task.seed:
        return f"its seeds must be 0, got seed={run.seed} and task_seed={run.task.seed}."
    if method.steps != peak.TRAINING.steps:
        return f"it must train for {peak.TRAINING.steps:,} steps, got {method.steps:,}."
    budget = _SETS[run.task]
    grid = peak.method(budget).replace(tables=method.tables)
    is_of_grid = run.task == peak.task(budget) and method == grid
    if not is_of_grid or method.tables < peak.LEAST_TABLES:
        return (
            f"its sets, learning rates and training must be those of memobench.board_run, with "
            f"{peak.LEAST_TABLES} label tables at least."
        )
    return None


def is_of_overfull_set(row: Mapping[str, Any], training: Training = peak.TRAINING) -> bool:
    """True for a Capacity's row of as many associations as its budget has parameters.

    Of label tables 0, 1, .., of initial weights that nobody chose, and of models that are trained
    like this.
    """
    if row["method"] != Capacity.name or (made := _read(row)) is None:
        return False
    method: Any = made.method
    is_seeded = made.seed or made.task.seed
    is_placed = not is_seeded and not placement_error(made.task, row["n_params"])
    return (
        is_placed
        and made.task == families.task(_SETS[made.task])
        and method.training == training
        and method.tables >= peak.LEAST_TABLES
    )


def _read(row: Mapping[str, Any]) -> Run | None:
    """The run of a row; None for one that cannot be read, with a warning."""
    if reason := reading_error(row):
        _log.warning("left out of the board: run %s: %s", row["run_id"], reason)
        return None
    return from_cells(row)


def reading_error(row: Mapping[str, Any]) -> str | None:
    """The reason why the row of a Peak or a Capacity cannot be read, in a line; None where it can.

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


def find_budget(task: Task) -> int | None:
    """The budget of parameters that a set of the board is for; None for another set."""
    # A user's kind may say of itself that it equals any other.
    return _SETS.get(task.replace(seed=0)) if type(task) is Associations else None


def placement_error(task: Task, n_params: int) -> str | None:
    """The reason why weights have no place on the board, in a line; None where they have one.

    >>> placement_error(families.task(512, seed=40), n_params=512)
    'task_seed must be one of the 40 label tables of 512 parameters, 0 to 39, got 40.'
    """
    if (budget := find_budget(task)) is None:
        sets = ", ".join(f"{n} tokens at {each:,}" for each, n in families.VOCAB_SIZES.items())
        return (
            "its task must be one of the board's, as many associations of pairs as parameters: "
            f"{sets}; or the largest set of memobench.board.peak.task(budget)."
        )
    if task.seed >= (n_tables := LABEL_TABLES[budget]):
        return (
            f"task_seed must be one of the {n_tables} label tables of {budget:,} parameters, "
            f"0 to {n_tables - 1}, got {task.seed}."
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
        by, budget = _text_or(row, "submitter", OWN), _SETS[task.replace(seed=0)]
        opened = OPEN if own_code.in_tree(type(architecture)) else OPEN_OWN
        for track in dict.fromkeys((_text_or(row, "track", opened), opened)):
            if track in TRACKS:  # Weights of board v2 may be of one that is gone.
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
