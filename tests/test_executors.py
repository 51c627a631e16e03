"""What a sweep does with an executor, whatever that does."""

import dataclasses
import itertools
import json
import os
import pickle
import re
import resource
import socket
import subprocess
import sys
import time
import types
from collections.abc import Sequence

import jax
import pytest

import memobench
from memobench import certificates, executors
from memobench.common.errors import RunsFailed, UserError
from memobench.core.columns import declare, value_where
from memobench.core.spec import kind
from memobench.executors import TEXT, Ended, Executor, Pool, local, ray, slurm
from memobench.executors.ray import Ray
from memobench.methods.training import Training
from memobench.planner import packing
from memobench.runtime import leases, status, sweep
from memobench.store import results

SHORT = Training(batch_size=8, n_batches=4, epochs=2)


@pytest.fixture
def runs(make_run):
    return [make_run(n_heads=h, seed=seed, method=SHORT) for h in (1, 3) for seed in range(2)]


@kind("careless")
class Careless(Executor):
    """Works at once, but for the packs whose turn is in `failing`: their workers vanish."""

    failing: Sequence[int] = declare(value_where("turns", lambda x: True), "turns", default=())
    error: str | None = declare(TEXT, "reason", default="worker killed", optional=True)

    def start(self, work, folder, on_steps):
        return Unreliable(work, self.failing, self.error)


class Unreliable(Pool):
    def __init__(self, work, failing, error):
        self.work, self.failing, self.error = work, failing, error
        self.queue, self.turns, self.closed = [], itertools.count(), False
        Unreliable.last = self

    def submit(self, packs):
        self.queue += packs

    def ended(self, timeout):
        pack = self.queue.pop(0)
        if next(self.turns) in self.failing:
            return [Ended(pack, self.error)]
        self.work(pack)
        return [Ended(pack)]

    def close(self):
        self.closed = True


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    monkeypatch.setattr(sweep, "POLL_SECONDS", 0.01)


def _run(runs, folder, **options):
    return memobench.run(runs, folder, progress=False, executor=Careless(**options))


def test_a_worker_that_vanishes_is_tried_again(runs, tmp_path, caplog):
    table = _run(runs, tmp_path, failing=(0, 1))
    assert table["run_id"].tolist() == [run.run_id for run in runs]
    assert "are tried again: worker killed" in caplog.text
    assert Unreliable.last.closed


def test_tries_are_bounded_and_the_reason_is_shown(runs, tmp_path):
    with pytest.raises(RunsFailed, match=r"runs could not be trained \(\d runs: worker killed\)"):
        _run(runs, tmp_path, failing=range(100))
    assert next(Unreliable.last.turns) == 3 * len(packing.plan(runs, "cpu"))
    assert Unreliable.last.closed
    assert len(_run(runs, tmp_path)) == len(runs)


def test_a_worker_that_ends_without_a_result_is_not_believed(runs, tmp_path):
    with pytest.raises(RunsFailed, match="its worker ended without a result"):
        _run(runs, tmp_path, failing=range(100), error=None)
    assert len(_run(runs, tmp_path, failing=(0, 2), error=None)) == len(runs)


def _elsewhere(folder, pack):
    """The lease of a worker of this sweep on another machine, which nobody can see die."""
    (own,) = (x for x in leases.Leases(folder).all() if x.about["kind"] == "sweep")
    told = {
        **{"host": "elsewhere", "boot": "b", "pids": "p", "pid": 1, "started": "1", "beats": 1},
        "run_ids": [run.run_id for run in pack.runs],
        "about": {
            "sweep": own.about["sweep"],
            "pack": results.shard_name(run.run_id for run in pack.runs),
        },
    }
    (folder / ".leases" / "elsewhere.json").write_text(json.dumps(told))


def test_the_lease_of_a_worker_that_died_on_another_machine_is_void(runs, tmp_path, monkeypatch):
    turns = []

    def ended(self, timeout):
        turns.append(self.queue.pop(0))
        _elsewhere(tmp_path, turns[-1])
        return [Ended(turns[-1], "OUT_OF_MEMORY")]

    monkeypatch.setattr(Unreliable, "ended", ended)
    with pytest.raises(RunsFailed, match="OUT_OF_MEMORY"):
        _run(runs, tmp_path)
    assert len(turns) == 3 * len(packing.plan(runs, "cpu"))


def test_what_was_lost_costs_no_other_run(runs, tmp_path):
    packs = packing.plan(runs, "cpu")
    turns = [0, len(packs), len(packs) + 1]
    with pytest.raises(RunsFailed, match=f"{len(packs[0].runs)} of {len(runs)} runs"):
        _run(runs, tmp_path, failing=turns)
    done = set(memobench.load_results(tmp_path)["run_id"])
    assert done == {run.run_id for pack in packs[1:] for run in pack.runs}


