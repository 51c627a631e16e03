"""Query attention against the paper's own model, a plain reference, and what padding needs."""

import functools
import math
import os
import pathlib
from typing import NamedTuple

import chex
import jax
import numpy as np
import optax
import pytest

from memobench.core import module as models
from memobench.experiments.mahdavi2024.own_models import QueryAttentionModule

GOLDEN = pathlib.Path(
    os.environ.get(
        "MEMOBENCH_GOLDEN", pathlib.Path(__file__).parents[3] / "shared" / "reference" / "golden"
    )
)
golden_files = pytest.mark.parametrize("name", ["classification", "regression"])

BASE = QueryAttentionModule(
    input_dim=6,
    context_length=4,
    n_outputs=3,
    d_model=8,
    d_head=5,
    n_heads=3,
    d_value=1,
    n_layers=1,
    positions="sinusoidal",
    score_scale="d_model",
    residual=False,
    shared_context=False,
)
MODULES = {
    "as published": BASE,
    "shared": BASE.clone(shared_context=True),
    "wide values": BASE.clone(d_value=3, score_scale="d_head", n_outputs=1, d_model=7),
    "learned": BASE.clone(positions="learned", d_value=2, shared_context=True),
    "no positions": BASE.clone(positions="none", residual=True),
    "one of each": BASE.clone(residual=True, context_length=1, n_heads=1, shared_context=True),
    "deep": BASE.clone(n_layers=2, d_value=3, shared_context=True),
    "deeper": BASE.clone(n_layers=3, residual=True, positions="learned", score_scale="d_head"),
}
# Whose choices others have as well, each beside others.
LIKE_OTHERS = {"shared", "no positions", "one of each", "deep"}
every_module = pytest.mark.parametrize("module", MODULES.values(), ids=MODULES)


# Each runs once or twice: optimising its code would take longer than running it.
quick_jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


class Computed(NamedTuple):
    output_TxC: jax.Array
    attention_TxHxN: jax.Array
    loss: jax.Array
    of_params: dict
    of_context: jax.Array


PADDED = {"d_model": 11, "d_head": 7, "n_heads": 4, "d_value": 5, "context_length": 6}


@pytest.fixture(autouse=True)
def precise():
    with jax.default_matmul_precision("highest"):
        yield


def _variables(module, seed=3):
    """Initial weights; for a single layer twice as large, so that attention is not near uniform."""
    variables = models.init(module, 0, jax.random.key(seed))
    factor = 2 if module.n_layers == 1 else 1
    return {**variables, "params": jax.tree.map(lambda x: factor * x, variables["params"])}


def _examples(module, n_examples=5):
    random = np.random.default_rng(0)
    query_TxI = random.random((n_examples, module.input_dim), np.float32)
    own = () if module.shared_context else (n_examples,)
    context = random.random((*own, module.context_length, module.input_dim), np.float32)
    return query_TxI, context


def _compute_plain(module, query_I, context_NxI):
    """stream_MxD after the last layer of all tokens, and its attention_HxMxM."""
    stream_MxD = module.streams(query_I, context_NxI)[-1]
    return module._compute_layer(module.n_layers - 1, stream_MxD, module._mask_MxM())


def _plain_output(module, *example):
    stream_MxD, _ = _compute_plain(module, *example)
    return stream_MxD[0] @ module.weights["decoder"] + module.weights["decoder_bias"]


def _plain_attention(module, *example):
    return _compute_plain(module, *example)[1][:, 0, 1:]


@functools.cache
def _compiled(module, loss=None, methods=("__call__", "attention")):
    """(variables, query_TxI, context, labels_T) -> outputs, attention, loss, gradients, jitted.

    The gradients are those of the parameters and of the context.
    """
    axes = None, 0, None if module.shared_context else 0
    every, attention = (
        jax.vmap(functools.partial(module.apply, method=method), axes) for method in methods
    )

    def value_and_outputs(params, context, variables, query_TxI, labels_T):
        output_TxC = every({**variables, "params": params}, query_TxI, context)
        value = (output_TxC**2).mean() if loss is None else loss(output_TxC, labels_T)
        return value, output_TxC

    def compute(variables, query_TxI, context, labels_T=None):
        (value, output_TxC), gradients = jax.value_and_grad(
            value_and_outputs, argnums=(0, 1), has_aux=True
        )(variables["params"], context, variables, query_TxI, labels_T)
        attention_TxHxN = attention(variables, query_TxI, context)
        return Computed(output_TxC, attention_TxHxN, value, *gradients)

    return quick_jit(compute)


@pytest.mark.rounding
@every_module
def test_outputs_attention_and_gradients_are_those_of_the_plain_definition(module):
    variables, inputs = _variables(module), _examples(module)
    ours = _compiled(module)(variables, *inputs)
    plain = _compiled(module, methods=(_plain_output, _plain_attention))(variables, *inputs)
    assert np.ptp(plain.output_TxC, axis=0).min() > 0
    chex.assert_trees_all_close(ours, plain, atol=1e-5, rtol=1e-5)


