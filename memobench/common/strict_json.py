"""JSON that others may have written: read from regular files that are not too large.

Imports no JAX.
"""

import collections
import errno
import json
import math
import os
import pathlib
import re
import stat
from typing import Any

from memobench.common.errors import UserError, require, short_repr


def canonical(value: Any) -> str:
    """JSON in its canonical form: sorted keys, no spaces, numbers as Python writes them.

    Ids and digests are hashes of it.

    Raises:
      ValueError: for NaN and infinity.

    >>> canonical({"b": 1, "a": [0.5, "x"]})
    '{"a":[0.5,"x"],"b":1}'
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def or_null(value: Any) -> Any:
    """The value; None for infinity and NaN, which JSON has not.

    >>> [or_null(x) for x in (math.inf, math.nan, 1.5, "x")]
    [None, None, 1.5, 'x']
    """
    return None if isinstance(value, float) and not math.isfinite(value) else value


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


# An escape of half a character, alone or with its other half after it.
_HALF = re.compile(rb"\\u[dD][89a-fA-F]")


def parse(data: bytes) -> Any:
    """The value of JSON in UTF-8, with finite numbers and no key twice.

    Raises:
      UserError: it is damaged, or not JSON; the line says why.
    """
    try:
        # Some editors put a mark of UTF-8 before the text.
        text = data.decode("utf-8-sig")
        found = json.loads(
            text,
            parse_constant=_refuse_constant,
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
    except RecursionError as error:
        raise UserError("has lists within lists too deep; memobench writes none") from error
    except ValueError as error:
        raise UserError(
            f"is not JSON ({error}); it is not a file of memobench, or damaged"
        ) from error


def _refuse_constant(name: str) -> None:
    raise UserError(f"{name} is not a JSON number; leave out what was not measured")


def _parse_finite(text: str) -> float:
    value = float(text)
    if math.isinf(
        value
    ):  # Messages are made where they are needed: files have millions of numbers.
        raise UserError(f"the number {short_repr(text)} is too large; lower it")
    return value


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object, unless one of its keys is there twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        ((name, _),) = collections.Counter(name for name, _ in pairs).most_common(1)
        raise UserError(f"{short_repr(name)} is there twice; leave one out")
    return found
