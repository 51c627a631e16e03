"""Leases: the runs that a process is training, so that drivers and workers do no work twice.

A lease is a file of its own in the folder `.leases` of a results folder, replaced whole every
BEAT_SECONDS by its holder. It lapses at once where its process is gone from this machine, and
anywhere once its file has not changed for STALE_SECONDS of the reader's own monotonic clock: a
process that lives may be suspended, or not be the one that took it. Clocks of two machines are
never compared, and a clock that jumps changes nothing.

Each holder writes its lease before it looks for others', so of two that overlap at least one sees
the other and steps back: no two have one run, where a folder shows at once what is written to it.
On a network file system that does not, two may train the same; nothing is lost by it.
"""

import dataclasses
import json
import logging
import os
import pathlib
import random
import socket
import sys
import threading
import time
import uuid
from collections.abc import Collection
from typing import Any

from memobench.common import atomic, strict_json
from memobench.common.errors import escape_unprintable, in_a_line, require
from memobench.store import results as store

BEAT_SECONDS = 5.0
STALE_SECONDS = 60.0

_log = logging.getLogger("memobench")


@dataclasses.dataclass(frozen=True)
class HeldLease:
    """A lease as others read it.

    Attributes:
      name: of its file.
      run_ids: the runs that it claims.
      host: the machine of its holder.
      pid: the process of its holder.
      about: its holder's account of its work.
      age: seconds since its last beat, if the clock was not set.
      alive: whether it has not lapsed.
    """

    name: str
    run_ids: frozenset[str]
    host: str
    pid: int
    about: dict[str, Any]
    age: float
    alive: bool


class Lease:
    """A claim on runs until `release`; a `with` block releases them."""

    def __init__(self, leases: "Leases", about: dict[str, Any]) -> None:
        self.run_ids, self.about = frozenset[str](), about
        self._leases = leases
        self.path = leases.folder / f"{uuid.uuid4().hex}.json"
        self._beats = 0

    def update(self, **about: Any) -> None:
        """Changes fields of `about`, which the next beat writes."""
        self.about = {**self.about, **about}

    def beat(self) -> None:
        """Writes the file anew, which shows that the holder lives."""
        self._beats += 1
        content = {
            **_identify(),
            "run_ids": sorted(self.run_ids),
            "beats": self._beats,
            "about": self.about,
        }
        # After a power failure no lease is valid.
        with atomic.replace(self.path, durable=False) as file:
            file.write(json.dumps(content).encode())

    def renew(self) -> None:
        """Beats; warns where that cannot be, but for a folder that somebody removed."""
        try:
            self.beat()
        except FileNotFoundError:
            pass  # What cannot be written will say so.
        except Exception as error:  # Other leases of this process are renewed all the same.
            _log.warning("cannot renew %s: %s", self.path, error)

    def release(self) -> None:
        self._leases.forget(self)

    def __enter__(self) -> "Lease":
        return self

    def __exit__(self, *_: Any) -> None:
        self.release()


