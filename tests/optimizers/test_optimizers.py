"""Every registered optimiser: its steps, padding that stays zero, packs, checkpoints."""

import functools
import math

import jax
import numpy as np
import optax
import optax.contrib
import pytest

import memobench
from memobench.checks import optimizers as padding
from memobench.common.errors import UserError
from memobench.core import module as models
from memobench.core.cells import cells, from_cells
from memobench.core.run import Run
from memobench.core.spec import kind
from memobench.engine import initializing
from memobench.experiments.mahdavi2024.own_methods import Annealing
from memobench.experiments.mahdavi2024.own_models import QueryAttention
from memobench.methods.capacity import Capacity
from memobench.methods.training import Training
from memobench.models.gpt import GPT
from memobench.models.linear_memory import LinearMemory
from memobench.models.transformer import MLP, AttentionOnly
from memobench.optimizers import Adam, Optimizer
from memobench.optimizers.adamw import AdamW
from memobench.optimizers.lion import Lion
from memobench.optimizers.muon import Muon
from memobench.optimizers.schedule_free import ScheduleFreeAdamW
from memobench.optimizers.sgd import SGD
from memobench.planner import packing
from memobench.tasks.associations import Associations
from memobench.tasks.bijection import Bijection
from memobench.tasks.labelled_contexts import LabelledContexts
from tests import small
from tests.stopping import Memory, Stop, stopping_after

quick_jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


def _heavy():
    @kind("heavy")
    class Heavy(Optimizer):
        """An optimiser of a user's whose state does not begin at zero."""

        def transform(self):
            return optax.scale_by_rss(initial_accumulator_value=0.1)

    return Heavy()


OPTIMIZERS = {**Optimizer.kinds(), "a user's": _heavy}
every_optimizer = pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)


# --- Steps --------------------------------------------------------------------------------------

# Padding makes the tall matrix wide.
TRUE = {
    "token_embedding": (5, 3),
    "layer0_query": (2, 2, 3),
    "bias_query": (2, 2),
    "norm_scale": (3,),
    "Dense_0": {"kernel": (6, 2)},
}
PADDED = {
    "token_embedding": (5, 4),
    "layer0_query": (3, 5, 4),
    "bias_query": (3, 5),
    "norm_scale": (4,),
    "Dense_0": {"kernel": (6, 8)},
}
N_STEPS, RATE = 4, 0.03


def _is_shape(x):
    return isinstance(x, tuple)


def _drawn(seed):
    rng = np.random.default_rng(seed)
    tree = jax.tree.map(lambda x: rng.normal(size=x).astype(np.float32), TRUE, is_leaf=_is_shape)
    # A head whose weights never move, and one of rank 1.
    tree["layer0_query"][0] = 0
    tree["layer0_query"][1, 1] = 2 * tree["layer0_query"][1, 0]
    return tree


def _padded(tree):
    shapes = jax.tree.map(lambda x: np.zeros(x, np.float32), PADDED, is_leaf=_is_shape)
    return models.pad_to(tree, shapes)


WEIGHTS, SLOPES = _drawn(0), _drawn(1)


def _gradient(weights, slopes):
    """Of slopes times weights and a quadratic: it vanishes where both are zero."""
    return jax.tree.map(lambda w, s: s + 0.1 * w, weights, slopes)


def _stepped(optimizer, weights, slopes, of_shapes):
    @quick_jit
    def step(weights, state, rate, of_shapes):
        gradient = _gradient(optimizer.point(weights, state, of_shapes), slopes)
        return optimizer.step(weights, gradient, state, rate, of_shapes)

    state = optimizer.begin(weights)
    for i in range(N_STEPS):
        weights, state = step(weights, state, np.float32(RATE * (i + 1)), of_shapes)
    return weights, state


@every_optimizer
def test_the_check_of_ones_own_optimisers_accepts_all_of_memobench(make):
    assert not padding._find_fault(make())


