"""What is memorized: instances, priors, long contexts, and the divergence from them."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats

from memobench.common.errors import UserError
from memobench.core import module as models
from memobench.core.architecture import Architecture
from memobench.core.run import Run
from memobench.core.spec import kind
from memobench.core.task import Task
from memobench.engine import initializing
from memobench.experiments.capacity.own_tasks import FactualRecall
from memobench.methods import training
from memobench.methods.training import Training
from memobench.models.transformer import AttentionOnly
from memobench.numerics import metrics
from memobench.planner import packing
from memobench.runtime import sweep
from memobench.tasks.associations import Associations
from memobench.tasks.bijection import Bijection
from memobench.tasks.distributions import Distributions
from memobench.tasks.in_context_recall import InContextRecall
from memobench.tasks.sequences import Sequences
from tests import small

EVERY: dict[str, Task] = {
    "pairs": Associations(vocab_size=6),
    "Zipf": Associations(vocab_size=6, zipf_exponent=1.0),
    "some triples": Associations(vocab_size=6, context_length=3, n_sequences=50),
    "long": Associations(vocab_size=50, context_length=8, n_sequences=70),
    "bijection": Bijection(vocab_size=12),
    "values": Bijection(vocab_size=12, n_values=5),
    "permuted": Bijection(vocab_size=12, permuted=True),
    "facts": FactualRecall(n_subjects=5, n_relations=4, n_answers=3, n_noise=6, context_length=6),
    "in context": InContextRecall(vocab_size=8, n_pairs=1),
    "whole": Sequences(vocab_size=6, context_length=5, n_sequences=30),
    "uniform": Distributions(vocab_size=6, conditional="uniform", n_next=3),
    "power law": Distributions(
        vocab_size=6,
        conditional="power_law",
        n_next=4,
        conditional_parameter=1.5,
        zipf_exponent=1.0,
    ),
    "dirichlet": Distributions(
        vocab_size=6,
        conditional="dirichlet",
        n_next=6,
        conditional_parameter=0.1,
        context_length=4,
        n_sequences=40,
    ),
}
# By whom tasks are learned that not every architecture serves.
SERVES = {"factual_recall": "recall_transformer", "sequences": "gpt", "in_context_recall": "modern"}
EXACT = Training(n_batches=40, epochs=10, learning_rate=0.03).exact()
BY_BATCHES = [EVERY[label] for label in ("pairs", "values", "whole", "dirichlet")]
every_task = pytest.mark.parametrize("task", EVERY.values(), ids=EVERY.keys())


def _at_once(labels, *slow):
    """Tasks by their labels; those whose instances or answers are like another's in minutes."""
    of_labels = [
        pytest.param(EVERY[label], id=label, marks=[pytest.mark.slow] * (label in slow))
        for label in labels
    ]
    return pytest.mark.parametrize("task", of_labels)


NEXT_TOKEN = [label for label, task in EVERY.items() if task.name not in SERVES]


def test_every_registered_task_is_here():
    ours = {name for name, kind in Task.kinds().items() if kind.__module__.startswith("memobench.")}
    # Labelled contexts have a file of tests of their own.
    assert {task.name for task in EVERY.values()} == ours - {"labelled_contexts"}


@every_task
def test_an_instance_is_what_its_shapes_and_axioms_say(task):
    instance = task.sample()
    for x, shape in zip(instance, task.shapes(), strict=True):
        assert (x.shape, x.dtype) == (shape.shape, shape.dtype)
    probability_TxK = np.asarray(instance.probability_TxK)
    np.testing.assert_allclose(probability_TxK.sum(axis=-1), 1, rtol=1e-6)
    assert (np.diff(probability_TxK, axis=-1) <= 0).all()
    np.testing.assert_allclose(instance.prior_T.sum(), 1, rtol=1e-6)
    next_TxK = np.asarray(instance.next_TxK)
    assert next_TxK.size == task.n_predicted * next_TxK.shape[-1]
    for next_K in next_TxK.reshape(-1, next_TxK.shape[-1]):
        assert len(set(next_K)) == len(next_K)
        assert ((next_K >= 0) & (next_K < task.n_outputs)).all()
    tokens_TxS = np.asarray(task.tokens(instance, jnp.arange(task.n_examples)))
    assert tokens_TxS.shape == (task.n_examples, task.context_length)
    assert ((tokens_TxS >= 0) & (tokens_TxS < task.vocab_size)).all()


