"""Slurm with two nodes of two cores and one declared GPU each, started for these tests."""

import functools
import os
import pathlib
import shutil
import threading
import time

import pytest

import memobench
from memobench.errors import UserError
from memobench.methods.training import Training
from memobench.runtime.launch import Slurm, Work
from memobench.runtime.leases import Leases
from tests.cluster import stand_ins
from tests.cluster.private_slurm import PROGRAMS, PrivateSlurm

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def cluster():
    pytest.importorskip("submitit")
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
def begin(cluster, tmp_path, monkeypatch):
    """Launchers that have begun; they are closed, so that each test finds empty nodes."""
    monkeypatch.setenv("SLURM_CONF", cluster.environ["SLURM_CONF"])
    made = []

    def make(n, **options):
        own = {"poll_seconds": 0.5, "folder": str(tmp_path / "jobs")}
        launcher = Slurm(n, {**own, **options})
        launcher.check_machine()
        launcher.begin(tmp_path)
        made.append(launcher)
        return launcher

    yield make
    for launcher in made:
        launcher.close()
    stand_ins.until(lambda: not cluster.run("squeue", "--noheader"), "an empty queue")


def test_an_array_on_two_nodes(begin, at, all_ended, tmp_path):
    launcher = begin(2, cpus_per_task=2)
    assert launcher.platform == "cpu"
    launcher.start(at("meet"), 2)
    assert all_ended(launcher, 2) == [None, None]
    told = stand_ins.diary(tmp_path)
    assert sorted(each["node"] for each in told) == ["n1", "n2"]
    assert [each["jax_platforms"] for each in told] == ["cpu"] * 2
    # Of jobs that went well only the script of the array is left.
    assert {path.suffix for path in (tmp_path / "jobs").glob("slurm-*/*")} == {".sh"}


def test_arrays_one_after_the_other(begin, at, all_ended, tmp_path):
    more = ["export JAX_PLATFORMS=$JAX_PLATFORMS,cpu"]
    launcher = begin(3, array_parallelism=1, setup=more)
    launcher.start(at("nothing"), 2)
    assert all_ended(launcher, 2) == [None] * 2
    launcher.start(at("nothing"), 1)
    assert all_ended(launcher, 1) == [None]
    told = stand_ins.diary(tmp_path)
    assert [each["at_once"] for each in told] == [1] * 3
    assert len(stand_ins.diary(tmp_path, 2)) == 1
    assert {each["jax_platforms"] for each in told} == {"cpu,cpu"}