def test_a_shard_counts_whatever_its_executor_says(runs, tmp_path, monkeypatch):
    """A scheduler may call a finished job failed."""

    def ended(self, timeout):
        pack = self.queue.pop(0)
        self.work(pack)
        return [Ended(pack, "TIMEOUT")]

    monkeypatch.setattr(Unreliable, "ended", ended)
    assert len(_run(runs, tmp_path)) == len(runs)


def test_runs_that_another_has_in_hand_are_waited_for(runs, tmp_path, monkeypatch):
    held = leases.Leases(tmp_path).take([runs[0].run_id])
    waited = []

    def wait(seconds):
        # Meanwhile the other is done, or gives up.
        waited.append(len(memobench.load_results(tmp_path)))
        if len(waited) == 3:
            held.release()

    monkeypatch.setattr(sweep, "time", types.SimpleNamespace(sleep=wait, monotonic=time.monotonic))
    assert len(_run(runs, tmp_path)) == len(runs)
    assert waited == [3, 3, 3]


def test_the_work_of_other_processes_shows(runs, tmp_path, monkeypatch):
    seen = []
    ended = Unreliable.ended

    def look(self, timeout):
        seen.append(status.text(tmp_path))
        return ended(self, timeout)

    monkeypatch.setattr(Unreliable, "ended", look)
    _run(runs, tmp_path)
    assert all("0 runs are done\nsweep " in x or "runs are done\nsweep " in x for x in seen)
    assert status.text(tmp_path).endswith("4 runs are done; nobody works here")


@pytest.mark.parametrize(
    ("executor", "options", "said"),
    [
        ("rai", {}, "executor='rai' is unknown; choose one of"),
        ("local", {"workers": 3}, "option 'workers' is unknown to executor='local'; it has none"),
        ("ray", {"worker": 3}, "option 'worker' is unknown to executor='ray'; did you mean worke"),
        ("ray", {"workers": 3.5}, "workers=3.5 is not an integer >= 1"),
        ("ray", {"workers": True}, "workers=True is not an integer >= 1"),
        ("ray", {"workers": 0}, "workers=0 is not an integer >= 1"),
        ("ray", {"address": 6}, "address=6 is not text"),
        ("ray", {"cpus_per_pack": float("nan")}, "cpus_per_pack=nan is not a number >= 0"),
        ("slurm", {"partition": 3}, "partition=3 is not text"),
        (Careless(), {"error": "none"}, "error=... is an option: give it to the executor itself"),
        (Careless(), {}, "executor='careless' needs results=FOLDER"),
    ],
)
def test_a_mistaken_executor_is_one_line_before_any_work(executor, options, said):
    with pytest.raises(UserError, match=f"^{re.escape(said)}"):
        memobench.run(_no_runs(), progress=False, executor=executor, **options)


def _no_runs():
    pytest.fail("the runs were looked at")
    yield


def test_options_of_the_command_line_are_of_their_fields_types():
    given = ["address=auto", "workers=3", "cpus_per_pack=0.5", "gpus_per_pack=None"]
    made = executors.read("ray", given)
    assert made == Ray(address="auto", workers=3, cpus_per_pack=0.5, gpus_per_pack=None)
    assert executors.read("slurm", ["partition=7"]).partition == "7"
    others = ["slurm_mem=4", "slurm_setup=['a']", "slurm_qos=low", "slurm_x={[]: 1}", "slurm_y=(("]
    settings = executors.read("slurm", others).settings
    assert settings == {
        **{"slurm_mem": 4, "slurm_setup": ["a"], "slurm_qos": "low"},
        **{"slurm_x": "{[]: 1}", "slurm_y": "(("},
    }


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("workers", "is no NAME=VALUE"),
        ("=3", "is no NAME=VALUE"),
        ("workers={[]: 1}", "workers='{[]: 1}' is not an integer >= 1"),
        ("workers=" + 999 * "(", "is not an integer >= 1"),
        ("workers=", "workers='' is not an integer >= 1"),
        ("workers=" + 400 * "9", "is not an integer >= 1"),
        ("workers=" + 5000 * "9", "is not an integer >= 1"),
        ("workers=\udcff", "is not an integer >= 1"),
        ("cpus_per_pack=nan", "is not a number >= 0"),
        ("\udcff", "is no NAME=VALUE"),
        ("x" * 999 + "=1", "is unknown to executor='ray'"),
        ("cpus_per_pack=1e999", "cpus_per_pack='1e999' is not a number >= 0"),
        ("gpus_per_pack=-1", "gpus_per_pack='-1' is not a number >= 0"),
        ("results=x", "option 'results' is unknown to executor='ray'"),
    ],
)
def test_a_mistaken_option_of_the_command_line_is_one_line(option, said):
    with pytest.raises(UserError, match=re.escape(said)) as error:
        executors.read("ray", [option])
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 300


