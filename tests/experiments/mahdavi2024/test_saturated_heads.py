"""Saturation: the largest attention weights of heads, and what a results row says of them."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import memobench
from memobench.core import module as models
from memobench.core.run import Run
from memobench.experiments import EXPERIMENTS
from memobench.experiments.mahdavi2024 import saturated_heads
from memobench.experiments.mahdavi2024.own_methods import Annealing
from memobench.experiments.mahdavi2024.own_models import QueryAttention
from memobench.models.sequence_encoder import SequenceEncoder
from memobench.models.transformer import AttentionOnly
from memobench.tasks import labelled_contexts
from memobench.tasks.associations import Associations
from memobench.tasks.labelled_contexts import LabelledContexts

SHORT = Annealing(batch_size=4, steps=10, evaluate_every=5)


def _labelled(contexts="shared", n_examples=20, **sizes):
    task = LabelledContexts(
        n_examples=n_examples,
        context_length=3,
        contexts=contexts,
        n_classes=4,
        input_dim=6,
    )
    sizes = {"d_model": 8, "d_head": 5, "n_heads": 3, **sizes}
    return Run(task=task, architecture=QueryAttention(**sizes), method=SHORT)


def _tokens(task=None, **sizes):
    sizes = {"d_model": 4, "d_head": 4, "n_heads": 3, **sizes}
    return Run(
        task=task or Associations(vocab_size=4, context_length=3),
        architecture=AttentionOnly(**sizes),
    )


RUNS = {
    "shared": _labelled(),
    "random": _labelled("random"),
    "random, deep": _labelled("random", n_layers=2, residual=True),
    "tokens": _tokens(),
    "tokens, deep": _tokens(n_layers=2, d_head=2),
    "some sequences": _tokens(Associations(vocab_size=9, context_length=3, n_sequences=20)),
}
every_run = pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)


def _variables(run, **factors):
    """Initial weights, those named times a factor, or all queries times four."""
    length = run.task.context_length
    variables = models.init(run.module(), length, jax.random.key(1))

    factors = factors or {"query": 4}
    params = {
        name: factors.get(name.rpartition("_")[2], 1) * x for name, x in variables["params"].items()
    }
    return {**variables, "params": params}


def _inputs(run):
    """Every example's inputs, one after another."""
    if isinstance(run.task, LabelledContexts):
        data = run.task.sample()
        return [labelled_contexts.inputs(data, i) for i in range(run.task.n_examples)]
    if run.task.n_sequences:
        return [(tokens_S,) for tokens_S in run.task.sample().tokens_TxS]
    indices = np.ndindex(*[run.task.vocab_size] * run.task.context_length)
    return [(jnp.asarray(tokens_S),) for tokens_S in indices]


@every_run
def test_the_largest_weights_are_those_of_each_example(run, monkeypatch):
    # Blocks that do not divide the examples: the last one must not count any twice.
    monkeypatch.setattr(saturated_heads, "EXAMPLES_AT_ONCE", 13)
    module, variables = run.module(), _variables(run)
    largest_TxH = saturated_heads.largest_attention(run, variables)
    assert largest_TxH.shape == (run.task.n_examples, 3)
    attention = jax.jit(lambda *inputs: module.apply(variables, *inputs, method="attention"))
    attention_TxHxN = np.array([attention(*inputs) for inputs in _inputs(run)])
    np.testing.assert_allclose(attention_TxHxN.sum(axis=-1), 1, atol=1e-5)
    np.testing.assert_allclose(largest_TxH, attention_TxHxN.max(axis=-1), atol=1e-5)
    assert 1 / 3 <= largest_TxH.min() < largest_TxH.max() <= 1 + 1e-6
    assert largest_TxH.std(axis=0).min() > 1e-4
    assert largest_TxH.std(axis=1).max() > 1e-3


@every_run
def test_heads_that_ask_nothing_look_everywhere(run):
    largest_TxH = saturated_heads.largest_attention(run, _variables(run, query=0))
    np.testing.assert_allclose(largest_TxH, 1 / run.task.context_length, atol=1e-6)
    assert saturated_heads.columns(largest_TxH)["saturated"] == 0


@every_run
def test_huge_queries_and_keys_saturate_every_head(run):
    n_examples = run.task.n_examples
    columns = saturated_heads.columns(
        saturated_heads.largest_attention(run, _variables(run, query=1e4, key=1e4))
    )
    if isinstance(run.task, LabelledContexts):
        assert columns["saturated"] == 1
        assert columns["saturated_by_head"] == [1, 1, 1]
        assert columns["examples_by_serving_heads"] == [n_examples, 0, 0, 0]
    else:
        assert columns["saturated"] > 0.95


def test_one_saturated_head_is_that_head():
    run = _labelled()
    variables = _variables(run, query=0)
    query = np.array(variables["params"]["layer0_query"])
    query[1] = 1e4 * np.array(_variables(run)["params"]["layer0_query"][1])
    variables["params"]["layer0_query"] = jnp.asarray(query)
    columns = saturated_heads.columns(saturated_heads.largest_attention(run, variables))
    assert columns["saturated_by_head"] == [0, 1, 0]
    assert columns["saturated"] == pytest.approx(1 / 3)
    assert columns["examples_by_serving_heads"] == [0, 0, 20, 0]


def test_a_context_of_one_token_saturates_whatever_the_weights_are():
    run = Run(
        task=LabelledContexts(n_examples=7, context_length=1, n_classes=4, input_dim=6),
        architecture=RUNS["shared"].architecture,
        method=SHORT,
    )
    largest_TxH = saturated_heads.largest_attention(run, _variables(run))
    np.testing.assert_array_equal(largest_TxH, np.ones((7, 3)))


def test_columns_count_pairs_heads_and_examples():
    largest_TxH = np.array(
        [[0.995, 0.5, 0.4], [0.999, 0.995, 1.0], [0.2, 0.3, 0.9], [0.99, 1.0, 0.98]]
    )
    columns = saturated_heads.columns(largest_TxH)
    # A weight of exactly 0.99 is not beyond it.
    assert columns == {
        "saturated": 5 / 12,
        "saturated_by_head": [0.5, 0.5, 0.25],
        "examples_by_serving_heads": [1, 0, 2, 1],
    }
    assert json.loads(json.dumps(columns)) == columns


def test_what_no_example_shows_is_counted_as_zero():
    columns = saturated_heads.columns(np.full((5, 2), 0.5))
    assert columns["examples_by_serving_heads"] == [0, 0, 5]
    assert columns["saturated_by_head"] == [0, 0]


def test_an_architecture_without_attention_has_none():
    run = Run(
        task=Associations(vocab_size=4),
        architecture=SequenceEncoder(d_model=2),
    )
    with pytest.raises(ValueError, match="sequence_encoder has no attention"):
        saturated_heads.largest_attention(run, {})


def test_the_picture_is_of_kept_weights_and_its_histogram_of_all_seeds():
    table = memobench.published("mahdavi2024/saturation", "full")
    kept = table["seed"] == 3
    random = np.random.default_rng(0)
    table["largest_attention"] = [
        random.random((row.n_heads, row.n_examples)).tolist() if row.seed == 3 else None
        for row in table.itertuples()
    ]
    experiment = EXPERIMENTS["mahdavi2024/saturation"]
    figure = experiment.figure.draw(experiment, "full", table)
    titles = [axis.get_title() for axis in figure.axes if axis.get_title()]
    assert sum("(seed 3)" in title for title in titles) == kept.sum() == 2
    n_seeds = table["seed"].nunique()
    assert titles.count(f"mean of {n_seeds} seeds, dots each") == 2
    assert n_seeds == 6