def test_a_gpu_for_each_worker(begin, at, all_ended, tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    launcher = begin(2, gpus_per_node=1)
    assert launcher.platform == "gpu"
    launcher.start(at("meet"), 2)
    assert all_ended(launcher, 2) == [None, None]
    told = stand_ins.diary(tmp_path)
    assert sorted(each["node"] for each in told) == ["n1", "n2"]
    assert [each["cuda"] for each in told] == ["0", "0"]
    assert [each["jax_platforms"] for each in told] == [None, None]


@pytest.mark.parametrize(("work", "said"), [("killed", "Killed"), ("fails", "ValueError: of no")])
def test_a_job_that_died_says_why_and_where(begin, at, all_ended, work, said):
    launcher = begin(2)
    launcher.start(at(work), 2)
    for why in all_ended(launcher, 2):
        state, _, log = why.partition("; log: ")
        assert "FAILED (NonZeroExitCode)" in state
        assert said in pathlib.Path(log).read_text()


def test_a_sweep_with_a_killed_job(begin, sweep, tmp_path):
    sweep("slurm", poll_seconds=0.5, folder=str(tmp_path / "jobs"))


def test_a_preempted_job_is_started_again(begin, cluster, at, all_ended, tmp_path):
    on_one = {"cpus_per_task": 2, "nodelist": "n1"}
    launcher = begin(1, partition="low", **on_one)
    launcher.start(at("wait"), 1)
    stand_ins.until(lambda: stand_ins.diary(tmp_path), "a start")
    first = begin(1, partition="high", **on_one)
    first.start(at("nothing"), 1)
    assert all_ended(first, 1) == [None]
    (waiting,) = requeued(cluster)
    assert cluster.run("sacct", "-nXPD", "-j", waiting, "-o", "State").startswith("PREEMPTED")
    time.sleep(1)
    assert launcher.ended() == []
    (tmp_path / "go").touch()
    assert all_ended(launcher, 1) == [None]
    assert len(stand_ins.diary(tmp_path)) == 3


def test_a_worker_of_a_preempted_job_saves_and_goes_on(begin, cluster, make_run, tmp_path):
    """All of it: a job of a sweep is taken away, and its runs are trained in the end."""
    runs = [make_run(method=Training(batch_size=16, n_batches=5, epochs=6000))]
    own = {"poll_seconds": 0.5, "folder": str(tmp_path / "jobs"), "partition": "low"}
    done = []
    place = {"on": "slurm", "processes": 1, "cpus_per_task": 2, "nodelist": "n1", **own}
    sweeping = threading.Thread(
        target=lambda: done.append(memobench.run(runs, tmp_path, progress=False, **place))
    )
    sweeping.start()
    leases = Leases(tmp_path)
    try:
        steps = stand_ins.until(
            lambda: [x for x in leases.all() if x.alive and x.about.get("done")], "steps"
        )
        first = begin(1, partition="high", cpus_per_task=2, nodelist="n1")
        first.start(Work.make(functools.partial(stand_ins.nothing, tmp_path)), 1)
        requeued(cluster)
    finally:
        sweeping.join(timeout=240)
    assert len(steps) == 1
    assert done[0]["status"].tolist() == ["ok"]
    log = "".join(path.read_text() for path in tmp_path.glob(".logs/*.log"))
    assert log.count("1 runs by ") == 2
    assert "KeyboardInterrupt" in log


def test_a_job_whose_time_is_over_goes_on(begin, cluster, at, all_ended, tmp_path):
    # Of so short a time submitit takes any request to stop for its end.
    launcher = begin(1, time=5)
    launcher.start(at("wait"), 1)
    stand_ins.until(lambda: stand_ins.diary(tmp_path), "a start")
    # As Slurm does before the time is over.
    cluster.run("scancel", "--signal=USR2", cluster.run("squeue", "-h", "-o", "%i"))
    requeued(cluster)
    (tmp_path / "go").touch()
    assert all_ended(launcher, 1) == [None]
    assert len(stand_ins.diary(tmp_path)) == 2


def test_a_lost_node(begin, cluster, at, all_ended, tmp_path):
    launcher = begin(2, cpus_per_task=2)
    launcher.start(at("wait"), 2)
    stand_ins.until(lambda: len(stand_ins.diary(tmp_path)) == 2, "a start on each node")
    (lost,) = (x for x in range(2) if stand_ins.diary(tmp_path, x)[0]["node"] == "n1")
    cluster.kill_node("n1")
    try:
        requeued(cluster)
        (tmp_path / "go").touch()
        assert all_ended(launcher, 2) == [None, None]
        assert [each["node"] for each in stand_ins.diary(tmp_path, lost)] == ["n1", "n2"]
    finally:
        cluster.start_node("n1")


def test_accounting_is_not_needed(begin, cluster, at, all_ended):
    cluster.kill("slurmdbd")
    try:
        launcher = begin(1)
        launcher.start(at("nothing"), 1)
        assert all_ended(launcher, 1) == [None]
    finally:
        cluster.start_accounting()


def test_closing_cancels_what_runs_and_waits(begin, cluster, at, tmp_path):
    launcher = begin(2, cpus_per_task=2, nodelist="n1")
    launcher.start(at("wait"), 2)
    stand_ins.until(lambda: stand_ins.diary(tmp_path), "a start")
    launcher.close()
    stand_ins.until(lambda: not cluster.run("squeue", "--noheader"), "an empty queue")
    assert len(stand_ins.diary(tmp_path)) == 1


def test_what_slurm_refuses(begin, at, monkeypatch):
    with pytest.raises(UserError, match=r"could not hand in jobs: .*invalid partition"):
        begin(1, partition="none").start(at("nothing"), 1)
    with pytest.raises(UserError, match="option 'colour' is unknown to on='slurm'"):
        begin(1, colour="red")
    with monkeypatch.context() as without:
        without.setenv("PATH", "")
        with pytest.raises(UserError, match="on='slurm' needs Slurm's sbatch"):
            begin(1)


def requeued(cluster):
    """Ids of the jobs that Slurm will start again, and now does soon."""
    command = "squeue", "--noheader", "--array", "--states=PENDING", "--format=%i %r"

    def found():
        rows = [line.split() for line in cluster.run(*command).splitlines()]
        return [job for job, reason in rows if reason == "BeginTime"]

    jobs = stand_ins.until(found, "a job to be started again")
    for job in jobs:
        # Nodes refuse a job for the rest of the second in which it was taken from them.
        cluster.run("scontrol", "update", f"JobId={job}", "StartTime=now+3")
    return jobs