def test_every_executor_says_what_its_options_are():
    told = executors.describe()
    for name, cls in Executor.kinds().items():
        assert f"\n  {name} " in told
        assert cls.__doc__.splitlines()[0] in told
        for field in dataclasses.fields(cls):
            assert field.metadata["meaning"] in told
            if field.default is not dataclasses.MISSING:
                assert f"\n    {field.name}={field.default} " in told


def test_a_name_is_one_executors():
    with pytest.raises(UserError, match=r"^executor name='ray' is that of memobench\.executors"):
        kind("ray")(type("Other", (Executor,), {"__module__": "other"}))
    assert Executor.kinds()["ray"] is Ray


def test_slurm_is_asked_again_where_it_refused_and_nothing_runs(monkeypatch, tmp_path):
    """A limit on a user's jobs, reached once: the second pack waits, and is not forgotten."""
    handed_in = []

    @dataclasses.dataclass(frozen=True)
    class Job:
        job_id: str

    class Refusing:
        def __init__(self, folder):
            pass

        def update_parameters(self, **settings):
            pass

        def submit_array(self, works):
            handed_in.append(works)
            if len(handed_in) == 2:
                raise RuntimeError("QOSMaxSubmitJobPerUserLimit")
            return [Job(f"{len(handed_in)}_0")]

    submitit = types.SimpleNamespace(SlurmExecutor=Refusing)
    monkeypatch.setitem(sys.modules, "submitit", submitit)
    monkeypatch.setattr(slurm, "_states", dict)
    monkeypatch.setattr(slurm, "_reason", lambda *about: None)
    folder = str(tmp_path / "jobs")
    options = slurm.Slurm(workers=1, array_size=1, poll_seconds=0.01, folder=folder)
    jobs = slurm.Jobs(lambda pack: None, options)
    jobs.submit(["first", "second"])
    ended = [each.pack for _ in range(3) for each in jobs.ended(0.2)]
    assert ended == ["first", "second"]
    assert len(handed_in) == 3


def test_what_slurm_brings_back_lies_where_nobody_else_can_write(monkeypatch, tmp_path):
    """For it is unpickled: in a folder of results anybody may have put files."""
    folders = []

    class Executor:
        def __init__(self, folder):
            folders.append(folder)
            folder.mkdir()
            (folder / "submission_file.sh").touch()

        def update_parameters(self, **settings):
            pass

    monkeypatch.setitem(sys.modules, "submitit", types.SimpleNamespace(SlurmExecutor=Executor))
    monkeypatch.setattr(slurm.Slurm, "check_machine", lambda self: None)
    monkeypatch.setenv("HOME", str(tmp_path))
    jobs = [slurm.Slurm().start(lambda pack: None, tmp_path / "results", print) for _ in range(2)]
    own = tmp_path / ".memobench"
    assert [folder.parent for folder in folders] == [own, own]
    assert own.stat().st_mode & 0o777 == 0o700
    (folders[1] / "1_log.out").touch()
    for each in jobs:
        each.close()
    # Scripts are gone; the log of what failed stays.
    assert list(own.rglob("*")) == [folders[1], folders[1] / "1_log.out"]
    own.chmod(0o770)
    with pytest.raises(UserError, match=r"^folder='~/.memobench' must be yours alone .*mode 770;"):
        slurm.Slurm().start(lambda pack: None, tmp_path, print)
    own.chmod(0o700)
    monkeypatch.setattr(os, "getuid", lambda: own.stat().st_uid + 1)
    with pytest.raises(UserError, match=r"must be yours alone to write, got one of user \d+ with"):
        slurm.Slurm().start(lambda pack: None, tmp_path, print)


def test_packs_travel_as_data(runs):
    packs = packing.plan(runs, "cpu")
    assert pickle.loads(pickle.dumps(packs)) == packs


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
            ray._check_answers(address)
    for address in (f"127.0.0.1:{port}", "127.0.0.1:port", f"ray://127.0.0.1:{port}"):
        with pytest.raises(UserError, match=f"^address='{address}' does not answer ") as error:
            ray._check_answers(address)
        assert "\n" not in str(error.value)


def test_a_process_of_one_core_trains_one_pack_at_a_time(monkeypatch):
    """As in a job of a cluster that gave it one of the cores of a machine."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {3}, raising=False)
    assert (local.n_cores(), local.n_workers()) == (1, 1)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)
    assert (local.n_cores(), local.n_workers()) == (8, 2)


@pytest.mark.parametrize(("planned", "kept_to"), [("cpu", "cpu"), ("gpu", None)])
def test_a_task_of_ray_keeps_to_the_platform_it_was_planned_for(planned, kept_to, monkeypatch):
    monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.9")
    before, seen = jax.config.jax_platforms, []
    jax.config.update("jax_platforms", "cpu")  # As a driver may have it.
    try:
        ray._train(lambda pack: seen.append(jax.config.jax_platforms), planned, "0.5", None)
    finally:
        jax.config.update("jax_platforms", before)
    assert seen == [kept_to]
    assert os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"] == ("0.9" if planned == "cpu" else "0.5")
