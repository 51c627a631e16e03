"""Slurm with two nodes of two cores and one declared GPU each, started for these tests."""

import contextlib
import os
import pathlib
import shutil
import sys
import threading

import pytest

import memobench
from memobench.methods.training import Training
from memobench.runtime.launch import Launcher
from memobench.runtime.leases import Leases
from tests.cluster import stand_ins
from tests.cluster.private_slurm import PROGRAMS, PrivateSlurm

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def cluster():
    path = os.environ["PATH"]
    os.environ["PATH"] = f"{path}:/usr/sbin:/sbin"
    for program in PROGRAMS:
        if not shutil.which(program):
            pytest.skip(f"there is no {program}; `make test-cluster` installs it")
    slurm = PrivateSlurm()
    try:
        slurm.start()
        yield slurm
    finally:
        slurm.stop()
        os.environ["PATH"] = path


@pytest.fixture
def empty(cluster, monkeypatch):
    """The cluster, whose nodes each test finds and leaves empty."""
    monkeypatch.setenv("SLURM_CONF", cluster.environ["SLURM_CONF"])
    yield cluster
    stand_ins.until(lambda: not cluster.run("squeue", "--noheader"), "an empty queue")


@pytest.fixture
def begin(empty, tmp_path):
    """Launchers that have begun; they are closed whatever happens."""
    with contextlib.ExitStack() as stack:

        def make(n, *words):
            launcher = Launcher(n, ["srun", "--ntasks=1", *words])
            launcher.check_machine()
            launcher.begin(tmp_path)
            return stack.enter_context(contextlib.closing(launcher))

        yield make


def test_workers_on_two_nodes(begin, at, all_ended, tmp_path):
    launcher = begin(2, "--cpus-per-task=2")
    launcher.start(at("meet"), 2)
    assert all_ended(launcher, 2) == [None, None]
    told = stand_ins.diary(tmp_path)
    assert sorted(each["node"] for each in told) == ["n1", "n2"]
    # Only of workers that died a log is left.
    assert list(tmp_path.glob(".logs/*.log")) == []


def test_a_gpu_for_each_worker(begin, at, all_ended, tmp_path):
    launcher = begin(2, "--gpus=1")
    launcher.start(at("meet"), 2)
    assert all_ended(launcher, 2) == [None, None]
    told = stand_ins.diary(tmp_path)
    assert sorted(each["node"] for each in told) == ["n1", "n2"]
    assert [each["cuda"] for each in told] == ["0", "0"]


@pytest.mark.parametrize(("work", "said"), [("killed", "Killed"), ("fails", "ValueError: of no")])
def test_a_worker_that_died_says_why_and_where(begin, at, all_ended, work, said):
    launcher = begin(2)
    launcher.start(at(work), 2)
    for why in all_ended(launcher, 2):
        assert why.startswith("a worker ended with status ")
        assert said in pathlib.Path(why.partition("; log: ")[2]).read_text()


def test_what_slurm_refuses_is_the_reason(empty, make_run, tmp_path):
    place = {"processes": 1, "on": "srun --partition=none"}
    with pytest.raises(memobench.common.errors.RunsFailed, match=r"1 run: .*[Ii]nvalid partition"):
        memobench.run([make_run()], tmp_path, progress=False, **place)


def test_a_sweep_with_a_killed_worker(empty, sweep):
    sweep("srun --ntasks=1")


@pytest.fixture
def long_sweep(empty, make_run, tmp_path):
    """A sweep of one run on node n1 once it trains, in a thread; returns a call for its table."""
    runs = [make_run(method=Training(batch_size=16, n_batches=5, epochs=24_000))]
    done, leases = [], Leases(tmp_path)

    def sweep(*words):
        on = f"srun --ntasks=1 --cpus-per-task=2 {' '.join(words)}"
        done.append(memobench.run(runs, tmp_path, progress=False, processes=1, on=on))

    def start(*words):
        thread = threading.Thread(target=sweep, args=words)
        thread.start()
        trains = lambda: [x for x in leases.read() if x.alive and x.about.get("done")]  # noqa: E731
        stand_ins.until(trains, "steps")
        return lambda: thread.join(timeout=240) or done[0]

    return start


