"""Associative memories: against float64, their distributions at the start, and padded searches."""

import dataclasses
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memobench.common.errors import UserError
from memobench.core import module as models
from memobench.core.architecture import Architecture
from memobench.core.run import Run
from memobench.methods import training
from memobench.methods.search import Search
from memobench.methods.training import Training
from memobench.models.feed_forward import GATES
from memobench.models.linear_memory import LinearMemory
from memobench.models.mlp_memory import MLPMemory
from memobench.planner import packing
from memobench.tasks.associations import Associations
from memobench.tasks.bijection import Bijection
from tests import small

EXACT = Training(
    n_batches=32, epochs=2, learning_rate=0.1, final_learning_rate=0.1, trained="memory"
).exact()
PUBLISHED = dataclasses.replace(EXACT, protocol="published", batch_size=16)
PROTOCOLS = [
    pytest.param(EXACT, id="exact"),
    pytest.param(PUBLISHED, marks=pytest.mark.slow, id="published"),
]


def _run(name="linear_memory", d=4, n=26, method: Any = EXACT, seed=0, **options):
    if name == "mlp_memory":
        options = {"d_mlp": 2 * d, **options}
    return Run(
        task=Bijection(vocab_size=n),
        architecture=Architecture.get_kind(name)(d_model=d, **options),
        method=method,
        seed=seed,
    )


every_memory = pytest.mark.parametrize("name", ["linear_memory", "mlp_memory"])


@every_memory
def test_the_logits_are_those_of_the_equations(name):
    run = _run(name)
    module = run.module()
    variables = models.init(module, 1, jax.random.key(5))
    p = {key: np.asarray(x, np.float64) for key, x in variables["params"].items()}
    for token in (0, 3, 25):
        key = p["token_embedding"][token]
        if name == "linear_memory":
            recalled = p["memory"] @ key
        else:
            recalled = p["mlp_out"] @ np.maximum(p["mlp_in"] @ key + p["mlp_in_bias"], 0)
        logits = module.apply(variables, jnp.asarray([token]))
        np.testing.assert_allclose(logits, p["unembedding"] @ recalled, atol=1e-6)


def test_other_activations_are_what_they_say():
    silu, relu = (_run("mlp_memory", activation=x).module() for x in ("silu", "relu"))
    assert _run("mlp_memory").module() == relu
    variables = models.init(silu, 1, jax.random.key(5))
    hidden = variables["params"]["mlp_in"] @ variables["params"]["token_embedding"][2]
    hidden = hidden + variables["params"]["mlp_in_bias"]
    out = variables["params"]["unembedding"] @ (
        variables["params"]["mlp_out"] @ jax.nn.silu(hidden)
    )
    np.testing.assert_allclose(silu.apply(variables, jnp.asarray([2])), out, atol=1e-6)


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("tied", [False, True])
def test_gated_neurons_have_no_biases_and_tied_values_are_the_keys(gate, tied):
    run = _run("mlp_memory", activation=gate, tied=tied)
    module = run.module()
    variables = models.init(module, 1, jax.random.key(5))
    p = variables["params"]
    assert ("unembedding" in p) != tied
    assert "mlp_in_bias" not in p
    assert models.count_parameters(module, 1) == ((2 - tied) * 26 * 4 + 3 * 4 * 8, 3 * 4 * 8)
    key = p["token_embedding"][2]
    hidden = (p["mlp_in"] @ key) * GATES[gate](p["mlp_gate"] @ key)
    values = p["token_embedding" if tied else "unembedding"]
    logits = module.apply(variables, jnp.asarray([2]))
    np.testing.assert_allclose(logits, values @ (p["mlp_out"] @ hidden), atol=1e-6)
    every = models.all_logits(module, variables, jnp.arange(26)[:, None])
    np.testing.assert_allclose(every[2], logits, atol=1e-6)


def test_padded_gated_memories_are_what_each_is_alone_and_padding_stays_zero():
    task, method = Bijection(vocab_size=12, permuted=True), dataclasses.replace(EXACT, epochs=1)
    sizes = {"activation": "bilinear", "tied": True}
    runs = [
        Run(
            task=dataclasses.replace(task, seed=seed),
            architecture=MLPMemory(d_model=d, d_mlp=m, **sizes),
            method=method,
            seed=seed,
        )
        for seed, (d, m) in enumerate([(4, 3), (6, 2), (3, 5)])
    ]
    packed = small.train(packing.make_pack(runs))
    alone = training.train_one(runs[0])
    np.testing.assert_allclose(packed.loss_R[0], alone.loss_R[0], rtol=1e-4)
    for i, run in enumerate(runs):
        d, m = run.architecture.d_model, run.architecture.d_mlp
        for name in ("mlp_in", "mlp_gate"):
            padded = np.asarray(packed.variables["params"][name][i])
            assert not padded[m:].any()
            assert not padded[:, d:].any()
            if i == 0:
                expected = alone.variables["params"][name][0]
                np.testing.assert_allclose(padded[:m, :d], expected, atol=1e-4)


