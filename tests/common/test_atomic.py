"""A file written by `atomic` is whole or not there, wherever its writer is killed."""

import contextlib
import errno
import os
import subprocess
import sys

import pytest

from memobench.common import atomic

# The writer dies as by SIGKILL where the named step would begin.
KILLED = """
import os, pathlib, signal, sys
from memobench.common import atomic
_, write, step, path = sys.argv
def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)
if step != "write":
    setattr(os, step, die)
with getattr(atomic, write)(pathlib.Path(path)) as file:
    file.write(b"new, first half; ")
    file.flush()
    if step == "write":
        die()
    file.write(b"second half")
"""


def write_new(path, content=b"new"):
    with atomic.create(path) as file:
        file.write(content)


def replace(path, content=b"new", **options):
    with atomic.replace(path, **options) as file:
        file.write(content)


@pytest.mark.parametrize(
    ("write", "step"),
    [
        *(("create", step) for step in ("write", "fsync", "link", "open")),
        *(("replace", step) for step in ("write", "fsync", "replace", "open")),
    ],
)
def test_a_killed_writer_leaves_nothing_half(tmp_path, write, step):
    path = tmp_path / "a.json"
    if write == "replace":
        path.write_bytes(b"old")
    command = [sys.executable, "-c", KILLED, write, step, str(path)]
    assert subprocess.run(command).returncode == -9
    # The folder is opened to wait for the disk once the file has its name.
    if step == "open":
        assert path.read_bytes() == b"new, first half; second half"
    elif write == "replace":
        assert path.read_bytes() == b"old"
    else:
        assert not path.exists()
    left = set(tmp_path.iterdir()) - {path}
    assert set(atomic.leftovers(tmp_path)) == left
    assert set(atomic.leftovers(tmp_path, path.name)) == left
    assert atomic.leftovers(tmp_path, "other.json") == []
    # The next writer is not in its way.
    (write_new if step != "open" and write == "create" else replace)(path, b"again")
    assert path.read_bytes() == b"again"


@pytest.mark.parametrize("links", [True, False], ids=["links", "no links"])
def test_what_is_there_is_kept_by_create(tmp_path, monkeypatch, links):
    def no_links(*_):
        raise PermissionError("no hard links here")

    if not links:
        monkeypatch.setattr(os, "link", no_links)
    write_new(tmp_path / "a", b"first")
    with pytest.raises(FileExistsError):
        write_new(tmp_path / "a", b"second")
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == {tmp_path / "a": b"first"}


@pytest.mark.parametrize("write", [write_new, replace])
def test_a_full_disk_leaves_what_was_there_and_nothing_else(tmp_path, monkeypatch, write):
    def full(*_):
        raise OSError(28, "No space left on device")

    replace(tmp_path / "old", b"old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write(tmp_path / ("new" if write is write_new else "old"))
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"old"]


@pytest.mark.parametrize("step", ["open", "fsync"])
@pytest.mark.parametrize(("code", "is_lack"), [("EINVAL", True), ("EACCES", True), ("EIO", False)])
@pytest.mark.parametrize("write", [write_new, replace])
def test_a_file_system_may_lack_the_wait_for_folders(
    tmp_path, monkeypatch, write, step, code, is_lack
):
    """A folder is opened, or waited for, in vain; what else goes wrong there is told."""
    true = getattr(os, step)

    def only_files(what, *more):
        if os.path.samestat(os.stat(what), os.stat(tmp_path)):
            raise OSError(getattr(errno, code), "not of a folder")
        return true(what, *more)

    with monkeypatch.context() as patched:
        patched.setattr(os, step, only_files)
        with contextlib.nullcontext() if is_lack else pytest.raises(OSError, match="not of a"):
            write(tmp_path / "a")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"new"]


@pytest.mark.parametrize("write", [write_new, replace])
def test_what_fails_within_the_block_leaves_nothing(tmp_path, write):
    with pytest.raises(TypeError):
        write(tmp_path / "a", "text, not bytes")
    assert list(tmp_path.iterdir()) == []


def test_only_what_must_be_durable_waits_for_the_disk(tmp_path, monkeypatch):
    waits = []
    monkeypatch.setattr(os, "fsync", waits.append)
    replace(tmp_path / "a", durable=False)
    assert waits == []
    replace(tmp_path / "a")
    # The file, and the folder that names it.
    assert len(waits) == 2
