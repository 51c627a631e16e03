"""Blocks of today's Transformers: against their published definitions, and padded against alone."""

import functools
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from flax import linen as nn

from memobench.common.errors import UserError
from memobench.core import module as models
from memobench.models import attention, norms
from memobench.models.attention import Attention
from memobench.models.feed_forward import ACTIVATIONS, GATES, FeedForward, neurons
from memobench.models.mixture_of_experts import Experts, MixtureOfExperts, weigh_largest
from memobench.models.modern import Modern
from memobench.models.norms import Norm
from memobench.models.product_key_memory import ProductKeyMemory, ProductKeys
from memobench.tasks.associations import Associations
from memobench.tasks.sequences import Sequences

PAIRS = Associations(vocab_size=5, context_length=3)
WHOLE = Sequences(vocab_size=5, context_length=4, n_sequences=6)
SIZES = {"d_model": 5, "d_head": 3, "n_heads": 2, "d_mlp": 6}
# Every option of every field at least once, but for gelu and relu, which are one function each.
VARIANTS = {
    "default": Modern(**SIZES),
    "layer-post-learned": Modern(
        **SIZES, norm="layer", norm_position="post", positions="learned", activation="geglu"
    ).replace(attention="softmax1"),
    "grouped": Modern(
        d_model=6, d_head=4, n_heads=4, n_kv_heads=2, d_mlp=5, qk_norm=True, tied=True, n_layers=2
    ).replace(activation="reglu"),
    "plain": Modern(
        **SIZES,
        attention="linear",
        norm="none",
        positions="none",
        activation="relu_squared",
        residual_scale="depth",
    ),
    "attention alone": Modern(
        d_model=4, d_head=2, n_heads=3, n_layers=2, norm="layer", residual_scale="learned"
    ),
    "delta": Modern(**SIZES, attention="delta", activation="silu"),
    "sigmoid": Modern(**SIZES, attention="sigmoid", activation="bilinear"),
}
# Of each variant its task; whole sequences begin with a vector of their own.
TASKS = dict.fromkeys(VARIANTS, PAIRS) | {"grouped": WHOLE}
variants = pytest.mark.parametrize("name", VARIANTS)
normal = np.random.default_rng(0).standard_normal
quick_jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


def _variables(module, length):
    """Weights of a size that scales, biases and attention all matter."""
    random, variables = np.random.default_rng(1), models.init_on_host(module, length, KEY)
    params = {name: random.normal(size=x.shape) for name, x in variables["params"].items()}
    return {**variables, "params": params}


KEY = jax.random.key(0)


# --- Definitions ---------------------------------------------------------------------------------


def _activated(name, x):
    """Hendrycks & Gimpel 2016, Elfwing et al. 2018, So et al. 2021."""
    return {
        "gelu": x * scipy.special.ndtr(x),
        "silu": x * scipy.special.expit(x),
        "relu": np.maximum(x, 0),
        "relu_squared": np.maximum(x, 0) ** 2,
        "bilinear": x,
    }[name]


def _fed_forward(activation, p, x):
    """Of one position; gated ones as Shazeer (2020), equation 6."""
    gate = {"swiglu": "silu", "geglu": "gelu", "reglu": "relu", "bilinear": "bilinear"}
    if activation in gate:
        hidden = _activated(gate[activation], p["mlp_gate"] @ x) * (p["mlp_in"] @ x)
    else:
        hidden = _activated(activation, p["mlp_in"] @ x)
    return p["mlp_out"] @ hidden


def _normed(kind, p, prefix, x):
    """Ba et al. 2016; Zhang & Sennrich 2019."""
    if kind == "none":
        return x
    if kind == "rms":
        return p[f"{prefix}scale"] * x / np.sqrt((x**2).mean() + 1e-5)
    return p[f"{prefix}scale"] * (x - x.mean()) / np.sqrt(x.var() + 1e-5) + p[f"{prefix}bias"]


