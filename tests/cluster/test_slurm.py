"""Slurm with two nodes of two cores and one declared GPU each, started for these tests."""

import os
import pathlib
import shutil

import pytest

from memobench.common.errors import UserError
from memobench.executors.slurm import Slurm
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
def start(cluster, tmp_path, monkeypatch):
    """Makes executors and closes them, so that each test finds empty nodes."""
    monkeypatch.setenv("SLURM_CONF", cluster.environ["SLURM_CONF"])
    made = []

    def make(work, **options):
        own = {"poll_seconds": 0.5, "folder": str(tmp_path / "jobs")}
        made.append(Slurm.make({**own, **options}).start(work, tmp_path, print))
        return made[-1]

    yield make
    for executor in made:
        executor.close()
    stand_ins.until(lambda: not cluster.run("squeue", "--noheader"), "an empty queue")


def test_an_array_on_two_nodes(start, packs, at, all_ended, tmp_path):
    executor = start(at("meet"), cpus_per_pack=2)
    assert executor.platform == "cpu"
    executor.submit(packs(2))
    ended = all_ended(executor, 2)
    assert {each.pack for each in ended} == set(packs(2))
    assert [each.error for each in ended] == [None, None]
    told = stand_ins.diary(tmp_path)
    assert sorted(each["node"] for each in told) == ["n1", "n2"]
    assert [each["jax_platforms"] for each in told] == ["cpu"] * 2
    # Of jobs that went well only the script of the array is left.
    assert {path.suffix for path in (tmp_path / "jobs").glob("slurm-*/*")} == {".sh"}


def test_arrays_one_after_the_other(start, packs, at, all_ended, tmp_path):
    more = ["export JAX_PLATFORMS=$JAX_PLATFORMS,cpu"]
    executor = start(at("nothing"), array_size=2, workers=1, slurm_setup=more)
    executor.submit(packs(3))
    assert [each.error for each in all_ended(executor, 3)] == [None] * 3
    told = stand_ins.diary(tmp_path)
    assert [each["at_once"] for each in told] == [1] * 3
    assert {each["jax_platforms"] for each in told} == {"cpu,cpu"}


def test_a_gpu_for_each_pack(start, packs, at, all_ended, tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    executor = start(at("meet"), gpus_per_pack=1)
    assert executor.platform == "gpu"
    executor.submit(packs(2))
    assert [each.error for each in all_ended(executor, 2)] == [None, None]
    told = stand_ins.diary(tmp_path)
    assert sorted(each["node"] for each in told) == ["n1", "n2"]
    assert [each["cuda"] for each in told] == ["0", "0"]
    assert [each["jax_platforms"] for each in told] == [None, None]


def test_a_killed_job_ends_with_a_reason_and_may_be_tried_again(start, packs, at, all_ended):
    executor = start(at("killed_once"))
    executor.submit(packs(2))
    ended = all_ended(executor, 2)
    for each in ended:
        state, _, log = each.error.partition("; log: ")
        assert "FAILED (NonZeroExitCode)" in state
        assert "Killed" in pathlib.Path(log).read_text()
    executor.submit([each.pack for each in ended])
    assert [each.error for each in all_ended(executor, 2)] == [None, None]


def test_what_the_work_raised_is_the_reason(start, packs, at, all_ended):
    executor = start(at("fails"))
    executor.submit(packs(1))
    assert all_ended(executor, 1)[0].error.startswith("ValueError: of no use at all; log: /")


def test_a_sweep_with_a_killed_job(start, sweep, tmp_path):
    sweep("slurm", poll_seconds=0.5, folder=str(tmp_path / "jobs"))


def test_a_preempted_job_is_started_again(start, cluster, packs, at, all_ended, tmp_path):
    pack, urgent = packs(2)
    executor = start(at("wait"), cpus_per_pack=2, slurm_nodelist="n1", partition="low")
    executor.submit([pack])
    stand_ins.until(lambda: stand_ins.diary(tmp_path, pack), "a start")
    first = start(at("nothing"), cpus_per_pack=2, slurm_nodelist="n1", partition="high")
    first.submit([urgent])
    assert all_ended(first, 1)[0].error is None
    (waiting,) = requeued(cluster)
    assert cluster.run("sacct", "-nXPD", "-j", waiting, "-o", "State").startswith("PREEMPTED")
    assert executor.ended(2) == []
    (tmp_path / "go").touch()
    assert all_ended(executor, 1)[0].error is None
    assert len(stand_ins.diary(tmp_path, pack)) == 2


def test_a_job_whose_time_is_over_goes_on(start, cluster, packs, at, all_ended, tmp_path):
    # Of so short a time submitit takes any request to stop for its end.
    executor = start(at("wait"), timeout_minutes=5)
    executor.submit(packs(1))
    stand_ins.until(lambda: stand_ins.diary(tmp_path), "a start")
    # As Slurm does before the time is over.
    cluster.run("scancel", "--signal=USR2", cluster.run("squeue", "-h", "-o", "%i"))
    requeued(cluster)
    (tmp_path / "go").touch()
    assert all_ended(executor, 1)[0].error is None
    assert len(stand_ins.diary(tmp_path)) == 2


def test_a_lost_node(start, cluster, packs, at, all_ended, tmp_path):
    executor = start(at("wait"), cpus_per_pack=2)
    executor.submit(packs(2))
    stand_ins.until(lambda: len(stand_ins.diary(tmp_path)) == 2, "a start on each node")
    (lost,) = (x for x in packs(2) if stand_ins.diary(tmp_path, x)[0]["node"] == "n1")
    cluster.kill_node("n1")
    try:
        requeued(cluster)
        (tmp_path / "go").touch()
        assert [each.error for each in all_ended(executor, 2)] == [None, None]
        assert [each["node"] for each in stand_ins.diary(tmp_path, lost)] == ["n1", "n2"]
    finally:
        cluster.start_node("n1")


def test_accounting_is_not_needed(start, cluster, packs, at, all_ended):
    cluster.kill("slurmdbd")
    try:
        executor = start(at("nothing"))
        executor.submit(packs(1))
        assert all_ended(executor, 1)[0].error is None
    finally:
        cluster.start_accounting()


def test_closing_cancels_what_runs_and_waits(start, cluster, packs, at, tmp_path):
    executor = start(at("wait"), cpus_per_pack=2, slurm_nodelist="n1")
    executor.submit(packs(2))
    stand_ins.until(lambda: stand_ins.diary(tmp_path), "a start")
    executor.close()
    stand_ins.until(lambda: not cluster.run("squeue", "--noheader"), "an empty queue")
    assert len(stand_ins.diary(tmp_path)) == 1


def test_what_slurm_refuses(start, packs, at, monkeypatch):
    with pytest.raises(UserError, match=r"could not hand in jobs: .*invalid partition"):
        start(at("nothing"), partition="none").submit(packs(1))
    with pytest.raises(UserError, match="slurm_colour='red' is not a setting of executor='slurm'"):
        start(at("nothing"), slurm_colour="red")
    with monkeypatch.context() as without:
        without.setenv("PATH", "")
        with pytest.raises(UserError, match="executor='slurm' needs Slurm's sbatch"):
            start(at("nothing"))


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
