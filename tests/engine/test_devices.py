"""Packs over several devices give what one device gives; eight are simulated in a process."""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys

import jax
import numpy as np
import pytest

import memobench
from memobench.core.run import Run
from memobench.engine import devices, loop
from memobench.experiments.mahdavi2024.own_methods import Annealing
from memobench.experiments.mahdavi2024.own_models import QueryAttention
from memobench.methods.optimum import Optimum
from memobench.methods.search import Search
from memobench.methods.training import Training
from memobench.models.sequence_encoder import SequenceEncoder
from memobench.models.transformer import AttentionOnly
from memobench.planner import packing
from memobench.tasks.associations import Associations
from memobench.tasks.distributions import Distributions
from memobench.tasks.labelled_contexts import LabelledContexts

pytestmark = pytest.mark.accelerators

N_DEVICES = 8
PUBLISHED = Training(batch_size=8, n_batches=4, epochs=2)
EXACT = Training(n_batches=4, epochs=2).exact()
HEADS = AttentionOnly(d_model=4, d_head=4, n_heads=2)
CONTEXTS = QueryAttention(d_model=4, d_head=3, n_heads=2)
ENCODER = SequenceEncoder(d_model=2)


def _trained(n_runs, method=PUBLISHED, n_sets=3):
    return [
        Run(
            task=Associations(vocab_size=7, seed=seed % n_sets),
            architecture=dataclasses.replace(HEADS, n_heads=1 + seed % 2),
            method=method if seed % 2 else dataclasses.replace(method, learning_rate=0.01),
            seed=seed,
        )
        for seed in range(n_runs)
    ]


def _annealed(n_runs):
    """Long and short runs, so that slots are refilled and most of them idle at the end."""
    method = Annealing(batch_size=4, steps=10, evaluate_every=10, learning_rate=1e-2)
    return [
        Run(
            task=LabelledContexts(
                n_examples=6 + seed % 7, context_length=2, n_classes=3, input_dim=4, seed=seed % 2
            ),
            architecture=CONTEXTS,
            method=dataclasses.replace(method, steps=30 if seed % 5 == 0 else 10),
            seed=seed,
        )
        for seed in range(n_runs)
    ]


def _searched(n_runs):
    # Six lanes at first, then three.
    method = Search(training=EXACT, sizes=3, rate_factors=(1.0,), doublings=0)
    task = Associations(vocab_size=8, n_sequences=16)
    return [Run(task=task, architecture=HEADS, method=method, seed=seed) for seed in range(n_runs)]


def _solved(n_runs):
    method = Optimum(starts=2, adam_steps=8, steps=4, polished=1)
    task = Distributions(vocab_size=3, conditional="uniform", n_next=2)
    return [
        Run(task=task.replace(seed=seed), architecture=ENCODER, method=method)
        for seed in range(n_runs)
    ]


ENCLOSING = packing.make_pack(_trained(2)).module
RUNS = {
    "published": _trained(11),
    "exact": _trained(N_DEVICES, EXACT, n_sets=1),
    "annealed": _annealed(19),
    "searched": _searched(2),
    "solved": _solved(3),
}
# On several devices the exact runs come in even and uneven packs, which share a program.
SIZES = {"exact": (N_DEVICES, 5, 1)}


# Those of `make test`; the others compile for half a minute.
QUICK = ("exact", "annealed")
KINDS = [kind if kind in QUICK else pytest.param(kind, marks=pytest.mark.slow) for kind in RUNS]
SWEPT = RUNS["exact"][:5]


class _Ids:
    """Checkpoints of which only the runs are kept."""

    def __init__(self):
        self.saved = set()

    def load(self, run_id):
        return None

    def save(self, run_id, arrays):
        self.saved.add(run_id)


def _measures(kind, size):
    """What a pack of the first runs of a kind gives, as JSON."""
    runs, steps, checkpoints = RUNS[kind][:size], [], _Ids()
    pack = packing.make_pack(runs, ENCLOSING if kind in ("published", "exact") else None)
    if devices.count() > 1:  # Runs queue; on one device all of them train at once.
        pack = dataclasses.replace(pack, slots=min(pack.slots, 2 * N_DEVICES - 3))
    result = RUNS[kind][0].method.train(pack, steps.append, checkpoints)
    leaves = [x for x in jax.tree.leaves(result.variables) if isinstance(x, jax.Array)]
    return {
        "loss": result.loss_R.tolist(),
        "accuracy": result.accuracy_R.tolist(),
        "curve": result.step_loss_RxL.tolist(),
        "steps": sum(steps),
        "saved": sorted(checkpoints.saved),
        "columns": list(result.columns),
        "runs_of_leaves": sorted({len(x) for x in jax.tree.leaves(result.variables)}),
        "devices": sorted({len(x.sharding.device_set) for x in leaves}),
    }


def _train_on_all(folder, kinds):
    """What the simulated process does."""
    loop.NARROWED_FROM_SECONDS, rounds, train = 0, [], loop.Lanes.train

    def recorded(lanes):
        # Long and short runs.
        if lanes.policy.signature.keeps_best:
            leaves = jax.tree.leaves(lanes.state)
            rounds.append((len(lanes.jobs), sorted({len(x.sharding.device_set) for x in leaves})))
        return train(lanes)

    loop.Lanes.train = recorded
    measures = {
        kind: {size: _measures(kind, size) for size in SIZES.get(kind, (len(runs),))}
        for kind, runs in RUNS.items()
        if kind in kinds
    }
    memobench.run(SWEPT, results=folder / "runs", progress=False)
    found = {"devices": jax.device_count(), "rounds": rounds, "measures": measures}
    (folder / "found.json").write_text(json.dumps(found))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("devices")


