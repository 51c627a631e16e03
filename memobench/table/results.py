"""Results as immutable shards: one JSON file per pack, written whole or not at all.

Imports no JAX. A shard is {"schema", "provenance", "rows"}; `load_results` reads a folder of them
into one table with a row per run and the shard's provenance beside it.
"""

import hashlib
import itertools
import json
import logging
import os
import pathlib
import sys
import tempfile
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import pandas as pd

from memobench import atomic
from memobench.columns import shown
from memobench.errors import UserError
from memobench.models.base import Architecture
from memobench.runs import OF_RUNS
from memobench.spec import SPEC_VERSION
from memobench.table.rows import MEASURES, all_columns, measures, row_columns
from memobench.tasks.base import Task

SCHEMA = 1
# Stands between the name of a shard and that of the older one from which it was migrated.
_MIGRATED = "-from-"

Path = str | os.PathLike[str]

_log = logging.getLogger("memobench")


class OldSpecs(ValueError):
    """A shard of specs of an earlier version, whose runs have other ids."""


def check_writable(folder: Path, name: str = "results") -> pathlib.Path:
    """Makes the folder, and raises UserError now rather than after the first pack if it cannot."""
    if not os.fspath(folder):
        raise UserError(f"{name}='' is no folder; name one")
    folder = pathlib.Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UserError(
            f"{name}={str(folder)!r} cannot be written ({error.strerror}); choose another folder"
        ) from error
    return folder


def unwritable(folder: Path, error: OSError) -> UserError:
    """What to raise where a folder that was writable no longer is."""
    return UserError(
        f"results={str(folder)!r} can no longer be written ({error.strerror}); "
        "what it holds is whole: fix it and the same command resumes"
    )


def write_shard(
    folder: Path, rows: Sequence[dict], provenance: dict[str, Any], migrated: str = ""
) -> pathlib.Path:
    """Writes one shard, whole or not at all, and returns where it is.

    The name is a hash of the run ids; `migrated` names the shard of an earlier version that these
    rows were, and stands behind it. A whole shard already there is kept as it is, and beside a
    corrupt one the new shard gets a name of its own: nothing measured is ever overwritten. NaN and
    infinity are refused (ValueError); a diverged run's measures are None.
    """
    stem = shard_name(row["run_id"] for row in rows)
    if migrated:
        stem += f"{_MIGRATED}{pathlib.Path(migrated).stem}"
    shard = {"schema": SCHEMA, "provenance": provenance, "rows": list(rows)}
    text = json.dumps(shard, indent=1, allow_nan=False)
    for attempt in itertools.count():
        path = pathlib.Path(folder) / (f"{stem}-{attempt}.json" if attempt else f"{stem}.json")
        try:
            with atomic.create(path) as file:
                file.write(text.encode())
            return path
        except FileExistsError:
            try:
                read_shard(path)
            except (OSError, ValueError):
                continue
            _log.warning("%s is there already and was kept", path)
            return path
    raise AssertionError("unreachable")


def unmigrated(folder: Path, names: Iterable[str]) -> list[str]:
    """Those names of shards of an earlier version of which no migrated one lies beside them."""
    known = {path.stem.partition(_MIGRATED)[2] for path in shard_paths(folder)}
    return [name for name in names if pathlib.Path(name).stem not in known]


def how_to_migrate(folder: Path, count: int) -> str:
    """The line for shards of an earlier version."""
    return (
        f"{folder} holds {count:,} {'shard' if count == 1 else 'shards'} of an earlier version, "
        f"whose runs have other ids; memobench migrate {folder} rewrites them"
    )


def shard_name(run_ids: Iterable[str]) -> str:
    """The name, without its ending, of the shard of these runs."""
    return hashlib.sha256(",".join(sorted(run_ids)).encode()).hexdigest()[:16]


def load_results(folder: Path) -> pd.DataFrame:
    """The table of a results folder: one row per run, provenance in columns of its own.

    A torn, foreign or outdated file is named in a warning and skipped; where two shards hold the
    same run, the first by name counts. Raises UserError for a folder that does not exist.
    """
    if not os.path.isdir(folder):
        raise UserError(f"results={str(folder)!r} is no folder; first: memobench run EXPERIMENT")
    return to_table(list(load_rows(folder).values()))


def load_rows(folder: Path) -> dict[str, dict]:
    """The rows behind `load_results`, by run id."""
    return Reader(folder).rows()


