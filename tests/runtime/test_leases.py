import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from memobench.common.errors import UserError
from memobench.runtime import leases, status
from memobench.runtime.leases import Leases


def test_nobody_has_what_another_has_in_hand(tmp_path):
    here, there = Leases(tmp_path), Leases(tmp_path)
    first = here.take(["a", "b"])
    second = there.take(["b", "c"])
    assert (first.run_ids, second.run_ids) == ({"a", "b"}, {"c"})
    assert here.leased_ids() == there.leased_ids() == {"a", "b", "c"}
    assert here.leased_ids(besides=first) == {"c"}
    assert here.take(["a", "c"]).run_ids == set()
    first.release()
    with there.take(["a"]) as third:
        assert third.run_ids == {"a"}
    assert there.leased_ids() == {"c"}


def test_a_lease_that_cannot_be_renewed_keeps_no_other_from_it(tmp_path, caplog):
    with Leases(tmp_path).take(["a"]) as lease:
        lease.update(done=np.int64(1))
        lease.renew()
    assert "cannot renew" in caplog.text
    assert "int64" in caplog.text


def test_of_many_at_once_each_run_goes_to_one(tmp_path):
    run_ids = [f"run{i}" for i in range(40)]
    got, start = [], threading.Barrier(6)

    def take(i):
        start.wait()
        # Every one begins elsewhere, so that they overlap in part.
        for j in range(0, 40, 8):
            chosen = [run_ids[(i * 5 + j + k) % 40] for k in range(8)]
            got.append(Leases(tmp_path).take(chosen).run_ids)

    threads = [threading.Thread(target=take, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(x for run_ids in got for x in run_ids) == sorted(run_ids)


# The name of its process is cut within a character, as the kernel cuts names.
HOLD = """
import pathlib, sys, time
from memobench.runtime import leases
from memobench.runtime.leases import Leases
leases.BEAT_SECONDS = 0.05
pathlib.Path("/proc/self/comm").write_bytes(b"na\\xc3")
about = dict(kind="pack", sweep="s", pack="p", protocol="exact", done=1, steps=4)
lease = Leases(sys.argv[1]).take(["a"], **about)
print("held", flush=True)
time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_killed_process_holds_nothing_from_that_moment(tmp_path, holder):
    seen = Leases(tmp_path)
    assert seen.leased_ids() == {"a"}
    assert "pack p: 1 runs, exact, 25% of 4 model-steps" in status.text(tmp_path)
    assert "its driver is gone" in status.text(tmp_path)
    # A paused process may go on.
    os.kill(holder.pid, signal.SIGSTOP)
    assert seen.leased_ids() == {"a"}
    os.kill(holder.pid, signal.SIGKILL)
    # A zombie counts as gone, before anybody waited for it.
    deadline = time.monotonic() + 60
    while seen.leased_ids():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert f"idle\ndied: {socket.gethostname()}, process {holder.pid};" in status.text(tmp_path)
    seen.clear()
    assert not list((tmp_path / ".leases").iterdir())
    assert "idle" in status.text(tmp_path)


def test_a_suspended_process_holds_what_it_has_for_a_while(tmp_path, holder, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(leases.time, "monotonic", lambda: now[0])
    seen = Leases(tmp_path)
    (path,) = (tmp_path / ".leases").glob("*.json")
    for number, held in ((signal.SIGSTOP, set()), (signal.SIGCONT, {"a"})):
        assert seen.leased_ids() == {"a"}
        os.kill(holder.pid, number)
        _until(lambda number=number: _is_suspended(holder.pid) == (number == signal.SIGSTOP))
        assert seen.leased_ids() == {"a"}
        now[0] += leases.STALE_SECONDS * 1.1
        if held:
            told = path.read_bytes()
            _until(lambda told=told: path.read_bytes() != told)
        assert seen.leased_ids() == held
        seen = Leases(tmp_path)


def _is_suspended(pid):
    stat = pathlib.Path(f"/proc/{pid}/stat").read_bytes()
    return stat.rpartition(b")")[2].split()[0] == b"T"


def _until(holds):
    for _ in range(6000):
        if holds():
            return
        time.sleep(0.01)
    raise AssertionError("it never came true")


def _from_elsewhere(folder, beats, **process):
    told = {
        **{"host": "elsewhere", "boot": "b", "pids": "p", "pid": 1, "started": "1", **process},
        **{"run_ids": ["a"], "beats": beats, "about": {}},
    }
    path = folder / ".leases" / "other.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(told))
    return path


def test_a_lease_that_names_another_process_that_lives_lapses(tmp_path, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(leases.time, "monotonic", lambda: now[0])
    _from_elsewhere(
        tmp_path, 1, **{**leases._identify(), "pid": 1, "started": leases._read_start(1)}
    )
    seen = Leases(tmp_path)
    assert seen.leased_ids() == {"a"}
    now[0] += leases.STALE_SECONDS * 1.1
    assert seen.leased_ids() == set()
    seen.clear()
    assert seen.read() == []


def test_no_process_is_signalled_where_that_would_end_it(tmp_path, monkeypatch):
    """Windows ends what is sent the signal 0, and has no /proc that would tell without it."""
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(leases, "_read", lambda path: "")
    monkeypatch.setattr(os, "kill", lambda pid, number: pytest.fail("a signal was sent"))
    mine, others = Leases(tmp_path), Leases(tmp_path)
    with mine.take(["a" * 16]):
        assert others.leased_ids() == {"a" * 16}


def test_of_another_machine_a_lease_counts_while_it_changes(tmp_path, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(leases.time, "monotonic", lambda: now[0])
    path, seen = _from_elsewhere(tmp_path, 1), Leases(tmp_path)
    for beats in (1, 2, 3):
        assert seen.leased_ids() == {"a"}
        now[0] += leases.STALE_SECONDS * 0.9
        assert seen.leased_ids() == {"a"}
        _from_elsewhere(tmp_path, beats + 1)
    # Clocks of machines are not compared: what a file's date says changes nothing.
    os.utime(path, (0, 0))
    assert seen.leased_ids() == {"a"}
    os.utime(path, (2**33, 2**33))
    now[0] += leases.STALE_SECONDS * 1.1
    assert seen.leased_ids() == frozenset()
    _from_elsewhere(tmp_path, 9)
    assert seen.leased_ids() == {"a"}


def test_a_process_number_used_again_is_another_process(tmp_path):
    lease = Leases(tmp_path).take(["a"])
    told = json.loads(lease.path.read_text())
    assert told["pid"] == os.getpid()
    lease.path.write_text(json.dumps({**told, "started": "1"}))
    assert Leases(tmp_path).leased_ids() == frozenset()


@pytest.mark.parametrize("content", ["", "{", "[]", "7", '{"run_ids": 1}', "[" * 10**5])
def test_a_spoiled_lease_is_named_and_skipped(tmp_path, caplog, content):
    (tmp_path / ".leases").mkdir()
    (tmp_path / ".leases" / "spoiled.json").write_text(content)
    assert Leases(tmp_path).take(["a"]).run_ids == {"a"}
    assert "skipped lease" in caplog.text
    assert "spoiled.json" in caplog.text


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / ".leases").write_text("a file stands where a folder should")
    with pytest.raises(UserError, match="can no longer be written"):
        Leases(tmp_path).take(["a"])


def test_leases_are_renewed_while_they_are_held(tmp_path, monkeypatch):
    monkeypatch.setattr(leases, "BEAT_SECONDS", 0.01)
    lease = Leases(tmp_path).take(["a"], done=0)
    lease.update(done=7)
    deadline = time.monotonic() + 60
    while (told := json.loads(lease.path.read_text()))["about"] != {"done": 7}:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert told["beats"] > 1
    lease.release()
    assert not list((tmp_path / ".leases").iterdir())


def test_a_lease_that_cannot_be_renewed_is_one_line(tmp_path, caplog, monkeypatch):
    lease = Leases(tmp_path).take(["a"])
    shutil.rmtree(tmp_path / ".leases")
    lease.renew()
    assert caplog.text == ""

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(leases.atomic, "replace", full)
    lease.renew()
    assert f"cannot renew {lease.path}: [Errno 28] No space left" in caplog.text


def test_the_status_names_runs_that_failed(tmp_path):
    found = Leases(tmp_path)
    with found.take(["a", "b"], kind="failed", sweep="s", error="it is too large"):
        lines = status.text(tmp_path).splitlines()
    assert lines[1].startswith("sweep s: ")
    assert lines[2].startswith("  failed: 2 runs: it is too large (")
