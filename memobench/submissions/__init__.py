"""Results of others: one JSON file per submission, in which every derivable number is checked.

A user runs experiments, `write` makes a file of them, and a pull request adds it to
`results/submissions/`. What a stranger sends is data: `read` trusts nothing in it that it can
derive, and says in one line what is wrong with it. JAX is imported only to count parameters.

A file is {"submission", "board", "spec_version", "submitter", "url", "note", "rows", "aggregates"}:
rows like those of a shard, each with its provenance, and the means that follow from them. Its name
contains a hash of its content, so accidental changes are noticed. `HEADER` says
which fields a file must have, `checks.required` which columns a row must have.
"""

import dataclasses
import hashlib
import json
import logging
import math
import pathlib
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from memobench import atomic, board, columns, strict_json, theory
from memobench.columns import require, shown
from memobench.errors import UserError
from memobench.spec import SPEC_VERSION
from memobench.submissions import checks, names
from memobench.table import analysis, consistency
from memobench.table import results as store

SUBMISSION = 1
BOARD = board.VERSION
OWN = board.OWN
MAX_ROWS = strict_json.MAX_OBJECTS // 2
MAX_BYTES = 64 * 2**20

_log = logging.getLogger("memobench")


HEADER: dict[str, columns.Domain] = {
    "submission": columns.satisfying(f"{SUBMISSION}", lambda x: type(x) is int and x == SUBMISSION),
    "board": columns.satisfying(f"{BOARD!r}", lambda x: x == BOARD),
    "spec_version": columns.satisfying(
        f"{SPEC_VERSION}", lambda x: type(x) is int and x == SPEC_VERSION
    ),
    "submitter": columns.text_of(80, "<>|`*[]{}\\$#~/:;\"'"),
    "url": columns.or_null(
        columns.matching(
            r"https?://[A-Za-z0-9.-]{1,100}(:\d{1,5})?(/[A-Za-z0-9._~&+,;=:@%/?#-]{0,200})?",
            "an http or https address of at most 300 plain characters",
        )
    ),
    "note": columns.or_null(columns.text_of(1000)),
    "rows": columns.satisfying(
        f"a list of 1 to {MAX_ROWS:,} rows",
        lambda x: isinstance(x, list) and 0 < len(x) <= MAX_ROWS,
    ),
    "aggregates": columns.satisfying(
        "a list of means", lambda x: isinstance(x, list) and len(x) <= MAX_ROWS
    ),
}
_OPTIONAL = ("url", "note")


@dataclasses.dataclass(frozen=True)
class Submission:
    """A file that passed every check.

    rows: with all of `checks.columns()`, None where a run has no value. aggregates: as in the file.
    """

    file: str
    submitter: str
    url: str | None
    note: str | None
    rows: tuple[dict[str, Any], ...]
    aggregates: tuple[dict[str, Any], ...]


class Dropped(NamedTuple):
    """A row that does not count because the same run was measured by others too.

    kept, dropped: `memobench`, or a file's name.
    """

    run_id: str
    kept: str
    dropped: str


def write(
    table_rows: Iterable[Mapping[str, Any]],
    submitter: str,
    path: store.Path,
    url: str | None = None,
    note: str | None = None,
) -> pathlib.Path:
    """Writes a submission of these rows, whole or not at all, and returns its path.

    Args:
      table_rows: from `results.load_rows`; columns that are not part of the format are left out.
      submitter: who ran them; the file is named after them and after its content.
      path: the folder to write into.
      url: a link to them or their work, http or https.
      note: a sentence about the runs.

    Raises:
      UserError: the file would not pass `read`, it already exists (nothing is overwritten), or the
        folder is not a folder, cannot be written or is a symbolic link.
    """
    rows = [_submitted(row) for row in table_rows]
    versions = {row.pop("spec_version", SPEC_VERSION) for row in rows}
    require(
        versions <= {SPEC_VERSION},
        f"only runs of specs of version {SPEC_VERSION} can be submitted; run the others again",
    )
    document: dict[str, Any] = {
        "submission": SUBMISSION,
        "board": BOARD,
        "spec_version": SPEC_VERSION,
        "submitter": submitter,
    }
    document |= {name: value for name, value in (("url", url), ("note", note)) if value}
    document["rows"] = rows
    # The means are added once the rows are checked.
    document["aggregates"] = _records(aggregates(_table(_checked_rows(_head(document)))))
    text = _as_text(document)
    _checked(strict_json.parsed(text.encode()))
    return _publish(text, _name(document), path)


