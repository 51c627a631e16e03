"""Labelled contexts: prefixes, distributions, and what a user may ask for."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from memobench.common.errors import UserError
from memobench.core.run import Run
from memobench.experiments.mahdavi2024.own_methods import Annealing
from memobench.experiments.mahdavi2024.own_models import QueryAttention
from memobench.methods.optimum import Optimum
from memobench.methods.training import Training
from memobench.tasks import labelled_contexts
from memobench.tasks.associations import Associations
from memobench.tasks.labelled_contexts import Labelled, LabelledContexts

every_kind = pytest.mark.parametrize("contexts", ["shared", "random"])
every_label = pytest.mark.parametrize("n_classes", [5, None], ids=["classes", "scalars"])


def _task(contexts="shared", **fields):
    sizes = {"n_examples": 23, "context_length": 4, "n_classes": 5, "input_dim": 6}
    return LabelledContexts(contexts=contexts, **(sizes | fields))


def _prefix(task, data):
    """The set that a task with fewer examples or a shorter context has within a larger one's."""
    n, length = task.n_examples, task.context_length
    own = data.context[:length] if task.contexts == "shared" else data.context[:n, :length]
    return Labelled(data.query_TxI[:n], own, data.label_T[:n])


def _assert_equal(ours, theirs):
    for name, x, y in zip(Labelled._fields, ours, theirs, strict=True):
        np.testing.assert_array_equal(x, y, err_msg=name)


@every_kind
@every_label
@pytest.mark.parametrize("smaller", [(11, 4), (23, 3), (1, 1), (10, 2)])
def test_a_smaller_task_is_a_prefix_of_a_larger_one(contexts, n_classes, smaller):
    larger = _task(contexts, n_classes=n_classes, seed=3)
    n_examples, context_length = smaller
    task = dataclasses.replace(larger, n_examples=n_examples, context_length=context_length)
    ours = task.sample()
    _assert_equal(ours, _prefix(task, larger.sample()))
    assert ours.query_TxI.shape == (n_examples, 6)


@every_kind
def test_the_set_is_that_of_its_seed_alone(contexts):
    task = _task(contexts)
    here, again = task.sample(), task.sample()
    _assert_equal(here, again)
    other = dataclasses.replace(task, seed=1).sample()
    for name, x, y in zip(Labelled._fields, here, other, strict=True):
        assert not np.array_equal(x, y), name


@every_kind
@every_label
def test_shapes_are_those_of_the_sample(contexts, n_classes):
    task = _task(contexts, n_classes=n_classes)
    data, shapes = task.sample(), task.shapes()
    for name, x, shape in zip(Labelled._fields, data, shapes, strict=True):
        assert x.shape == shape.shape, name
        assert x.dtype == shape.dtype, name
    assert data.label_T.dtype == (np.float32 if n_classes is None else np.int32)
    assert data.context.dtype == data.query_TxI.dtype == np.float32


@every_kind
def test_an_example_is_the_row_of_its_number(contexts):
    task = _task(contexts)
    data = task.sample()
    # A shared context must not depend on the number, or nothing could be folded into it.
    out_axes = 0, None if contexts == "shared" else 0
    every = jax.jit(jax.vmap(labelled_contexts.inputs, (None, 0), out_axes))
    query_TxI, context = every(data, jnp.arange(task.n_examples))
    np.testing.assert_array_equal(query_TxI, data.query_TxI)
    np.testing.assert_array_equal(context, data.context)
    alone = labelled_contexts.inputs(data, np.int32(9))
    np.testing.assert_array_equal(alone[0], query_TxI[9])
    np.testing.assert_array_equal(alone[1], context if contexts == "shared" else context[9])


