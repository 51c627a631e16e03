"""Training for a precision: rounding as certificates do it, straight-through gradients, packs."""

import dataclasses

import jax
import numpy as np
import pytest

from memobench import certificates
from memobench.certificates import counting
from memobench.common.errors import UserError
from memobench.core import module as models
from memobench.core.cells import cells
from memobench.core.run import Run
from memobench.experiments.blocks.precision import n_bytes
from memobench.methods import training
from memobench.methods.capacity import Capacity
from memobench.methods.training import Training
from memobench.models.transformer import MLP, AttentionOnly
from memobench.numerics import precision
from memobench.optimizers import Adam
from memobench.optimizers.rounded import Rounded, round_blocks
from memobench.optimizers.schedule_free import ScheduleFreeAdamW
from memobench.optimizers.sgd import SGD
from memobench.planner import packing
from memobench.tasks.associations import Associations
from tests import small

PRECISIONS = ("bfloat16", "int8", "int4")
every_precision = pytest.mark.parametrize("kind", PRECISIONS)
TRUE = {"matrix": (5, 9), "stacked": (2, 3, 7), "bias": (3,)}
PADDED = {"matrix": (8, 10), "stacked": (3, 3, 8), "bias": (4,)}


def _drawn(seed):
    rng = np.random.default_rng(seed)
    tree = {name: rng.normal(size=shape).astype(np.float32) for name, shape in TRUE.items()}
    tree["bias"][:] = 0
    return tree


def _padded(tree):
    return models.pad_to(tree, {name: np.zeros(x, np.float32) for name, x in PADDED.items()})


@every_precision
def test_padded_weights_are_rounded_as_certificates_round_true_ones(kind):
    weights = _drawn(0)
    for name, x in _padded(weights).items():
        inside = tuple(slice(size) for size in TRUE[name])
        block = np.zeros(x.shape, np.int32)
        block[inside] = precision.block_of(TRUE[name])
        found = np.array(jax.jit(round_blocks, static_argnums=2)(x, block, kind))
        expected = precision.round_to(weights[name], kind)
        np.testing.assert_allclose(found[inside], expected, rtol=1e-6)
        # What is rounded stays.
        np.testing.assert_allclose(precision.round_to(found[inside], kind), expected, rtol=1e-6)
        assert (np.abs(found[inside] - weights[name]).max() > 1e-4) == (name != "bias")
        found[inside] = 0
        assert not found.any()


def _stepped(optimizer, weights, slopes, of_shapes, rate=0.3, steps=4):
    """Of slopes times weights and a quadratic."""

    @jax.jit
    def step(weights, state, of_shapes):
        point = optimizer.point(weights, state, of_shapes)
        gradient = jax.tree.map(lambda w, s: s + 0.1 * w, point, slopes)
        return optimizer.step(weights, gradient, state, np.float32(rate), of_shapes)

    state = optimizer.begin(weights)
    for _ in range(steps):
        weights, state = step(weights, state, of_shapes)
    return weights, state


