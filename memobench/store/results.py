"""Results as immutable shards: one JSON file per pack, written whole or not at all.

A shard is {"schema", "digest", "provenance", "rows"}; `load_results` reads a folder
of them into one table with a row per run, which includes the shard's provenance.

The digest is of everything else in the file, so every reader notices what was changed in it by hand
or by accident. It is not a signature: someone who wants to deceive can compute it again. Against
that `memobench verify --recompute` counts again what weights know.
"""

import hashlib
import itertools
import json
import logging
import os
import pathlib
import shlex
import sys
import tempfile
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from memobench.common import atomic, folders, strict_json
from memobench.common.errors import (
    Unwritable,
    UserError,
    escape_unprintable,
    in_a_line,
    reason,
    require,
    short_repr,
)
from memobench.core.architecture import read_family
from memobench.core.cells import spec_columns
from memobench.core.columns import to_tuple
from memobench.core.spec import SPEC_VERSION
from memobench.store import rows as schema
from memobench.store.rows import all_columns, measures

SCHEMA = 2
_FIELDS = {"schema", "digest", "provenance", "rows"}
# More than any pack writes.
MAX_BYTES = 2**30
# The folder of weights beside shards.
_WEIGHTS = "weights"
# Files that systems put into any folder, in small letters; most of theirs are hidden.
_OF_SYSTEMS = {"thumbs.db", "ehthumbs.db", "desktop.ini", "$recycle.bin", "lost+found"}

Path = str | os.PathLike[str]

_log = logging.getLogger("memobench")


class Shard(NamedTuple):
    """The rows of a shard, and the provenance that they share."""

    rows: list[dict[str, Any]]
    provenance: dict[str, Any]


def require_folder(folder: Path, fix: str, name: str = "") -> pathlib.Path:
    """The folder as a path.

    Raises:
      UserError: it is not a folder, or cannot be read; the line names it and ends with the fix.
    """
    folders.require_path(folder, name.removesuffix("=") or "folder")
    # An empty path would be taken for the working directory.
    is_one = os.fspath(folder) and os.path.isdir(folder)
    require(is_one, f"{name}{os.fspath(folder)!r} is not a folder; {fix}")
    may_read = os.access(folder, os.R_OK | os.X_OK)
    require(may_read, f"{name}{os.fspath(folder)!r} cannot be read; give yourself the right to")
    return pathlib.Path(folder)


def first_step(folder: Path) -> str:
    """The command that makes a folder of results, as the end of a message; of a file no command."""
    if os.path.isfile(folder):
        return "it is a file; name a folder"
    named = "" if str(folder) == folders.SHARDS else f" --results={shlex.quote(str(folder))}"
    return f"first: memobench run EXPERIMENT{named}"


def require_no_file(folder: Path, name: str = "results") -> None:
    """Raises UserError for what neither is a folder nor can become one."""
    folders.require_path(folder, name)
    is_file = os.path.exists(folder) and not os.path.isdir(folder)
    require(not is_file, f"{name}={os.fspath(folder)!r} is a file; name a folder")


def require_not_around(folder: Path) -> None:
    """Raises UserError for the folder of pages that is around one of shards and holds none."""
    inner = pathlib.Path(folder, pathlib.PurePath(folders.SHARDS).name)
    below = inner.is_dir() and not any(map(_is_shard, shard_paths(folder)))
    require(not below, f"results={str(folder)!r} holds no shards; did you mean {str(inner)!r}?")


def check_writable(folder: Path, name: str = "results") -> pathlib.Path:
    """Makes the folder, or raises UserError now rather than after the first pack."""
    require_no_file(folder, name)
    if not os.fspath(folder):
        raise UserError(f"{name}='' is not a folder; name one")
    folder = pathlib.Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except (OSError, ValueError) as error:
        raise UserError(
            f"{name}={str(folder)!r} cannot be written ({reason(error)}); choose another folder"
        ) from error
    return folder


def unwritable_error(folder: Path, error: OSError) -> Unwritable:
    """The error for a folder that was writable and no longer is."""
    return Unwritable(
        f"results={str(folder)!r} can no longer be written ({error.strerror}); "
        "no result in it is damaged: fix it and the same command resumes"
    )


