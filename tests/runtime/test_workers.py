"""Workers on one results folder, wherever a launcher starts them."""

import dataclasses
import functools
import itertools
import json
import logging
import math
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import types

import jax
import pytest

import memobench
from memobench import certificates
from memobench.common.errors import RunsFailed, UserError
from memobench.engine import devices, loop
from memobench.methods.training import Training
from memobench.models.transformer import AttentionOnly
from memobench.planner import packing
from memobench.runtime import launch, local, status, worker, workers
from memobench.runtime.leases import Leases
from memobench.store import results as store
from tests.command_line import command_line

SHORT = Training(batch_size=8, n_batches=4, epochs=2)
MEASURED = ["run_id", "status", "accuracy", "bits", "loss", "curve_loss"]


@pytest.fixture
def runs(make_run):
    """Two packs of two runs."""
    methods = SHORT, dataclasses.replace(SHORT, batch_size=4)
    made = [make_run(seed=seed, method=method) for method in methods for seed in range(2)]
    assert [len(pack.runs) for pack in packing.plan(made, "cpu")] == [2, 2]
    return made


class Killed(BaseException):
    """A worker ends where it is."""


class Threads(launch.Launcher):
    """Workers in threads of this process; those whose turn is in `dying` end at once instead.

    So do those in `idle`, as if nothing was left; all wait for `delay` seconds before they begin.
    """

    dying = idle = ()
    delay = 0.0

    def __init__(self, n, words):
        super().__init__(n, words)
        self.turns, self.killed, self.n_started, self.closed = itertools.count(), set(), 0, False
        Threads.last = self

    def begin(self, folder):
        pass

    def start(self, work, n):
        for turn in itertools.islice(self.turns, n):
            thread = threading.Thread(target=self._work, args=[work, turn])
            thread.start()
            self._running[thread] = turn
            self.n_started += 1

    def _work(self, work, turn):
        try:
            if turn in self.dying:
                raise Killed
            time.sleep(self.delay)
            if turn not in self.idle:
                work(turn)
        except Killed:
            self.killed.add(turn)

    def pop_ended(self):
        turns = [self._running.pop(x) for x in list(self._running) if not x.is_alive()]
        return ["killed" if turn in self.killed else None for turn in turns]

    def close(self):
        for thread in self._running:
            thread.join()
        self.closed = True


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A sweep in the test's folder by workers that are threads, with attributes of `Threads`."""

    def run(runs, n=2, **attributes):
        for name, value in attributes.items():
            monkeypatch.setattr(Threads, name, value)
        monkeypatch.setattr(launch, "Launcher", Threads)
        return memobench.run(runs, tmp_path, progress=False, processes=n)

    return run


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    monkeypatch.setattr(workers, "POLL_SECONDS", 0.01)


def test_workers_make_what_one_process_makes(runs, run, tmp_path):
    alone = memobench.run(runs, progress=False)
    assert run(runs)[MEASURED].equals(alone[MEASURED])
    assert Threads.last.n_started == len(packing.plan(runs, "cpu"))
    assert Threads.last.closed
    assert status.text(tmp_path).endswith("4 runs are done; idle")


def test_a_worker_that_dies_is_replaced(runs, run, caplog):
    assert run(runs, dying=(0, 1, 3))["run_id"].tolist() == [x.run_id for x in runs]
    assert "killed" in caplog.text


def test_workers_that_never_begin_are_given_up(runs, run):
    with pytest.raises(RunsFailed, match=r"4 of 4 runs could not be trained \(4 runs: killed\)"):
        run(runs, dying=range(1000))
    assert Threads.last.n_started >= workers.RETRIES + 2
    assert Threads.last.n_started <= workers.RETRIES + 3
    assert Threads.last.closed
    assert len(run(runs, dying=())) == len(runs)


def test_workers_that_see_another_folder_are_given_up(runs, run):
    with pytest.raises(RunsFailed, match="results must be a folder that all of them share"):
        run(runs, idle=range(1000))
    assert workers.RETRIES + 2 <= Threads.last.n_started <= workers.RETRIES + 3
    assert len(run(runs, idle=(0, 2))) == len(runs)