@every_module
def test_attention_rows_sum_to_one(module):
    attention_TxHxN = _compiled(module)(_variables(module), *_examples(module)).attention_TxHxN
    assert attention_TxHxN.shape == (5, module.n_heads, module.context_length)
    assert (attention_TxHxN >= 0).all()
    np.testing.assert_allclose(attention_TxHxN.sum(axis=-1), 1, atol=1e-6)


def _golden(name, **fields):
    path = GOLDEN / f"mahdavi_{name}.npz"
    if not path.exists():
        pytest.skip(f"{path} is not here; MEMOBENCH_GOLDEN names its folder")
    data = dict(np.load(path))
    sizes = {"input_dim": "input_dim", "context_length": "context", "n_outputs": "classes"}
    sizes |= {"d_model": "d", "d_head": "head_dim", "n_heads": "heads"}
    module = BASE.clone(**{ours: int(data[f"meta_{key}"]) for ours, key in sizes.items()}, **fields)

    def weights(prefix):
        tree = {key: data[prefix + key] for key in ("embedding_bias", "decoder_bias")}
        tree |= {key: data[f"{prefix}{key}_kernel"] for key in ("embedding", "decoder")}
        tree |= {f"layer0_{key}": data[prefix + key] for key in ("query", "key", "value")}
        return tree | {"layer0_output": data[f"{prefix}output"][:, None]}

    shapes = jax.tree.map(lambda x: x.shape, models.shapes(module, 0)["params"])
    assert {key: x.shape for key, x in weights("param_").items()} == shapes
    return data, module, weights("param_"), weights("grad_")


def _cross_entropy(output_TxC, labels_T):
    return optax.softmax_cross_entropy_with_integer_labels(output_TxC, labels_T).mean()


def _squared_error(output_TxC, labels_T):
    return ((output_TxC[:, 0] - labels_T) ** 2).mean()


LOSSES = {"classification": _cross_entropy, "regression": _squared_error}


@golden_files
def test_parity_with_the_papers_model(name):
    data, module, params, gradient = _golden(name)
    variables = {**models.init(module, 0, jax.random.key(0)), "params": params}
    inputs = data["query"], data["context"], data["labels"]
    ours = _compiled(module, LOSSES[name])(variables, *inputs)
    np.testing.assert_allclose(ours.output_TxC, data["output"], atol=1e-5)
    np.testing.assert_allclose(ours.loss, data["loss"], atol=1e-5)
    np.testing.assert_allclose(ours.attention_TxHxN, data["attention"][:, :, 1:], atol=1e-5)
    np.testing.assert_array_equal(data["attention"][:, :, 0], 0)
    assert ours.of_params.keys() == gradient.keys()
    for key, x in gradient.items():
        np.testing.assert_allclose(ours.of_params[key], x, atol=1e-5, err_msg=key)
        assert abs(x).max() > 1e-4, f"{key} would agree with zeros"


