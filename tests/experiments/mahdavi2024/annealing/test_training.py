"""Annealed training follows its protocol, packed or alone, and keeps the best weights."""

import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from memobench.core import module as models
from memobench.engine import batches, initializing, loop, program
from memobench.engine.lanes import Best, Lane
from memobench.experiments.mahdavi2024 import own_methods as annealing
from memobench.experiments.mahdavi2024 import saturated_heads
from memobench.methods import training
from memobench.numerics import metrics
from memobench.planner import packing
from memobench.runtime import worker
from memobench.tasks import labelled_contexts
from memobench.tasks.labelled_contexts import LabelledContexts
from tests import small
from tests.experiments.mahdavi2024.annealing.runs import (
    FILLING,
    MIX,
    TASK,
    assert_close,
    pack_of,
    part_of,
    quick_jit,
    run_of,
    variables_of,
)

# Other outputs, contexts and depth, all of them sizes that padding must carry.
SCALARS = LabelledContexts(
    n_examples=8, context_length=3, contexts="random", n_classes=None, input_dim=6
)
DEEPER = {"n_layers": 2, "positions": "learned", "steps": 100}
DEEP = (
    run_of(0, SCALARS, **DEEPER, d_value=2, learning_rate=3e-2),
    run_of(3, SCALARS, **DEEPER, n_examples=11, context_length=4, n_heads=1, d_model=7),
)


@pytest.mark.parametrize("name", ["mixed", pytest.param("deep", marks=pytest.mark.slow)])
def test_packed_equals_alone(name, request):
    packed, runs = request.getfixturevalue(name), {"mixed": MIX, "deep": DEEP}[name]
    for i, run in enumerate(runs[:2]):
        alone = training.train_one(run)
        assert_close(alone, part_of(packed, i))
        ours, theirs = variables_of(packed, i, run), variables_of(alone, 0, run)
        jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-4), ours, theirs)


def test_the_protocol_step_for_step():
    """Against a loop that follows the protocol's description, with optax's Adam and schedules."""
    task = dataclasses.replace(TASK, contexts="random")
    run = run_of(7, task, steps=40, warmup=0.25, first_share=0.1, learning_rate=3e-2)
    result = small.train(packing.make_pack([run]))
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
    run = run_of(warmup=warmup, steps=steps, learning_rate=0.3, first_share=0.02)
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
    run = run_of(5, n_examples=30, batch_size=7)
    rounds = [annealing.batches(run, step) for step in range(0, 40, 10)]
    assert all(x.shape == (10, 7) and x.dtype == np.int32 for x in rounds)
    rows = np.concatenate(rounds).reshape(-1)
    epochs = rows[: 30 * 9].reshape(9, 30)
    assert (np.sort(epochs) == np.arange(30)).all()
    assert len({tuple(epoch) for epoch in epochs}) == 9
    # An epoch that has just begun goes on in the next round: 280 = 9 * 30 + 10.
    assert len(set(rows[270:])) == 10
    # A round of more than one epoch, begun anywhere, is the same stretch of the same sequence.
    longer = run_of(5, n_examples=30, batch_size=7, evaluate_every=20)
    np.testing.assert_array_equal(annealing.batches(longer, 20).reshape(-1), rows[140:])


def test_batches_are_of_the_runs_seed_alone():
    run = run_of(5)
    here = annealing.batches(run, 10)
    others = {"d_model": 9, "context_length": 1, "learning_rate": 1.0, "steps": 900}
    np.testing.assert_array_equal(annealing.batches(run_of(5, **others), 10), here)
    other_data = dataclasses.replace(TASK, seed=8)
    np.testing.assert_array_equal(annealing.batches(run_of(5, other_data), 10), here)
    assert (annealing.batches(run_of(6), 10) != here).any()