def test_no_more_workers_start_than_packs_though_all_take_long_to_begin(runs, run):
    assert len(run(runs, n=8, delay=0.3)) == len(runs)
    assert Threads.last.n_started == len(packing.plan(runs, "cpu"))


def test_a_worker_that_waits_for_a_machine_holds_up_no_other(tmp_path):
    """Its work, of 200 kB, is more than a pipe takes."""
    waits = tmp_path / "waits"
    waits.write_text("#!/bin/sh\nexec sleep 600\n")
    waits.chmod(0o700)
    launcher = launch.Launcher(2, [str(waits)])
    launcher.begin(tmp_path)
    launcher.start(functools.partial(len, b"0" * 200_000), 2)
    assert launcher.n_running == 2
    launcher.close()
    assert not list((tmp_path / ".logs").iterdir())


def test_a_worker_that_does_not_see_the_folder_says_so(tmp_path):
    """As on a machine that has another of the same name."""
    hides = tmp_path / "hides"
    hides.write_text(f'#!/bin/sh\nrm {tmp_path}/.logs/*.pickle\nexec "$@"\n')
    hides.chmod(0o700)
    launcher = launch.Launcher(1, [str(hides)])
    launcher.begin(tmp_path)
    launcher.start(print, 1)
    while not (ended := launcher.pop_ended()):
        launcher.wait(0.05)
    assert "status 1: results must be a folder that workers share, got FileNotFound" in ended[0]
    launcher.close()


def test_a_pack_that_kills_its_workers_costs_no_other_run(runs, run, tmp_path, monkeypatch):
    """As one that takes more memory than a job has: its worker's lease is all that is left."""
    deadly, tried, train = runs[0].run_id, [], worker.work
    gone = subprocess.Popen(["true"])
    gone.wait()

    def kills(workspace, pack, on_steps):
        if deadly not in {run.run_id for run in pack.runs}:
            return train(workspace, pack, on_steps)
        lease = workspace.leases.take(
            [x.run_id for x in pack.runs], kind="pack", sweep=workspace.sweep
        )
        if lease.run_ids:
            tried.append(len(pack.runs))
            del workspace.leases._mine[lease.path]
            content = json.loads(lease.path.read_text())
            lease.path.write_text(json.dumps({**content, "pid": gone.pid}))
            raise Killed
        return []

    monkeypatch.setattr(worker, "work", kills)
    with pytest.raises(RunsFailed, match=r"2 of 4 runs could not be trained \(2 runs: killed\)"):
        run(runs)
    # Deaths count anew once the other pack is done.
    assert workers.RETRIES <= len(tried) <= 2 * (workers.RETRIES + 3)
    monkeypatch.setattr(worker, "work", train)
    assert len(run(runs)) == len(runs)


def test_what_training_raises_is_not_tried_by_every_worker(runs, run, monkeypatch):
    bad, tried, fitting = runs[-1].run_id, [], worker.train_within_memory

    def fails(pack, train):
        if bad in {run.run_id for run in pack.runs}:
            tried.append(pack)
            raise ValueError("of no\x1b use\nat all")
        return fitting(pack, train)

    monkeypatch.setattr(worker, "train_within_memory", fails)
    with pytest.raises(
        RunsFailed, match=r"2 of 4 runs could not be trained \(2 runs: ValueError: .*use"
    ):
        run(runs, n=4)
    # Another may begin while the first lets go.
    assert 1 <= len(tried) <= 2
    monkeypatch.setattr(worker, "train_within_memory", fitting)
    assert len(run(runs)) == len(runs)


def test_runs_that_another_has_in_hand_are_waited_for(runs, run, tmp_path):
    held = Leases(tmp_path).take([runs[0].run_id])
    timer = threading.Timer(1.0, held.release)
    timer.start()
    assert len(run(runs)) == len(runs)
    timer.join()


