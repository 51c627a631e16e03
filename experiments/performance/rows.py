"""Measurements that go on where they stopped: rows in a file, each added as it is measured."""

import json
import os
import pathlib
import threading
import time
from collections.abc import Callable
from typing import Any

import pandas as pd
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
        self._stop, self._sitting = time.monotonic() + 60 * minutes, time.time()
        self.all = [row for row in rows if row["of"] == of]
        self.left = 0
        # Measurements may be made side by side.
        self._lock = threading.Lock()

    @property
    def is_over(self) -> bool:
        """True once no measurement may begin any more."""
        return time.monotonic() >= self._stop

    def find(self, key: dict[str, Any]) -> dict[str, Any] | None:
        """The row of this key, if it is measured."""
        return next((row for row in self.all if key.items() <= row.items()), None)

    def add(self, key: dict[str, Any], measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The row of this key, measured unless it is there; empty where time is over."""
        if row := self.find(key):
            return row
        if self.is_over:
            with self._lock:
                self.left += 1
            return {}
        row = {**key, **measure(), "of": self._of, "sitting": self._sitting}
        with self._lock, open(self._path, "a") as file:
            file.write(json.dumps(row) + "\n")
            self.all.append(row)
        shown = {k: v for k, v in row.items() if k not in ("of", "sitting")}
        say(", ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{v}" for k, v in shown.items()))
        return row

    def table(self, kind: str) -> pd.DataFrame:
        return pd.DataFrame([row for row in self.all if row["kind"] == kind])

    def sittings(self) -> str:
        n = len({row["sitting"] for row in self.all})
        return "one process" if n == 1 else f"{n} processes"