def read(path: store.Path) -> Submission:
    """A submission, after all checks.

    Raises:
      UserError: the first thing that is wrong with it: file, row, column, and what to do.
    """
    path = pathlib.Path(path)
    try:
        document = strict_json.parsed(_contents(path))
        submission = _checked(document)
        require(
            path.name == submission.file,
            "its name does not match its content: it was changed or renamed after it was written; "
            "write it again with memobench submit",
        )
    except UserError as error:
        raise UserError(f"{columns.printable(path)}: {error}") from error
    return submission


def _contents(path: pathlib.Path) -> bytes:
    try:
        return strict_json.contents(path, MAX_BYTES, follow=False)
    except UserError:
        raise
    except (OSError, ValueError) as error:
        link = " it is a symbolic link, put the file itself there;" if path.is_symlink() else ""
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"cannot be read:{link} {reason}") from error


def load_folder(folder: store.Path) -> list[Submission]:
    """All submissions of a folder, by file name; a bad file is named in a warning and skipped."""
    found = []
    for path in sorted(pathlib.Path(folder).glob("*.json")):
        try:
            found.append(read(path))
        except UserError as error:
            _log.warning("skipped %s", error)
    return found


def merge(
    submissions: Iterable[Submission], own_table: pd.DataFrame
) -> tuple[pd.DataFrame, list[Dropped]]:
    """One table of the project's runs and all submitted ones, and what was left out of it.

    A run counts once. If it was measured several times, the project's own row counts; otherwise
    the one with the earliest date, and among equal dates that of the file whose name comes first.

    Args:
      submissions: from `read` or `load_folder`.
      own_table: from `results.load_results`.

    Returns:
      The table, whose columns `submitter` and `source` (a file's name) say whose row it is: for the
      project's `memobench` and an empty source; and every row that was dropped.
    """
    kept: dict[str, tuple[str, dict[str, Any]]] = {}
    dropped = []
    for row in _plain_rows(own_table):
        kept[row["run_id"]] = OWN, {**row, "submitter": OWN, "source": ""}
    submitted = [
        (row["date"], submission.file, {**row, **_of(submission)})
        for submission in submissions
        for row in submission.rows
    ]
    for _, file, row in sorted(submitted, key=lambda x: x[:2]):
        if row["run_id"] in kept:
            dropped.append(Dropped(row["run_id"], kept[row["run_id"]][0], file))
        else:
            kept[row["run_id"]] = file, {**row, "spec_version": SPEC_VERSION}
    table = store.to_table([row for _, row in kept.values()])
    empty = pd.Series(dtype=object)
    return table.assign(**{x: table.get(x, empty) for x in ("submitter", "source")}), dropped


def _of(submission: Submission) -> dict[str, str]:
    # Rows of two files are never averaged together, even if the submitter's name is the same.
    return {"submitter": submission.submitter, "source": submission.file}


def require_new(path: store.Path, submission: Submission) -> None:
    """Raises UserError where another submission of the same folder has one of its runs."""
    mine = {row["run_id"] for row in submission.rows}
    for other in load_folder(pathlib.Path(path).parent):
        both = mine & {row["run_id"] for row in other.rows}
        if other.file != submission.file and both:
            raise UserError(
                f"{path}: {len(both)} of its runs are in {other.file} too; leave them out or, with "
                "a word to its submitter, replace that file"
            )


def aggregates(table: pd.DataFrame) -> pd.DataFrame:
    """The means of a table over seeds, with their intervals; a submission's file repeats them."""
    names = ("accuracy", "memorized", "bits", "complete_99", "complete_100")
    numeric = table.assign(**{name: table[name].astype(float) for name in names})
    present = tuple(name for name in names if numeric[name].notna().any())
    return analysis.over_seeds(numeric, present)


def _checked(document: Any) -> Submission:
    rows = _checked_rows(_head(document))
    require("aggregates" in document, "aggregates is missing; put it in")
    with consistency.within("aggregates"):
        _check_aggregates(document["aggregates"], _records(aggregates(_table(rows))))
    return Submission(
        file=_name(document),
        submitter=document["submitter"],
        url=document.get("url"),
        note=document.get("note"),
        rows=tuple(rows),
        aggregates=tuple(document["aggregates"]),
    )


def _head(document: Any) -> list[Any]:
    """The rows of a document. Raises UserError unless its other fields are valid."""
    require(isinstance(document, dict), "is not a submission; write it with memobench submit")
    for name in document:
        require(name in HEADER, f"the field {shown(name)} is unknown; leave it out")
    for name, domain in HEADER.items():
        if name == "aggregates" and name not in document:
            continue
        require(name in document or name in _OPTIONAL, f"{name} is missing; put it in")
        consistency.check_domain(name, domain, document.get(name))
    submitter = document["submitter"]
    require(".." not in submitter, f"submitter={shown(submitter)} holds '..'; write a name")
    names.check(submitter, OWN)
    return document["rows"]


