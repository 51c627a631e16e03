"""Checks a results folder: digests, ids, parameters, theorems and weights. It changes nothing.

An error is something that no sweep writes: a file or the code is wrong. A note is something that a
reader of the table should know. An exception in one file or row costs that file or row.

A digest is not a signature, and most numbers of a row follow from nothing but its weights: those
that were kept, and those of constructions, which can be made again. Every file of weights is
compared with its run, whether the row names it or not; the summary counts the runs without any.
"""

import collections
import contextlib
import math
import pathlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from memobench import certificates
from memobench.analysis import seeds as analysis
from memobench.analysis import theorems
from memobench.certificates import counting
from memobench.common import settings
from memobench.common.errors import (
    UnknownKind,
    UserError,
    agree,
    escape_unprintable,
    in_a_line,
    reason,
    require,
    short_repr,
)
from memobench.common.notation import pluralize
from memobench.core import module as models
from memobench.core.cells import check_code, from_cells
from memobench.core.run import Run
from memobench.methods.capacity_policy import LISTED_DIGITS
from memobench.planner import packing
from memobench.runtime import worker
from memobench.store import results, rows

# How far rounding takes two measurements of a run apart: relatively, or absolutely close to zero.
SAME = {"within": 1e-4, "zero": 1e-6}
# The last digit of bits that rows list.
_LISTED = 10.0**-LISTED_DIGITS
# A column that no other can have the name of.
_PLACE = "shard and row"
# Two machines round otherwise, and some trainings amplify it.
_MEASURED_TWICE = (
    "with rows that differ by more than rounding, as of trainings on two machines, or of a row "
    "that was changed; the one counts whose weights are kept, or the first that is read"
)
# Columns in which rows of a table had better agree.
_PROVENANCE = ("commit", "device", "memobench", "jax")

_Row = Mapping[str, Any]


class Report(NamedTuple):
    """The result of `verify`.

    Attributes:
      summary: a line of counts.
      errors: a line each.
      notes: a line each.
      runs: the number of runs that could be read.
    """

    summary: str
    errors: tuple[str, ...]
    notes: tuple[str, ...]
    runs: int


@settings.pin
def verify(folder: results.Path, recompute: bool = False) -> Report:
    """A report on every file and every row of a folder.

    Args:
      folder: of shards.
      recompute: whether to run the weights that are kept, to make those of constructions again, and
        to compare their measures. A second for a run's, or as long as constructing took.

    Raises:
      UserError: the folder does not exist.
    """
    folder = results.require_folder(folder, "name one of shards")
    check = _Check(folder, recompute)
    n_shards = sum(check.check_file(path) for path in results.shard_paths(folder))
    check.check_digests()
    check.check_theory()
    notes = tuple(check.list_notes())
    n_runs, n_checked = len(check.first), len(check.first.keys() & check.with_weights)
    counts = (n_shards, n_runs, len(check.errors), len(notes))
    summary = ", ".join(map(pluralize, counts, ("shard", "run", "error", "note")))
    summary += f"; nothing could check the measures of {pluralize(n_runs - n_checked, 'run')}"
    summary += "" if recompute else f", --recompute checks those of {n_checked:,}"
    return Report(summary, tuple(check.errors), notes, n_runs)