@every_task
def test_instances_depend_on_the_seed_alone(task):
    same, other = task.sample(), dataclasses.replace(task, seed=1).sample()
    for a, b in zip(task.sample(), same, strict=True):
        np.testing.assert_array_equal(a, b)
    # Renamed answers are no other bijection where embeddings are random, and in contexts no answer
    # is to be memorized.
    fixed = task.name in ("bijection", "in_context_recall") and not getattr(task, "permuted", 0)
    assert np.array_equal(same.next_TxK, other.next_TxK) == fixed


def test_a_context_has_the_value_of_the_key_that_is_asked_once_and_training_draws_it_anew():
    task = InContextRecall(vocab_size=20, n_pairs=6)
    example_B, tokens_BxS = map(np.asarray, task.draw_batch(jax.random.key(3), 400))
    key_BxP, value_BxP, query_B = tokens_BxS[:, :-1:2], tokens_BxS[:, 1::2], tokens_BxS[:, -1]
    is_asked_BxP = key_BxP == query_B[:, None]
    assert (is_asked_BxP.sum(axis=1) == 1).all()
    np.testing.assert_array_equal(value_BxP[is_asked_BxP], task.sample().next_TxK[example_B, 0])
    assert all(len(set(key_P)) == task.n_pairs for key_P in key_BxP)
    assert (key_BxP >= task.n_outputs).all()
    assert (value_BxP < task.n_outputs).all()
    # Whichever place is asked, any value may stand at all the others: each occurs in a tenth.
    counts = np.bincount(value_BxP.ravel(), minlength=task.n_outputs) / value_BxP.size
    np.testing.assert_allclose(counts, 1 / task.n_outputs, atol=0.03)
    np.testing.assert_allclose(is_asked_BxP.mean(axis=0), 1 / task.n_pairs, atol=0.08)
    other_BxS = task.draw_batch(jax.random.key(4), 400).tokens_BxS
    assert len(np.unique(np.concatenate([tokens_BxS, other_BxS]), axis=0)) > 790
    with pytest.raises(UserError, match="vocab_size=1026 has more values than the 512 examples"):
        InContextRecall(vocab_size=1026, n_pairs=1)


@pytest.mark.parametrize("vocab_size", [2, 7, 100])
@pytest.mark.parametrize("permuted", [False, True])
def test_a_bijection_has_every_token_once_as_question_and_as_answer(vocab_size, permuted):
    task = Bijection(vocab_size=vocab_size, permuted=permuted)
    instance = task.sample()
    questions = [task.tokens(instance, jnp.asarray(i)).tolist() for i in range(vocab_size)]
    assert sorted(questions) == [[token] for token in range(vocab_size)]
    assert sorted(instance.next_TxK[:, 0].tolist()) == list(range(vocab_size))
    assert (instance.probability_TxK == 1).all()


def test_a_permutation_has_no_parts_and_no_fewer_answers():
    assert Bijection(vocab_size=9, permuted=True).slicing_error
    with pytest.raises(UserError, match=r"^permuted: .* leave n_values out$"):
        Bijection(vocab_size=9, n_values=3, permuted=True)