@every_kind
def test_entries_are_uniform_below_one_and_no_vector_comes_twice(contexts):
    data = _task(contexts, n_examples=300).sample()
    vectors = np.concatenate([data.query_TxI, data.context.reshape(-1, 6)])
    assert vectors.min() >= 0
    assert vectors.max() < 1
    assert len(np.unique(vectors, axis=0)) == len(vectors)
    assert len(np.unique(vectors)) > 0.999 * vectors.size
    assert scipy.stats.kstest(vectors.reshape(-1), "uniform").pvalue > 1e-3
    # Examples and coordinates have nothing to do with each other.
    correlation = np.corrcoef(vectors.T) - np.eye(6)
    assert abs(correlation).max() < 0.25


def test_classes_are_uniform_and_independent_of_each_other():
    label_T = _task(n_examples=7_000, n_classes=7).sample().label_T
    counts = np.bincount(label_T, minlength=7)
    assert len(counts) == 7
    assert scipy.stats.chisquare(counts).pvalue > 1e-3
    pairs = np.bincount(7 * label_T[:-1] + label_T[1:], minlength=49)
    assert scipy.stats.chisquare(pairs).pvalue > 1e-3


def test_scalars_are_uniform_and_are_not_read_off_the_queries():
    data = _task(n_examples=4_000, n_classes=None).sample()
    assert scipy.stats.kstest(data.label_T, "uniform").pvalue > 1e-3
    for vector_T in data.query_TxI.T:
        assert abs(np.corrcoef(vector_T, data.label_T)[0, 1]) < 0.06


SHORT = {"batch_size": 4, "steps": 10, "evaluate_every": 5}
SMALL = QueryAttention(d_model=4, d_head=3)


def _run(task, method):
    return Run(task=task, architecture=SMALL, method=method)


MISTAKES = {
    "n_bag=9: no contexts are arrangements of a bag; leave it out": lambda: _task(n_bag=9),
    "n_classes=1 is not an integer from 2 to 16777216; give n_classes": lambda: _task(n_classes=1),
    "n_examples=0 is not an integer from 1 to": lambda: _task(n_examples=0),
    "context_length=0 is not an integer from 1 to": lambda: _task(context_length=0),
    "input_dim=2.0 is not an integer from 1 to": lambda: _task(input_dim=2.0),
    "seed=-1 is not an integer from 0 to 4294967295": lambda: _task(seed=-1),
    "seed=4294967296 is not an integer from 0 to 4294967295": lambda: _task(seed=2**32),
    "contexts='own' is not one of shared, random": lambda: _task("own"),
    "method: an Annealing does not train the task 'associations'": lambda: _run(
        Associations(), Annealing(**SHORT)
    ),
    "method: a Training does not train the task 'labelled_contexts'": lambda: _run(
        _task(), Training()
    ),
    "method: an Optimum does not serve the task 'labelled_contexts'": lambda: _run(
        _task(), Optimum()
    ),
    "steps=12 is not a multiple of evaluate_every=5": lambda: Annealing(steps=12, evaluate_every=5),
    "batch_size=0 is not an integer from 1 to": lambda: Annealing(batch_size=0),
    "learning_rate=0 is not a number > 0": lambda: Annealing(learning_rate=0),
    "first_share=inf is not a number > 0": lambda: Annealing(first_share=float("inf")),
    "warmup=1.0 is not a share in [0, 1)": lambda: Annealing(warmup=1),
}


@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake_is_one_line_that_names_the_field(line):
    with pytest.raises(UserError) as caught:
        MISTAKES[line]()
    message = str(caught.value)
    assert message.startswith(line)
    assert "\n" not in message


def test_neither_the_task_nor_its_method_has_a_name_or_a_protocol_to_choose():
    for mistake in (
        lambda: _task(name="associations"),
        lambda: _task(vocab_size=5),
        lambda: Annealing(protocol="exact"),
    ):
        with pytest.raises(TypeError, match="unexpected keyword argument"):
            mistake()


def test_a_right_spec_is_none_of_these():
    run = _run(_task("random"), Annealing(**SHORT))
    assert dataclasses.replace(run, task=_task("shared")).run_id != run.run_id
    assert dataclasses.replace(run).run_id == run.run_id
