"""Checks a results folder: its files, ids, measures and provenance. It changes nothing.

Whatever can be derived is derived again. An error is what no sweep writes: a file or the code is
wrong. A note is what a reader of the table should know.

Numbers of a row that nothing else determines are checked by weights: those that were kept, and
those of constructions, which can be made again. Whoever writes a row decides whether it names its
weights, so every file of weights is held against its run, and the summary says how many runs have
none. Whatever is raised by one file or row costs that file or row.
"""

import collections
import contextlib
import dataclasses
import datetime
import pathlib
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from memobench import atomic, certificates, settings, theory
from memobench.certificates import counting
from memobench.columns import printable, require, shown
from memobench.errors import UnknownKind, in_a_line, reason
from memobench.notation import plural
from memobench.runs import Run, check_code, from_cells
from memobench.table import analysis, checks, results, rows
from memobench.table.consistency import agree

# Rows that are compared with theorems together; a table of them takes little memory.
ROWS_AT_ONCE = 4096
# A temporary file older than this was left by a writer that was killed.
LEFTOVER_SECONDS = 3600.0
# How far rounding takes two measurements of a run apart: relatively, or absolutely close to zero.
SAME = {"within": 1e-4, "zero": 1e-6}
# A date before is that of a clock that was not set.
FIRST_YEAR = 2025
# How many items of a long list are shown.
_SHOWN = 5

_Row = dict[str, Any]
_Violation = tuple[theory.Limit, pd.Series, np.ndarray]


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
        counts = {
            "shard": self.shards,
            "run": self.runs,
            "error": len(self.errors),
            "note": len(self.notes),
        }
        text = ", ".join(f"{n:,} {name}{'s' * (n != 1)}" for name, n in counts.items())
        text += f"; nothing could check the measures of {plural(self.without_weights, 'run')}"
        others = self.runs - self.without_weights
        return text if self.recomputed else f"{text}, --recompute checks those of {others:,}"


@settings.pinned
def verify(folder: results.Path, recompute: bool = False) -> Report:
    """Checks every file and every row of a folder.

    Args:
      folder: of shards.
      recompute: whether to run the weights that are kept, to make those of constructions again, and
        to compare what they know. A second for a run's, or as long as constructing took.

    Raises UserError where there is no folder.
    """
    folder = results.require_folder(folder, "name one of shards")
    check = _Check(folder, recompute)
    for path in results.shard_paths(folder):
        check.file(path)
    check.theory()
    check.floors()
    if recompute:
        check.recompute()
    check.errors += results.how_to_migrate(folder, check.old, check.unsealed)
    return Report(
        shards=check.n_shards,
        runs=len(check.first),
        errors=tuple(check.errors),
        notes=(*check.notes(), *_leftovers(folder)),
        without_weights=check.without_weights,
        recomputed=recompute,
    )


