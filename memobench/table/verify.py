"""Checks a results folder: its files, ids, measures and provenance. It changes nothing.

Whatever can be derived is derived again. An error is what no sweep writes: a file or the code is
wrong. A note is what a reader of the table should know.

The same run in two shards is a note: readers take the first by name. Its measures may differ,
since packs, devices and versions round differently and training amplifies that. What is solved or
written down in one go does not drift: there a difference is an error.
"""

import collections
import contextlib
import dataclasses
import math
import pathlib
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from memobench import atomic, certificates, settings, theory
from memobench.certificates import counting
from memobench.columns import printable, require, shown
from memobench.errors import UnknownKind, UserError, reason
from memobench.methods.base import Method
from memobench.notation import plural
from memobench.runs import Run, check_code, from_cells
from memobench.table import analysis, checks, results, rows
from memobench.table.consistency import agree

# Rows that are compared with theorems together; a table of them takes little memory.
ROWS_AT_ONCE = 4096
# A temporary file older than this was left by a writer that was killed.
LEFTOVER_SECONDS = 3600.0
# How far two measurements of a run may differ: relatively, or absolutely close to zero.
SAME = {"within": 1e-4, "zero": 1e-6}
# How many items of a long list are shown.
_SHOWN = 5

_Row = dict[str, Any]
_Violation = tuple[theory.Limit, pd.Series, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Report:
    """What is wrong with a folder, and what readers should know about it, a line each."""

    shards: int
    runs: int
    errors: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def summary(self) -> str:
        counts = {
            "shard": self.shards,
            "run": self.runs,
            "error": len(self.errors),
            "note": len(self.notes),
        }
        return ", ".join(f"{n:,} {name}{'s' * (n != 1)}" for name, n in counts.items())


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
    )