def _turned(x, position):
    """Su et al. (2021), equation 13: pairs are complex numbers that turn."""
    pairs = len(x) // 2
    angle = position * 10_000 ** (-2 * np.arange(pairs) / len(x))
    z = (x[: 2 * pairs : 2] + 1j * x[1 : 2 * pairs : 2]) * np.exp(1j * angle)
    return np.concatenate([np.stack([z.real, z.imag], axis=1).ravel(), x[2 * pairs :]])


def _attended(a, p, inputs, at):
    """What heads add at a position, one by one (Vaswani et al. 2017, Ainslie et al. 2023)."""
    groups = a.n_kv_heads or a.n_heads

    def of(kind, s, *head):
        x = p[kind][head] @ inputs[s]
        if a.qk_norm and kind != "value":
            x = _normed("rms", p, f"{kind}_norm_", x)
        return _turned(x, s) if a.positions == "rope" and kind != "value" else x

    added = 0
    for g, r in itertools.product(range(groups), range(a.n_heads // groups)):
        query = of("query", at, g, r) / np.sqrt(a.d_head)
        keys, values = (
            np.array([of(kind, s, g) for s in range(at + 1)]) for kind in ("key", "value")
        )
        if a.attention == "delta":
            rates = [scipy.special.expit(p["key_rate"][g] @ x) for x in inputs[: at + 1]]
            head = _delta(keys, values, rates) @ query
        else:
            head = _weights(a.attention, keys @ query, len(inputs)) @ values
        added = added + p["output"][g, r] @ head
    return added


def _weights(kind, scores, n_positions):
    """Miller (2023), "softmax1"; Ramapuram et al. (2024), equation 3."""
    return {
        "softmax": np.exp(scores) / np.exp(scores).sum(),
        "softmax1": np.exp(scores) / (1 + np.exp(scores).sum()),
        "sigmoid": scipy.special.expit(scores - np.log(n_positions)),
        "linear": scores,
    }[kind]


def _delta(keys, values, rates):
    """Schlag et al. (2021), equation 24, of normed keys: the state after the last position."""
    state = np.zeros((values.shape[1], keys.shape[1]))
    for k, v, rate in zip(keys, values, rates, strict=True):
        k = k / np.sqrt(k @ k + 1e-6)
        state = state + rate * np.outer(v - state @ k, k)
    return state


def _reference(a, p, tokens, whole):
    """Logits after every position, in float64."""
    stream = [p["token_embedding"][t] for t in tokens]
    if whole:
        stream = [p["start_embedding"], *stream[:-1]]
    if a.positions == "learned":
        stream = [x + p["position_embedding"][s] for s, x in enumerate(stream)]
    for layer in range(a.n_layers):
        name = f"layer{layer}_"
        own = {key.removeprefix(name): x for key, x in p.items() if key.startswith(name)}
        for block in ("attention", "neurons")[: 2 if a.d_mlp else 1]:
            norm = functools.partial(_normed, a.norm, own, f"{block}_norm_")
            scale = {"one": 1, "depth": (2 * a.n_layers) ** -0.5}.get(a.residual_scale)
            scale = own[f"{block}_scale"] if scale is None else scale
            is_pre = a.norm_position == "pre"
            inputs = [norm(x) if is_pre else x for x in stream]
            if block == "attention":
                added = [_attended(a, own, inputs, s) for s in range(len(inputs))]
            else:
                added = [_fed_forward(a.activation, own, x) for x in inputs]
            stream = [x + scale * f for x, f in zip(stream, added, strict=True)]
            stream = stream if is_pre else [norm(x) for x in stream]
    if a.norm_position == "pre":
        stream = [_normed(a.norm, p, "norm_", x) for x in stream]
    return np.array([p["token_embedding" if a.tied else "unembedding"] @ x for x in stream])


# --- Blocks --------------------------------------------------------------------------------------


@pytest.mark.parametrize("activation", [*ACTIVATIONS, *GATES])
def test_a_feed_forward_block_is_that_of_its_paper(activation):
    block = FeedForward(d_model=4, d_mlp=6, activation=activation)
    weights = {name: normal(x.shape) for name, x in block.parameters().items()}
    x_PxD = normal((3, 4))
    with jax.enable_x64(True):
        found = block(jax.tree.map(jnp.asarray, weights), {}, jnp.asarray(x_PxD))
    expected = [_fed_forward(activation, weights, x) for x in x_PxD]
    np.testing.assert_allclose(found, expected, rtol=1e-10)
    np.testing.assert_array_equal(
        block(jax.tree.map(jnp.asarray, weights), {}, jnp.zeros((1, 4))), 0
    )


@pytest.mark.parametrize("activation", [*ACTIVATIONS, *GATES])
def test_blocks_of_two_and_three_matrices_are_compared_at_equal_parameters(activation):
    block = FeedForward(16, neurons(activation, 3000, 16), activation)
    n_params = sum(np.prod(x.shape) for x in block.parameters().values())
    # Of no other number of neurons is it nearer.
    assert abs(n_params - 3000) <= n_params / block.d_mlp / 2


@pytest.mark.parametrize("top_k", [1, 2])
def test_a_token_meets_the_experts_that_its_router_prefers(top_k):
    """Fedus et al. (2022), equation 2; Jiang et al. (2024), section 2.1."""
    block = Experts(4, 3, "swiglu", n_experts=5, top_k=top_k)
    weights = {name: normal(x.shape) for name, x in block.parameters().items()}
    x_PxD = normal((6, 4))
    expected = []
    for x in x_PxD:
        share = scipy.special.softmax(weights["router"] @ x)
        best = np.argsort(-share)[:top_k]
        gates = share[best] / (share[best].sum() if top_k > 1 else 1)
        experts = [{name: weights[name][e] for name in weights if name != "router"} for e in best]
        each = [_fed_forward("swiglu", expert, x) for expert in experts]
        expected.append(gates @ each)
    with jax.enable_x64(True):
        found = block(jax.tree.map(jnp.asarray, weights), block.constants(), jnp.asarray(x_PxD))
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("top_k", [1, 2, 3])
@pytest.mark.parametrize("scores", [[0, 0, 0, 0], [1, 2, 2, 2], [3, 1, 3, 1]])
def test_of_equal_scores_no_more_than_the_first_are_chosen(scores, top_k):
    score_E = jnp.float32(scores)
    best = np.sort(np.argsort(-score_E, stable=True)[:top_k])
    shares = weigh_largest(score_E, top_k)
    np.testing.assert_array_equal(np.flatnonzero(shares), best)
    np.testing.assert_allclose(shares[best], scipy.special.softmax(score_E[best]), rtol=1e-6)


def test_a_memory_reads_the_best_pairs_of_the_best_keys():
    """Lample et al. (2019), equations 1 to 5: candidates are pairs of each half's best keys."""
    n_keys, top_k = 5, 3
    block = ProductKeys(4, 2, n_keys, n_heads=2, top_k=top_k)
    weights = {name: normal(x.shape) for name, x in block.parameters().items()}
    x_PxD = normal((6, 4))
    expected = np.zeros((6, 4))
    for (p, x), h in itertools.product(enumerate(x_PxD), range(2)):
        query, key = weights["memory_query"][h], weights["memory_key"][h]
        first, second = (key[half] @ (query[half] @ x) for half in range(2))
        candidates = itertools.product(*(np.argsort(-score)[:top_k] for score in (first, second)))
        best = sorted(candidates, key=lambda ij: -first[ij[0]] - second[ij[1]])[:top_k]
        shares = scipy.special.softmax([first[i] + second[j] for i, j in best])
        expected[p] += shares @ [weights["memory_value"][i, j] for i, j in best]
    with jax.enable_x64(True):
        found = block(jax.tree.map(jnp.asarray, weights), block.constants(), jnp.asarray(x_PxD))
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_sparse_models_are_counted_by_all_and_by_active_parameters():
    sizes = {"d_model": 6, "d_head": 3, "n_heads": 2, "n_layers": 2}
    dense = Modern(**sizes, d_mlp=4).module_for(PAIRS)
    experts = MixtureOfExperts(**sizes, d_mlp=4, n_experts=5, top_k=2).module_for(PAIRS)
    expert, router = 3 * 6 * 4, 5 * 6
    of_dense, of_experts = (models.counts(module, PAIRS) for module in (dense, experts))
    assert of_dense["n_params_active"] == of_dense["n_params"]
    assert of_experts["n_params"] == of_dense["n_params"] + 2 * (4 * expert + router)
    assert of_experts["n_params_active"] == of_dense["n_params"] + 2 * (expert + router)
    memory = ProductKeyMemory(**sizes, d_key=3, n_keys=4, n_memory_heads=2, top_k=3).module_for(
        PAIRS
    )
    of_memory = models.counts(memory, PAIRS)
    queries_and_keys, values = 2 * 2 * 3 * 6 + 2 * 2 * 4 * 3, 4 * 4 * 6
    assert of_memory["n_params"] == of_dense["n_params"] + 2 * (queries_and_keys + values - expert)
    assert of_memory["n_params"] - of_memory["n_params_active"] == 2 * (16 - 2 * 3) * 6


@pytest.mark.parametrize("kind", ["rms", "layer"])
def test_norms_are_those_of_flax(kind):
    norm, flax = Norm(kind, 6), {"rms": nn.RMSNorm, "layer": nn.LayerNorm}[kind](epsilon=1e-5)
    weights = {name: jnp.float32(normal(x.shape)) for name, x in norm.parameters().items()}
    x = jnp.float32(normal((2, 3, 6)))
    expected = flax.apply({"params": weights}, x)
    np.testing.assert_allclose(norm(weights, norms.mean_weights(6), x), expected, atol=1e-5)


def test_grouped_attention_is_that_of_jax():
    block = Attention(
        6, 3, n_kv_heads=2, group_size=2, context_length=5, rotary=False, normed=False
    )
    weights = {name: jnp.float32(normal(x.shape)) for name, x in block.parameters().items()}

    @quick_jit
    def ours_and_theirs(weights, x_PxD):
        query, key, value = (
            jnp.einsum("hkd,pd->phk", weights[name].reshape(-1, 3, 6), x_PxD)
            for name in ("query", "key", "value")
        )
        heads_PxHxK = jax.nn.dot_product_attention(query, key, value, is_causal=True)
        theirs = jnp.einsum("phk,hdk->pd", heads_PxHxK, weights["output"].reshape(4, 6, 3))
        ours = [block(weights, block.constants(), x_PxD, n_queries) for n_queries in (1, 5)]
        return ours, theirs

    (last, every), theirs = ours_and_theirs(weights, jnp.float32(normal((5, 6))))
    np.testing.assert_allclose(every, theirs, atol=1e-5)
    np.testing.assert_allclose(last, theirs[-1:], atol=1e-5)


def test_rotary_scores_depend_on_distances_alone():
    rotary = attention.rotations(12, 6)
    query, key = (np.broadcast_to(normal((1, 1, 6)), (1, 12, 6)) for _ in range(2))
    turned = [attention.rotate(jnp.float32(x), rotary) for x in (query, key)]
    score_PxP = np.einsum("pk,qk->pq", *(x[0] for x in turned))
    for distance in range(-11, 12):
        np.testing.assert_allclose(np.ptp(np.diagonal(score_PxP, distance)), 0, atol=1e-4)
    assert np.ptp(score_PxP) > 0.1


# --- Models --------------------------------------------------------------------------------------


def _outputs_and_gradient(module, variables, tokens):
    """Logits, and the gradient of a sum that weighs each of them differently; in double.

    On accelerators no gradient is a scatter, and nothing is sorted or looped over.
    """

    @quick_jit
    @functools.partial(jax.grad, has_aux=True)
    def gradient_and_logits(params, rest):
        logits = module.apply({**rest, "params": params}, jnp.asarray(tokens))
        weights = jnp.sin(1.0 + jnp.arange(logits.size)).reshape(logits.shape)
        return (logits * weights).sum(), logits

    with jax.enable_x64(True):
        params, rest = (
            jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), x)
            for x in (variables["params"], {"constants": variables["constants"]})
        )
        traced = gradient_and_logits.trace(params, rest)
        for platform in ("cuda", "tpu"):
            text = traced.lower(lowering_platforms=(platform,)).as_text()
            assert not re.findall(r"stablehlo\.(?:scatter|sort|while)", text)
        gradient, logits = traced.lower().compile()(params, rest)
        return np.asarray(logits), jax.tree.map(np.array, gradient)