@pytest.mark.parametrize(
    ("transform", "said"),
    [
        (lambda: optax.chain(optax.centralize(), optax.scale_by_adam()), "padded with zeros"),
        (lambda: optax.adafactor(0.1, min_dim_size_to_factor=1), "padded with zeros"),
        (lambda: optax.sgd(1.0), "go up the gradient"),
        (lambda: optax.adamw(1.0), "go up the gradient"),
        (lambda: optax.scale(math.nan), "not finite"),
        (lambda: optax.scale_by_rms, "transform gives 'function', not an optax transformation"),
        (lambda: 1 / 0, rf"its code raises ZeroDivisionError: .* \({__file__}, line \d+\); fix it"),
        (optax.scale_by_rms, None),
    ],
)
def test_ones_own_optimiser_must_go_down_and_leave_padding_alone(make_run, transform, said):
    @kind("of_a_user")
    class Mine(Optimizer):
        pass

    Mine.transform = lambda self: transform()
    plain = Training(n_batches=4, epochs=4, optimizer=Mine()).exact()
    # The optimiser of a training within another method counts too.
    method = Capacity(training=plain, tables=1, rungs=1, rate_factors=(1.0,))
    run = make_run(task=Associations(vocab_size=5, n_sequences=9), method=method)
    if said is None:
        memobench.run([run], progress=False)
        return
    with pytest.raises(UserError, match=f"^optimizer of_a_user: .*{said}"):
        memobench.run([run], progress=False)


@pytest.mark.parametrize("clip", [None, 0.5])
@every_optimizer
def test_steps_of_padded_weights_are_those_of_true_ones(make, clip):
    optimizer = make().replace(clip=clip)
    of_shapes = optimizer.of_shapes(WEIGHTS)
    alone, state = _stepped(optimizer, WEIGHTS, SLOPES, of_shapes)
    padded, padded_state = _stepped(optimizer, _padded(WEIGHTS), _padded(SLOPES), of_shapes)
    leaves = zip(jax.tree.leaves_with_path(alone), jax.tree.leaves(padded), strict=True)
    for (path, ours), theirs in leaves:
        there = np.array(theirs)
        inside = tuple(slice(size) for size in ours.shape)
        np.testing.assert_allclose(there[inside], ours, rtol=1e-4, atol=1e-6, err_msg=str(path))
        there[inside] = 0
        assert not there.any(), path
    moved = jax.tree.map(lambda x, y: np.abs(x - y).max(), alone, WEIGHTS)
    assert min(jax.tree.leaves(moved)) > 1e-4
    # What has no shape of a parameter is the same in both.
    for ours, theirs in zip(*map(jax.tree.leaves, (state, padded_state)), strict=True):
        if not ours.shape:
            np.testing.assert_allclose(ours, theirs, rtol=1e-4)


def _by_optax(transform, read=lambda state, weights: weights):
    weights, slopes = WEIGHTS, SLOPES

    @quick_jit
    def step(weights, state):
        update, state = transform.update(_gradient(weights, slopes), state, weights)
        return optax.apply_updates(weights, update), state

    state = transform.init(weights)
    for _ in range(N_STEPS):
        weights, state = step(weights, state)
    return read(state, weights)


def _rising(step):
    return RATE * (step + 1)


REFERENCES = [
    (Adam(b1=0.8), optax.adam(_rising, b1=0.8)),
    (AdamW(weight_decay=0.1), optax.adamw(_rising, weight_decay=0.1)),
    (SGD(momentum=0.7), optax.sgd(_rising, 0.7)),
    (SGD(nesterov=True), optax.sgd(_rising, 0.9, nesterov=True)),
    (SGD(momentum=0, clip=0.5), optax.chain(optax.clip_by_global_norm(0.5), optax.sgd(_rising))),
    (SGD(momentum=0, clip=1e6), optax.sgd(_rising)),
    (Lion(weight_decay=0.1), optax.lion(_rising, weight_decay=0.1)),
]


@pytest.mark.parametrize(("optimizer", "reference"), REFERENCES)
def test_steps_are_those_of_optax(optimizer, reference):
    ours, _ = _stepped(optimizer, WEIGHTS, SLOPES, {})
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), ours, _by_optax(reference)
    )


def test_the_weights_of_schedule_free_are_those_that_optax_evaluates():
    ours, state = _stepped(ScheduleFreeAdamW(weight_decay=0.1), WEIGHTS, SLOPES, {})
    adam = optax.chain(optax.scale_by_adam(0.0), optax.add_decayed_weights(0.1))
    base = optax.chain(adam, optax.scale_by_learning_rate(_rising))
    # It counts steps from 1.
    reference = optax.contrib.schedule_free(base, lambda step: _rising(step - 1))
    theirs = _by_optax(reference, optax.contrib.schedule_free_eval_params)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6)
    jax.tree.map(close, ours, theirs)
    assert np.abs(ours["norm_scale"] - state.fast["norm_scale"]).max() > 1e-3


