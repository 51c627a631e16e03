"""Submissions, which are weights of others, believed only for what they know when run.

A submission is a folder: `submission.json`, the certificates that it lists, and the files of Python
that define architectures which memobench does not have. Its name and those of certificates
hold digests of their content, so accidental changes are noticed. `write` makes such a folder, a
pull request adds it to `results/submissions/`, and `read` runs the weights and counts. However they
were found, no number of a submission is anybody's word.

Code is never run by reading; whoever has reviewed it loads it with `--plugin=FILE`. Random weights
in place of an own architecture's must know nothing, for what it knows then is in its code.
"""

import dataclasses
import hashlib
import itertools
import json
import logging
import pathlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd
import scipy

from memobench import certificates
from memobench.board import copies
from memobench.board import table as board
from memobench.certificates import Certificate, counting
from memobench.common import atomic, strict_json
from memobench.common.errors import (
    UnknownKind,
    UserError,
    escape_unprintable,
    name_place,
    reason,
    require,
    short_repr,
)
from memobench.core import columns, own_code
from memobench.core.spec import Spec
from memobench.store import results as store

SUBMISSION = 2
HEAD = "submission.json"
MAX_FILES = 1000
# How often random weights are drawn, and how likely one of them is to be refused although the code
# knows no label.
DRAWS, _BY_CHANCE = 16, 1e-6
# Ranges of draws, in turn: code may wait for weights of one sign.
_RANGES = ((-1, 1), (0, 1), (-1, 0))
_MAX_HEAD, _MAX_CODE = 2**20, 2**20
_FILE = re.compile(r"[\w.-]{1,100}-[0-9a-f]{16}\.safetensors", re.ASCII)
# No module can be imported by such a name, nor does any tool look for it: not json, not conftest.
_CODE = re.compile(r"code-[0-9a-f]{16}\.py", re.ASCII)
_NAME = r"(?!.*  )[A-Za-z0-9](?:[A-Za-z0-9 .,&_-]{0,78}[A-Za-z0-9.])?"

_log = logging.getLogger("memobench")


def _are_named(values: Any, pattern: re.Pattern[str], least: int) -> bool:
    return (
        isinstance(values, list)
        and least <= len(values) <= MAX_FILES
        and all(isinstance(x, str) and pattern.fullmatch(x) for x in values)
        and values == sorted(set(values))
    )


HEADER: dict[str, columns.Domain] = {
    "submission": columns.constant(SUBMISSION),
    "submitter": columns.text_matching(
        _NAME, "a name of 1 to 80 letters A to Z, digits, single spaces, dots, commas, &, _ and -"
    ),
    "note": columns.or_null(columns.text_of(1000)),
    "certificates": columns.value_where(
        f"a sorted list of 1 to {MAX_FILES:,} names of certificates",
        lambda x: _are_named(x, _FILE, 1),
    ),
    "code": columns.value_where(
        "an object of names of Python files, code- and 16 digits, and the SHA-256 of each",
        lambda x: (
            isinstance(x, dict)
            and _are_named(sorted(x), _CODE, 0)
            and all(isinstance(y, str) and re.fullmatch("[0-9a-f]{64}", y) for y in x.values())
        ),
    ),
}
OPTIONAL = ("note",)


@dataclasses.dataclass(frozen=True)
class Submission:
    """A folder that passed every check.

    Attributes:
      rows: what was counted of every certificate, as `certificates.counting.certify` gives it.
      certificates: the same files, in the same order.
      code: names of the Python files that define its architectures, for review.
    """

    name: str
    submitter: str
    note: str | None
    rows: tuple[dict[str, Any], ...]
    certificates: tuple[Certificate, ...] = dataclasses.field(repr=False, compare=False)
    code: tuple[str, ...]