@golden_files
def test_a_shared_context_is_the_papers_model_where_all_contexts_are_equal(name):
    data, module, params, _ = _golden(name)
    variables = {**models.init(module, 0, jax.random.key(0)), "params": params}
    query_TxI, one_NxI, labels_T = data["query"], data["context"][0], data["labels"]
    each = np.broadcast_to(one_NxI, data["context"].shape)
    unfolded = _compiled(module, LOSSES[name])(variables, query_TxI, each, labels_T)
    sharing = module.clone(shared_context=True)
    folded = _compiled(sharing, LOSSES[name])(variables, query_TxI, one_NxI, labels_T)
    np.testing.assert_allclose(folded.output_TxC[0], data["output"][0], atol=1e-5)
    for ours, theirs in zip(
        jax.tree.leaves(folded[:4]), jax.tree.leaves(unfolded[:4]), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    np.testing.assert_allclose(folded.of_context, unfolded.of_context.sum(axis=0), atol=1e-5)


@every_module
def test_permuted_heads_give_equal_outputs(module):
    variables, inputs = _variables(module), _examples(module)
    params, compute = variables["params"], _compiled(module)
    permuted = {key: x[::-1] if key.startswith("layer") else x for key, x in params.items()}
    here = compute(variables, *inputs)
    there = compute({**variables, "params": permuted}, *inputs)
    np.testing.assert_allclose(there.output_TxC, here.output_TxC, atol=1e-5)
    np.testing.assert_allclose(there.attention_TxHxN[:, ::-1], here.attention_TxHxN, atol=1e-5)
    if module.n_heads > 1:
        torn = permuted | {"layer0_value": params["layer0_value"]}
        assert not np.allclose(
            compute({**variables, "params": torn}, *inputs).output_TxC, here.output_TxC
        )


@every_module
def test_the_order_of_the_context_matters_to_positions_only(module):
    variables, (query_TxI, context) = _variables(module), _examples(module)
    here, there = (
        _compiled(module)(variables, query_TxI, x).output_TxC
        for x in (context, context[..., ::-1, :])
    )
    if module.positions == "none" or module.context_length == 1:
        np.testing.assert_allclose(there, here, atol=1e-5)
    else:
        assert abs(there - here).max(axis=-1).min() > 1e-4


def _padded(module, variables, context, filler):
    """The same model within a larger module; its context goes on with tokens of any content."""
    larger = module.clone(**PADDED)
    more = PADDED["context_length"] - module.context_length
    rest = filler * np.ones((*context.shape[:-2], more, module.input_dim), np.float32)
    variables = models.pad_to(variables, models.shapes(larger, 0))
    return larger, variables, np.concatenate([context, rest], axis=-2)


@pytest.mark.parametrize(
    "module",
    [
        pytest.param(x, id=label, marks=[pytest.mark.slow] * (label in LIKE_OTHERS))
        for label, x in MODULES.items()
    ],
)
def test_padding_leaves_outputs_and_has_no_gradient(module):
    variables, (query_TxI, context) = _variables(module), _examples(module)
    here = _compiled(module)(variables, query_TxI, context)
    larger, padded, longer = _padded(module, variables, context, filler=5)
    there = _compiled(larger)(padded, query_TxI, longer)
    np.testing.assert_allclose(there.output_TxC, here.output_TxC, atol=1e-5)
    assert there.of_params.keys() == here.of_params.keys()
    for name, x in here.of_params.items():
        ours, inside = np.array(there.of_params[name]), tuple(slice(size) for size in x.shape)
        assert ours.size > x.size or name == "decoder_bias"
        np.testing.assert_allclose(ours[inside], x, atol=1e-4 * abs(x).max(), err_msg=name)
        ours[inside] = 0
        assert not ours.any(), name


@every_module
def test_tokens_that_padding_added_are_not_seen(module):
    variables, (query_TxI, context) = _variables(module), _examples(module)
    length = module.context_length
    larger, padded, longer = _padded(module, variables, context, filler=0)
    here = _compiled(larger)(padded, query_TxI, longer)
    far = _padded(module, variables, context, filler=-100)[2]
    there = _compiled(larger)(padded, query_TxI, far)
    np.testing.assert_array_equal(there.output_TxC, here.output_TxC)
    assert not there.attention_TxHxN[..., length:].any()
    assert not there.attention_TxHxN[:, module.n_heads :, :length].std(axis=-1).any()
    np.testing.assert_allclose(there.attention_TxHxN.sum(axis=-1), 1, atol=1e-6)
    assert not there.of_context[..., length:, :].any()
    assert there.of_context[..., :length, :].any()


@every_module
def test_parameters_are_counted_by_formula(module):
    d_in, d, k, v = module.input_dim, module.d_model, module.d_head, module.d_value
    learned = (module.context_length + 1) * d * (module.positions == "learned")
    ends = d_in * d + d + d * module.n_outputs + module.n_outputs
    expected = ends + learned + module.n_layers * module.n_heads * (2 * d * k + 2 * d * v)
    assert models.count_parameters(module, 0) == (expected, expected)
    variables = models.init(module, 0, jax.random.key(0))
    assert sum(x.size for x in jax.tree.leaves(variables["params"])) == expected


def test_initial_weights_fill_their_bounds():
    sizes = {"d_model": 40, "d_head": 30, "n_heads": 9, "d_value": 7}
    module = BASE.clone(**sizes, n_outputs=50, input_dim=25, context_length=15, positions="learned")
    bounds = {"embedding": 1 / 5, "embedding_bias": 1 / 5}
    bounds |= dict.fromkeys(("decoder", "decoder_bias"), 1 / math.sqrt(40))
    bounds |= dict.fromkeys(("layer0_query", "layer0_key"), math.sqrt(6 / 70))
    bounds |= {"layer0_value": math.sqrt(6 / 47), "layer0_output": math.sqrt(6 / 103)}
    bounds["position"] = 1 / math.sqrt(40)
    drawn = models.init(module, 0, jax.random.key(0))
    by_flax = quick_jit(module.init)(jax.random.key(0), *module.example(15))
    for variables in (drawn, by_flax):
        assert variables["params"].keys() == bounds.keys()
        for name, x in variables["params"].items():
            ratio = np.asarray(x) / bounds[name]
            assert 0.85 < abs(ratio).max() <= 1, name
            assert abs(ratio.mean()) < 3 / math.sqrt(3 * x.size), name
            assert x.dtype == np.float32
    for ours, theirs in zip(
        jax.tree.leaves(drawn["constants"]), jax.tree.leaves(by_flax["constants"]), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)
    other = models.init(module, 0, jax.random.key(1))["params"]
    assert all((np.asarray(x) != other[name]).any() for name, x in drawn["params"].items())
