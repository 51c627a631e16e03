"""Measurements that go on where they stopped: rows in a file, each added as it is measured."""

import json
import os
import pathlib
import time
from collections.abc import Callable
from typing import Any

from measuring import say


def _whole_lines(path: pathlib.Path) -> list[str]:
    """The lines of a file, from which one that a killed writer has left torn is cut off."""
    written = path.read_bytes() if path.exists() else b""
    whole = written[: written.rfind(b"\n") + 1]
    if whole != written:
        os.truncate(path, len(whole))
    return whole.decode().splitlines()


class Rows:
    """Rows of a file, a JSON object a line, to which measurements of one device are added.

    Args:
      path: of the file.
      of: device, versions and settings, without which rows do not compare.
      minutes: after these no measurement begins.

    Attributes:
      all: the rows of the file with the same `of`.
      left: the number of measurements that did not begin.
    """

    def __init__(self, path: pathlib.Path, of: dict[str, str], minutes: float) -> None:
        self._path, self._of = path, of
        rows = [json.loads(line) for line in _whole_lines(path)]
        self._stop = time.monotonic() + 60 * minutes
        self.all = [row for row in rows if row["of"] == of]
        self.left = 0

    def add(self, key: dict[str, Any], measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The row of this key, measured unless it is there; empty where time is over."""
        for row in self.all:
            if key.items() <= row.items():
                return row
        if time.monotonic() >= self._stop:
            self.left += 1
            return {}
        row = {**key, **measure(), "of": self._of}
        with open(self._path, "a") as file:
            file.write(json.dumps(row) + "\n")
        self.all.append(row)
        shown = {k: v for k, v in row.items() if k != "of"}
        say(", ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{v}" for k, v in shown.items()))
        return row
