"""What every kind is asked: all that are registered answer."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memobench.common.errors import UserError
from memobench.core import module as models
from memobench.core.architecture import Architecture
from memobench.core.task import Task
from memobench.store import rows
from tests import small

quick_jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


def _questions():
    """Every architecture; each question at once by one of them, by all others in minutes."""
    asked, architectures = set(), set()
    for pair in small.questions():
        architecture, task = pair.values
        enough = task.question in asked and architecture in architectures
        asked.add(task.question)
        architectures.add(architecture)
        yield pytest.param(*pair.values, id=pair.id, marks=[pytest.mark.slow] * enough)


every_question = pytest.mark.parametrize(("architecture", "task"), [*_questions()])


@pytest.mark.parametrize("task_name", Task.kinds())
@pytest.mark.parametrize("name", Architecture.kinds())
def test_an_architecture_serves_the_tasks_whose_question_it_answers(name, task_name):
    architecture, tasks = (
        small.make(Architecture.get_kind(name), small.ARCHITECTURE),
        small.tasks(task_name),
    )
    assert tasks
    answers = tasks[0].question in architecture.answers
    # Memories of one token are built where a sequence has no more.
    assert any(small.serves(architecture, task) for task in tasks) == answers
    for task in tasks if not answers else ():
        said = rf"^architecture {name} does not serve the task '{task_name}', whose .*; choose \w"
        with pytest.raises(UserError, match=said) as error:
            architecture.module_for(task)
        assert "\n" not in str(error.value)


@every_question
def test_a_model_starts_finite_and_is_counted_as_it_is_made(architecture, task):
    module, length = architecture.module_for(task), task.context_length
    assert architecture.module_for(dataclasses.replace(task, seed=9)) is module
    variables = models.init(module, length, jax.random.key(0))
    by_flax = jax.eval_shape(lambda: module.init(jax.random.key(0), *module.example(length)))
    known = models.shapes(module, length)
    for ours, theirs, shape in zip(
        *map(jax.tree.leaves_with_path, (variables, by_flax, known)), strict=True
    ):
        assert ours[0] == theirs[0] == shape[0]
        assert (ours[1].shape, ours[1].dtype) == (theirs[1].shape, theirs[1].dtype)
        assert (shape[1].shape, shape[1].dtype) == (theirs[1].shape, theirs[1].dtype)
        assert np.isfinite(ours[1]).all()
    sizes = {name: x.size for name, x in variables["params"].items()}
    n_params, n_params_memory = models.count_parameters(module, length)
    assert n_params == sum(sizes.values()) > 0
    outside = sum(sizes.get(name, 0) for name in ("token_embedding", "unembedding"))
    assert n_params_memory == n_params - outside
    assert 0 < models.count_distinct(module, length) <= n_params
    assert {*itertools.chain(*module.parts().values())} <= sizes.keys()
    apply, inputs = quick_jit(module.apply), task.inputs(task.sample(), jnp.int32(0))
    output = apply(variables, *inputs)
    assert output.size
    assert np.isfinite(output).all()
    other = models.init(module, length, jax.random.key(1))
    assert not np.array_equal(output, apply(other, *inputs))


@every_question
def test_what_planning_asks_of_a_model_is_positive_and_grows_with_it(architecture, task):
    module, length = architecture.module_for(task), task.context_length
    larger = dataclasses.replace(architecture, d_model=2 * architecture.d_model).module_for(task)
    for measured in (
        lambda module: module.work(10, length),
        lambda module: module.activations(),
        lambda module: models.cells_to_trace(module, length),
    ):
        assert 0 < measured(module) <= measured(larger)
    np.testing.assert_allclose(module.work(20, length), 2 * module.work(10, length), rtol=0.9)


@every_question
def test_a_padded_model_is_the_smaller_one(architecture, task):
    """In its outputs and gradients, and no gradient leaves what was true size."""
    module, length = architecture.module_for(task), task.context_length
    sizes = models.paddable_sizes(module)
    larger = module.clone(**{name: size + 2 for name, size in sizes.items()})
    assert models.structure(module) == models.structure(larger)
    assert models.enclose([module, larger]) == larger
    if not sizes:
        assert larger == module
        return
    variables = models.init(module, length, jax.random.key(3))
    padded = models.pad_to(variables, models.shapes(larger, length))
    data = task.sample()
    inputs = task.inputs(data, jnp.int32(1))
    room = larger.example(length)
    longer = tuple(
        np.pad(x, [(0, more - size) for size, more in zip(x.shape, of.shape, strict=True)])
        for x, of in zip(map(np.asarray, inputs), room, strict=True)
    )

    @functools.partial(quick_jit, static_argnums=0)
    def outputs_and_gradient(module, variables, inputs):
        def loss(params):
            with jax.default_matmul_precision("highest"):
                output = module.apply({**variables, "params": params}, *inputs)
            # Of a larger vocabulary only the tokens that there are.
            return (output[..., :n_outputs] ** 2).sum(), output

        gradient, output = jax.grad(loss, has_aux=True)(variables["params"])
        return output, gradient

    n_outputs = jax.eval_shape(module.apply, variables, *inputs).shape[-1]
    output, gradient = outputs_and_gradient(module, variables, inputs)
    of_padded, padded_gradient = outputs_and_gradient(larger, padded, longer)
    np.testing.assert_allclose(of_padded[..., :n_outputs], output, atol=1e-5)
    grown = 0
    for name, x in gradient.items():
        there = np.array(padded_gradient[name])
        inside = tuple(slice(size) for size in x.shape)
        scale = max(abs(x).max(), 1) if x.size else 1
        np.testing.assert_allclose(there[inside], x, atol=1e-4 * scale, err_msg=name)
        grown += there.size - x.size
        there[inside] = 0
        assert not there.any(), name
    assert grown > 0


@pytest.mark.parametrize("name", Task.kinds())
def test_an_instance_has_the_shapes_that_are_known_before(name):
    for task in small.tasks(name):
        data, shapes = task.sample(), task.shapes()
        for x, shape in zip(jax.tree.leaves(data), jax.tree.leaves(shapes), strict=True):
            assert (x.shape, x.dtype) == (shape.shape, shape.dtype)
        prior_T = task.prior(data)
        assert prior_T.shape == (task.n_examples,)
        np.testing.assert_allclose(prior_T.sum(), 1)
        assert 0 < task.chance <= 1
        assert set(task.measures) <= rows.MEASURES.keys()
        assert task.signature() == dataclasses.replace(task, seed=7).signature()
        assert task.floats_shared() > 0
        assert len(task.answers(data)) == task.n_examples