def write_shard(folder: Path, rows: Sequence[dict], provenance: dict[str, Any]) -> pathlib.Path:
    """Writes one shard, whole or not at all, and returns where it is.

    The name is a hash of the run ids. A valid shard of that name is kept as it is, and next to a
    corrupt one the new shard gets another name: nothing measured is ever overwritten. A diverged
    run's measures are None.

    Readers refuse what `rows.require_whole` does, which is for the caller to ask before.

    Raises:
      ValueError: a number is NaN or infinite.
    """
    stem = shard_name(row["run_id"] for row in rows)
    content = {"provenance": provenance, "rows": list(rows)}
    shard = {"schema": SCHEMA, "digest": digest(content), **content}
    text = json.dumps(shard, indent=1, allow_nan=False)
    for attempt in itertools.count():
        path = pathlib.Path(folder) / (f"{stem}-{attempt}.json" if attempt else f"{stem}.json")
        try:
            with atomic.create(path) as file:
                file.write(text.encode())
            return path
        except FileExistsError:
            try:
                held = {row["run_id"] for row in read_shard(path).rows}
            except Exception:
                continue
            # By mistake a file may have the name of other runs, which it lacks.
            if not held >= {row["run_id"] for row in rows}:
                continue
            _log.warning("%s already exists and was kept", path)
            return path
    raise AssertionError("unreachable")


def digest(content: Mapping[str, Any]) -> str:
    """SHA-256 of JSON in its canonical form: sorted keys, no spaces, numbers as Python writes them.

    >>> digest({"b": 1, "a": [0.5, "x"]}) == digest({"a": [0.5, "x"], "b": 1})
    True
    """
    text = strict_json.canonical(content)
    return hashlib.sha256(text.encode()).hexdigest()


def shard_name(run_ids: Iterable[str]) -> str:
    """The name, without its ending, of the shard of these runs."""
    return hashlib.sha256(",".join(sorted(run_ids)).encode()).hexdigest()[:16]


def load_results(folder: Path) -> pd.DataFrame:
    """The table of a results folder: one row per run, with its provenance in further columns.

    A file that is torn, changed, foreign or outdated is named in a warning and skipped; a warning
    also says that a folder holds no results. Where two shards hold the same run, the row counts
    whose weights lie in the folder; of equal ones the first by name.

    Raises:
      UserError: the folder does not exist.
    """
    require_folder(folder, first_step(folder), "results=")
    require_not_around(folder)
    rows = list(load_rows(folder).values())
    if not rows:
        _log.warning("%s holds no results; %s", escape_unprintable(folder), first_step(folder))
    return to_table(rows)


def _is_shard(path: pathlib.Path) -> bool:
    return path.suffix == ".json" and path.is_file()


def load_rows(folder: Path) -> dict[str, dict]:
    """The rows behind `load_results`, by run id."""
    return Reader(folder).rows()


class Reader:
    """A results folder to which others may be writing: each of its files is read once.

    Args:
      folder: of results.
      since: files last changed before this time (seconds, the file system's clock) are left out.

    Attributes:
      newest: time of the last change of the newest file that was read.
    """

    def __init__(self, folder: Path, since: float = 0.0) -> None:
        self.newest = self._since = since
        self._folder = pathlib.Path(folder)
        self._lock = threading.Lock()
        self._rows: dict[str, dict] = {}
        self._read: set[str] = set()
        # With size and date: a file that is still being copied here may be whole next time.
        self._skipped: dict[str, tuple[int, int]] = {}
        self._unreadable: set[str] = set()

    def rows(self) -> dict[str, dict]:
        """All rows so far, by run id; not to be changed. Any thread may ask."""
        with self._lock:
            self._read_new()
        return self._rows

    def _read_new(self) -> None:
        for path in shard_paths(self._folder, self._read):
            try:
                stat = path.stat()
                state = stat.st_size, stat.st_mtime_ns
                if stat.st_mtime < self._since or self._skipped.get(path.name) == state:
                    continue
                shard = read_shard(path)
            except OSError as error:
                # It may be readable the next time.
                if path.name not in self._unreadable:
                    _log.warning(
                        "skipped %s: %s", escape_unprintable(path), error.strerror or error
                    )
                self._unreadable.add(path.name)
                continue
            except Exception as error:
                # Files of other versions or of kinds that are not loaded are whole.
                is_whole = type(error) is not UserError
                why = in_a_line(error)
                if not is_whole:
                    why += "; move or delete it, and its runs are trained again"
                if path.suffix != ".json" or path.is_dir():
                    why = "it is not a shard"
                _log.warning("skipped %s: %s", escape_unprintable(path), why)
                self._skipped[path.name] = state
                continue
            for row in shard.rows:  # It and its provenance share no names.
                self._add(_intern({**shard.provenance, **row}))
            # At last: Ctrl-C may come in between, and who resumes reads what is not marked.
            self._read.add(path.name)
            self.newest = max(self.newest, stat.st_mtime)

    def _add(self, row: dict[str, Any]) -> None:
        before = self._rows.setdefault(row["run_id"], row)
        if before.get("weights_digest") != row.get("weights_digest") and (
            has_weights(self._folder, row) and not has_weights(self._folder, before)
        ):
            self._rows[row["run_id"]] = row


