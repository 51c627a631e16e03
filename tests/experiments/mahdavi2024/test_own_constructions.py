"""Theorem 1 of Mahdavi et al. as weights: what it promises, where heads look, what it refuses."""

import dataclasses

import jax
import numpy as np
import pytest

from memobench import theory
from memobench.common.errors import UserError
from memobench.constructions import making
from memobench.core import module as models
from memobench.core.run import Run
from memobench.experiments.mahdavi2024 import own_constructions as mahdavi2024
from memobench.experiments.mahdavi2024.own_constructions import Mahdavi2024
from memobench.experiments.mahdavi2024.own_models import QueryAttention
from memobench.models.transformer import AttentionOnly
from memobench.planner import packing
from memobench.tasks.associations import Associations
from memobench.tasks.labelled_contexts import LabelledContexts

every_kind = pytest.mark.parametrize("contexts", ["shared", "random"])
every_label = pytest.mark.parametrize("n_classes", [7, None], ids=["classes", "scalars"])
# n = r, where a head has no vector to spare, and d_h = r < n.
every_size = pytest.mark.parametrize("d_head", [6, 3], ids=["n=r", "d_h<n"])

MODEL = {"d_model": 8, "d_head": 6, "n_heads": 5}


def _run(contexts="shared", task=None, method=None, seed=0, more=0, **sizes):
    """A run of as many examples as the theorem promises, and `more`."""
    fields = {"context_length": 4, "input_dim": 8, "n_classes": 7, "seed": seed}
    fields |= task or {}
    architecture = QueryAttention(**(MODEL | sizes))
    method = Mahdavi2024(**(method or {}))
    sizes = {"context_length": fields["context_length"], "d_head": architecture.d_head}
    promised = int(theory.THEOREM_1.value(sizes | {"n_heads": architecture.n_heads}))
    task = LabelledContexts(contexts=contexts, **{"n_examples": promised + more, **fields})
    return Run(task=task, architecture=architecture, method=method, seed=seed)


def _judged(run):
    """The run's accuracy, loss and certificate, by the module's own forward pass."""
    result = making.construct_pack(packing.make_pack([run]))
    measured = {"accuracy": result.accuracy_R[0], "loss": result.loss_R[0]}
    return measured | result.columns[0]


def _attention(run, made):
    """attention_TxHxN by the module in double precision."""
    module, data = run.module(), run.task.sample()
    variables = {"params": made.params, "constants": making._constants(run)}
    with jax.enable_x64(True):
        every = jax.jit(
            jax.vmap(
                lambda i: module.apply(variables, *run.task.inputs(data, i), method="attention")
            )
        )
        data = jax.tree.map(jax.numpy.asarray, data)
        return np.asarray(every(np.arange(run.task.n_examples)))


def _leads(attention_TxHxN):
    """lead_TxH: by how many nats the largest attention is ahead of the second."""
    second, first = np.moveaxis(np.sort(attention_TxHxN, axis=-1)[..., -2:], -1, 0)
    return np.log(first) - np.log(second)


def _owned(run):
    """owned_TxH: the examples in their order, r - 1 of them each head's, the last nobody's."""
    n_heads = run.architecture.n_heads
    n_owned = min(run.task.context_length, run.architecture.d_head) - 1
    return np.arange(run.task.n_examples)[:, None] // n_owned == np.arange(n_heads)


@every_kind
@every_label
@every_size
def test_all_that_the_theorem_promises_is_memorized(contexts, n_classes, d_head):
    for seed in range(3):
        run = _run(contexts, {"n_classes": n_classes}, d_head=d_head, seed=seed)
        assert run.task.n_examples == 5 * (min(4, d_head) - 1) + 1
        judged = _judged(run)
        assert judged["accuracy"] == pytest.approx(1)
        assert judged["feature_rank"] == run.task.n_examples
        assert judged["condition"] < 1e4
        assert judged["fit_error"] < 1e-10
        assert judged["loss"] < 1e-12


