"""Annealed training: the same in any pack, from any checkpoint, however long each run takes.

Compilations dominate: the packs here share one padded shape and its widths 1, 2 and 3.
"""

import dataclasses
import functools
import gc
import itertools
import json
import logging
import math
import os

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import memobench
from memobench import metrics, saturation
from memobench.engine import compiling, initializing, loop, program, reading
from memobench.engine.lanes import Best, Lane
from memobench.methods import annealing, training
from memobench.methods.annealing import Annealing
from memobench.models import base as models
from memobench.models.query_attention import QueryAttention
from memobench.planner import packing
from memobench.runs import Run
from memobench.runtime import checkpoints, progress, sweep, worker
from memobench.tasks import labelled_contexts
from memobench.tasks.labelled_contexts import LabelledContexts

ARCHITECTURE = QueryAttention(d_model=6, d_head=5, n_heads=2)
METHOD = Annealing(batch_size=8, steps=40, evaluate_every=10, learning_rate=1e-2)
TASK = LabelledContexts(n_examples=24, context_length=3, n_classes=4, input_dim=6)


def _run(seed=0, task=TASK, **fields):
    """A small run; keyword arguments go to the spec that knows them."""
    own = {
        spec: {name: value for name, value in fields.items() if hasattr(spec, name)}
        for spec in (task, ARCHITECTURE, METHOD)
    }
    assert sum(map(len, own.values())) == len(fields)
    specs = [dataclasses.replace(spec, **changed) for spec, changed in own.items()]
    return Run(task=specs[0], architecture=specs[1], method=specs[2], seed=seed)


# The last fills the largest set, so that every pack with it has the same shapes.
FILLING = _run(2, n_examples=30, context_length=4, d_model=5, d_head=4, n_heads=4, steps=20)
MIX = (
    _run(0),
    _run(1, n_examples=20, context_length=4, d_model=8, d_head=3, n_heads=1, steps=60, warmup=0.5),
    FILLING,
)
LARGEST = packing.enclosing([run.module() for run in MIX])

# Other outputs, contexts and depth, all of them sizes that padding must carry.
BAG = LabelledContexts(
    n_examples=8, context_length=3, contexts="bag", n_classes=None, input_dim=6, n_bag=5
)
DEEPER = {"n_layers": 2, "positions": "learned", "steps": 100}
DEEP = (
    _run(0, BAG, **DEEPER, d_value=2, learning_rate=3e-2),
    _run(3, BAG, **DEEPER, n_examples=11, context_length=4, n_heads=1, d_model=7),
)


def _pack(runs, slots=None):
    pack = packing.make_pack(runs, LARGEST)
    return dataclasses.replace(pack, slots=slots or len(runs))


QUICK = {"xla_backend_optimization_level": 0}
quick_jit = functools.partial(jax.jit, compiler_options=QUICK)


class Memory:
    """Checkpoints in memory, with all that was ever saved."""

    def __init__(self, kept=()):
        self.kept = dict(kept)
        self.loaded = []
        self.saves = []

    def load(self, run_id):
        self.loaded.append(run_id)
        return self.kept.get(run_id)

    def save(self, run_id, arrays):
        self.kept[run_id] = {name: np.array(x) for name, x in arrays.items()}
        self.saves.append(dict(self.kept))


class Stop(Exception):
    pass


def _stopping_after(rounds):
    counted = itertools.count(1)

    def on_steps(_):
        if next(counted) == rounds:
            raise Stop

    return on_steps