def test_a_worker_whose_sweep_is_gone_does_not_wait_for_it(runs, tmp_path, monkeypatch):
    def fails(*of_pack):
        raise ValueError("no")

    monkeypatch.setattr(worker, "work", fails)
    ids = frozenset(x.run_id for x in runs)
    workers.work_apart(str(tmp_path), 0.0, "gone", runs, ids, 1)
    assert Leases(tmp_path).read() == []


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ({"on": "ray"}, "on='ray' needs processes=N"),
        ({"processes": True}, "processes=True must be an integer >= 1"),
        ({"processes": 2}, "processes=N needs results=FOLDER"),
        (
            {"processes": 2, "on": "srum -n 1"},
            "on='srum' must be ray, or a command of this machine",
        ),
        ({"processes": 2, "on": "srun '"}, 'on="srun \'" must be words (No closing quotation)'),
        ({"processes": 2, "on": "ray auto"}, "on='ray auto' must be 'ray NAME=VALUE ...'"),
        ({"processes": 2, "on": "ray =1"}, "on='ray =1' must be 'ray NAME=VALUE ...'"),
    ],
)
def test_a_mistaken_place_is_one_line_before_any_work(place, said):
    if place.get("on", "").startswith("ray") and "processes" in place:
        pytest.importorskip("ray")
    with pytest.raises(UserError, match=f"^{re.escape(said)}"):
        memobench.run(_no_runs(), progress=False, **place)


def _no_runs():
    pytest.fail("the runs were looked at")
    yield


def test_a_kind_of_a_notebook_says_to_move_it(make_run, run, monkeypatch):
    monkeypatch.setattr(AttentionOnly, "__module__", "__main__")
    with pytest.raises(UserError, match=r"^architecture 'attention_only' must be in a file"):
        run([make_run()])


def test_workers_share_cores_evenly(tmp_path):
    cores = sorted(os.sched_getaffinity(0))
    for n in range(1, 2 * len(cores) + 2):
        launcher = launch.Launcher(n, [])
        launcher.begin(tmp_path)
        shares = [launcher._cores(place) for place in range(n)]
        assert all(shares)
        assert set().union(*shares) == set(cores)
        if n <= len(cores):
            assert sorted(itertools.chain(*shares)) == cores


@pytest.mark.parametrize(
    ("gpus", "n", "given", "memory"),
    [
        ([], 3, [None] * 3, "0.250"),
        (["0"], 1, ["0"], "0.750"),
        (["0"], 3, ["0"] * 3, "0.250"),
        (["2", "5"], 4, ["2", "5", "2", "5"], "0.375"),
        (["0", "1", "2"], 2, ["0,2", "1"], "0.750"),
    ],
)
def test_workers_share_gpus_and_their_memory(gpus, n, given, memory, tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if gpus:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ",".join(gpus))
    monkeypatch.setattr(launch.shutil, "which", lambda name: gpus and name == "nvidia-smi")
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    launcher = launch.Launcher(n, [])
    launcher.begin(tmp_path)
    found = [launcher._environment(place) for place in range(n)]
    assert [x.get("CUDA_VISIBLE_DEVICES") for x in found] == given
    assert {x["XLA_PYTHON_CLIENT_MEM_FRACTION"] for x in found} == {memory}
    assert not any("XLA_PYTHON_CLIENT_PREALLOCATE" in x for x in found)
    assert bool(launcher._cores(0)) == (not gpus)


GPU = 79 * 2**30


@pytest.mark.parametrize(
    ("platform", "n", "gib"),
    [("gpu", 1, 32), ("gpu", 3, 16), ("gpu", 15, 2), ("cpu", 1, 8), ("cpu", 2, 4), ("cpu", 7, 1)],
)
def test_packs_of_a_worker_fit_its_share(platform, n, gib, make_run, tmp_path, monkeypatch):
    """The process that starts workers, and each of them, know the same share of a device."""
    machine = types.SimpleNamespace(
        memory_stats=lambda: {
            "bytes_limit": int(GPU * float(os.environ.get(launch.MEMORY_VARIABLE, 0.75)))
        }
    )
    monkeypatch.setattr(jax, "local_devices", lambda: [machine])
    monkeypatch.setattr(jax, "default_backend", lambda: platform)
    pages = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 12 * 2**18}
    monkeypatch.setattr(os, "sysconf", pages.get)
    monkeypatch.setattr(launch, "_list_gpus", lambda: ["0"] * (platform == "gpu"))
    monkeypatch.delenv(launch.MEMORY_VARIABLE, raising=False)
    launcher = launch.Launcher(n, [])
    assert launcher.n_sharing == n
    assert local.memory_bytes(launcher.n_sharing) == gib * 2**30
    monkeypatch.setenv(launch.MEMORY_VARIABLE, launcher._environment(0)[launch.MEMORY_VARIABLE])
    assert local.memory_bytes() == gib * 2**30