@pytest.mark.parametrize("n_values", [2, 5, 19])
def test_values_are_each_the_answer_of_as_many_tokens(n_values):
    task = Bijection(vocab_size=20, n_values=n_values)
    counts = np.bincount(task.sample().next_TxK[:, 0])
    assert len(counts) == n_values == task.n_choices
    assert np.ptp(counts) <= 1
    for n_all in (n_values, 1):
        with pytest.raises(UserError, match="n_values="):
            Bijection(vocab_size=max(n_all, 2), n_values=n_values)


@pytest.mark.parametrize(("length", "n_sequences"), [(2, 30), (3, 30), (8, 30), (8, 1)])
def test_sampled_sequences_are_distinct_and_use_every_token(length, n_sequences):
    task = Associations(vocab_size=6, context_length=length, n_sequences=n_sequences)
    tokens_TxS = np.asarray(task.sample().tokens_TxS)
    assert tokens_TxS.shape == (n_sequences, length)
    assert len({tuple(tokens) for tokens in tokens_TxS}) == n_sequences
    if n_sequences == 30:
        assert set(tokens_TxS.reshape(-1)) == set(range(6))


def test_the_shapes_of_conditionals():
    probability = {name: task.sample().probability_TxK[0] for name, task in EVERY.items()}
    np.testing.assert_allclose(probability["uniform"], [1 / 3] * 3, rtol=1e-6)
    law = np.arange(1, 5) ** -1.5
    np.testing.assert_allclose(probability["power law"], law / law.sum(), rtol=1e-6)


@pytest.mark.parametrize("concentration", [0.05, 1.0, 20.0])
def test_dirichlet_weights_have_the_variance_of_the_law(concentration):
    task = Distributions(
        vocab_size=50,
        conditional="dirichlet",
        n_next=5,
        conditional_parameter=concentration,
    )
    # E sum p^2 = (a + 1) / (K a + 1) for K categories of concentration a.
    square = (np.asarray(task.sample().probability_TxK) ** 2).sum(axis=1).mean()
    expected = (concentration + 1) / (5 * concentration + 1)
    np.testing.assert_allclose(square, expected, rtol=0.03)


def test_zipf_priors_fall_as_the_law_and_draws_follow_them():
    task = Associations(vocab_size=6, zipf_exponent=1.0)
    prior_T = np.asarray(task.sample().prior_T, np.float64)
    weights = 1 / np.arange(1, 37)
    np.testing.assert_allclose(np.sort(prior_T)[::-1], weights / weights.sum(), rtol=1e-5)
    counts = np.bincount(task.sample_draws(20_000), minlength=36)
    assert scipy.stats.chisquare(counts, 20_000 * prior_T / prior_T.sum()).pvalue > 1e-3


def test_the_divergence_is_that_of_its_definition():
    logits = np.array([0.5, -1.0, 2.0, 0.0])
    tokens, probability = np.array([2, 0]), np.array([0.7, 0.3])
    log_softmax = logits - scipy.special.logsumexp(logits)
    expected = sum(
        p * (np.log(p) - log_softmax[t]) for t, p in zip(tokens, probability, strict=True)
    )
    for order in ([0, 1], [1, 0]):
        kl, correct = metrics.kl_and_correct(
            jnp.asarray(logits, jnp.float32),
            jnp.asarray(tokens[order]),
            jnp.asarray(probability[order], jnp.float32),
        )
        np.testing.assert_allclose(kl, expected, rtol=1e-5)
        assert bool(correct) == (order == [0, 1])