def write(
    found: Iterable[Certificate],
    submitter: str,
    path: store.Path,
    note: str | None = None,
) -> pathlib.Path:
    """Writes a submission of these certificates and returns its folder.

    Files of Python that define their architectures, if memobench does not, are copied into it.

    Args:
      found: the certificates.
      submitter: who found the weights; the folder is named after them and after its content.
      path: the folder to write into.
      note: a sentence about how the weights were found.

    Raises:
      UserError: the submission would not pass `read`, or the folder cannot be written or is a
        symbolic link.
    """
    path, found = pathlib.Path(path), list(found)
    files: dict[str, bytes] = {}
    code: dict[str, bytes] = {}
    for certificate in found:
        _require_place(certificate)
        _require_no_labels(certificate)
        data = certificates.encode(certificate)
        files[certificates.name_of(certificate, data)] = data
        code |= _code_of(certificate.architecture)
    head = {
        "submission": SUBMISSION,
        "submitter": submitter,
        **({"note": note} if note else {}),
        "certificates": sorted(files),
        "code": {name: certificates.digest(code[name]) for name in sorted(code)},
    }
    _check_head(head)
    require(
        "\0" not in str(path) and not path.is_symlink(),
        f"output must be a folder and not a symbolic link, got {str(path)!r}.",
    )
    folder = store.check_writable(path, "output") / _name(head)
    folder.mkdir(exist_ok=True)
    files |= code
    # Its list comes last: a folder without one is not a submission yet.
    for name, data in {**files, HEAD: (json.dumps(head, indent=1) + "\n").encode()}.items():
        with atomic.replace(folder / name) as file:
            file.write(data)
    return folder


def _code_of(spec: Spec) -> dict[str, bytes]:
    """The file that defines a spec's kind, by name; none for those of memobench itself.

    Raises UserError where it needs further files, as a reviewer would not have them.
    """
    if own_code.in_tree(type(spec)):
        return {}
    file = pathlib.Path(own_code.file_of(type(spec)))
    require(
        file.is_file(),
        f"{spec.name} must be defined in a file, got {short_repr(str(file))}. Put it into one and "
        "load it with --plugin.",
    )
    others = {pathlib.Path(each).name for each in own_code.files(type(spec))} - {file.name}
    require(
        not others,
        f"{file.name} must have all that {spec.name} needs, got also {', '.join(sorted(others))} "
        f"beside it. Move it into {file.name}.",
    )
    data = file.read_bytes()
    return {f"code-{certificates.digest(data)[:16]}.py": data}


def read(path: store.Path) -> Submission:
    """A submission, after its weights were run.

    Raises:
      UserError: the first thing that is wrong with it: folder, file, and what to do.
    """
    path = pathlib.Path(path)
    with name_place(escape_unprintable(path)):
        require(
            "\0" not in str(path) and path.is_dir() and not path.is_symlink(),
            "is not a folder; name that of a submission",
        )
        head = strict_json.parse(_contents(path / HEAD, _MAX_HEAD))
        _check_head(head)
        require(
            path.resolve().name == _name(head),
            "its name does not match its content: it was changed or renamed after it was written; "
            "write it again with memobench submit",
        )
        for name in sorted({x.name for x in path.iterdir()} - {HEAD, *_files(head)}):
            raise UserError(f"{escape_unprintable(name)} is not listed in {HEAD}; leave it out")
        for name, digest in head["code"].items():
            same = certificates.digest(_contents(path / name, _MAX_CODE)) == digest
            require(same, f"{name} was changed after it was written")
        counted = [_count(path / name, head) for name in head["certificates"]]
    return Submission(
        name=path.resolve().name,
        submitter=head["submitter"],
        note=head.get("note"),
        rows=tuple(row for row, _ in counted),
        certificates=tuple(certificate for _, certificate in counted),
        code=tuple(head["code"]),
    )


def _files(head: Mapping[str, Any]) -> list[str]:
    return [*head["certificates"], *head["code"]]


def _count(path: pathlib.Path, head: Mapping[str, Any]) -> tuple[dict[str, Any], Certificate]:
    """The row and the content of a certificate that has a place on the board."""
    try:
        certificate, digest = certificates.read(path, follow=False)
        # Before anything is drawn or run: others may be of any size.
        _require_place(certificate)
        counted = counting.row(path, certificate, digest)
        _require_no_labels(certificate)
    except UserError as error:
        # Whose folder it is, is said once.
        said = str(error).removeprefix(f"{escape_unprintable(path)}: ")
        if isinstance(error, UnknownKind) and head["code"]:
            files = " ".join(head["code"])
            said += f"; here it is defined by {files}: review that before you load it"
        raise UserError(f"{path.name}: {said}") from error
    return counted, certificate


def _require_place(certificate: Certificate) -> None:
    """Checks that weights have a place on the board; raises UserError if not."""
    reason = board.placement_error(certificate.task, certificate.n_params)
    require(not reason, f"weights of {certificate.architecture.name}: {reason}")