def test_the_share_of_remote_workers_is_their_own(monkeypatch):
    monkeypatch.setattr(launch, "_list_gpus", lambda: pytest.fail("another machine's"))
    assert launch.Launcher(8, ["srun"]).n_sharing == 1
    monkeypatch.setattr(jax, "default_backend", lambda: "unheard of")
    assert local.memory_bytes(8) == math.inf


def test_all_workers_plan_for_the_same_share(runs, run, monkeypatch):
    """And so does the process that starts them, and the next call."""
    monkeypatch.setattr(packing, "WORKING_SET_BYTES", {})
    lane = packing.make_pack(runs[:1]).memory_bytes
    monkeypatch.setattr(local, "memory_bytes", lambda n=1: lane)
    plan, planned = packing.plan_rest, []

    def plan_noted(*arguments):
        planned.extend(plan(*arguments))
        return plan(*arguments)

    monkeypatch.setattr(packing, "plan_rest", plan_noted)
    run(runs)
    memobench.run(runs, progress=False)
    assert {len(pack.runs) for pack in planned} == {1}
    assert max(pack.memory_bytes for pack in planned) <= lane


@pytest.mark.parametrize(
    ("control", "n", "said", "ended"),
    [
        (None, 2, "this machine does not have it", False),
        ('[ "$1" = -d ] || exit 1; echo no permission >&2; exit 1', 2, "no permission", False),
        ('[ "$1" != -d ]', 2, "", False),
        ('cat > "$0.quit"; exit 0', 2, "", True),
        ("exit 1", 1, "", False),
    ],
)
def test_workers_that_share_a_gpu_say_where_they_take_turns(
    control, n, said, ended, tmp_path, monkeypatch, caplog
):
    """MPS is missing, refuses, runs already, or is started and ended; one worker needs none."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, text in (("nvidia-smi", "exit 0"), ("nvidia-cuda-mps-control", control)):
        if text is not None:
            (programs / name).write_text(f"#!/bin/sh\n{text}\n")
            (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}/usr/bin{os.pathsep}/bin")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    launcher = launch.Launcher(n, [])
    launcher.begin(tmp_path)
    launcher.close()
    assert [said in x for x in caplog.messages] == [True] * bool(said)
    quit_file = programs / "nvidia-cuda-mps-control.quit"
    assert (quit_file.exists() and quit_file.read_text() == "quit") == ended


def test_what_workers_warn_of_is_said_once(tmp_path, caplog):
    """Their logs go with them."""
    # The number of a worker is what it says.
    work = logging.getLogger("memobench").warning
    launcher = launch.Launcher(2, [])
    launcher.begin(tmp_path)
    try:
        for _ in range(2):
            launcher._n_started = 7
            launcher.start(work, 1)
            _until(lambda: launcher.pop_ended() == [None])
    finally:
        launcher.close()
    assert caplog.messages == ["7"]
    assert not list(tmp_path.glob(".logs/*.log"))


def test_no_gpu_is_one_that_cuda_does_not_take(monkeypatch):
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    monkeypatch.setattr(launch.shutil, "which", lambda name: name == "nvidia-smi")
    for visible, gpus in (("-1", []), ("", []), ("1,-1,2", ["1"])):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert launch.Launcher(2, [])._gpus == gpus


def test_tools_that_do_not_answer_are_named(tmp_path, monkeypatch):
    for name in ("nvidia-smi", "nvidia-cuda-mps-control"):
        (tmp_path / name).write_text("#!/bin/sh\nexec sleep 60\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/usr/bin{os.pathsep}/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    monkeypatch.setattr(launch, "_TOOL_SECONDS", 0.1)
    with pytest.raises(UserError, match="nvidia-smi must answer within"):
        launch.Launcher(2, []).begin(tmp_path)
    assert not launch._start_mps()


@pytest.mark.parametrize("text", ["much", "nan", "inf", "-1", "0"])
def test_a_share_of_memory_that_is_no_share_is_one_line(text, monkeypatch):
    monkeypatch.setenv(launch.MEMORY_VARIABLE, text)
    wrong = rf"must be a part of the memory such as 0\.5, got '{text}'"
    with pytest.raises(UserError, match=wrong):
        local.memory_bytes()


def test_workers_divide_the_share_that_the_user_set(monkeypatch):
    monkeypatch.setenv(launch.MEMORY_VARIABLE, "0.2")
    assert launch.Launcher(2, [])._environment(0)[launch.MEMORY_VARIABLE] == "0.100"


def test_warnings_of_a_long_log_are_repeated_once(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(launch, "_READ_BYTES", 64)
    launcher, log = launch.Launcher(1, []), tmp_path / "log"
    launcher.begin(tmp_path)
    log.write_text("x" * 100 + "\nmemobench: first\nother\nmemobench: sec")
    launcher._repeat_warnings(log)
    assert [record.getMessage() for record in caplog.records] == ["first"]
    with log.open("a") as file:
        file.write("ond\n" + "y\n" * 100 + "memobench: first\nmemobench: third\n")
    launcher._repeat_warnings(log)
    said = [record.getMessage() for record in caplog.records]
    assert said == ["first", "second", "third"]


@pytest.mark.parametrize("n", [0, -1, 1.0])
def test_a_number_of_workers_that_cannot_be_is_one_line(n):
    with pytest.raises(UserError, match=rf"^processes={re.escape(str(n))} must be an integer >= 1"):
        memobench.run(_no_runs(), "elsewhere", progress=False, processes=n)
    done = command_line("run", "dana2025/heads", f"--processes={n}", cwd=".")
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert f"--processes={n}" in done.stderr


def _until(true):
    deadline = time.monotonic() + 240
    while not (value := true()):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return value


LONG = """
import dataclasses, pathlib, sys, memobench
from memobench.methods.training import Training
from memobench.models.transformer import AttentionOnly
from memobench.core.run import Run
from memobench.tasks.associations import Associations
runs = [
    Run(
        task=Associations(vocab_size=5),
        architecture=AttentionOnly(d_model=2, d_head=2, n_heads=1),
        method=Training(batch_size=size, n_batches=4, epochs=10**6),
    )
    for size in (4, 8, 12)
]
memobench.run(runs, sys.argv[1], progress=False, processes=int(sys.argv[2]))
"""


@pytest.mark.parametrize(
    ("last", "n"),
    [
        # A process takes seconds to begin; workers that die are threads above.
        (signal.SIGTERM, 1),
        pytest.param(signal.SIGTERM, 2, marks=pytest.mark.slow),
        pytest.param(signal.SIGKILL, 2, marks=pytest.mark.slow),
    ],
)
def test_a_killed_worker_and_a_stopped_command(last, n, tmp_path):
    """A killed worker's runs are taken up; SIGTERM, and the command's end, reach all workers."""
    seen = Leases(tmp_path)

    def holders():
        held = [x for x in seen.read() if x.alive and x.about["kind"] == "pack"]
        return {x.pid for x in held if x.about["done"]}

    pipe = subprocess.PIPE
    command = [sys.executable, "-c", LONG, str(tmp_path), str(n)]
    with subprocess.Popen(command, stderr=pipe, text=True) as sweeping:
        try:
            _until(lambda: len(holders()) == n)
            if last == signal.SIGTERM and n > 1:
                pid = next(iter(holders()))
                os.kill(pid, signal.SIGKILL)
                _until(lambda: len(holders() - {pid}) == 2)
            sweeping.send_signal(last)
            _until(lambda: not [x for x in seen.read() if x.alive])
            _, said = sweeping.communicate(timeout=60)
        finally:
            sweeping.kill()
    if last == signal.SIGTERM:
        assert n == 1 or ": a worker ended with SIGKILL: " in f": {said}"
        assert "interrupted: 0 of 3 runs are saved" in said
    assert len(list(tmp_path.glob(".checkpoints/*.npz"))) >= n


@pytest.fixture
def no_room():
    """Files cannot grow beyond some bytes: leases can be written, shards cannot."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def set_limit(n_bytes):
        resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, before[1]))

    yield set_limit
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_no_room_for_a_shard_is_one_line_and_resumes(runs, tmp_path, no_room):
    no_room(2000)
    with pytest.raises(UserError, match=r"can no longer be written .*same command resumes"):
        memobench.run(runs, tmp_path, progress=False)
    no_room(0)
    with pytest.raises(UserError, match=r"can no longer be written"):
        memobench.run(runs, tmp_path, progress=False)
    no_room(resource.RLIM_INFINITY)
    assert memobench.load_results(tmp_path).empty
    left = {path for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".log"}
    # Weights are written before their shard: those that found room are whole.
    assert left == set(tmp_path.glob("weights/*.safetensors"))
    for path in left:
        certificates.load(path)
    assert len(memobench.run(runs, tmp_path, progress=False)) == len(runs)


