"""Ray Core: one on this machine with a GPU that is only declared, and a cluster of two nodes."""

import os
import pathlib

import pytest

from memobench.common.errors import UserError
from memobench.executors.ray import Ray
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
def start(here):
    """Makes executors and closes them whatever happens."""
    made = []

    def make(work, **options):
        made.append(Ray(**options).start(work, None, print))
        return made[-1]

    yield make
    for executor in made:
        executor.close()


def test_each_pack_is_worked_on_once(start, packs, at, all_ended, tmp_path):
    executor = start(at("nothing"), gpus_per_pack=0)
    assert executor.platform == "cpu"
    executor.submit(packs(3))
    executor.submit(packs(5)[3:])
    ended = all_ended(executor, 5)
    assert {each.pack for each in ended} == set(packs(5))
    assert [each.error for each in ended] == [None] * 5
    assert all(len(stand_ins.diary(tmp_path, pack)) == 1 for pack in packs(5))


def test_packs_share_a_gpu(start, packs, at, all_ended, tmp_path):
    executor = start(at("meet"), gpus_per_pack=0.5)
    executor.submit(packs(2))
    assert [each.error for each in all_ended(executor, 2)] == [None, None]
    assert [each["cuda"] for each in stand_ins.diary(tmp_path)] == ["0", "0"]


def test_one_gpu_is_one_packs_by_default(start, packs, at, all_ended, tmp_path):
    executor = start(at("nothing"))
    assert executor.platform == "gpu"
    executor.submit(packs(3))
    all_ended(executor, 3)
    told = stand_ins.diary(tmp_path)
    assert [each["cuda"] for each in told] == ["0"] * 3
    assert [each["at_once"] for each in told] == [1] * 3
    # A process that stayed would keep the memory that it took of the GPU.
    assert len({each["pid"] for each in told}) == 3


def test_ray_is_given_few_packs_at_a_time(start, packs, at, all_ended, tmp_path):
    *several, later = packs(6)
    executor = start(at("wait"), gpus_per_pack=0, cpus_per_pack=0.5, workers=2)
    executor.submit(several)
    stand_ins.until(lambda: len(stand_ins.diary(tmp_path)) == 2, "two starts")
    # What Ray was given before has its turn before this.
    other = start(at("nothing"), gpus_per_pack=0, cpus_per_pack=0.5)
    other.submit([later])
    all_ended(other, 1)
    assert len(stand_ins.diary(tmp_path)) == 3
    (tmp_path / "go").touch()
    assert [each.error for each in all_ended(executor, 5)] == [None] * 5


def test_a_killed_worker_ends_with_a_reason_and_may_be_tried_again(start, packs, at, all_ended):
    executor = start(at("killed_once"), gpus_per_pack=0)
    executor.submit(packs(1))
    (ended,) = all_ended(executor, 1)
    assert ended.error.startswith("WorkerCrashedError: ")
    assert "\n" not in ended.error
    executor.submit([ended.pack])
    assert all_ended(executor, 1)[0].error is None


def test_what_the_work_raised_is_the_reason(start, packs, at, all_ended):
    executor = start(at("fails"), gpus_per_pack=0)
    executor.submit(packs(1))
    assert all_ended(executor, 1)[0].error == "ValueError: of no use at all"


def test_closing_kills_what_runs(start, packs, at, tmp_path):
    executor = start(at("wait"), gpus_per_pack=0)
    executor.submit(packs(1))
    (told,) = stand_ins.until(lambda: stand_ins.diary(tmp_path), "a start")
    assert executor.ended(0) == []
    executor.close()
    stand_ins.until(lambda: not _alive(told["pid"]), "the end of the worker")


def test_a_sweep_with_a_killed_worker(here, sweep):
    sweep("ray", gpus_per_pack=0)


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


def test_a_lost_node(two_nodes, packs, at, all_ended, tmp_path):
    cluster, nodes = two_nodes
    executor = Ray(address=cluster.address).start(at("wait"), None, print)
    try:
        executor.submit(packs(2))
        stand_ins.until(lambda: len(stand_ins.diary(tmp_path)) == 2, "a start on each node")
        where = {stand_ins.diary(tmp_path, pack)[0]["node"]: pack for pack in packs(2)}
        assert where.keys() == nodes.keys()
        name, node = nodes.popitem()
        cluster.remove_node(node, allow_graceful=False)
        (lost,) = all_ended(executor, 1)
        assert lost.pack == where[name]
        assert lost.error.startswith(("NodeDiedError: ", "WorkerCrashedError: "))
        executor.submit([lost.pack])
        (tmp_path / "go").touch()
        assert [each.error for each in all_ended(executor, 2)] == [None, None]
        assert stand_ins.diary(tmp_path, lost.pack)[1]["node"] in nodes
    finally:
        executor.close()


def test_a_ray_of_its_own_is_stopped(ray, packs, at, all_ended):
    ray.shutdown()
    executor = Ray().start(at("nothing"), None, print)
    try:
        assert executor.platform == "cpu"
        executor.submit(packs(1))
        assert all_ended(executor, 1)[0].error is None
    finally:
        executor.close()
    assert not ray.is_initialized()
    with pytest.raises(UserError, match="gpus_per_pack=1 is more than there is here, 0"):
        Ray(gpus_per_pack=1).start(at("nothing"), None, print)
    assert not ray.is_initialized()
    with pytest.raises(UserError, match="address='auto': Could not find any running Ray"):
        Ray(address="auto").start(at("nothing"), None, print)


def _alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