@pytest.mark.parametrize("straight_through", [True, False])
@every_precision
def test_gradients_pass_straight_through_to_float32_masters(kind, straight_through):
    weights, slopes = _drawn(0), _drawn(1)
    optimizer = Rounded(SGD(momentum=0.0), kind, straight_through)
    params, state = _stepped(optimizer, weights, slopes, optimizer.of_shapes(weights))
    for name in TRUE:
        master = weights[name].astype(np.float64)
        for _ in range(4):
            point = precision.round_to(master, kind) if straight_through else master
            master = master - 0.3 * (slopes[name] + 0.1 * point)
        np.testing.assert_allclose(state.masters[name], master, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(params[name], precision.round_to(master, kind), rtol=1e-4)


@pytest.mark.parametrize("optimizer", [Adam(), ScheduleFreeAdamW()], ids=lambda x: x.name)
@every_precision
def test_steps_of_padded_weights_are_those_of_true_ones(optimizer, kind):
    optimizer, weights, slopes = Rounded(optimizer, kind, True), _drawn(0), _drawn(1)
    of_shapes = optimizer.of_shapes(weights)
    blocks = {
        name: np.pad(x, [(0, n - m) for m, n in zip(x.shape, PADDED[name], strict=True)])
        for name, x in of_shapes["blocks"].items()
    }
    alone, _ = _stepped(optimizer, weights, slopes, of_shapes, rate=0.03)
    padded, _ = _stepped(
        optimizer, _padded(weights), _padded(slopes), {**of_shapes, "blocks": blocks}, rate=0.03
    )
    for name, shape in TRUE.items():
        there = np.array(padded[name])
        inside = tuple(slice(size) for size in shape)
        np.testing.assert_allclose(there[inside], alone[name], rtol=1e-5, atol=1e-6)
        there[inside] = 0
        assert not there.any()


METHOD = Training(n_batches=4, epochs=4, learning_rate=3e-2).exact()
TASK = Associations(vocab_size=5, n_sequences=25)
SMALL, LARGE = AttentionOnly(d_model=3, d_head=2, n_heads=2), AttentionOnly(d_model=5, d_head=3)


def _run(method, architecture=SMALL, seed=0):
    return Run(task=TASK, architecture=architecture, method=method, seed=seed)


def _params(result, i, run):
    """Of a run, at their true size; asserts that their padding is zero."""
    found = {}
    for name, shape in models.shapes(run.module(), 2)["params"].items():
        whole = np.array(result.variables["params"][name][i])
        inside = tuple(slice(size) for size in shape.shape)
        found[name] = whole[inside].copy()
        whole[inside] = 0
        assert not whole.any(), name
    return found


@pytest.mark.parametrize(
    ("architecture", "kind"),
    [
        (LARGE, "int4"),
        pytest.param(MLP(d_model=5, d_head=3, d_mlp=4), "int8", marks=pytest.mark.slow),
    ],
)
def test_packed_and_alone_a_run_is_the_same_and_its_weights_are_rounded(architecture, kind):
    method = METHOD.replace(precision=kind)
    same = architecture.replace(d_model=3, d_head=2)
    runs = [_run(method, same), _run(method, architecture, seed=1)]
    packed = small.train(packing.make_pack(runs))
    alone = training.train_one(runs[0])
    np.testing.assert_allclose(packed.step_loss_RxL[0], alone.step_loss_RxL[0], atol=1e-5)
    np.testing.assert_allclose(packed.loss_R[0], alone.loss_R[0], atol=1e-5)
    assert packed.loss_R[0] < packed.step_loss_RxL[0, 0]
    for i, run in enumerate(runs):
        for name, x in _params(packed, i, run).items():
            np.testing.assert_allclose(precision.round_to(x, kind), x, rtol=1e-6, err_msg=name)


def test_without_straight_through_training_does_not_know_of_the_precision():
    run = _run(METHOD)
    after = _run(METHOD.replace(precision="int4", rounded="after"))
    float32, rounded_ = training.train_one(run), training.train_one(after)
    np.testing.assert_allclose(float32.step_loss_RxL, rounded_.step_loss_RxL, rtol=1e-6)
    expected = _params(float32, 0, run)
    for name, x in _params(rounded_, 0, after).items():
        np.testing.assert_allclose(x, precision.round_to(expected[name], "int4"), rtol=1e-5)
    # What a certificate of the float32 weights counts of them in this precision.
    counted = counting.count(certificates.make(run.task, run.architecture, expected))
    assert rounded_.loss_R[0] == pytest.approx(counted["loss_int4"], abs=1e-5)
    assert abs(float32.loss_R[0] - rounded_.loss_R[0]) > 1e-4
    capacity = Capacity(training=after.method, rungs=1, tables=2, pilots=1)
    assert n_bytes(cells(dataclasses.replace(after, method=capacity))) == counted["bytes_int4"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"precision": "int2"}, "precision='int2'"),
        ({"rounded": "after"}, "rounded='after' means nothing"),
        ({"precision": "int4", "trained": "memory"}, "leave trained out"),
    ],
)
def test_what_a_precision_does_not_serve_is_refused_in_one_line(options, said):
    with pytest.raises(UserError) as error:
        METHOD.replace(**options)
    assert said in str(error.value)
    assert "\n" not in str(error.value)