@_at_once(NEXT_TOKEN, "values", "permuted", "uniform", "Zipf", "some triples")
def test_the_true_objective_is_the_prior_mean_over_sequences(task):
    run = Run(
        task=task,
        architecture=AttentionOnly(d_model=4, d_head=4, n_heads=1),
        method=EXACT.replace(epochs=1, learning_rate=0, final_learning_rate=0),
    )
    # Beside a larger one, by the program that trains the task below.
    larger = dataclasses.replace(run, architecture=run.architecture.replace(n_heads=6))
    result = small.train(packing.make_pack([run, larger]))
    module = run.module()
    variables = models.init(module, task.context_length, initializing.init_key(run))
    instance = task.sample()
    tokens_TxS = instance.tokens_TxS
    if task.n_sequences is None:
        tokens_TxS = jnp.asarray(list(np.ndindex(*[task.vocab_size] * task.context_length)))
    apply = jax.jit(jax.vmap(lambda t: module.apply(variables, t)))
    logits = np.asarray(apply(tokens_TxS), np.float64)[:, : task.n_outputs]
    log_softmax = scipy.special.log_softmax(logits, axis=1)
    p = np.asarray(instance.probability_TxK, np.float64)
    cross = -(p * np.take_along_axis(log_softmax, np.asarray(instance.next_TxK), 1)).sum(1)
    kl = cross - scipy.special.entr(p).sum(axis=1)
    expected = (np.asarray(instance.prior_T) * kl).sum()
    np.testing.assert_allclose(result.loss_R[0], expected, rtol=1e-4)
    np.testing.assert_allclose(result.step_loss_RxL[0], expected, rtol=1e-4)


# Facts are trained in tests of their model; priors by Zipf's law count in the objective above.
@_at_once(EVERY, "some triples", "long", "permuted", "uniform", "power law", "facts", "Zipf")
def test_every_task_trains_and_says_what_it_means(task):
    """By batches too where the sampled sequences or the shapes of answers are unlike all others."""
    methods = [Training(batch_size=8, n_batches=4, epochs=2)] * (task in BY_BATCHES) + [EXACT]
    if getattr(task, "is_fresh", False):
        # There is no exact gradient over all noise.
        methods = [Training(batch_size=8, n_batches=40, epochs=8)]
    runs = [
        Run(
            task=task,
            architecture=Architecture.get_kind(SERVES.get(task.name, "attention_only"))(
                d_model=4, d_head=4, n_heads=h
            ),
            method=method,
        )
        for method in methods
        for h in (1, 6)
    ]
    table = sweep.run(runs, progress=False)
    assert (table["status"] == "ok").all()
    assert (table["accuracy"].isna() == (task.name == "distributions")).all()
    counts = task.name not in ("distributions", "in_context_recall") and task.is_even
    assert (table["memorized"].notna() == counts).all()
    assert (table["bits"].notna() == (counts and task.name != "bijection")).all()
    longest = table[table["steps"] == table["steps"].max()]
    curves = np.array(longest["curve_loss"].tolist())
    assert (curves[:, -1] < 0.75 * curves[:, 0]).all()


class TwoAnswers(Associations):
    """Two tokens may follow every sequence, each half of the time."""

    def sample_next(self, key):
        next_Tx1, one_Tx1 = super().sample_next(key)
        next_Tx2 = jnp.concatenate([next_Tx1, (next_Tx1 + 1) % self.vocab_size], axis=1)
        return next_Tx2, jnp.concatenate([one_Tx1, one_Tx1], axis=1) / 2


def test_where_several_tokens_may_follow_nothing_is_counted():
    """The labels' own entropy, which no model knows, is not in their divergence."""
    assert "bits" in Associations(vocab_size=5).measures
    assert kind("two_answers")(TwoAnswers)(vocab_size=5).measures == ("loss",)


def test_contexts_of_different_lengths_pack_only_with_their_own():
    runs = [
        Run(
            task=Associations(vocab_size=5, context_length=length, n_sequences=20),
            architecture=AttentionOnly(d_model=4, d_head=4, n_heads=h),
            method=Training(n_batches=2, epochs=1).exact(),
        )
        for length in (2, 5)
        for h in (1, 2)
    ]
    packs = packing.plan(runs, "cpu")
    assert sorted(len(pack.runs) for pack in packs) == [2, 2]
    packed = small.train(packs[0])
    alone = training.train_one(packs[0].runs[0])
    np.testing.assert_allclose(packed.step_loss_RxL[0], alone.step_loss_RxL[0], atol=1e-5)