class _Check:
    """Reads files one after another, and collects errors and notes."""

    def __init__(self, folder: pathlib.Path, recompute: bool) -> None:
        self._folder, self._recompute = folder, recompute
        self.errors: list[str] = []
        # The runs of each note, and the number of rows with each value of a column of provenance.
        self._noted: dict[str, list[str]] = collections.defaultdict(list)
        self._provenance = {x: collections.Counter[str]() for x in _PROVENANCE}
        # The place and the measures of every run, where it was found first.
        self.first: dict[str, tuple[str, _Row]] = {}
        # Runs with weights that are here, or can be made again.
        self.with_weights: set[str] = set()
        # Runs with a row that names other weights than those kept, each with a line on it, and runs
        # with a row that names those.
        self._unlike: dict[str, str] = {}
        self._alike: set[str] = set()
        self._rows: list[dict[str, Any]] = []
        self._lists = set(rows.lists())
        self._files: set[str] = set()
        with self._catch_errors("the weights cannot be listed"):
            self._files = results.weights_names(folder)

    def check_file(self, path: pathlib.Path) -> bool:
        """Checks a shard and its rows; tells if it could be read."""
        name = escape_unprintable(path.name)
        try:
            read, provenance = results.read_shard(path)
        except Exception as error:
            self.errors.append(f"{name}: {reason(error)}; none of its rows is read")
            return False
        for column, counts in self._provenance.items():
            counts[str(provenance.get(column))] += len(read)
        for i, row in enumerate(read, start=1):
            self._check_row(f"{name}, row {i} ({row['run_id']})", row)
            if str(provenance.get("commit")).endswith("+"):
                self._noted["by code that differed from its commit"].append(row["run_id"])
        return True

    def _check_row(self, place: str, row: dict[str, Any]) -> None:
        # Lists take most of the memory, and no theorem is about them.
        compared = {name: x for name, x in row.items() if name not in self._lists}
        self._rows.append({**compared, _PLACE: place})
        row = {name: row.get(name) for name in rows.all_columns()}
        measures = {name: row[name] for name in (*rows.MEASURES, "status", "method")}
        before, first = self.first.setdefault(row["run_id"], (place, measures))
        with self._catch_errors(place):
            try:
                run = from_cells(row)
                check_code([run])
            except UnknownKind as error:
                # Only with the file that defines the kind can it be checked.
                self._noted[f"not checked, as {error}"].append(row["run_id"])
                return
            with self._catch_errors(place):
                _check_model(run, row)
            with self._catch_errors(place):
                self._check_file_of_weights(place, run, row)
            if run.method.cost(run).closed_form:
                self.with_weights.add(run.run_id)
                _require_same(measures, first, f"{before} has", "delete the wrong one")
                if self._recompute and place == before:
                    _make_again(run, measures)
            elif _difference(measures, first):
                self._noted[_MEASURED_TWICE].append(run.run_id)

    @contextlib.contextmanager
    def _catch_errors(self, place: str) -> Iterator[None]:
        """Turns an exception within the block into an error of the report."""
        try:
            yield
        except Exception as error:
            self.errors.append(f"{place}: {in_a_line(error)}")

    def _check_file_of_weights(self, place: str, run: Run, row: _Row) -> None:
        """Raises UserError where the file of a run's weights holds others than its row's."""
        path = results.weights_path(self._folder, run.run_id)
        if path.name not in self._files:
            if row["weights_digest"] is not None:
                self._noted["of which the weights were kept and are deleted"].append(run.run_id)
            elif run.method.keeps_weights and row["status"] == "ok":
                self._noted["without weights, though their method keeps them"].append(run.run_id)
            return
        certificate, digest = certificates.read(path)
        self.with_weights.add(run.run_id)
        if digest == row["weights_digest"]:
            self._alike.add(run.run_id)
        else:
            self._unlike[run.run_id] = (
                f"{place}: weights_digest={short_repr(row['weights_digest'])} is not that of "
                f"{path.name}, {digest!r}: the row or the file was changed; delete the wrong one"
            )
        require(
            certificate.task in run.method.tasks(run)
            and certificate.architecture == run.architecture
            and certificate.seed == run.seed,
            f"{path.name} holds weights of another run; delete it",
        )
        # A run whose loss overflowed has no measures; its last weights may be finite.
        if self._recompute and row["status"] != "diverged":
            check_weights(run, row, counting.count(certificate, ["float32"]))

    def check_digests(self) -> None:
        """Compares digests of weights, once all rows of a run are known: its file is one row's.

        Two machines that trained the same run round otherwise.
        """
        for run_id, line in self._unlike.items():
            if run_id in self._alike:
                self._noted["of which another row's weights are kept"].append(run_id)
            else:
                self.errors.append(line)

    def check_theory(self) -> None:
        """Compares all rows with theorems and with certified optima, whichever shard has these."""
        with self._catch_errors("not all rows could be compared with theorems"):
            table = analysis.add_floors(results.to_table(self._rows))
            for limit, measured, beyond in theorems.violations(table):
                for place, value in zip(table[_PLACE][beyond], measured[beyond], strict=True):
                    self.errors.append(f"{place}: beyond {limit}: {value:.6g} measured")

    def list_notes(self) -> Iterator[str]:
        for name, counts in self._provenance.items():
            if len(counts) > 1:
                listed = (f"{value} ({n:,} runs)" for value, n in counts.most_common())
                yield f"{len(counts)} values of {name}: {_abridge(listed)}"
        for text, of_rows in self._noted.items():
            run_ids = list(dict.fromkeys(of_rows))
            yield f"{pluralize(len(run_ids), 'run')} {text}: {_abridge(run_ids)}"
        if no_runs := self._files - {f"{x}{certificates.SUFFIX}" for x in self.first}:
            yield (
                f"{pluralize(len(no_runs), 'file')} among weights of no run that is here: "
                f"{_abridge(map(escape_unprintable, sorted(no_runs)))}"
            )


