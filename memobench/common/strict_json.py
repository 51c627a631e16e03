"""JSON that others may have written: read from regular files, and stricter than JSON is.

Nothing is read that is too large and nothing built that is too deep; numbers are finite, whole ones
those that every reader has exactly, and no key is there twice. Imports no JAX.
"""

import errno
import json
import math
import os
import pathlib
import re
import stat
from typing import Any

import numpy as np

from memobench.common.errors import UserError, require, short_repr

# Objects within a file, lists and objects in all, and how deep they lie within each other.
MAX_OBJECTS = 200_001
MAX_CONTAINERS = 4_000_000
MAX_DEPTH = 8
# Numbers are written in fewer characters, and whole ones are those that every reader has exactly.
MAX_DIGITS = 40
MAX_WHOLE = 2**53


def canonical(value: Any) -> str:
    """JSON in its canonical form: sorted keys, no spaces, numbers as Python writes them.

    Ids and digests are hashes of it.

    Raises:
      ValueError: for NaN and infinity.

    >>> canonical({"b": 1, "a": [0.5, "x"]})
    '{"a":[0.5,"x"],"b":1}'
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def contents(path: pathlib.Path, most: int, follow: bool = True) -> bytes:
    """The bytes of a regular file, at most so many.

    Args:
      path: of the file; a pipe, to which nobody may ever write, is not waited for.
      most: bytes that it may have.
      follow: whether it may be a symbolic link to one.

    Raises:
      OSError: it cannot be read.
      UserError: it is not a regular file, or too large.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW))
    except OSError as error:
        # A socket cannot even be opened.
        require(error.errno != errno.ENXIO, _NOT_REGULAR)
        raise
    try:
        found = os.fstat(handle)
        require(stat.S_ISREG(found.st_mode), _NOT_REGULAR)
        require_small(found.st_size, most)
        with open(handle, "rb", closefd=False) as file:
            data = file.read(most + 1)
    finally:
        os.close(handle)
    # Files of /proc are regular, and some have nothing to read for now.
    require(data is not None, _NOT_REGULAR)
    require_small(len(data), most)
    return data


_NOT_REGULAR = "is not a regular file; name one"


def require_small(size: int, most: int) -> None:
    """Raises UserError for a file of more bytes."""
    require(size <= most, f"{size:,} bytes are more than {most:,}; put fewer runs into a file")


# A string, or what is left of the text where it does not end.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.?[^"\\]*+)*+"?', re.DOTALL)
# An escape of half a character, alone or with its other half after it.
_HALF = re.compile(rb"\\u[dD][89a-fA-F]")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def parse(data: bytes) -> Any:
    """The value of strict JSON, whose brackets are counted before anything is built of them."""
    brackets = _STRING.sub(b"", data).translate(None, delete=_NO_BRACKETS)
    require(
        brackets.count(b"{") <= MAX_OBJECTS,
        f"more than {MAX_OBJECTS // 2:,} rows; put fewer runs into a file",
    )
    require(
        len(brackets) <= 2 * MAX_CONTAINERS,
        f"more than {MAX_CONTAINERS:,} lists and objects; put fewer runs into a file",
    )
    codes = np.frombuffer(brackets, np.uint8)
    opens = (codes == ord("[")) | (codes == ord("{"))
    depth = np.cumsum(np.where(opens, 1, -1), dtype=np.int64).max(initial=0)
    require(depth <= MAX_DEPTH, f"lists within lists {depth} deep; memobench writes none")
    try:
        found = json.loads(
            # Some editors put a mark of UTF-8 before the text.
            data.decode("utf-8-sig"),
            parse_constant=_refuse_constant,
            parse_int=_parse_integer,
            parse_float=_parse_finite,
            object_pairs_hook=_unique_keys,
        )
        if _HALF.search(data):
            json.dumps(found, ensure_ascii=False).encode()
        return found
    except UserError:
        raise
    except UnicodeError as error:
        raise UserError("is not UTF-8; it is not a file of memobench, or damaged") from error
    except json.JSONDecodeError as error:
        raise UserError(
            f"is not JSON ({error}); it is not a file of memobench, or damaged"
        ) from error


def _refuse_constant(name: str) -> None:
    raise UserError(f"{name} is not a JSON number; leave out what was not measured")


# Messages are made where they are needed: a file has millions of numbers.


def _parse_integer(text: str) -> int:
    value = int(text) if len(text) <= MAX_DIGITS else MAX_WHOLE + 1
    if abs(value) > MAX_WHOLE:
        raise UserError(f"the number {short_repr(text)} is beyond 2^53; lower it")
    return value


def _parse_finite(text: str) -> float:
    value = float(text) if len(text) <= MAX_DIGITS else math.inf
    if not math.isfinite(value):
        raise UserError(f"the number {short_repr(text)} is too large or too long; fix it")
    return value


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object, unless one of its keys is there twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        for name, _ in pairs:
            # What was met before is gone.
            if found.pop(name, _MISSING) is _MISSING:
                raise UserError(f"{short_repr(name)} is there twice; leave one out")
    return found


_MISSING = object()