class _Check:
    """What is found while files are read one after another."""

    def __init__(self, folder: pathlib.Path, recompute: bool) -> None:
        self._folder, self._recompute = folder, recompute
        self.errors: list[str] = []
        # What lies among weights; runs whose own were kept and are gone, and those that never had
        # any though their method keeps them.
        self._files: set[str] = set()
        try:
            self._files = results.weights_names(folder)
        except OSError as error:
            self.errors.append(f"the weights cannot be listed: {reason(error)}")
        self._deleted: list[str] = []
        self._never_kept: list[str] = []
        # Runs whose weights are here and can be run.
        self._kept: set[str] = set()
        self._misdated: list[str] = []
        self.n_shards = 0
        # Shards of earlier versions, shards without a digest, and shards that were migrated.
        self.old: list[str] = []
        self.unsealed: list[str] = []
        self._migrated = results.migrated(folder)
        # The place and the measures of every run, where it was found first.
        self.first: dict[str, tuple[str, _Row]] = {}
        self._again: list[tuple[str, str]] = []
        self._waiting: list[tuple[str, _Row]] = []
        self._judged: list[pd.DataFrame] = []
        # Runs whose weights are solved for: where they were found first, and their measures.
        self._solved: dict[str, tuple[str, Run, _Row]] = {}
        self._provenance: dict[str, collections.Counter] = collections.defaultdict(
            collections.Counter
        )
        self._unknown: collections.Counter[str] = collections.Counter()
        self._unchecked: dict[str, list[str]] = collections.defaultdict(list)

    def file(self, path: pathlib.Path) -> None:
        name = printable(path.name)
        try:
            read, provenance, sealed = results.read_shard(path)
        except results.OldSpecs:
            self.old.append(path.name)
            return
        except Exception as error:
            self.errors.append(f"{name}: {reason(error)}; none of its rows is read")
            return
        if not sealed:
            self.unsealed.append(path.name)
            if path.stem in self._migrated:
                return
        self.n_shards += 1
        self._date(name, provenance["date"])
        for column in ("commit", "device", "memobench", "jax"):
            self._provenance[column][str(provenance.get(column))] += len(read)
        stem = results.shard_name(row["run_id"] for row in read)
        if path.stem != stem and not path.stem.startswith(f"{stem}-"):
            self.errors.append(
                f"{name}: a shard of its runs is named {stem}.json; it was renamed, or rows were "
                "removed or added"
            )
        for i, row in enumerate(read, start=1):
            self._row(f"{name}, row {i} ({row['run_id']})", row)

    def _row(self, place: str, row: _Row) -> None:
        run_id = row["run_id"]
        measures = {name: row[name] for name in (*rows.MEASURES, "status", "method")}
        if run_id in self.first:
            self._twice(place, run_id, measures)
        else:
            self.first[run_id] = place, measures
        self._unknown.update(row.keys() - rows.row_columns().keys())
        self._wrong(
            place, self._contradictions({name: row.get(name) for name in rows.all_columns()})
        )
        self._waiting.append((place, row))
        if len(self._waiting) >= ROWS_AT_ONCE:
            self.theory()

    def _contradictions(self, row: _Row) -> Iterator[str]:
        """What is inconsistent in a row that has all columns, with values in their domains."""
        try:
            run = from_cells(row)
            check_code([run])
        except UnknownKind as error:
            # Only with the file that defines the kind can it be checked.
            self._unchecked[str(error)].append(row["run_id"])
            return
        except Exception as error:
            yield in_a_line(error)
            return
        place, measures = self.first[row["run_id"]]
        if run.method.cost(run).closed_form and run.run_id not in self._solved:
            self._solved[run.run_id] = place, run, measures
        for check in (*checks.CONSISTENCY, self._check_weights):
            try:
                check(run, row)
            except checks.Unchecked as unchecked:
                self._unchecked[str(unchecked)].append(row["run_id"])
            except Exception as error:
                yield in_a_line(error)

    def _check_weights(self, run: Run, row: Mapping[str, Any]) -> None:
        """Raises UserError where the file of a run's weights is not what its row says."""
        path = results.weights_path(self._folder, run.run_id)
        if path.name not in self._files:
            if row["weights_digest"] is not None:
                self._deleted.append(run.run_id)
            elif run.method.keeps_weights and row["status"] == "ok":
                self._never_kept.append(run.run_id)
            return
        certificate, digest = certificates.read(path)
        self._kept.add(run.run_id)
        require(
            digest == row["weights_digest"],
            f"weights_digest={shown(row['weights_digest'])} is not that of {path.name}, "
            f"{digest!r}: the row or the file was changed; delete the wrong one",
        )
        require(
            certificate.task in run.method.tasks(run)
            and certificate.architecture == run.architecture
            and certificate.seed == run.seed,
            f"{path.name} holds weights of another run; delete it",
        )
        if self._recompute:
            run.method.check_weights(run, row, counting.count(certificate, ["float32"]))

    def _twice(self, place: str, run_id: str, measures: _Row) -> None:
        before, first = self.first[run_id]
        for name, value in measures.items():
            if not agree(value, first[name], **SAME):
                self.errors.append(
                    f"{place}: {name}={shown(value)}, and {shown(first[name])} in {before}, which "
                    "is more than rounding; keep the shard whose weights are here, or delete both "
                    "and run it again"
                )
                return
        self._again.append((place, before))

    def theory(self) -> None:
        """Compares the waiting rows with theorems, and keeps of them what floors are about."""
        waiting, self._waiting = self._waiting, []
        with self._compared("theorems"):
            table = results.to_table([row for _, row in waiting])
            table = table.assign(place=[place for place, _ in waiting])
            # Of one type, whatever a column holds in these rows.
            self._judged.append(table[["place", *analysis.of_floors()]].astype(object))
            self._beyond(table, theory.violations(table))

    def floors(self) -> None:
        """Compares all runs with certified optima, whichever shards these are in."""
        with self._compared("optima"):
            table = analysis.with_floors(pd.concat(self._judged, ignore_index=True))
            self._beyond(table, theory.violations(table, [theory.PROPOSITION_1]))

    @contextlib.contextmanager
    def _compared(self, what: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.errors.append(f"not all rows could be compared with {what}: {in_a_line(error)}")

    def _beyond(self, table: pd.DataFrame, found: Iterable[_Violation]) -> None:
        for limit, measured, beyond in found:
            for place, value in zip(table["place"][beyond], measured[beyond], strict=True):
                self.errors.append(f"{place}: beyond {limit}: {value:.6g} measured")

    def recompute(self) -> None:
        """Makes weights again that are solved for, and compares what they know."""
        for place, run, measures in self._solved.values():
            try:
                self._wrong(place, _differences(run, measures))
            except Exception as error:
                self.errors.append(f"{place}: cannot be made again: {in_a_line(error)}")

    @property
    def without_weights(self) -> int:
        """How many runs have no weights here and none that can be made again."""
        return len(self.first.keys() - self._kept - self._solved.keys())

    def _date(self, name: str, date: str) -> None:
        try:
            found = datetime.datetime.fromisoformat(date)
        except ValueError as error:
            self.errors.append(f"{name}: date={date!r} is not a date ({error}); fix it")
            return
        latest = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=1)
        if found.year < FIRST_YEAR or found > latest:
            self._misdated.append(f"{name} ({date})")

    def _wrong(self, place: str, messages: Iterable[str]) -> None:
        self.errors.extend(f"{place}: {message}" for message in messages)

    def notes(self) -> Iterator[str]:
        if self._again:
            place, before = self._again[0]
            yield (
                f"{len(self._again):,} runs are in several shards, with measures that differ by "
                f"rounding alone ({place}, and {before})"
            )
        if self._misdated:
            yield (
                f"{plural(len(self._misdated), 'shard')} of a date before {FIRST_YEAR} or to come, "
                f"so that a clock was wrong: {_some(self._misdated)}"
            )
        for name, counts in self._provenance.items():
            if len(counts) > 1:
                listed = (f"{value} ({n:,} runs)" for value, n in counts.most_common())
                yield f"{len(counts)} values of {name}: {_some(listed)}"
        changed = {
            commit: n for commit, n in self._provenance["commit"].items() if commit.endswith("+")
        }
        if changed:
            yield (
                f"{sum(changed.values()):,} runs are by code that differed from its commit: "
                f"{_some(changed)}"
            )
        if self._unknown:
            listed = (f"{shown(name)[1:-1]} ({n:,} runs)" for name, n in self._unknown.items())
            yield f"columns that this version does not know were not checked: {_some(listed)}"
        if self._deleted:
            yield (
                f"the weights of {plural(len(self._deleted), 'run')} were kept and are deleted by "
                f"now, which saves space: {_some(self._deleted)}"
            )
        if self._never_kept:
            yield (
                f"{plural(len(self._never_kept), 'run')} without weights, though their method "
                f"keeps them: {_some(self._never_kept)}"
            )
        if no_runs := self._files - {f"{x}{certificates.SUFFIX}" for x in self.first}:
            yield (
                f"{plural(len(no_runs), 'file')} among weights of no run that is here: "
                f"{_some(map(printable, sorted(no_runs)))}"
            )
        for message, runs in self._unchecked.items():
            yield f"{len(runs):,} runs were not checked, {_some(runs)}: {message}"