@pytest.fixture(scope="module", autouse=True)
def small_packs():
    """Optimising code that runs a few times would take longer; small packs are narrowed too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "NARROWED_FROM_SECONDS", 0)
        for name, value in QUICK.items():
            patch.setitem(compiling.OPTIONS, name, value)
        yield


@pytest.fixture(scope="module")
def mixed():
    return annealing.anneal(_pack(MIX))


def _assert_close(ours, theirs, atol=1e-5):
    np.testing.assert_allclose(ours.loss_R, theirs.loss_R, atol=atol)
    np.testing.assert_array_equal(ours.accuracy_R, theirs.accuracy_R)
    for here, there in zip(ours.columns, theirs.columns, strict=True):
        np.testing.assert_allclose(here["curve_loss"], there["curve_loss"], atol=atol)
        for name in ("curve_steps", "curve_accuracy", "stopped_at", "best_step"):
            assert here[name] == there[name], name
        np.testing.assert_allclose(here["largest_attention"], there["largest_attention"], atol=2e-3)


def _assert_identical(ours, theirs):
    assert json.dumps(ours.columns) == json.dumps(theirs.columns)
    for name in ("loss_R", "accuracy_R", "step_loss_RxL"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name), err_msg=name)
    jax.tree.map(np.testing.assert_array_equal, ours.variables, theirs.variables)


def _of(result, i):
    """The result of one run of a pack as that of a pack of one."""
    return dataclasses.replace(
        result,
        loss_R=result.loss_R[i : i + 1],
        accuracy_R=result.accuracy_R[i : i + 1],
        columns=result.columns[i : i + 1],
    )


def _variables(result, i, run):
    """The weights of one run of a pack at their true size; outside of it all must be zero."""

    def crop(padded, shape):
        inside = tuple(slice(size) for size in shape.shape)
        outside = np.array(padded[i])
        outside[inside] = 0
        assert not outside.any()
        return padded[i][inside]

    return jax.tree.map(crop, result.variables, models.shapes(run.module(), 0))


@pytest.mark.parametrize("name", ["mixed", "deep"])
def test_packed_equals_alone(name, request):
    packed, runs = request.getfixturevalue(name), {"mixed": MIX, "deep": DEEP}[name]
    for i, run in enumerate(runs[:2]):
        alone = annealing.anneal(packing.make_pack([run]))
        _assert_close(alone, _of(packed, i))
        ours, theirs = _variables(packed, i, run), _variables(alone, 0, run)
        jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-4), ours, theirs)


@pytest.mark.parametrize("slots", [1, 2])
def test_a_queue_gives_what_all_at_once_give(slots, mixed):
    _assert_close(annealing.anneal(_pack(MIX, slots)), mixed)


def test_the_protocol_step_for_step():
    """Against a loop that follows the protocol's description, with optax's Adam and schedules."""
    task = dataclasses.replace(TASK, contexts="random")
    run = _run(7, task, steps=40, warmup=0.25, first_share=0.1, learning_rate=3e-2)
    result = annealing.anneal(packing.make_pack([run]))
    module, data = run.module(), jax.device_put(task.sample())
    variables = models.init(module, 0, initializing.init_key(run))
    warm = optax.linear_schedule(3e-3, 3e-2, 10)
    schedule = optax.join_schedules([warm, optax.cosine_decay_schedule(3e-2, 30)], [10])
    adam = optax.adam(schedule)

    def loss(params, rows):
        outputs = jax.vmap(lambda q, c: module.apply({**variables, "params": params}, q, c))(
            data.query_TxI[rows], data.context[rows]
        )
        nll = optax.softmax_cross_entropy_with_integer_labels(outputs, data.label_T[rows])
        return nll.mean(), (outputs.argmax(-1) == data.label_T[rows]).mean()

    @quick_jit
    def step(params, state, rows):
        gradient, _ = jax.grad(loss, has_aux=True)(params, rows)
        update, state = adam.update(gradient, state)
        return optax.apply_updates(params, update), state

    evaluated = quick_jit(loss)
    params, curve, rows = variables["params"], [], []
    state = adam.init(params)
    for epoch in range(14):
        rows += np.random.default_rng([7, epoch]).permutation(24).tolist()
    for i in range(40):
        batch = np.array(rows[8 * i : 8 * (i + 1)])
        params, state = step(params, state, batch)
        if (i + 1) % 10 == 0:
            curve.append(evaluated(params, np.arange(24)))
    losses, accuracies = np.array(curve).T
    certificate = result.columns[0]
    np.testing.assert_allclose(certificate["curve_loss"], losses, atol=1e-5)
    np.testing.assert_allclose(certificate["curve_accuracy"], accuracies, atol=1e-6)
    assert certificate["curve_steps"] == [10, 20, 30, 40]
    np.testing.assert_allclose(result.loss_R, losses.min(), atol=1e-5)


@pytest.mark.parametrize(("warmup", "steps"), [(0.05, 40), (0.5, 60), (0, 20)])
def test_the_rate_warms_up_and_falls_by_a_cosine(warmup, steps):
    run = _run(warmup=warmup, steps=steps, learning_rate=0.3, first_share=0.02)
    n_warm = round(warmup * steps)
    reference = optax.join_schedules(
        [
            optax.linear_schedule(0.006, 0.3, n_warm),
            optax.cosine_decay_schedule(0.3, steps - n_warm),
        ],
        [n_warm],
    )
    rates = annealing.rates(run.method, np.arange(steps))
    np.testing.assert_allclose(rates, reference(jnp.arange(steps)), rtol=1e-4, atol=1e-7)
    assert rates[0] == pytest.approx(0.006 if n_warm else 0.3)
    assert rates.argmax() == n_warm
    assert rates[-1] < 0.01


def test_batches_are_epochs_one_after_another():
    run = _run(5, n_examples=30, batch_size=7)
    rounds = [annealing.batches(run, step) for step in range(0, 40, 10)]
    assert all(x.shape == (10, 7) and x.dtype == np.int32 for x in rounds)
    rows = np.concatenate(rounds).reshape(-1)
    epochs = rows[: 30 * 9].reshape(9, 30)
    assert (np.sort(epochs) == np.arange(30)).all()
    assert len({tuple(epoch) for epoch in epochs}) == 9
    # An epoch that has just begun goes on in the next round: 280 = 9 * 30 + 10.
    assert len(set(rows[270:])) == 10
    # A round of more than one epoch, begun anywhere, is the same stretch of the same sequence.
    longer = _run(5, n_examples=30, batch_size=7, evaluate_every=20)
    np.testing.assert_array_equal(annealing.batches(longer, 20).reshape(-1), rows[140:])


def test_batches_are_of_the_runs_seed_alone():
    run = _run(5)
    here = annealing.batches(run, 10)
    others = {"d_model": 9, "context_length": 1, "learning_rate": 1.0, "steps": 900}
    np.testing.assert_array_equal(annealing.batches(_run(5, **others), 10), here)
    other_data = dataclasses.replace(TASK, seed=8)
    np.testing.assert_array_equal(annealing.batches(_run(5, other_data), 10), here)
    assert (annealing.batches(_run(6), 10) != here).any()


def _easy(seed, steps=400, **fields):
    """A run that knows its four examples after 30 to 80 steps, whatever its seed."""
    return _run(seed, n_examples=4, learning_rate=3e-2, n_heads=4, steps=steps, **fields)


@pytest.fixture
def rounds(monkeypatch):
    """The widths of the rounds from here on."""
    widths, train = [], loop.Lanes.train

    def recorded(lanes):
        widths.append(len(lanes.jobs))
        return train(lanes)

    monkeypatch.setattr(loop.Lanes, "train", recorded)
    return widths


@pytest.mark.rounding
def test_runs_that_know_all_stop_and_free_their_slot(rounds):
    patient = _easy(0, steps=200, stop_early=False, context_length=2)
    runs = [FILLING, *map(_easy, range(1, 5)), patient]
    counted = []
    result = annealing.anneal(_pack(runs, slots=2), counted.append)
    stopped = [certificate["stopped_at"] for certificate in result.columns]
    assert stopped[0] == 20
    assert max(stopped[1:5]) < 400
    assert stopped[5] == 200
    assert (result.accuracy_R[1:] == 1).all()
    assert 1 in result.columns[5]["curve_accuracy"][:-1]
    for certificate in result.columns[1:5]:
        *before, last = certificate["curve_accuracy"]
        assert last == 1
        assert max(before, default=0) < 1
        assert certificate["best_step"] == certificate["stopped_at"]
    # A slot that is free takes the next run that waits; idle, it is given up.
    ends = [0, 0]
    for steps in stopped:
        ends[ends.index(min(ends))] += steps
    assert rounds == [sum(step < end for end in ends) for step in range(0, max(ends), 10)]
    assert {1, 2} == set(rounds)
    # No model-step is counted that was not needed.
    assert counted == [10 * width for width in rounds]
    assert sum(counted) == sum(stopped)


def test_the_pack_narrows_as_runs_finish_and_compiles_each_width_once(rounds, monkeypatch):
    made, compile_program = [], loop.compile_program
    monkeypatch.setattr(
        loop,
        "compile_program",
        functools.lru_cache(lambda *shape: (made.append(shape), compile_program(*shape))[1]),
    )
    first = annealing.anneal(_pack(MIX))
    # Runs end after 20, 40 and 60 steps; three slots become two and one.
    assert rounds == [3, 3, 2, 2, 1, 1]
    assert [loop.narrowed(3, n) for n in (3, 2, 1)] == [3, 2, 1]
    assert [width for _, width, _ in made] == [3, 2, 1]
    assert first.compile_seconds > 0
    # Other sizes, seeds and rates are data; the longest run waits until a slot is free.
    rounds.clear()
    other_data = dataclasses.replace(TASK, seed=5)
    others = [
        dataclasses.replace(run, task=dataclasses.replace(run.task, seed=5))
        for run in (FILLING, _run(9, n_heads=1, learning_rate=0.1, warmup=0), MIX[1])
    ]
    assert others[1].task == other_data
    again = annealing.anneal(_pack(others, slots=2))
    assert rounds == [2] * 4 + [1] * 4
    assert len(made) == 3
    assert again.compile_seconds == 0


def test_a_pack_of_seconds_is_not_worth_another_width(rounds, monkeypatch, mixed):
    monkeypatch.setattr(loop, "NARROWED_FROM_SECONDS", 60)
    _assert_close(annealing.anneal(_pack(MIX)), mixed)
    assert rounds == [3] * 6
    rounds.clear()
    lasting = dataclasses.replace(_pack(MIX), seconds=60.0)
    _assert_identical(annealing.anneal(lasting), mixed)
    assert rounds == [3, 3, 2, 2, 1, 1]


def test_the_weights_of_least_loss_are_kept():
    # Where the rate only grows, the last weights are not the best.
    growing = _run(4, learning_rate=0.5, warmup=0.9, steps=80)
    runs = [growing, _run(5, learning_rate=0.1, steps=80), FILLING]
    result = annealing.anneal(_pack(runs))
    for i, run in enumerate(runs):
        certificate = result.columns[i]
        assert len(certificate["curve_steps"]) == run.method.steps // 10
        best = int(np.argmin(certificate["curve_loss"]))
        assert result.loss_R[i] == certificate["curve_loss"][best]
        assert result.accuracy_R[i] == certificate["curve_accuracy"][best]
        assert certificate["best_step"] == certificate["curve_steps"][best]
        variables, data = _variables(result, i, run), _data(run.task)
        loss_T, correct_T = quick_jit(_each_alone, static_argnums=0)(run.module(), variables, data)
        np.testing.assert_allclose(loss_T.mean(), result.loss_R[i], rtol=1e-5)
        np.testing.assert_allclose(correct_T.mean(), result.accuracy_R[i], atol=1e-6)
        largest_TxH = saturation.largest_attention(run, variables)
        np.testing.assert_allclose(certificate["largest_attention"], largest_TxH.T, atol=1e-3)
        assert certificate["saturated"] == saturation.columns(largest_TxH)["saturated"]
    assert result.columns[0]["best_step"] < 80


def _data(task):
    return jax.device_put(task.sample())


def _each_alone(module, variables, data):
    """Loss and correctness of every example."""

    def one(i):
        output_C = module.apply(variables, *labelled_contexts.inputs(data, i))
        return metrics.loss_and_correct(output_C, data.label_T[i])

    return jax.vmap(one)(jnp.arange(len(data.label_T)))


def test_blocks_of_examples_are_evaluated_as_one(monkeypatch):
    monkeypatch.setattr(packing, "EVALUATED_AT_ONCE", 7)
    tasks = [dataclasses.replace(TASK, n_examples=30, seed=seed) for seed in (0, 1)]
    module, sets = _run(0, tasks[0]).module(), [_data(task) for task in tasks]
    trees = [models.init(module, 0, jax.random.key(seed)) for seed in range(4)]
    n_examples, which_set = [1, 12, 24, 23], [0, 1, 1, 0]
    lanes = Lane(jnp.array(which_set), jnp.array(n_examples), jnp.ones(4), jnp.zeros(4))
    stacked, data = (jax.tree.map(lambda *xs: jnp.stack(xs), *each) for each in (trees, sets))
    evaluate = quick_jit(reading.evaluate_prefixes, static_argnums=0)
    loss_R, accuracy_R = evaluate(module, stacked, data, lanes)
    alone = quick_jit(_each_alone, static_argnums=0)
    for i, (n, which) in enumerate(zip(n_examples, which_set, strict=True)):
        loss_T, correct_T = alone(module, trees[i], sets[which])
        np.testing.assert_allclose(loss_R[i], loss_T[:n].mean(), rtol=1e-5)
        assert accuracy_R[i] == np.float32(correct_T[:n].sum() / n)


def _resumed(pack, kept):
    counted = []
    memory = Memory(kept)
    result = annealing.anneal(pack, counted.append, memory)
    assert sorted(memory.loaded) == sorted(run.run_id for run in pack.runs)
    return result, sum(counted)


@pytest.mark.parametrize("slots", [2, 3])
def test_a_stopped_pack_resumes_with_the_same_bits(slots):
    pack = _pack(MIX, slots)
    whole = annealing.anneal(pack)
    n_rounds = 7 if slots == 2 else 6
    for rounds_done in range(1, n_rounds):
        memory = Memory()
        with pytest.raises(Stop):
            annealing.anneal(pack, _stopping_after(rounds_done), memory)
        steps_done = sum(int(arrays["step"]) for arrays in memory.kept.values())
        assert steps_done > 0
        result, steps = _resumed(pack, memory.kept)
        _assert_identical(result, whole)
        assert steps == 120 - steps_done


def test_a_killed_pack_resumes_from_any_checkpoint(monkeypatch, mixed):
    monkeypatch.setattr(loop, "SECONDS_BETWEEN_CHECKPOINTS", 0)
    monkeypatch.setattr(loop, "SHARE_OF_CHECKPOINTS", math.inf)
    memory = Memory()
    _assert_identical(annealing.anneal(_pack(MIX), checkpoints=memory), mixed)
    # Every run is saved while it trains, and what is done is saved once.
    finished = [kept for kept in memory.saves if all(x["done"] for x in kept.values())]
    assert len(memory.saves) == 2 + 2 + 2 * 3 + 2
    assert len(finished) >= 1
    # Killed in the midst of saving: runs are of different rounds.
    for kept in memory.saves[1::3]:
        result, _ = _resumed(_pack(MIX), kept)
        _assert_close(result, mixed)
    result, steps = _resumed(_pack(MIX), memory.kept)
    _assert_identical(result, mixed)
    assert steps == 0


@pytest.mark.parametrize(("stops_at", "kept"), [(5, 0), (4, 1)])
def test_weights_that_know_all_are_kept_whatever_their_loss(stops_at, kept):
    old, new = {"w": jnp.zeros(2)}, {"w": jnp.ones(2)}
    best, found = Best(old, 0.1, 0.6, 10), Best(new, 0.2, 0.8, 20)
    found = program.keep_better(best, found, jnp.float32(stops_at / 5))
    assert float(found.params["w"][0]) == kept
    assert int(found.step) == (20 if kept else 10)


def test_between_times_only_what_is_done_is_saved():
    memory = Memory()
    annealing.anneal(_pack(MIX), checkpoints=memory)
    assert all(arrays["done"] for arrays in memory.kept.values())
    assert len(memory.saves) == len(memory.kept) == len(MIX)


def test_a_checkpoint_serves_whatever_pack_the_run_comes_to_be_in(mixed):
    memory = Memory()
    with pytest.raises(Stop):
        annealing.anneal(_pack(MIX), _stopping_after(3), memory)
    for i, run in enumerate(MIX[:2]):
        saved = {name: x.shape for name, x in memory.kept[run.run_id].items()}
        alone = {".variables" + jax.tree_util.keystr(path): x.shape for path, x in _leaves(run)}
        assert alone.items() <= saved.items()
        result, steps = _resumed(packing.make_pack([run]), memory.kept)
        _assert_close(result, _of(mixed, i))
        assert steps == max(0, run.method.steps - 30)


def _leaves(run):
    shapes = models.shapes(run.module(), 0)
    return jax.tree_util.tree_flatten_with_path(shapes)[0]


def test_padding_stays_exactly_zero_in_weights_and_moments():
    lanes = loop.Lanes(annealing.Annealed(_pack(MIX)))
    for _ in range(5):
        lanes.fill()
        lanes.train()
        lanes.look()
        for i, job in enumerate(lanes.jobs):
            if job is None:
                continue
            shapes = lanes.policy.true_shapes(job)
            leaves = [jax.tree.leaves(tree) for tree in (shapes, lanes.state)]
            for shape, padded in zip(*leaves, strict=True):
                outside = np.array(padded[i])
                outside[tuple(slice(size) for size in shape.shape)] = 0
                assert not outside.any()


@pytest.fixture(scope="module")
def deep():
    return annealing.anneal(packing.make_pack(DEEP))


@pytest.mark.rounding
def test_scalars_are_known_within_the_tolerance_and_never_stop_early(deep):
    assert deep.accuracy_R[1] < deep.accuracy_R[0] == 1
    assert 1.0 in deep.columns[0]["curve_accuracy"][:-1]
    for i, run in enumerate(DEEP):
        assert deep.columns[i]["stopped_at"] == 100
        module, variables = run.module(), _variables(deep, i, run)
        data = run.task.sample()
        inputs = [labelled_contexts.inputs(data, j) for j in range(run.task.n_examples)]
        apply = quick_jit(module.apply)
        output_T = np.array([apply(variables, *x)[0] for x in inputs])
        error_T = abs(output_T - data.label_T)
        np.testing.assert_allclose((error_T**2).mean(), deep.loss_R[i], atol=1e-6)
        assert (error_T <= metrics.SCALAR_TOLERANCE).mean() == deep.accuracy_R[i]
    assert metrics.SCALAR_TOLERANCE == 0.05
    first, second = worker.rows_of(packing.make_pack(DEEP), deep)
    assert first["bits"] is second["bits"] is None
    assert first["memorized"] == pytest.approx(8)
    assert first["status"] == "ok"


def test_a_diverged_run_stops_at_once_and_leaves_its_neighbours_alone(mixed, rounds):
    wild = _run(5, learning_rate=1e30)
    pack = _pack([MIX[0], wild, FILLING])
    result = annealing.anneal(pack)
    assert result.columns[1]["stopped_at"] == 10
    assert result.columns[1]["curve_loss"] == [None]
    assert not np.isfinite(result.loss_R[1])
    assert rounds[0] == 3
    assert rounds[1:] == [2, 1, 1]
    for i, there in ((0, 0), (2, 2)):
        _assert_close(_of(result, i), _of(mixed, there))
    rows = worker.rows_of(pack, result)
    assert [row["status"] for row in rows] == ["ok", "diverged", "ok"]
    assert all(rows[1][name] is None for name in ("accuracy", "loss", "bits", "memorized"))
    json.dumps(rows, allow_nan=False)


def test_a_run_that_diverges_late_keeps_its_best_weights():
    tame, wild = _run(5, steps=60), _run(5, steps=60, learning_rate=1e30)
    memory = Memory()
    with pytest.raises(Stop):
        annealing.anneal(_pack([tame, FILLING]), _stopping_after(1), memory)
    as_if_its_own = {wild.run_id: memory.kept[tame.run_id]}
    result = annealing.anneal(_pack([wild, FILLING]), checkpoints=Memory(as_if_its_own))
    certificate = result.columns[0]
    first, *others = certificate["curve_loss"]
    assert first == result.loss_R[0]
    assert others == [None]
    assert (certificate["best_step"], certificate["stopped_at"]) == (10, 20)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(result.variables["params"]))
    assert worker.rows_of(_pack([wild, FILLING]), result)[0]["status"] == "ok"


def test_runs_of_several_sets_share_a_pack_and_read_each_their_own():
    other = dataclasses.replace(TASK, seed=4, n_examples=30)
    runs = [_run(0, other, d_model=8), _run(0, n_examples=30), _run(1, other, context_length=4)]
    (pack,) = packing.plan(runs, "cpu")
    assert len(pack.runs) == 3
    packed = annealing.anneal(_pack(runs, slots=1))
    assert packed.loss_R[0] != packed.loss_R[1]
    for i, run in enumerate(runs):
        _assert_close(annealing.anneal(_pack([run])), _of(packed, i))


def test_sets_that_fill_the_memory_are_in_packs_of_their_own(monkeypatch):
    runs = [_run(i, dataclasses.replace(TASK, seed=i % 2)) for i in range(4)]
    assert packing.memory_shared(runs) == 2 * packing.memory_shared(runs[:1])
    monkeypatch.setitem(packing.MEMORY_BYTES, "gpu", 2 * packing.memory_shared(runs) - 1)
    packs = packing.plan(runs, "gpu")
    assert sorted(sorted(run.task.seed for run in pack.runs) for pack in packs) == [[0, 0], [1, 1]]


UNITED = [
    {"d_model": 9},
    {"d_head": 3},
    {"n_heads": 7},
    {"d_value": 3},
    {"context_length": 9},
    {"n_examples": 99},
    {"steps": 70},
    {"learning_rate": 1.0},
    {"warmup": 0.3},
    {"first_share": 0.5},
    {"stop_early": False},
]
DIVIDED = [
    {"n_classes": 5},
    {"n_classes": None},
    {"contexts": "random"},
    {"input_dim": 7},
    {"n_layers": 2},
    {"positions": "learned"},
    {"residual": True},
    {"batch_size": 9},
    {"evaluate_every": 20},
]


@pytest.mark.parametrize("platform", ["cpu", "gpu", "unheard of"])
def test_a_plan_unites_what_padding_unites_longest_first(platform):
    runs = [_run(i, **fields) for i, fields in enumerate(UNITED)]
    (pack,) = packing.plan(runs, platform)
    assert sorted(run.run_id for run in pack.runs) == sorted(run.run_id for run in runs)
    steps = [run.method.steps for run in pack.runs]
    assert steps == sorted(steps, reverse=True)
    assert steps[0] == 70 > steps[1]
    assert 1 <= pack.slots <= len(runs)
    # 99 examples, rounded up to share a compilation with other packs.
    assert packing.signature(pack).task == dataclasses.replace(
        TASK, n_examples=128, context_length=9
    )
    assert 0 < pack.waste < 1
    apart = [_run(0), *(_run(0, **fields) for fields in DIVIDED)]
    packs = packing.plan(apart, platform)
    assert len(packs) == len(apart)
    assert all(pack.slots == 1 for pack in packs)


def test_what_does_not_fit_waits(monkeypatch):
    runs = [_run(seed) for seed in range(6)]
    (pack,) = packing.plan(runs, "gpu")
    assert pack.slots == 6
    shared = packing.memory_shared(runs)
    one = packing._memory_of_lane(pack.module, runs, "gpu")
    for fits, slots in ((3.5, 3), (0.1, 1)):
        monkeypatch.setitem(packing.MEMORY_BYTES, "gpu", shared + fits * one)
        (pack,) = packing.plan(runs, "gpu")
        assert (len(pack.runs), pack.slots) == (6, slots)
        assert pack.memory_bytes == pytest.approx(shared + slots * one)


@pytest.mark.parametrize("n_examples", [1, 2, 3, 5, 96, 97, 1000, 1025])
def test_few_sizes_of_the_set_hold_all_runs(n_examples):
    largest = packing.signature(packing.make_pack([_run(n_examples=n_examples)])).task.n_examples
    assert n_examples <= largest < 1.5 * n_examples
    powers = 2 ** np.arange(12)
    assert largest in {*powers, *(3 * powers)}


def test_a_part_of_a_pack_keeps_the_shapes_of_its_module(monkeypatch):
    """Runs of short contexts alone in a module that was made for long ones."""
    short = [_run(0), _run(1), FILLING, _run(2)]
    first, second = packing.make_pack(short).halves()
    assert first.module == second.module == packing.make_pack(short).module
    monkeypatch.setitem(packing.MAX_RUNS, "cpu", 2)
    for pack in [first, second, *packing.plan(short, "cpu")]:
        assert packing.signature(pack).task.context_length == pack.module.context_length
    part, filled = _run(0, n_examples=30), [_run(0, n_examples=30), FILLING]
    alone = annealing.anneal(_pack([part]))
    _assert_close(alone, _of(annealing.anneal(_pack(filled)), 0))


def _interrupting_after(monkeypatch, rounds):
    """Ctrl-C after so many rounds of a sweep; returns the model-steps that were counted."""
    counted, steps_done = [], progress.Progress.steps_done

    def count(bar, pack, steps):
        counted.append(steps)
        if len(counted) == rounds:
            raise KeyboardInterrupt
        steps_done(bar, pack, steps)

    monkeypatch.setattr(progress.Progress, "steps_done", count)
    return counted


MEASURED = ["run_id", "status", "accuracy", "loss", "bits", "memorized", "stopped_at", "best_step"]


def test_an_interrupted_sweep_resumes_where_it_was(tmp_path, monkeypatch, mixed):
    folder = tmp_path / ".checkpoints"
    counted = _interrupting_after(monkeypatch, rounds=3)
    with pytest.raises(sweep.Interrupted, match=r"0 of 3 runs are saved .* same command resumes"):
        memobench.run(MIX, results=tmp_path, progress=False)
    assert sum(counted) == 30 + 30 + 20
    assert not list(tmp_path.glob("*.json"))
    assert sorted(path.stem for path in folder.iterdir()) == sorted(run.run_id for run in MIX)
    for path in folder.iterdir():
        with np.load(path, allow_pickle=False) as arrays:
            assert int(arrays["step"]) in (20, 30)
            assert all(x.dtype != object for x in arrays.values())

    counted = _interrupting_after(monkeypatch, rounds=None)
    table = memobench.run(MIX, results=tmp_path, progress=False)
    assert sum(counted) == 120 - 20 - 30 - 30
    assert list(folder.iterdir()) == []
    assert len(list(tmp_path.glob("*.json"))) == 1
    whole = memobench.run(MIX, progress=False)
    assert table[MEASURED].to_dict("list") == whole[MEASURED].to_dict("list")
    assert table["curve_loss"].tolist() == whole["curve_loss"].tolist()
    np.testing.assert_allclose(table["loss"], mixed.loss_R, atol=1e-5)
    again = memobench.run(MIX, results=tmp_path, progress=False)
    assert again[MEASURED].to_dict("list") == table[MEASURED].to_dict("list")


def test_a_sweep_without_a_folder_keeps_no_checkpoints(monkeypatch):
    monkeypatch.setattr(checkpoints.Folder, "save", _fail)
    _interrupting_after(monkeypatch, rounds=2)
    with pytest.raises(sweep.Interrupted, match="nothing was saved"):
        memobench.run(MIX, progress=False)


def _fail(*_):
    raise AssertionError("nothing may be saved here")


def _empty(_):
    return b""


def _truncated(content):
    return content[: len(content) // 2]


def _without_its_end(content):
    return content[:-1]


def _flipped(content):
    # The first array's data, after its header of 128 bytes.
    place = content.index(b"\x93NUMPY") + 130
    return content[:place] + bytes([content[place] ^ 255]) + content[place + 1 :]


def _foreign(_):
    return b'{"schema": 1}'


@pytest.mark.parametrize("spoil", [_empty, _truncated, _without_its_end, _flipped, _foreign])
def test_a_spoiled_checkpoint_is_named_and_its_run_starts_anew(tmp_path, caplog, mixed, spoil):
    memory, folder = Memory(), checkpoints.Folder(tmp_path / "here")
    with pytest.raises(Stop):
        annealing.anneal(_pack(MIX), _stopping_after(2), memory)
    for run_id, arrays in memory.kept.items():
        folder.save(run_id, arrays)
    path = tmp_path / "here" / f"{MIX[1].run_id}.npz"
    path.write_bytes(spoil(path.read_bytes()))
    counted = []
    with caplog.at_level(logging.WARNING, "memobench"):
        result = annealing.anneal(_pack(MIX), counted.append, folder)
    (record,) = caplog.records
    assert str(path) in record.getMessage()
    assert "its run starts anew" in record.getMessage()
    assert sum(counted) == 20 + 60
    _assert_close(result, mixed)
    # A file that was left open would warn once nothing holds its error, here or in the next test.
    gc.collect()


def test_a_folder_of_checkpoints_gives_back_what_it_was_given(tmp_path):
    folder = checkpoints.Folder(tmp_path / "a" / "b")
    assert folder.load("x") is None
    assert not (tmp_path / "a").exists()
    arrays = {"step": np.array(3), ".params['a']": np.ones((2, 0, 3), np.float32)}
    folder.save("x", {"step": np.array(2)})
    folder.save("x", arrays)
    loaded = folder.load("x")
    assert loaded.keys() == arrays.keys()
    for name, x in arrays.items():
        np.testing.assert_array_equal(loaded[name], x)
        assert loaded[name].dtype == x.dtype
    folder.save("y", arrays)
    folder.discard(["x", "never there"])
    assert [path.name for path in (tmp_path / "a" / "b").iterdir()] == ["y.npz"]


def test_a_save_that_fails_warns_and_leaves_what_was_there(tmp_path, monkeypatch, caplog):
    folder = checkpoints.Folder(tmp_path)
    folder.save("x", {"step": np.array(2)})

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    folder.save("x", {"step": np.array(3)})
    assert "no checkpoint of run x: [Errno 28] No space left" in caplog.text
    assert [path.name for path in tmp_path.iterdir()] == ["x.npz"]
    assert folder.load("x")["step"] == 2


def test_objects_are_refused(tmp_path):
    folder = checkpoints.Folder(tmp_path)
    with pytest.raises(ValueError, match="allow_pickle"):
        folder.save("x", {"step": np.array([None])})
    assert list(tmp_path.iterdir()) == []


def test_only_an_annealing_is_annealed(make_run):
    with pytest.raises(AttributeError, match="'Training' object has no attribute"):
        annealing.batches(make_run(), 0)
    with pytest.raises(AttributeError, match="'LabelledContexts' object has no attribute"):
        training.train_many(packing.make_pack([_run()]))
    with pytest.raises(AttributeError, match="'Training' object has no attribute"):
        annealing.anneal(packing.make_pack([make_run()]))


def test_a_run_alone_is_trained_as_its_method_says(mixed):
    _assert_close(training.train_one(MIX[0]), _of(mixed, 0))