class _Check:
    """What is found while files are read one after another."""

    def __init__(self, folder: pathlib.Path, recompute: bool) -> None:
        self._folder, self._recompute = folder, recompute
        self.errors: list[str] = []
        # Runs whose weights were kept and are gone.
        self._deleted: list[str] = []
        self.n_shards = 0
        # Shards of earlier versions, shards without a digest, and shards that were migrated.
        self.old: list[str] = []
        self.unsealed: list[str] = []
        self._migrated = results.migrated(folder)
        # The place and the measures of every run, where it was found first.
        self.first: dict[str, tuple[str, _Row]] = {}
        self._again: dict[str, list[tuple[str, str, float]]] = collections.defaultdict(list)
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
        except (OSError, ValueError) as error:
            self.errors.append(f"{name}: {reason(error)}; none of its rows is read")
            return
        if not sealed:
            self.unsealed.append(path.name)
            if path.stem in self._migrated:
                return
        self.n_shards += 1
        self._wrong(name, _date_errors(provenance["date"]))
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
        except UserError as error:
            yield str(error)
            return
        place, measures = self.first[row["run_id"]]
        if run.method.solves and run.run_id not in self._solved:
            self._solved[run.run_id] = place, run, measures
        for check in (*checks.CONSISTENCY, self._check_weights):
            try:
                check(run, row)
            except checks.Unchecked as unchecked:
                self._unchecked[str(unchecked)].append(row["run_id"])
            except UserError as error:
                yield str(error)

    def _check_weights(self, run: Run, row: Mapping[str, Any]) -> None:
        """Raises UserError where the file of a run's weights is not what its row says."""
        path = results.weights_path(self._folder, run.run_id)
        if row["weights_digest"] is None:
            return
        if not path.exists():
            self._deleted.append(run.run_id)
            return
        certificate, digest = certificates.read(path)
        require(
            digest == row["weights_digest"]
            and certificate.task in run.method.tasks(run)
            and certificate.architecture == run.architecture,
            f"weights_digest is not that of {path.name}: it was changed after it was written",
        )
        if self._recompute:
            run.method.check_weights(run, row, counting.count(certificate, ["float32"]))

    def _twice(self, place: str, run_id: str, measures: _Row) -> None:
        before, kept = self.first[run_id]
        same = all(agree(measures[name], kept[name], **SAME) for name in measures)
        kind = "alike" if same else "differing"
        apart = _apart(measures, kept)
        # What is not trained step by step does not drift.
        known = Method.kinds().get(measures["method"], Method)
        if not same and not known.stepwise:
            self.errors.append(
                f"{place}: differs from {before} by {apart:.3g} in accuracy or loss, though "
                f"{measures['method']} weights do not depend on chance; delete the wrong one"
            )
            return
        self._again[kind].append((place, before, apart))

    def theory(self) -> None:
        """Compares the waiting rows with theorems, and keeps of them what floors are about."""
        table = results.to_table([row for _, row in self._waiting])
        table = table.assign(place=[place for place, _ in self._waiting])
        self._beyond(table, theory.violations(table))
        # Of one type, whatever a column holds in these rows.
        self._judged.append(table[["place", *analysis.of_floors()]].astype(object))
        self._waiting.clear()

    def floors(self) -> None:
        """Compares all runs with certified optima, whichever shards these are in."""
        table = analysis.with_floors(pd.concat(self._judged, ignore_index=True))
        self._beyond(table, theory.violations(table, [theory.PROPOSITION_1]))

    def _beyond(self, table: pd.DataFrame, found: Iterable[_Violation]) -> None:
        for limit, measured, beyond in found:
            for place, value in zip(table["place"][beyond], measured[beyond], strict=True):
                self.errors.append(f"{place}: beyond {limit}: {value:.6g} measured")

    def recompute(self) -> None:
        """Makes weights again that are solved for, and compares what they know."""
        from memobench.planner import packing
        from memobench.runtime import worker

        for place, run, measures in self._solved.values():
            pack = packing.make_pack([run])
            (row,) = worker.rows_of(pack, run.method.train(pack, lambda steps: None))
            # Some cannot be made, and their rows say so.
            same = measures["status"] == row["status"]
            for name in rows.MEASURES if same else ("status",):
                if not agree(measures[name], row[name], **SAME):
                    self.errors.append(
                        f"{place}: {name}={shown(measures[name])}, but weights that were made "
                        f"again have {shown(row[name])}"
                    )

    def _wrong(self, place: str, messages: Iterable[str]) -> None:
        self.errors.extend(f"{place}: {message}" for message in messages)

    def notes(self) -> Iterator[str]:
        for kind, found in self._again.items():
            place, before, _ = max(found, key=lambda x: x[2])
            apart = max(apart for _, _, apart in found)
            note = f"their measures are {kind}"
            if kind == "differing":
                note += f", by at most {apart:.3g} in accuracy or loss, as rounding in training may"
            yield (
                f"{len(found):,} runs are in several shards, and readers take the first by name; "
                f"{note} ({place}, and {before})"
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
        for message, runs in self._unchecked.items():
            yield f"{len(runs):,} runs were not checked, {_some(runs)}: {message}"


def _date_errors(date: str) -> Iterator[str]:
    try:
        checks.check_date(date)
    except UserError as error:
        yield str(error)


def _apart(a: _Row, b: _Row) -> float:
    """How far two measurements of a run are apart; infinite where only one diverged."""
    if a["status"] != b["status"]:
        return math.inf
    pairs = ((a[name], b[name]) for name in ("accuracy", "loss"))
    return max((abs(x - y) for x, y in pairs if None not in (x, y)), default=0.0)


def _some(texts: Iterable[str]) -> str:
    """The first few of a list, and how many more there are."""
    listed = list(texts)
    more = f" and {len(listed) - _SHOWN:,} more" if len(listed) > _SHOWN else ""
    return ", ".join(listed[:_SHOWN]) + more


def _leftovers(folder: pathlib.Path) -> Iterator[str]:
    latest, old = time.time() - LEFTOVER_SECONDS, []
    for path in atomic.leftovers(folder):
        # One that was just being written may be gone by now.
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_mtime < latest:
                old.append(path.name)
    if old:
        yield f"{len(old):,} temporary files of killed writers can be deleted: {_some(old)}"
