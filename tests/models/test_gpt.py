"""Whole sequences and the GPT-2 style model: causality, float64, bits, and packed against alone."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from memobench.common.errors import UserError
from memobench.core import module as models
from memobench.core.run import Run
from memobench.engine import initializing
from memobench.methods import training
from memobench.methods.search import Search
from memobench.methods.training import Training
from memobench.models.gpt import GPT
from memobench.models.transformer import MLP
from memobench.planner import packing
from memobench.runtime import sweep
from memobench.tasks.associations import Associations
from memobench.tasks.sequences import Sequences
from tests import small

SEQUENCES = Sequences(vocab_size=7, context_length=5, n_sequences=12)
TWENTY = Training(batch_size=6, n_batches=4, epochs=5)
PROTOCOLS = [
    pytest.param(TWENTY, marks=pytest.mark.slow, id="published"),
    pytest.param(TWENTY.exact(), id="exact"),
]
protocols = pytest.mark.parametrize("method", PROTOCOLS)


def _run(task=SEQUENCES, method=TWENTY, seed=0, **sizes):
    sizes = {"d_model": 8, "d_head": 3, "n_heads": 2, "d_mlp": 9, "n_layers": 2, **sizes}
    architecture = GPT(**sizes)
    return Run(task=task, architecture=architecture, method=method, seed=seed)


def _random_variables(module, length):
    """Weights of a size that biases, scales and attention all matter."""
    variables = models.init(module, length, jax.random.key(0))
    leaves, tree = jax.tree.flatten(variables["params"])
    random = np.random.default_rng(1)
    leaves = [jnp.asarray(random.normal(size=x.shape) / 2, jnp.float32) for x in leaves]
    return {**variables, "params": jax.tree.unflatten(tree, leaves)}


def _reference(run, variables, tokens):
    """Logits at every position, head by head and position by position, in float64."""
    a, p = run.architecture, {}
    p = {key: np.asarray(x, np.float64) for key, x in variables["params"].items()}

    def norm(name, x):
        standard = (x - x.mean()) / np.sqrt(x.var() + 1e-5)
        return p[f"{name}_scale"] * standard + p[f"{name}_bias"]

    stream = [p["position_embedding"][0]]
    stream += [
        p["token_embedding"][t] + p["position_embedding"][1 + i] for i, t in enumerate(tokens)
    ]
    for layer in range(a.n_layers):
        name = f"layer{layer}_"
        inputs = [norm(name + "norm1", x) for x in stream]
        new = []
        for s, x in enumerate(stream):
            added = p[name + "output_bias"].copy()
            for h in range(a.n_heads):

                def of(kind, u, h=h, name=name):
                    return p[name + kind][h] @ u + p[name + "bias_" + kind][h]

                query = of("query", inputs[s])
                scores = [query @ of("key", u) / np.sqrt(a.d_head) for u in inputs[: s + 1]]
                attention = scipy.special.softmax(scores)
                values = [of("value", u) for u in inputs[: s + 1]]
                added += p[name + "output"][h] @ (attention @ np.array(values))
            x = x + added
            hidden = p[name + "mlp_in"] @ norm(name + "norm2", x) + p[name + "mlp_in_bias"]
            gelu = hidden * scipy.special.ndtr(hidden)
            new.append(x + p[name + "mlp_out"] @ gelu + p[name + "mlp_out_bias"])
        stream = new
    return np.array([p["unembedding"] @ norm("norm", x) for x in stream])


def test_the_logits_are_those_of_the_equations():
    tokens = [3, 1, 6, 0, 2]
    whole, after = _run(), _run(task=Associations(vocab_size=7, context_length=5, n_sequences=12))
    for run in (whole, after):
        module = run.module()
        variables = _random_variables(module, 5)
        logits = jax.jit(module.apply)(variables, jnp.asarray(tokens))
        read = tokens[:-1] if run is whole else tokens
        expected = _reference(run, variables, read)
        expected = expected if run is whole else expected[-1]
        np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4)


def test_no_token_is_seen_before_it_is_predicted():
    module = _run().module()
    variables = _random_variables(module, 5)
    one_hot_SxN = jax.nn.one_hot(jnp.asarray([3, 1, 6, 0, 2]), 7)

    # Tokens as vectors, so that there is something to take derivatives by.
    def logits_SxN(soft_SxN):
        embedding = variables["params"]["token_embedding"]
        # Token number s stands at place s.
        table = embedding.at[:5].set(soft_SxN @ embedding)
        soft = {**variables, "params": {**variables["params"], "token_embedding": table}}
        return module.apply(soft, jnp.arange(5))

    jacobian = np.abs(jax.jit(jax.jacobian(logits_SxN))(one_hot_SxN)).sum(axis=(1, 3))
    seen = np.tril(np.ones((5, 5)), -1)
    np.testing.assert_array_equal(jacobian > 0, seen > 0)


def test_attention_alone_has_no_parameter_that_does_nothing():
    module, length = _run(d_mlp=0).module(), 5
    variables = _random_variables(module, length)

    def loss(params):
        logits_SxN = module.apply({**variables, "params": params}, jnp.arange(length))
        return jax.nn.logsumexp(logits_SxN, axis=-1).sum() - logits_SxN[:, 0].sum()

    gradient = jax.jit(jax.grad(loss))(variables["params"])
    # A bias of keys moves all scores alike.
    moved = {name: bool((x != 0).any()) for name, x in gradient.items() if "bias_key" not in name}
    assert all(moved.values()), moved


@protocols
def test_packed_equals_alone_and_the_padding_stays_zero(method):
    runs = [
        _run(method=method),
        _run(method=method, n_heads=4, d_head=2, d_mlp=16, seed=1),
        _run(method=method, task=dataclasses.replace(SEQUENCES, seed=4)),
    ]
    packed = small.train(packing.make_pack(runs))
    for i in (0, 2):
        alone = training.train_one(runs[i])
        np.testing.assert_allclose(packed.step_loss_RxL[i], alone.step_loss_RxL[0], atol=1e-5)
        np.testing.assert_allclose(packed.loss_R[i], alone.loss_R[0], atol=1e-5)
        for name, x in alone.variables["params"].items():
            here = np.array(packed.variables["params"][name][i])
            here[tuple(slice(0, size) for size in x.shape[1:])] = 0
            assert not here.any()


@protocols
def test_the_objective_is_the_mean_over_all_tokens(method):
    still = dataclasses.replace(method, learning_rate=0, final_learning_rate=0)
    run = _run(method=still)
    result = training.train_one(run)
    module = run.module()
    variables = models.init(module, 5, initializing.init_key(run))
    tokens_TxS = np.asarray(run.task.sample().tokens_TxS)
    logits = np.array([_reference(run, variables, tokens[:-1]) for tokens in tokens_TxS])
    log_softmax = scipy.special.log_softmax(logits, axis=-1)
    nll = -np.take_along_axis(log_softmax, tokens_TxS[..., None], -1)
    np.testing.assert_allclose(result.loss_R[0], nll.mean(), rtol=1e-5)
    known = logits.argmax(axis=-1) == tokens_TxS
    np.testing.assert_allclose(result.accuracy_R[0], known.mean(), rtol=1e-5)
    if method.protocol == "exact":
        np.testing.assert_allclose(result.step_loss_RxL, nll.mean(), rtol=1e-5)
    # An epoch of 24 examples holds every one of 12 sequences twice.
    assert (np.bincount(run.task.sample_draws(24)) == 2).all()


@pytest.mark.rounding
def test_sequences_are_memorized_and_their_bits_are_counted():
    method = Training(n_batches=60, epochs=4, learning_rate=1e-2, final_learning_rate=1e-3).exact()
    run = _run(method=method, d_model=24, d_head=12, d_mlp=48)
    row = sweep.run([run], progress=False).iloc[0]
    # Which of twelve distinct sequences it is takes log2(12) bits each time, of any model; the rest
    # of 60 log2(7) can be known.
    most = 60 * np.log2(7) - 12 * np.log2(12)
    assert 0.98 * most < row["bits"] < most + 1e-3
    np.testing.assert_allclose(row["bits"], 60 * (np.log2(7) - row["loss"] / np.log(2)), rtol=1e-5)
    np.testing.assert_allclose(row["memorized"], 60 * (row["accuracy"] - 1 / 7) / (6 / 7))
    assert row["n_examples"] == 12


def test_weights_start_out_as_in_gpt_2_whichever_way_they_are_drawn():
    module = _run(d_model=32, d_head=16, d_mlp=64).module()
    quick = dict(models.init(module, 5, jax.random.key(0))["params"])
    flax = dict(models._flax_init(module, 5, jax.random.key(0))["params"])
    assert jax.tree.map(jnp.shape, quick) == jax.tree.map(jnp.shape, flax)
    for params in (quick, flax):
        assert (params["layer0_norm1_scale"] == 1).all()
        assert (params["layer1_mlp_out_bias"] == 0).all()
        np.testing.assert_allclose(params["layer0_mlp_in"].std(), 0.02, rtol=0.1)
        np.testing.assert_allclose(params["layer1_mlp_out"].std(), 0.02 / 2, rtol=0.1)


def test_the_parameters_are_those_of_gpt_2():
    module = _run(d_model=8, d_head=4, n_heads=2, d_mlp=32).module()
    # Attention 4 (D^2 + D), MLP 8 D^2 + 5 D, two norms; positions and the final norm.
    block = 4 * (64 + 8) + 8 * 64 + 5 * 8 + 4 * 8
    memory = 2 * block + 5 * 8 + 16
    assert models.count_parameters(module, 5) == (memory + 2 * 7 * 8, memory)


def test_mistakes_name_the_fix():
    other = Run(task=SEQUENCES, architecture=MLP(d_model=4, d_head=4, d_mlp=3))
    mistakes = {
        "n_sequences=None is not an integer from 1 to": lambda: Sequences(n_sequences=None),
        "method: a Search does not serve the task 'sequences'": lambda: _run(
            method=Search(training=TWENTY)
        ),
        "mlp does not serve the task 'sequences', whose question is 'every token'; "
        "choose gpt": other.module,
        "d_head=9 exceeds d_model=8": lambda: _run(d_head=9),
        "activation='relu' means nothing with d_mlp=0": lambda: _run(d_mlp=0, activation="relu"),
    }
    for message, mistake in mistakes.items():
        with pytest.raises(UserError) as error:
            mistake()
        assert message in str(error.value)
        assert "\n" not in str(error.value)
    for foreign in (lambda: _run(heads="full"), lambda: SEQUENCES.replace(zipf_exponent=1.0)):
        with pytest.raises(TypeError, match="unexpected keyword argument"):
            foreign()