class Reader:
    """A results folder that others write to meanwhile: each of its files is read once.

    since: files last changed before (seconds by the file system's clock) are left out.
    newest: when the youngest file that was read had last changed.
    """

    def __init__(self, folder: Path, since: float = 0.0) -> None:
        self.newest = self._since = since
        self._folder = pathlib.Path(folder)
        self._lock = threading.Lock()
        self._rows: dict[str, dict] = {}
        self._read: set[str] = set()
        # By size: what somebody copies here may be whole when it is looked at again.
        self._skipped: dict[str, int] = {}
        self._old: set[str] = set()

    def rows(self) -> dict[str, dict]:
        """All rows so far, by run id; not to be changed. Any thread may ask."""
        with self._lock:
            self._read_new()
        return self._rows

    def _read_new(self) -> None:
        n_old = len(self._old)
        for path in shard_paths(self._folder, self._read):
            try:
                stat = path.stat()
                if stat.st_mtime < self._since or self._skipped.get(path.name) == stat.st_size:
                    continue
                shard = read_shard(path)
            except OldSpecs:
                self._old.add(path.name)
                self._read.add(path.name)
                self.newest = max(self.newest, stat.st_mtime)
                continue
            except OSError as error:
                # It may be gone the next time.
                _log.warning("skipped %s: %s", path, error)
                continue
            except ValueError as error:
                _log.warning("skipped %s: %s", path, error)
                self._skipped[path.name] = stat.st_size
                continue
            self._read.add(path.name)
            self.newest = max(self.newest, stat.st_mtime)
            for row in with_provenance(*shard):
                self._rows.setdefault(row["run_id"], _shared(row))
        if len(self._old) > n_old and (left := unmigrated(self._folder, self._old)):
            _log.warning("%s", how_to_migrate(self._folder, len(left)))


def shard_paths(folder: Path, besides: Collection[str] = ()) -> list[pathlib.Path]:
    """All that is no working file, by name, but for some names: these should be shards."""
    try:
        names = set(os.listdir(folder)).difference(besides)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [pathlib.Path(folder, name) for name in sorted(names) if not name.startswith(".")]


def to_table(rows: Sequence[dict]) -> pd.DataFrame:
    """Rows as a table whose columns stand as they are declared, unknown ones last.

    Measures of diverged runs are NaN, columns younger than a shard None.
    """
    table, known = pd.DataFrame(rows), all_columns()
    younger = {name: [None] * len(table) for name in known if name not in table}
    whole = pd.concat([table, pd.DataFrame(younger, index=table.index, dtype=object)], axis=1)
    order = [*known, *(name for name in table if name not in known)]
    # Copied into one piece: a table of many columns, each apart, is slow and warns of it.
    return whole[order].astype(dict.fromkeys(measures(), float)).copy()


def _shared(row: dict[str, Any]) -> dict[str, Any]:
    """The row with names and texts that all rows share: every file brings copies of its own."""
    texts = (x if type(x) is not str else sys.intern(x) for x in row.values())
    return dict(zip(map(sys.intern, row), texts, strict=True))


def with_provenance(rows: Sequence[dict], provenance: dict[str, Any]) -> Iterator[dict]:
    """The rows of a shard with its provenance in every one; the two share no names."""
    return ({**provenance, **row} for row in rows)


def read_shard(
    path: pathlib.Path, spec_version: int = SPEC_VERSION
) -> tuple[list[dict], dict[str, Any]]:
    """A shard's rows and provenance, of specs of this version.

    Raises OSError or ValueError for what is no whole one, OldSpecs for one of an earlier version.
    """
    try:
        shard = json.loads(path.read_text())
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError):
        raise ValueError("not a whole JSON file") from None
    if not isinstance(shard, dict) or "schema" not in shard:
        raise ValueError("not a memobench shard")
    if shard["schema"] != SCHEMA:
        raise ValueError(f"schema {shard['schema']!r}, this version reads {SCHEMA}")
    rows, provenance = shard.get("rows"), shard.get("provenance")
    if not isinstance(rows, list) or not isinstance(provenance, dict):
        raise ValueError("rows or provenance are missing")
    version = provenance.get("spec_version", spec_version)
    if isinstance(version, int) and version < spec_version:
        raise OldSpecs(f"of version {version} of the specs, and this version is {SPEC_VERSION}")
    for i, row in enumerate(rows, start=1):
        if not isinstance(row, dict):
            raise ValueError(f"row {i} is no object")
        for problem in _problems(row):
            raise ValueError(f"row {i} {problem}")
    measured = provenance.keys() & (row_columns().keys() | set(itertools.chain(*rows)))
    if measured:
        raise ValueError(f"its provenance has {shown(min(measured))}, a column of rows")
    return rows, provenance


def _problems(row: dict) -> Iterator[str]:
    """What is wrong with a row, a phrase each."""
    for name in _PRESENT:
        if name not in row or (row[name] is None and name in _REQUIRED):
            yield f"lacks {name}"
    known = row_columns()
    for name, value in row.items():
        if value is not None and name in known and not known[name].domain.holds(value):
            yield f"has {name}={shown(value)}, which is not {known[name].domain.description}"


# What a reader cannot do without, and what a row says of every run, be it that there is none.
_REQUIRED = (*OF_RUNS, "task_seed", "status", "n_params", "n_params_memory")
_PRESENT = (*_REQUIRED, *Task.shared_columns(), *Architecture.shared_columns(), *MEASURES)