def _checked_rows(rows: list[Any]) -> list[dict[str, Any]]:
    """The rows with all columns, None where a run has no value."""
    checked, ids = [], set()
    for i, row in enumerate(rows, start=1):
        with consistency.within(f"row {i}"):
            checked.append(checks.checked_row(row))
            run_id = checked[-1]["run_id"]
            require(run_id not in ids, f"run_id={run_id} is there twice; leave one row out")
            ids.add(run_id)
    try:
        theory.check(_table(checked))
    except theory.Violation as error:
        beyond = [i for i, row in enumerate(checked, start=1) if row["run_id"] in str(error)]
        raise UserError(f"row {beyond[0]}: {error}") from error
    for line in board.gaps(_table(checked)):
        raise UserError(f"{line}; submit all of them")
    return checked


def _table(rows: Sequence[dict[str, Any]]) -> pd.DataFrame:
    return store.to_table(rows)


def _check_aggregates(given: Sequence[Any], derived: Sequence[dict[str, Any]]) -> None:
    fix = "write the file again with memobench submit"
    require(
        len(given) == len(derived),
        f"{len(given)} means but {len(derived)} follow from rows; {fix}",
    )
    for i, (mine, theirs) in enumerate(zip(derived, given, strict=True), start=1):
        require(isinstance(theirs, dict), f"number {i} is not an object; {fix}")
        for name in sorted(mine.keys() | theirs.keys()):
            a, b = theirs.get(name), mine.get(name)
            require(
                (name in mine) == (name in theirs)
                and consistency.agree(a, b, consistency.REPEATED, 1e-9),
                f"number {i} has {shown(name)[1:-1]}={shown(a)} but {shown(b)} follows from rows; "
                f"{fix}",
            )


# From rows to a file.


def _submitted(row: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of a row that a submission has, as JSON values; what is None is left out."""
    plain = {name: _plain(row.get(name)) for name in (*checks.columns(), "spec_version")}
    return {name: _exact(name, x) for name, x in plain.items() if x is not None}


def _plain(value: Any) -> Any:
    """A table's value as a JSON value; NaN, which means a missing value, as None."""
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and math.isnan(value) else value


def _exact(name: str, value: Any) -> Any:
    """2.0 as 2 in columns of whole numbers: tables turn columns with gaps into floats."""
    known = checks.columns()
    read = known[name].domain.read(value) if name in known else value
    return read if type(read) is int else value


def _records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of a table as JSON values; what is missing is left out."""
    return [{name: x for name, x in row.items() if x is not None} for row in _plain_rows(table)]


def _plain_rows(table: pd.DataFrame) -> list[dict[str, Any]]:
    rows = table.to_dict("records")
    return [{str(name): _plain(value) for name, value in row.items()} for row in rows]


def _name(document: Mapping[str, Any]) -> str:
    """A file's name: its submitter's name in plain letters, and a hash of its content."""
    canonical = json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)
    digest = hashlib.sha256(canonical.encode()).hexdigest()[:16]
    return f"{_slug(document['submitter'])}-{digest}.json"


def _slug(name: str) -> str:
    """Letters a to z and digits, joined by hyphens: nothing that has a meaning in a path.

    >>> _slug("Zoë & Co."), _slug("../../etc")
    ('zoe-co', 'etc')
    """
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    return re.sub("[^a-z0-9]+", "-", plain)[:40].strip("-") or "submission"


def _as_text(document: Mapping[str, Any]) -> str:
    """JSON with a line for every row, for those who read the pull request."""
    fields = []
    for name, value in document.items():
        if isinstance(value, list):
            lines = ",\n".join(json.dumps(row, allow_nan=False) for row in value)
            fields.append(f'"{name}": [\n{lines}\n]')
        else:
            fields.append(f'"{name}": {json.dumps(value)}')
    return "{\n" + ",\n".join(fields) + "\n}\n"


def _publish(text: str, name: str, folder: store.Path) -> pathlib.Path:
    """Writes a new file, whole or not at all."""
    folder = pathlib.Path(folder)
    require(
        "\0" not in str(folder) and not folder.is_symlink(),
        f"output={str(folder)!r} is a symbolic link or no path; choose a folder",
    )
    strict_json.require_small(len(text.encode()), MAX_BYTES)
    path = store.check_writable(folder, "output") / name
    try:
        with atomic.create(path) as file:
            file.write(text.encode())
    except FileExistsError as error:
        raise UserError(
            f"{path} already exists and nothing is overwritten; submit it as it is"
        ) from error
    return path