def _require_no_labels(certificate: Certificate) -> None:
    """Checks that code that is not memobench's knows no labels; raises UserError if it does.

    Labels are independent of weights drawn here, so that each is met with the chance of guessing:
    how many are is binomial. All weights are of one scale, the submitted ones', which tells next to
    nothing about labels. Draws differ every time, so that no code is written to pass them.
    """
    task, architecture, params = certificate.task, certificate.architecture, certificate.params
    if own_code.in_tree(type(architecture)):
        return
    n_examples = certificate.first or task.n_predicted
    square = sum(np.square(x, dtype=np.float64).sum() for x in params.values())
    scale, random = np.sqrt(square / certificate.n_params) or 1.0, np.random.default_rng()
    for low, high in itertools.islice(itertools.cycle(_RANGES), DRAWS):
        drawn = {k: random.uniform(low * scale, high * scale, x.shape) for k, x in params.items()}
        others = certificates.make(task, architecture, drawn, first=certificate.first)
        try:
            known = counting.count(others, ("float32",))["known"]
        except UserError:
            continue  # Outputs that are not finite know nothing.
        require(
            DRAWS * scipy.stats.binom.sf(known - 1, n_examples, task.chance) > _BY_CHANCE,
            f"random weights in place of those of {architecture.name} know {known} of "
            f"{n_examples} examples, so its code knows labels. Leave to weights all that is known.",
        )


def _contents(path: pathlib.Path, most: int) -> bytes:
    try:
        return strict_json.contents(path, most, follow=False)
    except UserError as error:
        raise UserError(f"{path.name} {error}") from error
    except (OSError, ValueError) as error:
        link = " it is a symbolic link, put the file itself there;" if path.is_symlink() else ""
        raise UserError(f"{path.name} cannot be read:{link} {reason(error)}") from error


def load_folder(folder: store.Path) -> list[Submission]:
    """All submissions of a folder, by name; a bad one is named in a warning and skipped."""
    found = []
    for path in sorted(pathlib.Path(folder).glob("*")):
        if path.name.startswith("."):
            continue
        try:
            found.append(read(path))
        except UserError as error:
            _log.warning("skipped %s", error)
    return found


def table(
    submissions: Iterable[Submission], published: Iterable[copies.Weights] = ()
) -> pd.DataFrame:
    """A row for all submitted weights with what was counted of them, without copies.

    What computes the same as weights of another submitter is a copy, named in a warning; of two
    the one of the later name is.

    Args:
      submissions: all of them.
      published: memobench's own weights, of which all others are copies.

    Returns:
      The columns of `certificates.counting.certify`, with `submitter` and `source`, a submission's
      name.
    """
    rows, known = [], [(board.OWN, weights) for weights in published]
    for each in sorted(submissions, key=lambda x: x.name):
        for row, certificate in zip(each.rows, each.certificates, strict=True):
            others = [weights for whose, weights in known if whose != each.submitter]
            path = pathlib.Path(each.name, row["file"])
            if of := copies.find_original(certificate, others):
                _log.warning("skipped %s: it computes what %s does", path, of)
                continue
            known.append((each.submitter, (path, certificate)))
            rows.append({"submitter": each.submitter, "source": each.name, **row})
    return pd.DataFrame(rows)


def _check_head(head: Any) -> None:
    """Checks that all fields are there and valid; raises UserError if not."""
    require(isinstance(head, dict), "is not a submission; write it with memobench submit")
    for name in head:
        require(name in HEADER, f"the field {short_repr(name)} is unknown; leave it out")
    for name, domain in HEADER.items():
        require(name in head or name in OPTIONAL, f"{name} is missing; put it in")
        domain.validate(name, head.get(name))
    # As it is read, whatever the case and marks, and with what looks like other letters.
    plain = re.sub("[^a-z0-9]", "", head["submitter"].lower()).replace("0", "o").replace("rn", "m")
    require(
        board.OWN not in plain and plain != board.YOURS,
        f"submitter must be neither {board.OWN}'s name nor what a board calls its reader, got "
        f"{short_repr(head['submitter'])}. Write yours.",
    )


def _name(head: Mapping[str, Any]) -> str:
    """A folder's name: its submitter's name in plain letters, and a hash of its content."""
    hashed = hashlib.sha256(strict_json.canonical(head).encode()).hexdigest()
    return f"{_slug(head['submitter'])}-{hashed[:16]}"


def _slug(name: str) -> str:
    """Letters a to z and digits, joined by hyphens: nothing that has a meaning in a path.

    >>> _slug("Zoe & Co.")
    'zoe-co'
    """
    return re.sub("[^a-z0-9]+", "-", name.lower())[:40].strip("-")
