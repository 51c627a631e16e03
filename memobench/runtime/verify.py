"""Checks a results folder: digests, ids, parameters, theorems and weights. It changes nothing.

An error is what no sweep writes: a file or the code is wrong. A note is what a reader of the table
should know. Whatever is raised by one file or row costs that file or row.

A digest is no signature, and most numbers of a row follow from nothing but its weights: those that
were kept, and those of constructions, which can be made again. Every file of weights is held
against its run, whether the row names it or not, and the summary says how many runs have none.
"""

import collections
import contextlib
import dataclasses
import math
import pathlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from memobench import certificates
from memobench.analysis import seeds as analysis
from memobench.analysis import theorems
from memobench.certificates import counting
from memobench.common import settings
from memobench.common.errors import (
    UnknownKind,
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
from memobench.methods.capacity import LISTED
from memobench.store import results, rows

# How far rounding takes two measurements of a run apart: relatively, or absolutely close to zero.
SAME = {"within": 1e-4, "zero": 1e-6}
# In what rows of a table had better agree.
_PROVENANCE = ("commit", "device", "memobench", "jax")
# How many items of a long list are shown.
_SHOWN = 5

_Row = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Report:
    """What is wrong with a folder, and what readers should know about it, a line each.

    without_weights: runs of which no weights are here or can be made again. recomputed: whether
    those of the others were held against their rows.
    """

    shards: int
    runs: int
    errors: tuple[str, ...]
    notes: tuple[str, ...]
    without_weights: int
    recomputed: bool

    @property
    def summary(self) -> str:
        counts = (self.shards, self.runs, len(self.errors), len(self.notes))
        text = ", ".join(map(pluralize, counts, ("shard", "run", "error", "note")))
        text += f"; nothing could check the measures of {pluralize(self.without_weights, 'run')}"
        others = self.runs - self.without_weights
        return text if self.recomputed else f"{text}, --recompute checks those of {others:,}"


@settings.pin
def verify(folder: results.Path, recompute: bool = False) -> Report:
    """A report on every file and every row of a folder.

    Args:
      folder: of shards.
      recompute: whether to run the weights that are kept, to make those of constructions again, and
        to compare what they know. A second for a run's, or as long as constructing took.

    Raises:
      UserError: there is no such folder.
    """
    folder = results.require_folder(folder, "name one of shards")
    check = _Check(folder, recompute)
    for path in results.shard_paths(folder):
        check.file(path)
    check.theory()
    return Report(
        shards=check.n_shards,
        runs=len(check.first),
        errors=tuple(check.errors),
        notes=tuple(check.notes()),
        without_weights=len(check.first.keys() - check.with_weights),
        recomputed=recompute,
    )


class _Check:
    """What is found while files are read one after another."""

    def __init__(self, folder: pathlib.Path, recompute: bool) -> None:
        self._folder, self._recompute = folder, recompute
        self.n_shards = 0
        self.errors: list[str] = []
        # What a note says, and the runs of which it says so.
        self._noted: dict[str, list[str]] = collections.defaultdict(list)
        self._provenance = {x: collections.Counter[str]() for x in _PROVENANCE}
        # The place and the measures of every run, where it was found first.
        self.first: dict[str, tuple[str, _Row]] = {}
        # Runs whose weights are here and can be run, or can be made again.
        self.with_weights: set[str] = set()
        self._rows: list[dict[str, Any]] = []
        self._lists = set(rows.lists())
        self._files: set[str] = set()
        with self._errors_at("the weights cannot be listed"):
            self._files = results.weights_names(folder)

    def file(self, path: pathlib.Path) -> None:
        name = escape_unprintable(path.name)
        try:
            read, provenance = results.read_shard(path)
        except Exception as error:
            self.errors.append(f"{name}: {reason(error)}; none of its rows is read")
            return
        self.n_shards += 1
        for column, counts in self._provenance.items():
            counts[str(provenance.get(column))] += len(read)
        for i, row in enumerate(read, start=1):
            self._row(f"{name}, row {i} ({row['run_id']})", row)
            if str(provenance.get("commit")).endswith("+"):
                self._noted["by code that differed from its commit"].append(row["run_id"])

    def _row(self, place: str, row: dict[str, Any]) -> None:
        # Lists take most of the memory, and no theorem is about them.
        compared = {name: x for name, x in row.items() if name not in self._lists}
        self._rows.append({**compared, "place": place})
        row = {name: row.get(name) for name in rows.all_columns()}
        measures = {name: row[name] for name in (*rows.MEASURES, "status", "method")}
        before, first = self.first.setdefault(row["run_id"], (place, measures))
        with self._errors_at(place):
            _require_same(measures, first, f"{before} has", "delete the wrong one")
        with self._errors_at(place):
            try:
                run = from_cells(row)
                check_code([run])
            except UnknownKind as error:
                # Only with the file that defines the kind can it be checked.
                self._noted[f"not checked, as {error}"].append(row["run_id"])
                return
            with self._errors_at(place):
                _check_model(run, row)
            with self._errors_at(place):
                self._check_weights(run, row)
            if run.method.cost(run).closed_form:
                self.with_weights.add(run.run_id)
                if self._recompute and place == before:
                    _make_again(run, measures)

    @contextlib.contextmanager
    def _errors_at(self, place: str) -> Iterator[None]:
        """Makes an error of whatever is raised within it."""
        try:
            yield
        except Exception as error:
            self.errors.append(f"{place}: {in_a_line(error)}")

    def _check_weights(self, run: Run, row: _Row) -> None:
        """Raises UserError where the file of a run's weights is not what its row says."""
        path = results.weights_path(self._folder, run.run_id)
        if path.name not in self._files:
            if row["weights_digest"] is not None:
                self._noted["of which the weights were kept and are deleted"].append(run.run_id)
            elif run.method.keeps_weights and row["status"] == "ok":
                self._noted["without weights, though their method keeps them"].append(run.run_id)
            return
        certificate, digest = certificates.read(path)
        self.with_weights.add(run.run_id)
        require(
            digest == row["weights_digest"],
            f"weights_digest={short_repr(row['weights_digest'])} is not that of {path.name}, "
            f"{digest!r}: the row or the file was changed; delete the wrong one",
        )
        require(
            certificate.task in run.method.tasks(run)
            and certificate.architecture == run.architecture
            and certificate.seed == run.seed,
            f"{path.name} holds weights of another run; delete it",
        )
        if self._recompute:
            check_weights(run, row, counting.count(certificate, ["float32"]))

    def theory(self) -> None:
        """Compares all rows with theorems and with certified optima, whichever shard has these."""
        with self._errors_at("not all rows could be compared with theorems"):
            table = analysis.add_floors(results.to_table(self._rows))
            for limit, measured, beyond in theorems.violations(table):
                for place, value in zip(table["place"][beyond], measured[beyond], strict=True):
                    self.errors.append(f"{place}: beyond {limit}: {value:.6g} measured")

    def notes(self) -> Iterator[str]:
        for name, counts in self._provenance.items():
            if len(counts) > 1:
                listed = (f"{value} ({n:,} runs)" for value, n in counts.most_common())
                yield f"{len(counts)} values of {name}: {_some(listed)}"
        for text, run_ids in self._noted.items():
            yield f"{pluralize(len(run_ids), 'run')} {text}: {_some(run_ids)}"
        if no_runs := self._files - {f"{x}{certificates.SUFFIX}" for x in self.first}:
            yield (
                f"{pluralize(len(no_runs), 'file')} among weights of no run that is here: "
                f"{_some(map(escape_unprintable, sorted(no_runs)))}"
            )


def check_weights(run: Run, row: _Row, counted: _Row) -> None:
    """Raises UserError where a run's row says other than was counted of its weights."""
    if row.get("best_bits") is not None:
        _check_best(row, counted["bits"])
        return
    first = counted["first"]
    require(
        first is None,
        f"the weights that were kept are of the first {first} examples, and the row of all; "
        "delete them",
    )
    # An example may be on the edge: rows are measured in float32, weights in double precision.
    edge = max(1.5 / counted["n_examples"], within := 1e-3)
    n_answers, chance = run.task.n_predicted, run.task.chance
    zeros = {
        "accuracy": edge,
        "memorized": edge * n_answers / (1 - chance),
        "bits": within * n_answers * math.log2(run.task.n_choices or 2),
        "loss": 1e-5,
    }
    for name, zero in zeros.items():
        require(
            agree(row[name], counted[name], within, zero),
            f"{name}={short_repr(row[name])}, but the weights that were kept have "
            f"{short_repr(counted[name])}; delete the wrong one",
        )


def _check_best(row: _Row, bits: float) -> None:
    """Raises UserError unless weights of these bits are the best of all models of the row."""
    best = row["best_bits"]
    require(
        agree(best, bits, 1e-3),
        f"best_bits={short_repr(best)}, but the weights that were kept know "
        f"{short_repr(bits)}; delete the wrong one",
    )
    most = max(row["bits"], *(bits for bits_L in row["rung_bits"] for bits in bits_L))
    require(
        most <= best + LISTED,
        f"best_bits must be the most of all models, {short_repr(most)}, got "
        f"{short_repr(best)}. Delete the row",
    )


def _check_model(run: Run, row: _Row) -> None:
    """Raises UserError where the method cannot make the model, or it has other parameters."""
    run.method.check_model(run)
    for name, count in models.counts(run.module(), run.task).items():
        # Rows may be older than a column of counts.
        known = row[name] is None or row[name] == count
        require(known, f"{name} must be {count} of such a model, got {row[name]}. Delete the row")


def _make_again(run: Run, measures: _Row) -> None:
    """Raises UserError where a run's weights, made again, have other measures."""
    from memobench.planner import packing
    from memobench.runtime import worker

    pack = packing.make_pack([run])
    (row,) = worker.rows_of(pack, run.method.train(pack, lambda steps: None))
    # Some cannot be made, and their rows say so.
    names = rows.MEASURES if measures["status"] == row["status"] else ("status",)
    made = {name: row[name] for name in names}
    _require_same(measures, made, "weights that were made again have", "delete the row")


def _require_same(measures: _Row, others: _Row, whose: str, fix: str) -> None:
    """Raises UserError where measures differ from others of the same run."""
    for name, other in others.items():
        require(
            agree(measures[name], other, **SAME),
            f"{name}={short_repr(measures[name])}, but {whose} {short_repr(other)}, which is more "
            f"than rounding; {fix}",
        )


def _some(texts: Iterable[str]) -> str:
    """The first few of a list, and how many more there are."""
    listed = list(texts)
    more = f" and {len(listed) - _SHOWN:,} more" if len(listed) > _SHOWN else ""
    return ", ".join(listed[:_SHOWN]) + more