@every_kind
@every_label
def test_single_precision_holds_as_well(contexts, n_classes):
    task = {"n_classes": n_classes and 100, "context_length": 16, "input_dim": 24}
    sizes = {"d_model": 24, "d_head": 16, "n_heads": 8}
    judged = _judged(_run(contexts, task, {"weights": "float32"}, **sizes))
    assert judged["accuracy"] == pytest.approx(1)
    assert judged["loss"] < 1e-6
    assert judged["stored_bits"] == 32


@every_kind
def test_one_more_than_promised_is_refused(contexts):
    with pytest.raises(UserError) as caught:
        making.construct(_run(contexts, more=1))
    assert "promises 16 examples at these sizes and 17 are wanted" in str(caught.value)
    assert "lower n_aimed to 16" in str(caught.value)
    assert "\n" not in str(caught.value)
    aiming = _judged(_run(contexts, method={"n_aimed": 16}, more=1))
    assert aiming["aimed_accuracy"] == 1


@every_size
@pytest.mark.parametrize("more", [1, 40])
def test_one_shared_context_has_no_higher_rank(d_head, more):
    # Proposition 2: H (n - 1) + 1, of any heads; the theorem's own reach it where n <= d_h.
    run = _run(task={"n_classes": None}, method={"solve": "least_squares"}, more=more)
    run = dataclasses.replace(run, architecture=QueryAttention(**(MODEL | {"d_head": d_head})))
    made = making.construct(run)
    assert made.certificate["feature_rank"] == 5 * (4 - 1) + 1
    assert made.certificate["fit_error"] > 1e-3


@every_kind
@pytest.mark.parametrize("scale", [None, 4.0])
def test_owned_queries_look_where_they_are_told_and_all_others_saturate(contexts, scale):
    run = _run(contexts, method={"scale": scale}, d_head=3)
    attention_TxHxN = _attention(run, making.construct(run))
    lead_TxH, owned_TxH = _leads(attention_TxHxN), _owned(run)
    assert (owned_TxH.sum(axis=0) == 2).all()
    gap = scale or mahdavi2024.SCALE
    np.testing.assert_allclose(lead_TxH[owned_TxH], gap, rtol=1e-6)
    # No larger than it must be: some query of every head leads by just the gap.
    least_H = np.where(owned_TxH, np.inf, lead_TxH).min(axis=0)
    np.testing.assert_allclose(least_H, gap, rtol=1e-6)
    if contexts == "shared":
        top_TxH = attention_TxHxN.argmax(axis=-1)
        for top_T, owned_T in zip(top_TxH.T, owned_TxH.T, strict=True):
            assert set(top_T[owned_T]) == {0, 1}
            assert set(top_T[~owned_T]) <= {2, 3}


def test_without_a_vector_to_spare_one_owned_query_looks_at_two_by_halves():
    run = _run()
    attention_TxHxN, owned_TxH = _attention(run, making.construct(run)), _owned(run)
    np.testing.assert_array_equal(owned_TxH.sum(axis=0), 3)
    for h, owned_T in enumerate(owned_TxH.T):
        largest_G = attention_TxHxN[owned_T, h].max(axis=-1)
        halved = np.argmin(largest_G)
        half = attention_TxHxN[owned_T, h][halved]
        np.testing.assert_allclose(half, [0, 0, 0.5, 0.5], atol=1e-4)
        assert np.delete(largest_G, halved).min() > 0.99


def test_the_halves_keep_the_rows_independent_whatever_the_others_see():
    random = np.random.default_rng(0)
    for n_heads, n_owned in ((1, 1), (2, 1), (3, 2), (6, 1), (9, 4)):
        groups = list(np.arange(n_heads * n_owned).reshape(n_heads, n_owned))
        for _ in range(30):
            before_TxH = random.random((n_heads * n_owned + 1, n_heads)) < 0.5
            ordered = mahdavi2024._halves_last(groups, before_TxH)
            for ours, theirs in zip(ordered, groups, strict=True):
                assert sorted(ours) == sorted(theirs)
            row_TxH = before_TxH.astype(float)
            last_H = np.array([own_G[-1] for own_G in ordered])
            row_TxH[last_H, np.arange(n_heads)] = 0.5
            row_JxH = np.concatenate([row_TxH[last_H], row_TxH[-1:]])
            twice_JxJ = 2 * np.column_stack([np.ones(n_heads + 1), row_JxH])
            # The last row is not doubled: the determinant is odd.
            twice_JxJ[-1] /= 2
            assert round(np.linalg.det(twice_JxJ)) % 2 == 1


