"""The engine: a run is the same in whatever pack it comes to be, in whatever lane, after any kill.

Policies have tests of their own: of training, annealing and searches.
"""

import dataclasses
import functools
import logging
import math

import chex
import jax
import numpy as np
import pytest

import memobench
from memobench import engine
from memobench.core import module as models
from memobench.core.run import Run
from memobench.engine import batches, lanes, loop, program
from memobench.methods import training
from memobench.methods.training import Training
from memobench.models.transformer import MLP, AttentionOnly
from memobench.planner import packing
from memobench.tasks.associations import Associations
from tests import small
from tests.stopping import Memory, Stop, stopping_after

# Three chunks of an epoch each: what a resumed lane reads may lie anywhere in its epoch.
METHOD = Training(batch_size=4, n_batches=145, epochs=2, learning_rate=3e-2)
RUNS = (
    Run(
        task=Associations(vocab_size=5),
        architecture=AttentionOnly(d_model=3, d_head=3, n_heads=2),
        method=METHOD,
        seed=1,
    ),
    Run(
        task=Associations(vocab_size=5, seed=1),
        architecture=MLP(d_model=4, d_head=4, n_heads=1, d_mlp=3),
        method=METHOD,
        seed=2,
    ),
)
CHUNK = 29
N_CHUNKS = METHOD.steps // CHUNK


def _stopped(runs, calls):
    """What is kept of runs that were stopped."""
    memory = Memory()
    with pytest.raises(Stop):
        small.train(packing.make_pack(runs), stopping_after(calls), checkpoints=memory)
    return memory.kept


MEASURES = ("loss_R", "accuracy_R", "step_loss_RxL", "step_accuracy_RxL")


@pytest.fixture(scope="module")
def whole():
    assert METHOD.chunk_steps == CHUNK
    return small.train(packing.make_pack(RUNS))