def _orthogonalized(x):
    """Newton-Schulz of one matrix, in float64; coefficients of Jordan et al. 2024."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = x / (np.linalg.norm(x) + 1e-8)
    for _ in range(5):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x


@pytest.mark.parametrize("shape", [(6, 2), (2, 6)])
def test_the_reference_of_muon_is_that_of_optax(shape):
    x = np.random.default_rng(2).normal(size=shape).astype(np.float32)
    theirs = optax.contrib.scale_by_muon(beta=0.0, nesterov=False)
    step, _ = theirs.update(x, theirs.init(x))
    np.testing.assert_allclose(step, _orthogonalized(x.astype(float)), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("orthogonal", ["inner", "all"])
@pytest.mark.parametrize("rms", [0.3, None])
def test_muon_orthogonalises_each_head_and_scales_by_the_true_shape(rms, orthogonal):
    optimizer = Muon(rms=rms, orthogonal=orthogonal, adam_rate=0.5, nesterov=rms is None)
    ours, _ = _stepped(optimizer, WEIGHTS, SLOPES, {})
    by_adam = _by_optax(optax.adam(lambda step: 0.5 * _rising(step)))

    def by_muon(weights, slopes):
        mean, (rows, columns) = 0.0, weights.shape
        factor = max(1, rows / columns) ** 0.5 if rms is None else rms * max(rows, columns) ** 0.5
        for i in range(N_STEPS):
            gradient = slopes + 0.1 * weights
            mean = 0.95 * mean + 0.05 * gradient
            ahead = 0.95 * mean + 0.05 * gradient if rms is None else mean
            weights = weights - _rising(i) * factor * _orthogonalized(ahead)
        return weights

    close = functools.partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-4)
    w, s = (jax.tree.map(np.float64, tree) for tree in (WEIGHTS, SLOPES))
    heads = [by_muon(*pair) for pair in zip(w["layer0_query"], s["layer0_query"], strict=True)]
    close(ours["layer0_query"], heads)
    close(ours["Dense_0"]["kernel"], by_muon(w["Dense_0"]["kernel"], s["Dense_0"]["kernel"]))
    embedding = by_muon(w["token_embedding"], s["token_embedding"])
    close(ours["token_embedding"], embedding if orthogonal == "all" else by_adam["token_embedding"])
    for name in ("bias_query", "norm_scale"):
        close(ours[name], by_adam[name])


def test_muon_knows_matrices_from_stacked_biases():
    task = Associations(vocab_size=5)
    module = GPT(d_model=4, d_head=2, n_heads=2, d_mlp=3).module(task)
    factors = Muon().of_shapes(models.shapes(module, 2)["params"])["factors"]
    names = ("query", "key", "value", "output", "mlp_in", "mlp_out")
    assert factors.keys() == {f"layer0_{name}" for name in names}


def test_muon_by_the_original_scale_takes_a_model_without_neurons():
    module = AttentionOnly(d_model=3, d_head=3, n_heads=1).module(Associations(vocab_size=5))
    factors = Muon(rms=None).of_shapes(models.shapes(module, 2)["params"])["factors"]
    assert factors["layer0_mlp_out"] == np.float32(3**0.5)


# --- Packs and checkpoints ----------------------------------------------------------------------


HEADS = (
    Associations(vocab_size=5),
    [AttentionOnly(d_model=3, d_head=2, n_heads=2), MLP(d_model=5, d_head=3, d_mlp=4)],
)
# Of no heads, which compile in half the time.
MEMORIES = Bijection(vocab_size=5), [LinearMemory(d_model=3), LinearMemory(d_model=5)]


@pytest.mark.parametrize(
    ("make", "batch_size", "clip"),
    [
        *(
            # Adam's step with one more term, and that of a sign.
            pytest.param(make, 8, None, marks=[pytest.mark.slow] * (make in (AdamW, Lion)))
            for make in OPTIMIZERS.values()
        ),
        (Adam, 1, 0.05),
    ],
)
def test_packed_stopped_and_alone_a_run_is_the_same(make, batch_size, clip):
    method = Training(
        batch_size=batch_size,
        n_batches=4,
        epochs=4,
        learning_rate=3e-3,
        final_learning_rate=3e-3,
        optimizer=make().replace(clip=clip),
    )
    task, architectures = HEADS if make is Muon else MEMORIES
    runs = [
        Run(task=task, architecture=architecture, method=method, seed=i)
        for i, architecture in enumerate(architectures)
    ]
    packed, stopped = small.train(packing.make_pack(runs)), Memory()
    for i, run in enumerate(runs):
        assert from_cells(cells(run)) == run
        shapes = models.shapes(run.module(), task.context_length)["params"]
        small.assert_padding_is_zero(packed.variables["params"], i, shapes)
    # The smaller one alone, from the start and from where the pack was stopped.
    with pytest.raises(Stop):
        small.train(packing.make_pack(runs), stopping_after(1), checkpoints=stopped)
    assert 0 < int(stopped.kept[runs[0].run_id]["step"]) < method.steps
    for checkpoints in (Memory(), stopped):
        alone = small.train(packing.make_pack(runs[:1]), checkpoints=checkpoints)
        np.testing.assert_allclose(packed.step_loss_RxL[0], alone.step_loss_RxL[0], atol=1e-4)
        np.testing.assert_allclose(packed.loss_R[0], alone.loss_R[0], atol=1e-4)
        assert alone.loss_R[0] != alone.step_loss_RxL[0, 0]


@pytest.mark.parametrize("make", [pytest.param(Muon, marks=pytest.mark.slow), _heavy])
def test_an_annealing_takes_the_optimisers_steps_and_its_padding_stays_zero(make):
    optimizer = make()
    method = Annealing(
        batch_size=6, steps=6, evaluate_every=6, warmup=0.5, learning_rate=0.1, optimizer=optimizer
    )
    task = LabelledContexts(n_examples=6, context_length=2, n_classes=3, input_dim=4)
    sizes = ({"d_model": 3, "d_head": 2, "n_heads": 2}, {"d_model": 5, "d_head": 3, "n_heads": 1})
    runs = [
        Run(task=task, architecture=QueryAttention(**size), method=method, seed=i)
        for i, size in enumerate(sizes)
    ]
    packed = small.train(packing.make_pack(runs))
    data = jax.device_put(task.sample())
    for i, run in enumerate(runs):
        module = run.module()
        shapes = models.shapes(module, 2)["params"]
        small.assert_padding_is_zero(packed.variables["params"], i, shapes)
        # A batch holds all examples, so that their order is no matter: plain optax does the same.
        variables = models.init(module, 2, initializing.init_key(run))

        @jax.jit
        def loss(params, module=module, variables=variables):
            outputs = task.outputs(module, {**variables, "params": params}, data)
            return optax.softmax_cross_entropy_with_integer_labels(outputs, data.label_T).mean()

        transform, params = optimizer.transform(), variables["params"]

        @quick_jit
        def stepped(params, state, rate, transform=transform, loss=loss):
            update, state = transform.update(jax.grad(loss)(params), state, params)
            return jax.tree.map(lambda p, u: p - rate * u, params, update), state

        state = transform.init(params)
        for step in range(6):
            share = 0.01 + 0.99 * step / 3
            rate = 0.1 * (share if step < 3 else (1 + np.cos(np.pi * (step - 3) / 3)) / 2)
            params, state = stepped(params, state, rate)
        np.testing.assert_allclose(packed.loss_R[i], loss(params), rtol=1e-3)


# --- What is refused ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: Training(optimizer=ScheduleFreeAdamW()), "set final_learning_rate to 0.01"),
        (lambda: Annealing(optimizer=ScheduleFreeAdamW()), "use another optimizer"),
        (lambda: SGD(momentum=0, nesterov=True), "nesterov=True means nothing"),
        (lambda: Muon(momentum=1), "momentum=1.0 never forgets"),
        (lambda: Adam(clip=0), "clip=0"),
    ],
)
def test_what_an_optimiser_does_not_serve_is_refused_in_one_line(build, said):
    with pytest.raises(UserError) as error:
        build()
    assert said in str(error.value)
    assert "\n" not in str(error.value)