OPTIONS = {
    "learned": {"positions": "learned", "d_value": 3},
    "no positions": {"positions": "none", "score_scale": "d_head"},
    "narrow input": {"task": {"input_dim": 6}},
    "wide input": {"task": {"input_dim": 11}},
    "long context": {"task": {"context_length": 9}, "d_head": 5},
    "two vectors": {"task": {"context_length": 2}},
    "one vector": {"task": {"context_length": 1}},
    "thin heads": {"d_head": 1},
    "more heads than groups": {"task": {"n_examples": 4}},
    "all one head's": {"task": {"n_examples": 2}},
    "some aimed at": {"task": {"n_examples": 40}, "method": {"n_aimed": 13}},
}


@pytest.mark.parametrize("label", OPTIONS)
@every_kind
def test_every_option_of_the_model_is_met(label, contexts):
    run = _run(contexts, **OPTIONS[label])
    made = making.construct(run)
    shapes = jax.tree.map(lambda x: x.shape, models.shapes(run.module(), 0)["params"])
    assert {name: x.shape for name, x in made.params.items()} == shapes
    judged = _judged(run)
    assert judged["aimed_accuracy"] == 1
    assert judged["fit_error"] < 1e-9


@every_kind
@every_label
def test_nothing_aimed_at_is_no_mistake(contexts, n_classes):
    made = making.construct(_run(contexts, {"n_classes": n_classes}, {"n_aimed": 0}))
    assert all(np.isfinite(x).all() for x in made.params.values())
    assert not made.params["layer0_value"].any()


@every_kind
def test_weights_are_those_of_the_seeds(contexts):
    run = _run(contexts)
    here, again = making.construct(run).params, making.construct(run).params
    other = making.construct(dataclasses.replace(run, seed=1)).params
    for name, x in here.items():
        np.testing.assert_array_equal(x, again[name])
    assert not np.allclose(here["layer0_key"], other["layer0_key"])


def test_a_class_is_the_nearest_of_evenly_spaced_numbers():
    target_T, decoder_C, bias_C = mahdavi2024._read_out(5, np.arange(5, dtype=np.int32))
    np.testing.assert_allclose(np.diff(target_T), 0.5)
    for shift in (-0.24, 0, 0.24):
        logit_TxC = np.outer(target_T + shift, decoder_C) + bias_C
        np.testing.assert_array_equal(logit_TxC.argmax(axis=1), np.arange(5))


def _tokens():
    method = Mahdavi2024(n_aimed=1)
    sizes = {"d_model": 4, "d_head": 2, "heads": "full"}
    architecture = AttentionOnly(**sizes)
    return Run(task=Associations(vocab_size=3), architecture=architecture, method=method)


MISTAKES = {
    "n_layers=2; it is about one layer, set n_layers=1": lambda: _run(n_layers=2),
    "residual=True; it has no residual connection, set residual=False": lambda: _run(residual=True),
    "it is about labelled contexts, not the task 'associations'": _tokens,
    "input_dim=2: the queries span 2 dimensions and heads need min(context_length, d_head)=4; "
    "raise input_dim or lower d_head to 2": lambda: _run(task={"input_dim": 2}, positions="none"),
    "input_dim=3: a context spans 3 dimensions and heads need min(context_length, d_head)=4; "
    "raise input_dim or lower d_head to 3": lambda: _run(
        "random", task={"input_dim": 3, "n_examples": 3}, positions="none"
    ),
}


@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake_is_one_line_that_names_the_field(line):
    with pytest.raises(UserError) as caught:
        making.construct(MISTAKES[line]())
    message = str(caught.value)
    assert message.startswith(f"theorem='mahdavi2024': {line}")
    assert "\n" not in message