@every_memory
def test_keys_and_values_are_unit_vectors_and_both_ways_to_draw_weights_agree(name):
    run = _run(name, d=8, n=400)
    module = run.module()
    quick = models.init(module, 1, jax.random.key(0))["params"]
    flax = models._flax_init(module, 1, jax.random.key(0))["params"]
    assert jax.tree.map(lambda x: (x.shape, x.dtype), dict(quick)) == jax.tree.map(
        lambda x: (x.shape, x.dtype), dict(flax)
    )
    for params in (quick, flax):
        for vectors in (params["token_embedding"], params["unembedding"]):
            np.testing.assert_allclose(jnp.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
            # Directions are even: the mean of T of them has norm about 1/sqrt(T) = 0.05.
            assert jnp.linalg.norm(vectors.mean(axis=0)) < 0.12
        assert not jnp.allclose(params["token_embedding"], params["unembedding"])
    inner = set(quick) - {"token_embedding", "unembedding"}
    for weight in inner:
        np.testing.assert_allclose(quick[weight].std(), flax[weight].std(), rtol=0.45)


@every_memory
def test_the_sizes_of_a_memory_are_counted_without_keys_and_values(name):
    run = _run(name, d=5)
    counted = models.count_parameters(run.module(), 1)[1]
    assert counted == (25 if name == "linear_memory" else 2 * 5 * 10 + 10)


@pytest.mark.rounding
@every_memory
@pytest.mark.parametrize("method", PROTOCOLS)
def test_keys_and_values_stay_and_the_memory_learns(name, method):
    run = _run(name, d=6, n=12, method=method)
    result = training.train_one(run)
    start = small.init_pack(packing.make_pack([run]))["params"]
    for parameter, x in result.variables["params"].items():
        moved = not np.array_equal(x, start[parameter])
        assert moved == (parameter not in models.EMBEDDINGS)
    assert result.accuracy_R[0] > 0.5


@every_memory
@pytest.mark.parametrize("method", PROTOCOLS)
def test_searches_padded_in_all_sizes_find_what_each_finds_alone(name, method):
    searched = Search(training=method, doublings=0, sizes=2)
    # Of about one size: sets that differ more are packed apart.
    runs = [
        _run(name, d=d, n=n, method=searched, seed=seed)
        for seed, (d, n) in enumerate([(3, 26), (6, 32), (4, 29)])
    ]
    pack = packing.make_pack(runs)
    assert (pack.module.vocab_size, pack.module.d_model) == (32, 6)
    packed = small.train(pack)
    alone = small.train(packing.make_pack(runs[:1]))
    found, expected = packed.columns[0]["trials"], alone.columns[0]["trials"]
    assert [trial[:3] for trial in found] == [trial[:3] for trial in expected]
    np.testing.assert_allclose(
        np.array(found, float)[:, 3:], np.array(expected, float)[:, 3:], rtol=2e-3, atol=2e-3
    )
    np.testing.assert_allclose(packed.accuracy_R[0], alone.accuracy_R[0])
    assert np.isfinite(packed.loss_R).all()


@every_memory
def test_answers_beyond_a_trials_examples_get_no_probability(name):
    run = _run(name, n=8)
    module = run.module()
    variables = models.init(module, 1, jax.random.key(2))
    every = np.asarray(
        jax.vmap(lambda t: module.apply(variables, t))(jnp.arange(8)[:, None]), np.float64
    )
    instance = run.task.sample()
    for n in (1, 3, 8):
        prior_T = jnp.where(jnp.arange(8) < n, 1 / n, 0.0)
        loss, accuracy = run.task.objective(
            module, variables, instance._replace(prior_T=prior_T), weighted=True
        )
        # As if there were no more tokens.
        few = every[:n, :n]
        nll = np.log(np.exp(few).sum(axis=1)) - np.diag(few)
        np.testing.assert_allclose(loss, nll.mean(), atol=1e-6)
        np.testing.assert_allclose(accuracy, (few.argmax(axis=1) == np.arange(n)).mean(), atol=1e-6)


def test_only_tokens_that_may_be_answers_have_logits():
    """The first of those of all tokens, by the same weights."""
    architecture = MLPMemory(d_model=4, d_mlp=6)
    few, whole = (architecture.module_for(Bijection(vocab_size=26, n_values=n)) for n in (5, None))
    variables = models.init(few, 1, jax.random.key(3))
    answer, all_tokens = (x.apply(variables, jnp.array([7])) for x in (few, whole))
    assert answer.shape == (5,)
    np.testing.assert_allclose(answer, all_tokens[:5], rtol=1e-6)
    assert few.work(26, 1) < whole.work(26, 1)


def test_sizes_that_mean_nothing_are_refused():
    pairs = Associations(vocab_size=5)
    for architecture in (MLPMemory(d_model=4, d_mlp=3), LinearMemory(d_model=4)):
        with pytest.raises(UserError, match=f"^context_length=2: {architecture.name} reads one"):
            Run(task=pairs, architecture=architecture).module()
    with pytest.raises(UserError, match=r"^d_mlp=0 is not an integer from 1 to"):
        MLPMemory(d_model=4, d_mlp=0)
    for foreign in ({"d_head": 4}, {"n_heads": 1}, {"n_layers": 1}):
        with pytest.raises(TypeError, match="unexpected keyword argument"):
            MLPMemory(d_model=4, d_mlp=3, **foreign)
    with pytest.raises(TypeError, match="unexpected keyword argument 'd_mlp'"):
        LinearMemory(d_model=4, d_mlp=3)


def test_sets_of_one_size_share_a_program_and_others_only_on_accelerators():
    searched = Search(training=EXACT, doublings=0)
    runs = [
        _run(name, d=d, n=n, method=searched)
        for name, d, n in itertools.product(["linear_memory", "mlp_memory"], (3, 4), (26, 31, 60))
    ]
    assert sorted(len(pack.runs) for pack in packing.plan(runs, "cpu")) == [2, 2, 4, 4]
    assert sorted(len(pack.runs) for pack in packing.plan(runs, "gpu")) == [6, 6]