def _logs(folder):
    return "".join(path.read_text() for path in folder.glob(".logs/*.log"))


def test_a_preempted_worker_saves_and_another_goes_on(begin, long_sweep, at, all_ended, tmp_path):
    table = long_sweep("--partition=low", "--nodelist=n1")
    first = begin(1, "--partition=high", "--cpus-per-task=2", "--nodelist=n1")
    first.start(at("nothing"), 1)
    assert all_ended(first, 1) == [None]
    assert table()["status"].tolist() == ["ok"]
    assert _logs(tmp_path).count("1 runs by ") == 2
    assert "KeyboardInterrupt" in _logs(tmp_path)


def test_a_worker_whose_time_is_over_saves_and_another_goes_on(empty, long_sweep, tmp_path):
    table = long_sweep()
    # As Slurm does when the time is over.
    empty.run("scancel", "--signal=TERM", empty.run("squeue", "-h", "-o", "%i"))
    assert table()["status"].tolist() == ["ok"]
    assert _logs(tmp_path).count("1 runs by ") == 2


def test_a_lost_node(begin, empty, at, all_ended, tmp_path):
    launcher = begin(2, "--cpus-per-task=2")
    launcher.start(at("wait"), 2)
    stand_ins.until(lambda: len(stand_ins.diary(tmp_path)) == 2, "a start on each node")
    empty.kill_node("n1")
    try:
        assert len(stand_ins.until(launcher.pop_ended, "the end of a worker")) == 1
        launcher.start(at("wait"), 1)
    finally:
        empty.start_node("n1")
    stand_ins.until(lambda: len(stand_ins.diary(tmp_path)) == 3, "a start in its place")
    (tmp_path / "go").touch()
    assert all_ended(launcher, 2) == [None, None]


def test_closing_stops_what_runs_and_what_waits(begin, empty, at, tmp_path):
    launcher = begin(2, "--cpus-per-task=2", "--nodelist=n1")
    launcher.start(at("wait_for_sigusr1"), 2)
    stand_ins.until(lambda: stand_ins.diary(tmp_path), "a start")
    launcher.close()
    stand_ins.until(lambda: not empty.run("squeue", "--noheader"), "an empty queue")
    assert len(stand_ins.diary(tmp_path)) == 1
    assert len(list(tmp_path.glob("*.saved"))) == 1


def test_an_array_of_the_plain_command(empty, tmp_path):
    """Nothing watches it: jobs share the folder, and Slurm starts one again that it took away."""
    file = pathlib.Path(__file__).parents[1] / "extending" / "architecture.py"
    command = f"{sys.executable} -m memobench run {file} 'mine/g*' --results={tmp_path}/shards"
    options = ["--array=1-2", "--requeue", f"--output={tmp_path}/%a.txt", "--parsable"]
    job = empty.run("sbatch", *options, f"--wrap={command} --noprogress")
    try:
        leases = Leases(tmp_path / "shards")
        stand_ins.until(lambda: any(x.about["kind"] == "pack" for x in leases.read()), "a pack")
        empty.run("scontrol", "requeue", f"{job}_1")
        # Nodes refuse a job for the rest of the second in which it was taken from them.
        soon = ("scontrol", "update", f"JobId={job}_1", "StartTime=now+3")
        stand_ins.until(lambda: "BeginTime" in empty.run("squeue", "-h", "-o", "%r"), "its turn")
        empty.run(*soon)
        stand_ins.until(lambda: not empty.run("squeue", "--noheader"), "the end of the array")
    finally:
        empty.run("scancel", job)
    for number in (1, 2):
        assert (
            (tmp_path / f"{number}.txt").read_text().endswith(f"8 runs are in {tmp_path}/shards\n")
        )
    assert len(memobench.load_results(tmp_path / "shards")) == 8