@pytest.fixture
def small_disk(tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=32k", "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("needs the right to mount a file system")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_full_and_a_read_only_disk_are_one_line_and_resume(runs, small_disk):
    def remount(options):
        subprocess.run(["mount", "-o", f"remount,{options}", str(small_disk)], check=True)

    filling = small_disk / "filling"
    filling.write_bytes(b"0" * 2**14)
    with pytest.raises(UserError, match=r"No space left on device.*same command resumes"):
        memobench.run(runs, small_disk, progress=False)
    filling.unlink()
    remount("ro")
    with pytest.raises(UserError, match=r"cannot be written \(Read-only file system\)"):
        memobench.run(runs, small_disk, progress=False)
    remount("rw,size=1m")
    assert len(memobench.run(runs, small_disk, progress=False)) == len(runs)


def test_an_address_where_nothing_listens_is_named_at_once():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        for address in (None, "auto", f"127.0.0.1:{port}", f"ray://127.0.0.1:{port}"):
            launch._require_answer(address)
    for address in (f"127.0.0.1:{port}", "127.0.0.1:port", f"ray://127.0.0.1:{port}"):
        with pytest.raises(UserError, match=f"^address='{address}' does not answer ") as error:
            launch._require_answer(address)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("ahead", [False, True])
def test_the_next_program_compiles_while_a_pack_trains(ahead, runs, tmp_path, monkeypatch):
    made, both = [], threading.Event()
    compile_program = loop.compile_program.__wrapped__

    @functools.lru_cache
    def compile_noted(*shape):
        program = compile_program(*shape)
        made.append(threading.current_thread() is threading.main_thread())
        if len(made) == 2:
            both.set()
        return program

    monkeypatch.setattr(loop, "compile_program", compile_noted)
    workspace = worker.Workspace(tmp_path, store.Reader(tmp_path), Leases(tmp_path))
    ids = frozenset(run.run_id for run in runs)
    wait = (lambda pack, steps: both.wait(60)) if ahead else (lambda pack, steps: None)
    packs = packing.plan(runs, "cpu")
    workers.work(workspace, runs, ids, packs, wait, ahead, math.inf, 0, threading.Event())
    assert made == [True, not ahead]
    assert workspace.reader.rows().keys() == ids


def test_a_process_of_one_core_trains_one_pack_at_a_time(monkeypatch):
    """As in a job of a cluster that gave it one of the cores of a machine."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {3}, raising=False)
    assert (devices.n_cores(), local.n_workers()) == (1, 1)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)
    assert (devices.n_cores(), local.n_workers()) == (8, 2)


@pytest.mark.parametrize(("share", "kept_to", "memory"), [(0, "cpu", "0.9"), (0.5, None, "0.450")])
def test_a_task_of_ray_keeps_to_its_platform_and_its_share(share, kept_to, memory, monkeypatch):
    monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.9")
    before, seen = jax.config.jax_platforms, []
    jax.config.update("jax_platforms", "cpu")  # As a driver may have it.
    try:
        launch._work_in_ray(lambda number: seen.append(jax.config.jax_platforms), share, 0)
    finally:
        jax.config.update("jax_platforms", before)
    assert seen == [kept_to]
    assert os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"] == memory