def check_weights(run: Run, row: _Row, counted: _Row) -> None:
    """Raises UserError where a row differs from the counts of its weights."""

    def check(name: str, known: float, zero: float = 0.0) -> None:
        require(
            agree(row[name], known, 1e-3, zero),
            f"{name}={short_repr(row[name])}, but the weights that were kept have "
            f"{short_repr(known)}; delete the wrong one",
        )

    if row.get("best_bits") is not None:
        check("best_bits", counted["bits"], _LISTED)
        most = max(row["bits"], *(bits for bits_L in row["rung_bits"] for bits in bits_L))
        require(
            most <= row["best_bits"] + _LISTED,
            f"best_bits must be the most of all models, {short_repr(most)}, got "
            f"{short_repr(row['best_bits'])}. Delete the row",
        )
        return
    if row.get("size_bits") is not None:
        # The best of the whole set are kept.
        most = max(bits for bits_T in row["size_bits"][-1] for bits in bits_T)
        require(
            agree(most, counted["bits"], 1e-3, _LISTED),
            f"size_bits of the whole set are at most {short_repr(most)}, but the weights that were "
            f"kept have {short_repr(counted['bits'])} bits; delete the wrong one",
        )
        return
    first = counted["first"]
    require(
        first is None,
        f"the weights that were kept are of the first {first} examples, and the row of all; "
        "delete them",
    )
    # An example may be on the edge: rows are measured in float32, weights in double precision.
    edge = max(1.5 / counted["n_examples"], 1e-3)
    n_answers = run.task.n_predicted
    check("accuracy", counted["accuracy"], edge)
    check("memorized", counted["memorized"], edge * n_answers / (1 - run.task.chance))
    check("bits", counted["bits"], 1e-3 * n_answers * math.log2(run.task.n_choices or 2))
    check("loss", counted["loss"], 1e-5)


def _check_model(run: Run, row: _Row) -> None:
    """Raises UserError where the method cannot make the model, or it has other parameters."""
    run.method.check_model(run)
    for name, count in models.counts(run.module(), run.task).items():
        # Rows may be older than a column of counts.
        known = row[name] is None or row[name] == count
        require(known, f"{name} must be {count} of such a model, got {row[name]}. Delete the row")


def _make_again(run: Run, measures: _Row) -> None:
    """Raises UserError where a run's weights, made again, have other measures."""
    pack = packing.make_pack([run])
    (row,) = worker.rows_of(pack, run.method.train(pack, lambda steps: None))
    # Some cannot be made, and their rows say so.
    names = rows.MEASURES if measures["status"] == row["status"] else ("status",)
    made = {name: row[name] for name in names}
    _require_same(measures, made, "weights that were made again have", "delete the row")


def _require_same(measures: _Row, others: _Row, source: str, fix: str) -> None:
    """Raises UserError where measures differ from others of the same run."""
    if name := _difference(measures, others):
        raise UserError(
            f"{name}={short_repr(measures[name])}, but {source} {short_repr(others[name])}, which "
            f"is more than rounding; {fix}"
        )


def _difference(measures: _Row, others: _Row) -> str | None:
    """The name of the first measure that differs from another of the same run by more than SAME."""
    differing = (x for x, other in others.items() if not agree(measures[x], other, **SAME))
    return next(differing, None)


def _abridge(texts: Iterable[str]) -> str:
    """The first five texts of a list, and the number of the others."""
    listed = list(texts)
    return ", ".join(listed[:5]) + (f" and {len(listed) - 5:,} more" if listed[5:] else "")
