"""Ray Core: one on this machine with a GPU that is only declared, and a cluster of two nodes."""

import os
import pathlib

import pytest

from memobench.common.errors import UserError
from memobench.runtime import launch
from memobench.runtime.launch import Ray
from tests.cluster import stand_ins

pytestmark = [
    pytest.mark.cluster,
    # A test before may have trained in this process; Ray forks only to start other programs.
    pytest.mark.filterwarnings("ignore:os.fork"),
]


@pytest.fixture(scope="module")
def ray():
    # Its workers are nice to others by default, and then slow beside them.
    quick = {"RAY_worker_niceness": "0"}
    os.environ |= {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", **quick}
    return pytest.importorskip("ray")


@pytest.fixture(scope="module")
def here(ray):
    """A Ray on this machine with four cores and one GPU by name."""
    root = str(pathlib.Path(__file__).parents[2])
    os.environ["PYTHONPATH"] = root
    ray.init("local", num_cpus=4, num_gpus=1, include_dashboard=False, log_to_driver=False)
    yield ray
    ray.shutdown()


@pytest.fixture
def begin(here, tmp_path):
    """Launchers that have begun; they are closed whatever happens."""
    made = []

    def make(n, *words):
        launcher = Ray(n, words)
        launcher.check_machine()
        launcher.begin(tmp_path)
        made.append(launcher)
        return launcher

    yield make
    for launcher in made:
        launcher.close()


def test_each_worker_works_once(begin, at, all_ended, tmp_path):
    launcher = begin(5, "num_gpus=0")
    launcher.start(at("nothing"), 3)
    launcher.start(at("nothing"), 2)
    assert all_ended(launcher, 5) == [None] * 5
    assert all(len(stand_ins.diary(tmp_path, number)) == 1 for number in range(5))


def test_workers_share_a_gpu(begin, at, all_ended, tmp_path):
    launcher = begin(2, "num_gpus=0.5")
    launcher.start(at("meet"), 2)
    assert all_ended(launcher, 2) == [None, None]
    assert [each["cuda"] for each in stand_ins.diary(tmp_path)] == ["0", "0"]


def test_one_gpu_is_one_workers_by_default(begin, at, all_ended, tmp_path):
    launcher = begin(3)
    launcher.start(at("nothing"), 3)
    all_ended(launcher, 3)
    told = stand_ins.diary(tmp_path)
    assert [each["cuda"] for each in told] == ["0"] * 3
    assert [each["at_once"] for each in told] == [1] * 3
    # A process that stayed would keep the memory that it took of the GPU.
    assert len({each["pid"] for each in told}) == 3


def test_a_killed_worker_ends_with_a_reason(begin, at, all_ended):
    launcher = begin(1, "num_gpus=0")
    launcher.start(at("killed"), 1)
    (why,) = all_ended(launcher, 1)
    assert why.startswith("WorkerCrashedError: ")
    assert "\n" not in why


def test_what_the_work_raised_is_the_reason(begin, at, all_ended):
    launcher = begin(1, "num_gpus=0")
    launcher.start(at("fails"), 1)
    assert all_ended(launcher, 1) == ["ValueError: of no use at all"]


@pytest.mark.parametrize("work", ["wait", "wait_for_ctrl_c"])
def test_closing_stops_what_runs(begin, at, tmp_path, monkeypatch, work):
    """At first as Ctrl-C does, so that it can be saved; what does not heed that is killed."""
    monkeypatch.setattr(launch, "STOP_SECONDS", 5 if work == "wait" else 60)
    launcher = begin(2, "num_gpus=0", "num_cpus=4")
    launcher.start(at(work), 2)
    (told,) = stand_ins.until(lambda: stand_ins.diary(tmp_path), "a start")
    assert launcher.pop_ended() == []
    launcher.close()
    if work == "wait":
        stand_ins.until(lambda: not _alive(told["pid"]), "the end of the worker")
    assert len(list(tmp_path.glob("*.saved"))) == (work != "wait")
    assert len(stand_ins.diary(tmp_path)) == 1


def test_a_sweep_with_a_killed_worker(here, sweep):
    sweep("ray num_gpus=0")


@pytest.fixture
def two_nodes(ray):
    """A cluster with two nodes for work, beside the head that has none."""
    from ray.cluster_utils import Cluster

    ray.shutdown()
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    try:
        nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
        yield cluster, {node.node_id: node for node in nodes}
    finally:
        ray.shutdown()
        cluster.shutdown()


def test_a_lost_node(two_nodes, at, all_ended, tmp_path):
    cluster, nodes = two_nodes
    launcher = Ray(2, [f"address={cluster.address}"])
    launcher.begin(tmp_path)
    try:
        launcher.start(at("wait"), 2)
        stand_ins.until(lambda: len(stand_ins.diary(tmp_path)) == 2, "a start on each node")
        assert {each["node"] for each in stand_ins.diary(tmp_path)} == nodes.keys()
        _, node = nodes.popitem()
        cluster.remove_node(node, allow_graceful=False)
        (why,) = stand_ins.until(launcher.pop_ended, "the end of a worker")
        assert why.startswith(("NodeDiedError: ", "WorkerCrashedError: "))
        launcher.start(at("wait"), 1)
        (tmp_path / "go").touch()
        assert all_ended(launcher, 2) == [None, None]
        (again,) = stand_ins.diary(tmp_path, 2)
        assert again["node"] in nodes
    finally:
        launcher.close()


def test_a_ray_of_its_own_is_stopped(ray, at, all_ended, tmp_path):
    ray.shutdown()
    launcher = Ray(1, [])
    launcher.begin(tmp_path)
    try:
        launcher.start(at("nothing"), 1)
        assert all_ended(launcher, 1) == [None]
    finally:
        launcher.close()
    assert not ray.is_initialized()
    with pytest.raises(UserError, match="num_gpus=1 is more than is here, 0"):
        Ray(1, ["num_gpus=1"]).begin(tmp_path)
    assert not ray.is_initialized()
    with pytest.raises(UserError, match=r"^on='ray': .*Could not find any running Ray"):
        Ray(1, ["address=auto"]).begin(tmp_path)


def _alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