def test_the_weights_of_least_loss_are_kept():
    # Where the rate only grows, the last weights are not the best.
    growing = run_of(4, learning_rate=0.5, warmup=0.9, steps=80)
    runs = [growing, run_of(5, learning_rate=0.1, steps=80), FILLING]
    result = small.train(pack_of(runs))
    for i, run in enumerate(runs):
        certificate = result.columns[i]
        assert len(certificate["curve_steps"]) == run.method.steps // 10
        best = int(np.argmin(certificate["curve_loss"]))
        assert result.loss_R[i] == certificate["curve_loss"][best]
        assert result.accuracy_R[i] == certificate["curve_accuracy"][best]
        assert certificate["best_step"] == certificate["curve_steps"][best]
        variables, data = variables_of(result, i, run), _data(run.task)
        loss_T, correct_T = quick_jit(_each_alone, static_argnums=0)(run.module(), variables, data)
        np.testing.assert_allclose(loss_T.mean(), result.loss_R[i], rtol=1e-5)
        np.testing.assert_allclose(correct_T.mean(), result.accuracy_R[i], atol=1e-6)
        largest_TxH = saturated_heads.largest_attention(run, variables)
        np.testing.assert_allclose(certificate["largest_attention"], largest_TxH.T, atol=1e-3)
        assert certificate["saturated"] == saturated_heads.columns(largest_TxH)["saturated"]
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
    module, sets = run_of(0, tasks[0]).module(), [_data(task) for task in tasks]
    trees = [models.init(module, 0, jax.random.key(seed)) for seed in range(4)]
    n_examples, which_set = [1, 12, 24, 23], [0, 1, 1, 0]
    lanes = Lane(jnp.array(which_set), jnp.array(n_examples), jnp.ones(4), jnp.zeros(4))
    stacked, data = (jax.tree.map(lambda *xs: jnp.stack(xs), *each) for each in (trees, sets))
    evaluate = quick_jit(batches.evaluate_prefixes, static_argnums=0)
    loss_R, accuracy_R = evaluate(module, stacked, data, lanes)
    alone = quick_jit(_each_alone, static_argnums=0)
    for i, (n, which) in enumerate(zip(n_examples, which_set, strict=True)):
        loss_T, correct_T = alone(module, trees[i], sets[which])
        np.testing.assert_allclose(loss_R[i], loss_T[:n].mean(), rtol=1e-5)
        assert accuracy_R[i] == np.float32(correct_T[:n].sum() / n)


@pytest.mark.parametrize(("stops_at", "kept"), [(5, 0), (4, 1)])
def test_weights_that_know_all_are_kept_whatever_their_loss(stops_at, kept):
    old, new = {"w": jnp.zeros(2)}, {"w": jnp.ones(2)}
    best, found = Best(old, 0.1, 0.6, 10), Best(new, 0.2, 0.8, 20)
    found = program.keep_better(best, found, jnp.float32(stops_at / 5))
    assert float(found.params["w"][0]) == kept
    assert int(found.step) == (20 if kept else 10)


def test_padding_stays_exactly_zero_in_weights_and_moments():
    lanes = loop.Lanes(annealing.AnnealingPolicy(pack_of(MIX)))
    for _ in range(5):
        lanes.fill()
        lanes.train()
        lanes.evaluate()
        for i, job in enumerate(lanes.jobs):
            if job is None:
                continue
            small.assert_padding_is_zero(lanes.state, i, lanes.policy.true_shapes(job))


@pytest.fixture(scope="module")
def deep():
    return small.train(packing.make_pack(DEEP))


@pytest.mark.rounding
def test_scalars_are_known_within_the_tolerance_and_never_stop_early(deep):
    assert deep.accuracy_R[1] < deep.accuracy_R[0] == 1
    assert 1.0 in deep.columns[0]["curve_accuracy"][:-1]
    for i, run in enumerate(DEEP):
        assert deep.columns[i]["stopped_at"] == 100
        module, variables = run.module(), variables_of(deep, i, run)
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
    wild = run_of(5, learning_rate=1e30)
    pack = pack_of([MIX[0], wild, FILLING])
    result = small.train(pack)
    assert result.columns[1]["stopped_at"] == 10
    assert result.columns[1]["curve_loss"] == [None]
    assert not np.isfinite(result.loss_R[1])
    assert rounds[0] == 3
    assert rounds[1:] == [2, 1, 1]
    for i, there in ((0, 0), (2, 2)):
        assert_close(part_of(result, i), part_of(mixed, there))
    rows = worker.rows_of(pack, result)
    assert [row["status"] for row in rows] == ["ok", "diverged", "ok"]
    assert all(rows[1][name] is None for name in ("accuracy", "loss", "bits", "memorized"))
    json.dumps(rows, allow_nan=False)