@pytest.mark.rounding
@pytest.mark.parametrize(
    ("n_sequences", "n_memorized", "zipf_exponent"),
    [
        *((n, memorized, None) for n in (4, None) for memorized in (None, 3)),
        *((8, 3, None), (5, 3, 1.5), (23, None, 1.5)),
    ],
)
def test_a_step_of_parts_is_that_of_all(n_sequences, n_memorized, zipf_exponent, monkeypatch):
    monkeypatch.setattr(batches, "READ_AT_ONCE", 4)
    task = Associations(vocab_size=5, n_sequences=n_sequences, zipf_exponent=zipf_exponent)
    run = dataclasses.replace(RUNS[1], task=task, method=METHOD.exact())
    signature = packing.make_pack([run]).signature
    reads = batches.reader_for(dataclasses.replace(signature, subsets=n_memorized is not None))
    data = {"instances": jax.tree.map(lambda x: x[None], task.sample()), "draws": np.zeros((1, 0))}
    lane = lanes.Lane(instance=0, n_examples=n_memorized, target=1.0, step=0)
    variables = models.init(run.module(), 2, jax.random.key(0))
    parts = reads.parts(data, lane)
    # Of all pairs there is no list to part.
    assert (parts is not None) == (n_sequences is not None and n_sequences > 4)
    if parts is None:
        return
    assert parts.prior_T.shape[1] <= 4
    np.testing.assert_allclose(parts.prior_T.sum(), 1, rtol=1e-6)

    def objective(params, *part):
        return reads.steps(data, lane)(None, {**variables, "params": params}, *part)

    (whole, gradient), (summed, of_parts) = (
        jax.jit(functools.partial(program.value_and_gradient, objective, parts=each))(
            variables["params"]
        )
        for each in (None, parts)
    )
    np.testing.assert_allclose(summed, whole, rtol=1e-5)
    chex.assert_trees_all_close(of_parts, gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("calls", [1, 4, 7, N_CHUNKS])
def test_a_stopped_pack_resumes_with_the_same_bits(whole, calls):
    kept, counted = _stopped(RUNS, calls), []
    steps = {int(arrays["step"]) for arrays in kept.values()}
    # What was in flight is done before it is saved; what has ended is not kept.
    assert steps == ({CHUNK * min(calls + 1, N_CHUNKS)} if calls < N_CHUNKS else set())
    resumed = small.train(packing.make_pack(RUNS), counted.append, checkpoints=Memory(kept))
    assert sum(counted) == sum(METHOD.steps - step for step in steps for _ in RUNS) or not kept
    for name in MEASURES:
        np.testing.assert_array_equal(getattr(resumed, name), getattr(whole, name), err_msg=name)
    jax.tree.map(np.testing.assert_array_equal, resumed.variables, whole.variables)


def test_lanes_of_unequal_steps_train_side_by_side(whole):
    """One run resumes in the midst of its epoch, in another pack; the other begins."""
    run_id, counted = RUNS[1].run_id, []
    kept = {run_id: _stopped(RUNS, 6)[run_id]}
    assert int(kept[run_id]["step"]) == 7 * CHUNK
    true = jax.tree.leaves(lanes.shapes(RUNS[1].module(), 2, METHOD.optimizer, None, False))
    saved = [x.shape for name, x in kept[run_id].items() if name.startswith(".")]
    assert sorted(saved) == sorted(x.shape for x in true)
    swapped = packing.make_pack([RUNS[1], RUNS[0]])
    found = small.train(swapped, counted.append, checkpoints=Memory(kept))
    assert sum(counted) == 2 * METHOD.steps - 7 * CHUNK
    for name in MEASURES:
        theirs = getattr(whole, name)[::-1]
        np.testing.assert_allclose(getattr(found, name), theirs, atol=1e-4, err_msg=name)
    alone = small.train(packing.make_pack([RUNS[1]]), checkpoints=Memory(kept))
    np.testing.assert_allclose(alone.step_loss_RxL[0], whole.step_loss_RxL[1], atol=1e-4)


@pytest.mark.parametrize("narrowed_from", [0, math.inf])
def test_runs_that_wait_enter_lanes_that_others_leave(whole, monkeypatch, narrowed_from):
    monkeypatch.setattr(loop, "NARROWED_FROM_SECONDS", narrowed_from)
    plain, widths = training.TrainingPolicy(packing.make_pack(RUNS)), []
    plain.width = 1
    trained = engine.Lanes(plain)
    while trained.fill():
        trained.train()
        trained.evaluate()
        widths.append(len(trained.jobs))
    assert widths == [1] * 2 * N_CHUNKS
    for i, job in enumerate(plain.all):
        np.testing.assert_allclose(job.loss, whole.loss_R[i], atol=1e-4)
        np.testing.assert_allclose(job.curve_2xL[0], whole.step_loss_RxL[i], atol=1e-4)


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_runs_that_leave_earlier_keep_their_own_weights(platform, monkeypatch):
    """On GPUs three are taken out by the program that takes out four."""
    monkeypatch.setattr(jax, "default_backend", lambda: platform)
    runs = [dataclasses.replace(RUNS[0], seed=seed) for seed in range(4)]
    policy = training.TrainingPolicy(packing.make_pack(runs))
    trained, x_Rx2 = engine.Lanes(policy), np.arange(8.0, dtype=np.float32).reshape(4, 2)
    trained.jobs = list(policy.all)
    trained.state = engine.State({"params": {"x": jax.device_put(x_Rx2)}}, (), None)
    for leaving in ([0, 2, 3], [1]):
        for i in leaving:
            policy.all[i].done = True
        trained._retire()
    assert trained.jobs == [None] * 4
    np.testing.assert_array_equal(policy.result(0.0).variables["params"]["x"], x_Rx2)


def test_a_kill_between_checkpoints_costs_what_came_after_the_last(whole, monkeypatch):
    monkeypatch.setattr(loop, "SECONDS_BETWEEN_CHECKPOINTS", 0)
    monkeypatch.setattr(loop, "SHARE_OF_CHECKPOINTS", math.inf)
    memory = Memory()
    small.train(packing.make_pack(RUNS), checkpoints=memory)
    assert len(memory.saves) == 2 * (N_CHUNKS - 1)
    # In the midst of saving: runs are of different steps.
    kept = memory.saves[4]
    assert len({int(arrays["step"]) for arrays in kept.values()}) == 2
    found = small.train(packing.make_pack(RUNS), checkpoints=Memory(kept))
    for name in MEASURES:
        ours, theirs = getattr(found, name), getattr(whole, name)
        np.testing.assert_allclose(ours, theirs, atol=1e-4, err_msg=name)


def _weights(arrays):
    return next(name for name in arrays if name.startswith(".variables"))


# What a checkpoint may hold that is not as declared.
SPOILT = {
    "shape": lambda x: {_weights(x): np.zeros((1, 2, 3), np.float32)},
    "type": lambda x: {_weights(x): x[_weights(x)].astype(np.float64)},
    "objects": lambda x: {_weights(x): np.array([None])},
    "step within a chunk": lambda x: {"step": np.array(CHUNK + 1)},
    "step before the first": lambda x: {"step": np.array(-CHUNK)},
    "step after the last": lambda x: {"step": np.array(METHOD.steps + CHUNK)},
    "two steps": lambda x: {"step": x["step"].repeat(2)},
    "step of text": lambda x: {"step": np.array("first")},
    "step of floats": lambda x: {"step": x["step"].astype(float)},
    "no step": lambda x: {"step": None},
    "ended": lambda x: {"done": np.array(True)},
    "no curve": lambda x: {"curve": None},
    "shorter curve": lambda x: {"curve": x["curve"][:, 1:]},
    "curve of a point": lambda x: {"curve": x["curve"][:, :1]},
    "longer curve": lambda x: {"curve": x["curve"].repeat(2, axis=1)},
    "curve of other floats": lambda x: {"curve": x["curve"].astype(np.float64)},
    "accuracies beyond 1": lambda x: {"curve": x["curve"] + 1},
    "accuracies of nothing": lambda x: {"curve": x["curve"] * np.float32(np.nan)},
    "more": lambda x: {"of_another_version": np.zeros(3)},
}


@pytest.mark.parametrize("spoil", SPOILT)
def test_a_checkpoint_of_another_version_is_told_and_left(whole, caplog, spoil):
    kept = _stopped(RUNS, 2)
    arrays = kept[RUNS[0].run_id]
    arrays |= SPOILT[spoil](arrays)
    kept[RUNS[0].run_id] = {name: x for name, x in arrays.items() if x is not None}
    with caplog.at_level(logging.WARNING, "memobench"):
        memory = Memory(kept)
        found = small.train(packing.make_pack(RUNS), checkpoints=memory)
    assert memory.rejected == [RUNS[0].run_id]
    (record,) = caplog.records
    assert f"run {RUNS[0].run_id} is of another version; it starts anew" in record.getMessage()
    np.testing.assert_allclose(found.loss_R, whole.loss_R, atol=1e-4)


def test_an_interrupted_sweep_of_plain_training_resumes(tmp_path, monkeypatch):
    from memobench.runtime import progress, sweep

    counted, steps_done = [], progress.Progress.add_steps

    def count(bar, pack, steps):
        counted.append(steps)
        if len(counted) == 3:
            raise KeyboardInterrupt
        steps_done(bar, pack, steps)

    monkeypatch.setattr(progress.Progress, "add_steps", count)
    with pytest.raises(sweep.Interrupted):
        memobench.run(RUNS, results=tmp_path, progress=False)
    folder = tmp_path / ".checkpoints"
    assert {path.stem for path in folder.iterdir()} <= {run.run_id for run in RUNS}
    assert list(folder.iterdir())
    table = memobench.run(RUNS, results=tmp_path, progress=False)
    assert sum(counted) < 2 * METHOD.steps + 2 * 3 * CHUNK
    assert list(folder.iterdir()) == []
    again = memobench.run(RUNS, progress=False)
    np.testing.assert_allclose(table["loss"], again["loss"], atol=1e-4)


def test_signatures_tell_apart_what_programs_differ_in():
    run = RUNS[0]

    def signature(**changes):
        changed = dataclasses.replace(run, method=METHOD.replace(**changes))
        return packing.make_pack([changed]).signature

    same = [{"epochs": 9}, {"learning_rate": 0.5}, {"final_learning_rate": 0.02}]
    other = [
        {"batch_size": 8},
        {"n_batches": 65},
        {"trained": "memory"},
        {"protocol": "exact", "batch_size": None},
    ]
    assert {signature(**changes) for changes in same} == {signature()}
    assert len({signature(), *(signature(**changes) for changes in other)}) == 1 + len(other)