def has_weights(folder: Path, row: Mapping[str, Any]) -> bool:
    """True where the file of weights that a row names by its digest lies in the folder."""
    if row.get("weights_digest") is None:
        return False
    try:
        data = strict_json.contents(weights_path(folder, row["run_id"]), MAX_BYTES)
    except (OSError, UserError):
        return False
    return hashlib.sha256(data).hexdigest() == row["weights_digest"]


def weights_names(folder: Path) -> set[str]:
    """The names of all that lies where weights are kept, but what is hidden."""
    try:
        names = os.listdir(pathlib.Path(folder, _WEIGHTS))
    except (FileNotFoundError, NotADirectoryError):
        return set()
    return {name for name in names if not name.startswith(".")}


def weights_path(folder: Path, run_id: str) -> pathlib.Path:
    """The file of a run's weights in a results folder."""
    return pathlib.Path(folder, _WEIGHTS, f"{run_id}.safetensors")


def shard_paths(folder: Path, besides: Collection[str] = ()) -> list[pathlib.Path]:
    """All entries but weights, hidden ones, those of systems and `besides`: these should be shards.

    Sorted by their names without endings, so that STEM.json comes before STEM-0.json.
    """
    try:
        names = set(os.listdir(folder)).difference(besides, [_WEIGHTS])
    except (FileNotFoundError, NotADirectoryError):
        return []
    visible = (name for name in sorted(names, key=os.path.splitext) if not name.startswith("."))
    return [pathlib.Path(folder, name) for name in visible if name.lower() not in _OF_SYSTEMS]


def to_table(rows: Sequence[dict] | dict[str, list[Any]]) -> pd.DataFrame:
    """Rows, or columns, as a table with columns in the order of their declaration.

    Measures of diverged runs are NaN, columns that are newer than a shard None. Unknown columns are
    last, before `family`, that of architectures, which follows from the others.
    """
    table, known = pd.DataFrame(rows), all_columns()
    missing = {name: [None] * len(table) for name in known if name not in table}
    whole = pd.concat([table, pd.DataFrame(missing, index=table.index, dtype=object)], axis=1)
    order = [*known, *(name for name in table if name not in known)]
    # Copied into one block: pandas is slow with many separate columns, and warns about them.
    made = whole[order].astype(dict.fromkeys(measures(), float)).copy()
    # A field that is a tuple is a list in files; rows are grouped by it.
    for name in spec_columns():
        if made[name].dtype == object and any(type(x) is list for x in made[name]):
            made[name] = made[name].map(to_tuple)
    return made.assign(**{schema.FAMILY: pd.Series(_families(made), made.index)})


def _families(table: pd.DataFrame) -> list[str | None]:
    names = schema.architecture_columns()
    cells = table[names].astype(object)
    keys = list(cells.where(cells.notna(), None).itertuples(index=False, name=None))
    rows = {key: dict(zip(names, key, strict=True)) for key in keys}
    found = {key: read_family(row) if key[0] else None for key, row in rows.items()}
    return [found[key] for key in keys]


def _intern(row: dict[str, Any]) -> dict[str, Any]:
    """The row with names and texts interned, as every file brings its own copies of them."""
    texts = (x if type(x) is not str else sys.intern(x) for x in row.values())
    return dict(zip(map(sys.intern, row), texts, strict=True))


def read_shard(path: pathlib.Path) -> Shard:
    """A shard whose digest and domains of values were checked.

    Raises:
      OSError: it cannot be read.
      UserError: it is not a shard, was changed after it was written, or is of another version.
    """
    shard = strict_json.parse(strict_json.contents(path, MAX_BYTES))
    require(isinstance(shard, dict) and "schema" in shard, "not a memobench shard")
    _require_version("schema", shard["schema"], SCHEMA)
    require(shard.keys() == _FIELDS, f"not a shard of schema {SCHEMA}: other fields")
    rows, provenance = shard["rows"], shard["provenance"]
    require(
        shard["digest"] == digest({"provenance": provenance, "rows": rows}),
        "its digest is not that of its content: it was changed after it was written",
    )
    if isinstance(provenance, dict):
        _require_version("spec_version", provenance.get("spec_version"), SPEC_VERSION)
    schema.require_whole(rows, provenance)
    return Shard(rows, provenance)


class _OtherVersion(UserError):
    """A shard that another version of memobench wrote, and that is whole."""


def _require_version(name: str, version: Any, known: int) -> None:
    """Raises UserError for a version other than the one that is known."""
    if type(version) is not int or version != known:
        is_old = type(version) is int and version < known
        raise _OtherVersion(
            f"{name} must be {known}, got {short_repr(version)}"
            + (", which is too old. Train its runs again" if is_old else ". Update memobench")
        )