class Leases:
    """The leases of one results folder, as one process takes and sees them."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = pathlib.Path(folder) / ".leases"
        self._mine: dict[pathlib.Path, Lease] = {}
        self._lock = threading.Lock()
        self._beating = False
        # Of others' leases: what the file said last, and when it was first seen to say so.
        self._seen: dict[pathlib.Path, tuple[bytes, float]] = {}

    def take(self, run_ids: Collection[str], **about: Any) -> Lease:
        """A lease of those of the runs that nobody else has leased; its run_ids may be empty.

        Args:
          run_ids: the runs that are wanted.
          **about: of the work, for others to read.

        Raises:
          UserError: the folder cannot be written.
        """
        while True:
            lease = Lease(self, about)
            lease.run_ids = frozenset(run_ids) - self.leased_ids(besides=lease)
            try:
                self._begin(lease)
            except OSError as error:
                lease.release()
                raise store.unwritable_error(self.folder.parent, error) from error
            if not lease.run_ids & self.leased_ids(besides=lease):
                return lease
            lease.release()
            time.sleep(random.uniform(0.01, 0.1))

    def leased_ids(self, besides: Lease | None = None) -> frozenset[str]:
        """The runs of all valid leases, this process's other leases among them.

        Args:
          besides: a lease that does not count.
        """
        held = [lease for lease in self.read() if lease.alive]
        if besides:
            held = [x for x in held if x.name != besides.path.name]
        return frozenset().union(*(lease.run_ids for lease in held))

    def read(self) -> list[HeldLease]:
        """Every lease of the folder, lapsed ones too."""
        if not self.folder.is_dir():
            return []
        found = []
        paths = sorted(self.folder.glob("*.json"))
        # Threads share this: each compares with what it saw itself, and the last one keeps it.
        existing = set(paths)
        seen = {path: x for path, x in self._seen.items() if path in existing}
        for path in paths:
            try:
                data = strict_json.contents(path, MAX_BYTES)
                content = _validate(strict_json.parse(data))
                held = HeldLease(
                    name=path.name,
                    run_ids=frozenset(content["run_ids"]),
                    host=content["host"],
                    pid=content["pid"],
                    about=content["about"],
                    age=time.time() - path.stat().st_mtime,
                    alive=self._is_alive(path, data, content, seen),
                )
            except FileNotFoundError:  # Released in this moment.
                continue
            except Exception as error:
                _log.warning("skipped lease %s: %s", escape_unprintable(path), in_a_line(error))
                continue
            found.append(held)
        self._seen = seen
        return found

    def clear(self) -> None:
        """Removes the leases that have lapsed."""
        for held in self.read():
            if not held.alive:
                atomic.remove(self.folder / held.name)

    def forget(self, lease: Lease) -> None:
        with self._lock:
            self._mine.pop(lease.path, None)
            atomic.remove(lease.path)

    def _begin(self, lease: Lease) -> None:
        with self._lock:
            self.folder.mkdir(parents=True, exist_ok=True)
            lease.beat()
            self._mine[lease.path] = lease
            if not self._beating:
                self._beating = True
                threading.Thread(target=self._beat, daemon=True).start()

    def _is_alive(
        self,
        path: pathlib.Path,
        data: bytes,
        content: dict[str, Any],
        seen: dict[pathlib.Path, tuple[bytes, float]],
    ) -> bool:
        me = _identify()
        is_here = all(content[name] == me[name] for name in ("host", "boot", "pids"))
        if is_here and content["started"]:
            started = _read_start(content["pid"])
            if started is not None and started != content["started"]:
                return False
        now = time.monotonic()
        if seen.get(path, (b"", 0.0))[0] != data:
            seen[path] = (data, now)
        return now - seen[path][1] < STALE_SECONDS

    def _beat(self) -> None:
        while True:
            time.sleep(BEAT_SECONDS)
            with self._lock:
                if not self._mine:
                    self._beating = False
                    return
                for lease in list(self._mine.values()):
                    lease.renew()


MAX_BYTES = 2**30


def _validate(content: Any) -> dict[str, Any]:
    """The content of a lease. Raises an error for any other JSON, which anybody may have put."""
    about = dict(content["about"])
    numbers = [content["pid"], about.pop("done", 0), about.pop("steps", 0)]
    texts = [*content["run_ids"], *(content[x] for x in ("host", "boot", "pids"))]
    texts += [content["started"] or "", *about.values()]
    require(
        all(type(x) is int and 0 <= x < 2**53 for x in numbers)
        and all(type(x) is str and x.isprintable() for x in texts),
        "it is not a lease",
    )
    return content


def _identify() -> dict[str, Any]:
    """Fields that tell this process from all others, of other machines and other boots too."""
    return {
        "host": socket.gethostname(),
        "boot": _read("/proc/sys/kernel/random/boot_id"),
        # Containers of one machine may count their processes apart.
        "pids": _link("/proc/self/ns/pid"),
        "pid": os.getpid(),
        "started": _read_start(os.getpid()),
    }


def _read_start(pid: int) -> str | None:
    """The time at which a process of this machine started, for its number may be reused.

    Empty where it is gone; None where this system does not tell.
    """
    # The name, in brackets, may hold anything.
    fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    if fields:
        # A zombie works no more.
        return fields[19] if fields[0] not in "ZX" else ""
    if sys.platform != "linux":  # On Windows the signal 0 ends a process.
        return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    except OSError:
        pass
    return None


def _read(path: str) -> str:
    try:
        # A process's name may be cut within a character.
        return pathlib.Path(path).read_text("utf-8", errors="replace").strip()
    except OSError:
        return ""


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
