"""Factual recall: what the sequences hold, the model against float64, and packed against alone."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memobench.common.errors import UserError
from memobench.core import module as models
from memobench.core.run import Run
from memobench.experiments.capacity.own_models import RELEASED, RecallTransformer
from memobench.experiments.capacity.own_tasks import FactualRecall
from memobench.experiments.mahdavi2024 import saturated_heads
from memobench.methods import training
from memobench.methods.search import Search
from memobench.methods.training import Training
from memobench.models.gpt import GPT
from memobench.models.transformer import MLP
from memobench.planner import packing
from memobench.runtime import sweep
from memobench.tasks.associations import Associations
from tests import small

FACTS = FactualRecall(n_subjects=5, n_relations=3, n_answers=4, n_noise=7, context_length=6, seed=2)
TWENTY = Training(batch_size=16, n_batches=10, epochs=2, trained="memory")


def _run(task=FACTS, method=TWENTY, seed=0, **sizes):
    sizes = {"d_model": 6, "d_head": 3, "n_heads": 2, "d_mlp": 5, **sizes}
    return Run(
        task=task,
        architecture=RecallTransformer(**sizes),
        method=method,
        seed=seed,
    )


def _facts_of(tokens_BxS):
    """Subject and relation of every sequence, by searching it for them."""
    first = FACTS.n_outputs
    found = []
    for tokens in np.asarray(tokens_BxS):
        (subject,) = tokens[(tokens >= first) & (tokens < first + 5)] - first
        (relation,) = tokens[(tokens >= first + 5) & (tokens < first + 8)] - first - 5
        noise = tokens[(tokens >= first + 8) & (tokens < FACTS.vocab_size - 1)]
        assert len(noise) == FACTS.context_length - 3
        assert tokens[-1] == FACTS.vocab_size - 1
        found.append(subject * 3 + relation)
    return found


def test_a_relations_answers_are_its_own():
    next_T = np.asarray(FACTS.sample().next_TxK[:, 0])
    assert len(next_T) == 15
    np.testing.assert_array_equal(next_T // 4, np.arange(15) % 3)
    many = dataclasses.replace(FACTS, n_subjects=4000)
    counts = np.bincount(many.sample().next_TxK[:, 0], minlength=12)
    assert (abs(counts - 1000) < 150).all()


def test_every_fact_is_evaluated_once_among_noise():
    tokens_TxS = FACTS.sample().tokens_TxS
    assert _facts_of(tokens_TxS) == list(range(15))


def test_fresh_batches_are_uniform_over_facts_places_and_noise():
    fact_B, tokens_BxS = FACTS.draw_batch(jax.random.key(1), 6000)
    assert _facts_of(tokens_BxS) == fact_B.tolist()
    assert (abs(np.bincount(fact_B, minlength=15) - 400) < 90).all()
    tokens_BxS, first = np.asarray(tokens_BxS), FACTS.n_outputs
    for low, high in ((first, first + 5), (first + 5, first + 8)):
        here_BxS = (tokens_BxS >= low) & (tokens_BxS < high)
        assert (abs(here_BxS.sum(axis=0)[:5] - 1200) < 150).all()
    noise = np.bincount(tokens_BxS.reshape(-1), minlength=FACTS.vocab_size)[first + 8 : -1]
    assert (abs(noise - 18000 / 7) < 250).all()
    other, _ = FACTS.draw_batch(jax.random.key(2), 6000)
    assert not np.array_equal(other, fact_B)


def test_facts_without_noise_are_facts_too():
    bare = FactualRecall(n_subjects=2, n_relations=2, n_answers=2, n_noise=0, context_length=3)
    assert set(np.asarray(bare.sample().tokens_TxS)[:, :2].reshape(-1)) == {4, 5, 6, 7}


def _plain_attention(module, tokens_S):
    token_SxD = module.embedding_ND[tokens_S]
    query_HxK = jnp.einsum("hkd,d->hk", module.query_HKD, token_SxD[-1])
    key_HxSxK = jnp.einsum("hkd,sd->hsk", module.key_HKD, token_SxD)
    score_HxS = jnp.einsum("hk,hsk->hs", query_HxK, key_HxSxK)
    return jax.nn.softmax(score_HxS * module.scales.get("score_scale", 1.0))


def _plain_logits(module, tokens_S):
    value_HxSxK = jnp.einsum("hkd,sd->hsk", module.value_HKD, module.embedding_ND[tokens_S])
    attention_HxS = _plain_attention(module, tokens_S)
    return module._answer(jnp.einsum("hs,hsk->hk", attention_HxS, value_HxSxK))


@pytest.mark.parametrize(
    "options",
    [{"d_mlp": 0}, {}, RELEASED, {**RELEASED, "d_mlp": 0, "biases": None}],
    ids=["attention", "mlp", "released", "released attention"],
)
@pytest.mark.parametrize("larger", [30, 120])
def test_logits_and_attention_are_those_of_the_plain_definition(options, larger):
    module = _run(**options).module()
    variables = models.init(module, 6, jax.random.key(3))
    # Scores large enough to look somewhere, or at one place only.
    variables["params"]["query"] = variables["params"]["query"] * larger
    if options.get("biases"):
        variables["params"]["mlp_in_bias"] = variables["params"]["mlp_in_bias"] + 0.1
    tokens_TxS = FACTS.sample().tokens_TxS[:3]
    for methods in (("__call__", _plain_logits), ("attention", _plain_attention)):
        ours, plain = (
            jax.vmap(functools.partial(module.apply, variables, method=method))(tokens_TxS)
            for method in methods
        )
        np.testing.assert_allclose(ours, plain, atol=1e-3)


def test_the_memorys_parameters_are_those_of_the_paper():
    run = _run()
    module = run.module()
    n_params, n_params_memory = models.count_parameters(module, 6)
    assert n_params_memory == 4 * 2 * 3 * 6 + 2 * 5 * 6
    assert n_params - n_params_memory == FACTS.vocab_size * 6
    # Of each head's two products K^2 numbers say nothing.
    assert models.count_distinct(module, 6) == n_params - 2 * 2 * 3**2
    flax = models._flax_init(module, 6, jax.random.key(0))
    quick = models.init(module, 6, jax.random.key(0))
    assert jax.tree.map(jnp.shape, dict(quick["params"])) == jax.tree.map(
        jnp.shape, dict(flax["params"])
    )
    for params in (quick["params"], flax["params"]):
        norms = jnp.linalg.norm(params["token_embedding"], axis=1)
        np.testing.assert_allclose(norms, 1, rtol=1e-5)


def test_embeddings_may_be_normal():
    run = _run(embeddings="normal", task=dataclasses.replace(FACTS, n_subjects=505))
    module = run.module()
    assert module != dataclasses.replace(run, architecture=_run().architecture).module()
    for initialize in (models.init, models._flax_init):
        rows = np.asarray(initialize(module, 6, jax.random.key(0))["params"]["token_embedding"])
        assert rows.shape == (528, 6)
        np.testing.assert_allclose(rows.mean(), 0, atol=0.06)
        np.testing.assert_allclose(rows.var(), 1, atol=0.08)


def test_packed_equals_alone_and_the_padding_stays_zero():
    runs = [
        _run(),
        _run(d_model=9, n_heads=3, d_head=5, d_mlp=11, seed=1),
        _run(d_mlp=0, n_heads=1, seed=2),
        _run(task=dataclasses.replace(FACTS, seed=5), seed=3),
    ]
    pack = packing.make_pack(runs)
    packed = small.train(pack)
    for i in (0, 3):
        alone = training.train_one(runs[i])
        np.testing.assert_allclose(packed.step_loss_RxL[i], alone.step_loss_RxL[0], atol=1e-5)
        np.testing.assert_allclose(packed.loss_R[i], alone.loss_R[0], atol=1e-5)
        np.testing.assert_allclose(packed.accuracy_R[i], alone.accuracy_R[0])
        for name, x in alone.variables["params"].items():
            here = np.array(packed.variables["params"][name][i])
            here[tuple(slice(0, size) for size in x.shape[1:])] = 0
            assert not here.any()
    assert packed.step_loss_RxL[0, 0] != packed.step_loss_RxL[2, 0]


def test_every_step_has_a_batch_of_its_own_and_embeddings_stay():
    still = dataclasses.replace(TWENTY, learning_rate=0, final_learning_rate=0)
    result = training.train_one(_run(method=still))
    assert len(set(result.step_loss_RxL[0].tolist())) == 20
    moved = training.train_one(_run()).variables["params"]
    for name, x in result.variables["params"].items():
        assert np.array_equal(x, moved[name]) == (name == "token_embedding")


@pytest.mark.rounding
def test_facts_are_learned_in_unseen_noise_and_rows_say_so():
    method = dataclasses.replace(
        TWENTY, batch_size=64, n_batches=64, epochs=6, learning_rate=0.02, final_learning_rate=0.02
    )
    run = _run(method=method, d_model=16, d_head=8, n_heads=2, d_mlp=32)
    row = sweep.run([run], progress=False).iloc[0]
    assert row["accuracy"] > 0.9
    # Beyond guessing among the relation's four answers.
    np.testing.assert_allclose(row["memorized"], 15 * (row["accuracy"] - 1 / 4) / (3 / 4))
    expected = max(15 * (np.log2(4) - row["loss"] / np.log(2)), 0)
    np.testing.assert_allclose(row["bits"], expected, rtol=1e-4)
    assert (row["n_examples"], row["n_subjects"], row["n_relations"], row["n_answers"]) == (
        *(15, 5, 3, 4),
    )
    found = training.train_one(run)
    params = jax.tree.map(lambda x: x[0], found.variables)
    assert saturated_heads.largest_attention(run, params).shape == (15, 2)


def test_gpt_reads_facts_too():
    run = dataclasses.replace(
        _run(method=dataclasses.replace(TWENTY, trained=None)),
        architecture=GPT(d_model=8, d_head=4, n_heads=2, d_mlp=16),
    )
    assert np.isfinite(training.train_one(run).loss_R[0])


def test_mistakes_name_the_fix():
    def task(**changes):
        return lambda: dataclasses.replace(FACTS, **changes)

    exact = dataclasses.replace(TWENTY, protocol="exact", batch_size=None)
    mistakes = {
        "n_answers=1 is not": task(n_answers=1),
        "n_noise=0: context_length=6 needs a noise token": task(n_noise=0),
        "protocol='exact': the noise": lambda: _run(method=exact),
        "method: a Search does not serve the task 'factual_recall'": lambda: _run(
            method=Search(training=TWENTY)
        ),
        "embeddings='sphere' ": lambda: _run(embeddings="sphere"),
        "recall_transformer does not serve the task 'associations', whose question is "
        "'next token'; choose attention_only or gpt or": lambda: _run(task=Associations()).module(),
        "mlp does not serve the task 'factual_recall', whose question is 'fact'; "
        "choose gpt or ": lambda: Run(
            task=FACTS, architecture=MLP(d_model=4, d_head=4, d_mlp=3)
        ).module(),
    }
    for message, mistake in mistakes.items():
        with pytest.raises(UserError) as error:
            mistake()
        assert message in str(error.value)
        assert "\n" not in str(error.value)
    foreign = (
        task(n_sequences=3),
        task(zipf_exponent=1.0),
        task(vocab_size=28),
        lambda: Associations(n_subjects=5),
        lambda: _run(n_layers=2),
        lambda: _run(heads="compressed"),
    )
    for mistake in foreign:
        with pytest.raises(TypeError, match="unexpected keyword argument"):
            mistake()