@pytest.fixture(scope="module")
def here_and_there(folder, request):
    """The measures of one device, and all that the process with eight has found."""
    names = {item.name for item in request.session.items}
    kinds = [kind for kind in RUNS if kind in QUICK or any(f"[{kind}]" in name for name in names)]
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count={N_DEVICES}"
    command = "import pathlib, sys; from tests.engine import test_devices as here; "
    command += "here._train_on_all(pathlib.Path(sys.argv[1]), sys.argv[2:])"
    process = subprocess.Popen(
        [sys.executable, "-c", command, str(folder), *kinds],
        env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        cwd=pathlib.Path(__file__).parents[2],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        here = {kind: _measures(kind, len(RUNS[kind])) for kind in kinds}
        _, errors = process.communicate(timeout=600)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 0, errors
    return here, json.loads((folder / "found.json").read_text())


@pytest.mark.parametrize("kind", KINDS)
def test_many_devices_measure_what_one_does(here_and_there, kind):
    here, there = here_and_there[0][kind], here_and_there[1]["measures"][kind]
    n_examples = np.array([run.task.n_examples for run in RUNS[kind]])
    for size, many in ((int(size), many) for size, many in there.items()):
        for name in ("loss", "curve"):
            np.testing.assert_allclose(many[name], here[name][:size], rtol=1e-5, atol=1e-5)
        apart = np.abs(np.subtract(many["accuracy"], here["accuracy"][:size])) * n_examples[:size]
        assert (apart <= 1.001).all()
        _assert_same(many["columns"], here["columns"][:size])


def _assert_same(ours, theirs):
    """Certificates: numbers up to rounding, all else alike."""
    assert [sorted(each) for each in ours] == [sorted(each) for each in theirs]
    for here, there in zip(ours, theirs, strict=True):
        for name, value in here.items():
            if isinstance(value, float) or (name.startswith("curve") or name == "start_losses"):
                np.testing.assert_allclose(value, there[name], rtol=1e-4, atol=1e-4)
            elif name in ("stopped_at", "complete_100", "final_steps", "iterations"):
                assert value == there[name], name


@pytest.mark.parametrize("kind", KINDS)
def test_what_fills_an_uneven_pack_leaves_no_trace(here_and_there, kind):
    here, there = here_and_there[0][kind], here_and_there[1]["measures"][kind]
    for size, many in ((int(size), many) for size, many in there.items()):
        assert len(many["loss"]) == len(many["curve"]) == size
        assert many["runs_of_leaves"] in ([size], [])
        # Runs of a kind that comes in several sizes take equal steps.
        assert many["steps"] * len(RUNS[kind]) == here["steps"] * size
        saved = RUNS[kind] if kind in ("annealed", "searched") else []
        assert many["saved"] == sorted(run.run_id for run in saved)


def test_packs_are_spread_over_all_devices(here_and_there):
    found = here_and_there[1]
    assert found["devices"] == N_DEVICES
    assert found["measures"]["exact"][str(N_DEVICES)]["devices"] == [N_DEVICES]
    # Two runs a device while others wait, then one; every leaf of the state on all devices.
    widths = [width for width, _ in found["rounds"]]
    assert widths == sorted(widths, reverse=True)
    assert set(widths) == {2 * N_DEVICES, N_DEVICES}
    assert all(on == [N_DEVICES] for _, on in found["rounds"])


def test_a_sweep_on_many_devices_holds_every_run_once(here_and_there, folder):
    shards = [json.loads(path.read_text()) for path in (folder / "runs").glob("*.json")]
    ids = [row["run_id"] for shard in shards for row in shard["rows"]]
    wanted = [run.run_id for run in SWEPT]
    assert sorted(ids) == sorted(wanted)
    assert {shard["provenance"]["n_devices"] for shard in shards} == {N_DEVICES}
    assert sum(shard["provenance"]["pack_size"] for shard in shards) == len(SWEPT)
    table = memobench.load_results(folder / "runs").set_index("run_id").loc[wanted]
    loss = here_and_there[0]["exact"]["loss"][: len(SWEPT)]
    np.testing.assert_allclose(table["loss"], loss, rtol=1e-5)


def test_on_one_device_nothing_is_wrapped():
    assert devices.count() == 1

    def double(x_R):
        return 2 * x_R

    x_R = np.arange(3.0)
    assert "shard_map" not in str(jax.make_jaxpr(devices.jit(double, devices.SPLIT))(x_R))
    assert devices.split(x_R).shape == (3,)
    assert not devices.split(x_R).committed
    assert devices.without_fill(3, {"x_R": x_R})["x_R"] is x_R
    assert [devices.round_up_to_devices(n) for n in (1, 5, 8)] == [1, 5, 8]


def test_a_plan_for_many_devices_is_as_many_times_as_large(monkeypatch):
    monkeypatch.setitem(packing.MAX_RUNS, "gpu", 2)
    runs = _trained(12)
    alone, together = packing.plan(runs, "gpu"), packing.plan(runs, "gpu", N_DEVICES)
    assert max(len(pack.runs) for pack in alone) == 2
    assert [len(pack.runs) for pack in together] == [12]
    # Two runs on the fullest device.
    assert together[0].memory_bytes == packing.make_pack(runs[:2], ENCLOSING, "gpu").memory_bytes
    assert {half.n_devices for half in packing.halve_pack(together[0])} == {N_DEVICES}


def test_slots_are_those_of_all_devices(monkeypatch):
    monkeypatch.setitem(packing.MEMORY_BYTES, "gpu", 0)
    (alone,) = packing.plan(_annealed(11)[::2], "gpu")
    (together,) = packing.plan(_annealed(11)[::2], "gpu", 4)
    assert (alone.slots, together.slots) == (1, 4)