@pytest.mark.usefixtures("every_platform")
@variants
def test_a_model_is_that_of_the_equations_and_padded_the_same(name):
    architecture, task = VARIANTS[name], TASKS[name]
    module, length = architecture.module_for(task), task.context_length
    variables, tokens = _variables(module, length), [3, 1, 4, 0][:length]
    logits, gradient = _outputs_and_gradient(module, variables, tokens)
    expected = _reference(architecture, variables["params"], tokens, task is WHOLE)
    expected = expected if task is WHOLE else expected[-1]
    np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-5)

    sizes = models.paddable_sizes(module)
    larger = module.clone(**{size: x + 3 for size, x in sizes.items()})
    padded = models.pad_to(variables, models.shapes(larger, length))
    again, of_padded = _outputs_and_gradient(larger, padded, tokens)
    np.testing.assert_allclose(again, logits, rtol=1e-5, atol=1e-5)
    for key, x in gradient.items():
        inside = tuple(map(slice, x.shape))
        close = 1e-5 * max(1, abs(x).max())
        np.testing.assert_allclose(of_padded[key][inside], x, rtol=0, atol=close, err_msg=key)
        of_padded[key][inside] = 0
        assert not of_padded[key].any(), key


def test_the_parameters_are_those_of_llama():
    n, d, k, heads, groups, w, layers = 7, 8, 4, 4, 2, 12, 3
    architecture = Modern(
        d_model=d, d_head=k, n_heads=heads, n_kv_heads=groups, d_mlp=w, n_layers=layers
    )
    module = architecture.module_for(Associations(vocab_size=n))
    # Queries and outputs, keys and values, SwiGLU's three matrices, two norms; the last norm.
    memory = layers * (2 * heads * k * d + 2 * groups * k * d + 3 * d * w + 2 * d) + d
    assert models.count_parameters(module, 2) == (2 * n * d + memory, memory)
    tied = architecture.replace(tied=True).module_for(Associations(vocab_size=n))
    assert models.count_parameters(tied, 2) == (n * d + memory, memory)