def _differences(run: Run, measures: _Row) -> Iterator[str]:
    """How the measures of a run differ from those of its weights, which are made again."""
    from memobench.planner import packing
    from memobench.runtime import worker

    pack = packing.make_pack([run])
    (row,) = worker.rows_of(pack, run.method.train(pack, lambda steps: None))
    # Some cannot be made, and their rows say so.
    same = measures["status"] == row["status"]
    for name in rows.MEASURES if same else ("status",):
        if not agree(measures[name], row[name], **SAME):
            yield (
                f"{name}={shown(measures[name])}, but weights that were made again have "
                f"{shown(row[name])}"
            )


def _some(texts: Iterable[str]) -> str:
    """The first few of a list, and how many more there are."""
    listed = list(texts)
    more = f" and {len(listed) - _SHOWN:,} more" if len(listed) > _SHOWN else ""
    return ", ".join(listed[:_SHOWN]) + more


def _leftovers(folder: pathlib.Path) -> Iterator[str]:
    latest, old = time.time() - LEFTOVER_SECONDS, []
    weights = results.weights_path(folder, "").parent
    for path in (*atomic.leftovers(folder), *atomic.leftovers(weights)):
        # One that was just being written may be gone by now.
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_mtime < latest:
                old.append(path.name)
    if old:
        yield f"{len(old):,} temporary files of killed writers can be deleted: {_some(old)}"
