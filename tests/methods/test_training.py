"""Packed training is solo training: in losses, in bits, in what padding may not touch."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from memobench import engine
from memobench.common.errors import UserError
from memobench.core import module as models
from memobench.core.architecture import Architecture
from memobench.core.run import Run
from memobench.engine import batches, initializing, program
from memobench.experiments.capacity.own_tasks import FactualRecall
from memobench.methods import training
from memobench.methods.training import Training
from memobench.models.transformer import AttentionOnly
from memobench.numerics import metrics
from memobench.planner import packing
from memobench.store import curves
from memobench.tasks.associations import Associations
from tests import small

TWENTY = Training(batch_size=16, n_batches=10, epochs=2)
protocols = pytest.mark.parametrize("method", [TWENTY, TWENTY.exact()], ids=["published", "exact"])


def _mix(make_run, method):
    """Sizes, families, seeds, learning rates and task instances that one program must hold."""
    other = dataclasses.replace(method, learning_rate=3e-2, final_learning_rate=1e-3)
    # Few sizes, so that few programs train all of them alone.
    heads = {"d_model": 3, "d_head": 3, "n_heads": 1, "method": method}
    mlp = {"d_model": 5, "d_head": 5, "n_heads": 1, "d_mlp": 12}
    return [
        make_run(**heads, seed=4),
        make_run(d_model=9, d_head=9, n_heads=7, method=other),
        make_run("mlp", **mlp, method=method, seed=2),
        make_run(**heads, task=Associations(vocab_size=7, seed=3)),
        make_run("mlp", **mlp, method=other, seed=1),
    ]


@protocols
def test_packed_equals_alone(make_run, method):
    runs = _mix(make_run, method)
    packed = small.train(packing.make_pack(runs))
    # The second is as large as the pack.
    for i in (0, 2, 3, 4):
        alone = training.train_one(runs[i])
        np.testing.assert_allclose(packed.step_loss_RxL[i], alone.step_loss_RxL[0], atol=1e-5)
        np.testing.assert_allclose(packed.loss_R[i], alone.loss_R[0], atol=1e-4)


KINDS: dict[str, list[dict]] = {
    "one head": [{"n_heads": 1}, {"n_heads": 1, "d_model": 6, "d_head": 6}],
    "square": [{"n_heads": 1}, {"d_model": 6, "d_head": 6, "n_heads": 4}],
    "compressed": [{"d_head": 2}, {"d_model": 6, "d_head": 3, "n_heads": 4}],
    "full": [{"d_head": 2, "heads": "full"}, {"d_model": 6, "heads": "full", "n_heads": 1}],
    "one width": [{"d_head": 2, "heads": "full"}, {"heads": "full", "n_heads": 3}],
    "deep": [
        {"d_head": 2, "n_layers": 2},
        {"d_model": 3, "d_head": 5, "n_layers": 2, "n_heads": 4},
    ],
}


def _registered(make_run, name, kind):
    """Two sizes of a registered architecture, with two tokens and an MLP wherever it can."""
    architecture = Architecture.get_kind(name)
    known = {field.name for field in dataclasses.fields(architecture)}
    of_one_kind = "one width", "compressed" if "d_head" in known else "square"
    if name in ("gpt", "recall_transformer"):
        pytest.skip(f"{name} has such packs in tests of its own")
    if name == "mlp" and kind not in ("compressed", "full"):
        pytest.skip("its heads are those of attention_only, and an MLP follows them")
    if "heads" not in known and kind not in of_one_kind:
        pytest.skip(f"{name} has heads of one kind: its sizes are those of {of_one_kind[1]!r}")
    tried = [Associations(vocab_size=7, context_length=length) for length in (2, 1)]
    facts = FactualRecall(n_subjects=3, n_relations=2, n_answers=2, n_noise=4, context_length=5)
    for task in (*tried, facts):
        runs = []
        for d_mlp, sizes in zip((3, 8), KINDS[kind], strict=True):
            sizes = {**dict.fromkeys(("d_mlp", "n_experts", "n_keys", "d_key"), d_mlp), **sizes}
            sizes |= {"top_k": 1 + (kind == "deep")}
            fitting = {size: x for size, x in sizes.items() if size in known}
            try:
                runs.append(make_run(name, task=task, method=TWENTY, **fitting))
                runs[-1].module()
            except UserError:
                break
        else:
            break
    else:
        pytest.skip(f"{name} serves none of these tasks at these sizes")
    modules = [run.module() for run in runs]
    if models.structure(modules[0]) != models.structure(modules[1]):
        pytest.skip(f"{name} is not padded at these sizes")
    if "heads" not in known and kind == "one width" and "d_model" in modules[0].paddable:
        pytest.skip(f"{name} pads its width: its sizes are those of {of_one_kind[1]!r}")
    return runs


# Trained at once: of every kind of heads and layers, and experts, which a router chooses among. Of
# all others the gradient is that of the smaller model (tests/core/test_registered_kinds.py), which
# is trained like these.
AT_ONCE = {
    ("attention_only", "full"),
    ("attention_only", "deep"),
    ("mixture_of_experts", "compressed"),
}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        pytest.param(name, kind, marks=[pytest.mark.slow] * ((name, kind) not in AT_ONCE))
        for name in Architecture.kinds()
        for kind in KINDS
    ],
)
def test_every_architecture_is_the_same_padded(make_run, name, kind):
    runs = _registered(make_run, name, kind)
    packed = small.train(packing.make_pack(runs))
    smaller = training.train_one(runs[0])
    np.testing.assert_allclose(packed.step_loss_RxL[0], smaller.step_loss_RxL[0], atol=1e-5)
    length = runs[0].task.context_length
    true_shapes = models.shapes(runs[0].module(), length)["params"]
    small.assert_padding_is_zero(packed.variables["params"], 0, true_shapes)


@protocols
def test_the_padding_is_exactly_zero_after_200_steps(make_run, method):
    method = dataclasses.replace(method, epochs=20)
    runs = _mix(make_run, method)
    assert method.steps == 200
    result = small.train(packing.make_pack(runs))
    for i, run in enumerate(runs):
        true_shapes = models.shapes(run.module(), 2)["params"]
        small.assert_padding_is_zero(result.variables["params"], i, true_shapes)


@protocols
def test_a_run_has_the_same_bits_wherever_it_sits(make_run, method):
    runs = _mix(make_run, method)
    here = small.train(packing.make_pack(runs))
    there = small.train(packing.make_pack(runs[2:] + runs[:2]))
    for measure in ("step_loss_RxL", "step_accuracy_RxL", "loss_R", "accuracy_R"):
        np.testing.assert_array_equal(
            getattr(here, measure), np.roll(getattr(there, measure), 2, axis=0)
        )


def test_a_shape_is_traced_and_compiled_once(make_run, monkeypatch):
    method = Training(batch_size=8, n_batches=3, epochs=2)
    engine.compile_program.cache_clear()
    step, traces = program.step, []
    monkeypatch.setattr(program, "step", lambda *a: (traces.append(1), step(*a))[1])

    def train(seed, method):
        runs = [make_run(n_heads=h, seed=seed, method=method) for h in (1, 5)]
        return small.train(packing.make_pack(runs))

    first = train(0, method)
    traces_of_one = len(traces)
    again = train(1, dataclasses.replace(method, learning_rate=0.1, epochs=4))
    assert len(traces) == traces_of_one > 0
    assert engine.compile_program.cache_info().misses == 1
    assert first.compile_seconds > 0
    assert again.compile_seconds == 0


@pytest.mark.parametrize(("protocol", "batch_size"), [("published", 8), ("passes", 9)])
def test_a_protocol_of_batches_step_for_step(protocol, batch_size):
    """Against a loop that follows the protocol's description, with optax's own Adam."""
    method = Training(
        protocol=protocol,
        batch_size=batch_size,
        n_batches=4,
        epochs=3,
        learning_rate=2e-2,
        final_learning_rate=5e-3,
    )
    task = Associations(vocab_size=6)
    architecture = AttentionOnly(d_model=4, d_head=4, n_heads=2)
    run = Run(task=task, architecture=architecture, method=method, seed=11)
    result = training.train_one(run)

    module = run.module()
    variables = models.init(module, 2, initializing.init_key(run))
    params = variables["params"]
    labels, draws = np.asarray(task.sample().next_TxK)[:, 0], np.asarray(task.sample_draws(32))
    draws = np.arange(36) if protocol == "passes" else draws
    pairs = np.stack([draws // 6, draws % 6], axis=1)

    def loss(params, tokens, targets):
        logits = jax.vmap(lambda t: module.apply({**variables, "params": params}, t))(tokens)
        correct = (logits.argmax(-1) == targets).mean()
        return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean(), correct

    loss = jax.jit(loss)
    rates = [2e-2 + (5e-3 - 2e-2) * epoch / 3 for epoch in range(3)]
    adam = optax.inject_hyperparams(optax.adam)(learning_rate=rates[0])
    state = adam.init(params)

    @jax.jit
    def step(params, state, tokens, targets):
        seen, gradient = jax.value_and_grad(loss, has_aux=True)(params, tokens, targets)
        update, state = adam.update(gradient, state)
        return optax.apply_updates(params, update), state, seen

    losses, accuracies = [], []
    for epoch in range(3):
        state.hyperparams["learning_rate"] = jnp.float32(rates[epoch])
        order = batches.epoch_order(batches.shuffle_key(run), jnp.int32(epoch), batch_size, 4)
        assert sorted(order.reshape(-1).tolist()) == list(range(4 * batch_size))
        for batch in np.asarray(order):
            tokens, targets = pairs[batch], labels[draws[batch]]
            params, state, (value, accuracy) = step(params, state, tokens, targets)
            losses.append(value)
            accuracies.append(accuracy)
    np.testing.assert_allclose(result.step_loss_RxL[0], losses, atol=1e-5)
    np.testing.assert_allclose(result.step_accuracy_RxL[0], accuracies, atol=1e-6)
    value, accuracy = loss(params, np.array(list(np.ndindex(6, 6))), labels)
    np.testing.assert_allclose(result.loss_R[0], value, atol=1e-5)
    np.testing.assert_allclose(result.accuracy_R[0], accuracy, atol=1e-6)


@pytest.mark.parametrize("n_batches", [2**11, 2**13])
def test_orders_of_long_epochs_are_random_within_batches_too(n_batches, make_run):
    order_LxB = batches.epoch_order(batches.shuffle_key(make_run()), jnp.int32(0), 256, n_batches)
    order_M = np.asarray(order_LxB).reshape(-1)
    np.testing.assert_array_equal(np.sort(order_M), np.arange(256 * n_batches))
    # Draws that share the bits that order them would keep their order: nearly all would rise.
    assert (np.diff(order_M) > 0).mean() == pytest.approx(0.5, abs=0.01)


def test_shuffles_differ_between_epochs_and_seeds_and_are_uniform(make_run):
    orders = np.stack(
        [
            batches.epoch_order(batches.shuffle_key(make_run(seed=seed)), jnp.int32(e), 25, 4)
            for seed in range(40)
            for e in range(10)
        ]
    ).reshape(400, 100)
    assert len({tuple(order) for order in orders}) == 400
    # Every index is equally likely in every batch: 400 * 25 / 100 = 100 times, sd below 9.
    counts = np.stack([np.bincount(orders[:, :25].reshape(-1), minlength=100)])
    assert 55 < counts.min() <= counts.max() < 145


@pytest.mark.rounding
def test_the_exact_protocol_has_nothing_random_but_the_start(make_run):
    runs = [make_run(method=TWENTY.exact(), seed=seed) for seed in (0, 1)]
    result = small.train(packing.make_pack(runs))
    assert result.step_loss_RxL[0, 0] != result.step_loss_RxL[1, 0]
    assert (np.diff(result.step_loss_RxL, axis=1) < 1e-3).all()


@pytest.mark.rounding
def test_training_memorizes(make_run):
    method = Training(n_batches=64, epochs=16).exact()
    result = training.train_one(make_run(n_heads=8, method=method))
    assert result.accuracy_R[0] == 1
    assert metrics.memorized_bits(result.loss_R[0], 49, 7) > 0.9 * 49 * np.log2(7)


def test_a_diverged_run_leaves_its_neighbours_alone(make_run):
    wild = Training(batch_size=16, n_batches=10, epochs=2, learning_rate=1e30)
    runs = [make_run(method=TWENTY), make_run(method=wild), make_run(method=TWENTY, seed=1)]
    result = small.train(packing.make_pack(runs))
    assert not np.isfinite(result.loss_R[1])
    tame = small.train(packing.make_pack([runs[0], runs[0], runs[2]]))
    np.testing.assert_array_equal(result.step_loss_RxL[[0, 2]], tame.step_loss_RxL[[0, 2]])


def test_progress_counts_every_model_step(make_run):
    counted = []
    pack = packing.make_pack([make_run(seed=seed, method=TWENTY) for seed in range(3)])
    small.train(pack, counted.append)
    assert sum(counted) == 3 * 20


def test_the_published_estimate_skips_the_very_last_batch():
    accuracy_RxL = np.zeros((1, 200))
    accuracy_RxL[0, [-1, -2, -101]] = 1, 0.99, 1
    np.testing.assert_allclose(curves.published_accuracy(accuracy_RxL), [0.01])


def test_a_single_step_is_a_run_too(make_run):
    result = training.train_one(make_run(method=Training(batch_size=8, n_batches=1, epochs=1)))
    accuracy_RxL = result.step_accuracy_RxL
    np.testing.assert_array_equal(curves.published_accuracy(accuracy_RxL), accuracy_RxL[:, 0])


def test_the_curve_covers_all_steps():
    accuracy = np.linspace(0, 1, 1000)
    stops, means, losses = curves.points(accuracy, np.where(accuracy > 0.99, np.inf, 1))
    assert stops[-1] == 1000
    np.testing.assert_allclose(np.average(means, weights=np.diff([0, *stops])), 0.5)
    assert losses[0] == 1
    assert losses[-1] is None


def test_a_chunk_divides_an_epoch_and_does_not_collapse():
    for n_batches in range(2, 4097):
        steps = Training(n_batches=n_batches).chunk_steps
        assert n_batches % steps == 0
        assert steps > 1


def test_no_accuracy_is_above_one_where_frequencies_sum_to_more_by_rounding(make_run, monkeypatch):
    task = Associations(vocab_size=4, n_sequences=3, zipf_exponent=1.0)
    monkeypatch.setattr(
        Associations, "_sample_prior", lambda self, key: jnp.float32([0.5, 0.3, 0.2 + 3e-7])
    )
    method = Training(n_batches=64, epochs=2, learning_rate=0.1).exact()
    result = training.train_one(make_run(task=task, method=method))
    assert result.accuracy_R.tolist() == [1.0]
    assert result.step_accuracy_RxL.max() == 1.0