def test_no_token_is_seen_before_it_is_predicted():
    module = VARIANTS["grouped"].module_for(WHOLE)
    variables = _variables(module, 4)
    tokens = [[3, 1, 4, 0], [3, 1, 2, 0]]
    with jax.enable_x64(True):
        first, second = (np.asarray(module.apply(variables, jnp.asarray(t))) for t in tokens)
    np.testing.assert_array_equal(np.isclose(first, second).all(axis=1), [1, 1, 1, 0])


def test_mistakes_name_the_fix():
    mistakes = {
        "n_kv_heads must be a divisor of n_heads=2 and smaller, got 3. Change it": {
            "n_kv_heads": 3
        },
        "n_heads=2 and smaller, got 2": {"n_kv_heads": 2},
        "norm_position must be 'pre' with norm='none', got 'post'": {
            "norm": "none",
            "norm_position": "post",
        },
        "activation='gelu' means nothing with d_mlp=0": {"d_mlp": 0, "activation": "gelu"},
        "d_head must be at least 2 with positions='rope', got 1. Set positions": {"d_head": 1},
        "d_head=6 exceeds d_model=5": {"d_head": 6},
    }
    sparse = {
        "top_k must be below n_experts=3, got 3. Lower top_k": {"n_experts": 3, "top_k": 3},
        "d_mlp must be at least 1 with experts, got 0": {"n_experts": 3, "d_mlp": 0},
    }
    with pytest.raises(UserError, match="top_k=1 is not an integer from 2 to 16"):
        ProductKeyMemory(d_model=4, d_head=2, d_key=2, n_keys=3, top_k=1)
    for message, mistake in (mistakes | sparse).items():
        with pytest.raises(UserError) as error:
            (MixtureOfExperts if message in sparse else Modern)(**{**SIZES, **mistake})
        assert message in str(error.value)
        assert "\n" not in str(error.value)
