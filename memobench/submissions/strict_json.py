"""JSON from strangers: nothing is read that is too large, nothing built that is too deep.

Stricter than JSON: finite numbers, no key twice, whole numbers that every reader has exactly.
"""

import json
import math
import os
import pathlib
import re
import stat
from typing import Any

import numpy as np

from memobench.columns import require, shown
from memobench.errors import UserError

MAX_BYTES = 64 * 2**20
# Objects within a file, lists and objects in all, and how deep they lie within each other.
MAX_OBJECTS = 200_001
MAX_CONTAINERS = 4_000_000
MAX_DEPTH = 8
# Numbers are written in fewer characters, and whole ones are those that every reader has exactly.
MAX_DIGITS = 40
MAX_WHOLE = 2**53


def contents(path: pathlib.Path) -> bytes:
    """The bytes of a regular file that is not too large; links are not followed."""
    try:
        # Not blocking: a pipe would be waited for.
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            found = os.fstat(handle)
            require(stat.S_ISREG(found.st_mode), "is no regular file; name a submission's file")
            require(found.st_size <= MAX_BYTES, too_large(found.st_size))
            with open(handle, "rb", closefd=False) as file:
                data = file.read(MAX_BYTES + 1)
        finally:
            os.close(handle)
    except UserError:
        raise
    except (OSError, ValueError) as error:
        link = " it is a symbolic link, put the file itself there;" if path.is_symlink() else ""
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"cannot be read:{link} {reason}") from error
    require(len(data) <= MAX_BYTES, too_large(len(data)))
    return data


def too_large(size: int) -> str:
    return f"{size:,} bytes are more than {MAX_BYTES:,}; submit fewer runs at a time"


# A string, or what is left of the text where it does not end.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.?[^"\\]*+)*+"?', re.DOTALL)
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def parsed(data: bytes) -> Any:
    """Strict JSON. Looks at brackets before anything is built of them."""
    brackets = _STRING.sub(b"", data).translate(None, delete=_NO_BRACKETS)
    require(
        brackets.count(b"{") <= MAX_OBJECTS,
        f"more than {MAX_OBJECTS // 2:,} rows; submit fewer runs at a time",
    )
    require(
        len(brackets) <= 2 * MAX_CONTAINERS,
        f"more than {MAX_CONTAINERS:,} lists and objects; submit fewer runs at a time",
    )
    codes = np.frombuffer(brackets, np.uint8)
    opens = (codes == ord("[")) | (codes == ord("{"))
    depth = np.cumsum(np.where(opens, 1, -1), dtype=np.int64).max(initial=0)
    require(depth <= MAX_DEPTH, f"lists within lists {depth} deep; memobench submit writes none")
    try:
        return json.loads(
            data.decode(),
            parse_constant=_no_constant,
            parse_int=_whole_number,
            parse_float=_finite,
            object_pairs_hook=_distinct,
        )
    except UserError:
        raise
    except UnicodeDecodeError as error:
        raise UserError("is not UTF-8; write it with memobench submit") from error
    except json.JSONDecodeError as error:
        raise UserError(f"is no JSON ({error}); write it with memobench submit") from error


def _no_constant(name: str) -> None:
    raise UserError(f"{name} is no JSON number; leave out what was not measured")


def _whole_number(text: str) -> int:
    value = int(text) if len(text) <= MAX_DIGITS else MAX_WHOLE + 1
    require(abs(value) <= MAX_WHOLE, f"the number {shown(text)} is beyond 2^53; lower it")
    return value


def _finite(text: str) -> float:
    value = float(text) if len(text) <= MAX_DIGITS else math.inf
    require(math.isfinite(value), f"the number {shown(text)} is too large or too long; mend it")
    return value


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of which no key is there twice."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        require(name not in found, f"{shown(name)} is there twice; leave one out")
        found[name] = value
    return found
