"""What every kind is asked: all that are registered answer, and the least that a user writes does.

The first half goes through the registries. The second defines one small kind of each family, with
nothing but what its base class demands, and takes it the way of ours: packs, rows, and back.
"""

import dataclasses
import functools
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn

import memobench
from memobench import claims, theory
from memobench.columns import choice, integer, require
from memobench.engine import initializing
from memobench.errors import UserError
from memobench.methods import training
from memobench.methods.annealing import Annealing
from memobench.methods.base import Method
from memobench.methods.construction import Construction
from memobench.methods.optimum import Optimum
from memobench.methods.search import Search
from memobench.methods.training import Training
from memobench.models import base as models
from memobench.models.base import Architecture, Module
from memobench.models.transformer import AttentionOnly
from memobench.optimizers import Optimizer
from memobench.planner import costs, packing
from memobench.runs import Run, cells, from_cells, spec_columns
from memobench.spec import kind
from memobench.table import results, rows
from memobench.tasks.associations import Associations
from memobench.tasks.base import Task
from memobench.tasks.distributions import Distributions
from memobench.tasks.labelled_contexts import LabelledContexts
from memobench.tasks.tokens import TokenTask
from tests import small

quick_jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


# --- Every registered kind ----------------------------------------------------------------------


every_question = pytest.mark.parametrize(("architecture", "task"), list(small.questions()))


@pytest.mark.parametrize("task_name", Task.kinds())
@pytest.mark.parametrize("name", Architecture.kinds())
def test_an_architecture_serves_the_tasks_whose_question_it_answers(name, task_name):
    architecture, tasks = (
        small.make(Architecture.named(name), small.ARCHITECTURE),
        small.tasks(task_name),
    )
    assert tasks
    answers = tasks[0].question in architecture.answers
    # Memories of one token are built where a sequence has no more.
    assert any(small.serves(architecture, task) for task in tasks) == answers
    for task in tasks if not answers else ():
        said = rf"^architecture {name} does not serve the task '{task_name}', whose .*; choose \w"
        with pytest.raises(UserError, match=said) as error:
            architecture.build(task)
        assert "\n" not in str(error.value)


@every_question
def test_a_model_starts_finite_and_is_counted_as_it_is_made(architecture, task):
    module, length = architecture.build(task), task.context_length
    assert architecture.build(dataclasses.replace(task, seed=9)) is module
    variables = models.init(module, length, jax.random.key(0))
    by_flax = models.shapes(module, length)
    for ours, theirs in zip(
        jax.tree.leaves_with_path(variables), jax.tree.leaves_with_path(by_flax), strict=True
    ):
        assert ours[0] == theirs[0]
        assert (ours[1].shape, ours[1].dtype) == (theirs[1].shape, theirs[1].dtype)
        assert np.isfinite(ours[1]).all()
    sizes = {name: x.size for name, x in variables["params"].items()}
    n_params, n_params_memory = models.count_parameters(module, length)
    assert n_params == sum(sizes.values()) > 0
    outside = sum(sizes.get(name, 0) for name in ("token_embedding", "unembedding"))
    assert n_params_memory == n_params - outside
    assert 0 < models.count_distinct(module, length) <= n_params
    assert {*module.read_out(), *module.attention_maps()} <= sizes.keys()
    output = module.apply(variables, *task.inputs(task.sample(), jnp.int32(0)))
    assert output.size
    assert np.isfinite(output).all()
    other = models.init(module, length, jax.random.key(1))
    assert not np.array_equal(
        output, module.apply(other, *task.inputs(task.sample(), jnp.int32(0)))
    )


@every_question
def test_what_planning_asks_of_a_model_is_positive_and_grows_with_it(architecture, task):
    module, length = architecture.build(task), task.context_length
    larger = dataclasses.replace(architecture, d_model=2 * architecture.d_model).build(task)
    for measured in (
        lambda module: module.work(10, length),
        lambda module: module.activations(),
        lambda module: module.cells_to_trace(length),
    ):
        assert 0 < measured(module) <= measured(larger)
    np.testing.assert_allclose(module.work(20, length), 2 * module.work(10, length), rtol=0.9)
    for shared in (True, False):
        assert 0 <= module.floats_per_example(length, shared)


@every_question
def test_a_padded_model_is_the_smaller_one(architecture, task):
    """In its outputs and gradients, and no gradient leaves what was true size."""
    module, length = architecture.build(task), task.context_length
    sizes = models.paddable_sizes(module)
    larger = module.clone(**{name: size + 2 for name, size in sizes.items()})
    assert models.structure(module) == models.structure(larger)
    assert models.enclosing([module, larger]) == larger
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


# --- The least that a user writes ---------------------------------------------------------------


def _parity():
    @kind("parity")
    class Parity(TokenTask):
        """Sequences are followed by whether their tokens add up to an odd number."""

        vocab_size: int = integer("tokens in the vocabulary", 2, default=4)
        context_length: int = integer("tokens of a sequence", 1, default=2)

        @property
        def n_examples(self):
            return self.vocab_size**self.context_length

        def sample_next(self, key):
            del key
            digits = np.array(list(np.ndindex(*[self.vocab_size] * self.context_length)))
            next_Tx1 = jnp.asarray(digits.sum(axis=1, keepdims=True) % 2, jnp.int32)
            return next_Tx1, jnp.ones(next_Tx1.shape)

    return Parity


class BagModule(Module):
    """Logits of the sum of the tokens' vectors."""

    vocab_size: int
    d_model: int

    @nn.compact
    def __call__(self, tokens_S):
        x_D = nn.Embed(self.vocab_size, self.d_model, name="vectors")(tokens_S).sum(axis=0)
        return nn.Dense(self.vocab_size, name="read")(x_D)


def _bag():
    @kind("bag_of_tokens")
    class Bag(Architecture):
        """The sum of the tokens' vectors, read out."""

        def module(self, task: Any) -> BagModule:
            return BagModule(vocab_size=task.vocab_size, d_model=self.d_model)

    return Bag


QUICK = Training(batch_size=8, n_batches=4, epochs=2)


def _assert_rows_lead_back(table, runs):
    assert table["run_id"].tolist() == [run.run_id for run in runs]
    assert (table["status"] == "ok").all()
    for run in runs:
        row = cells(run)
        assert from_cells(row) == run
        assert row.keys() <= spec_columns().keys()


def test_a_task_needs_its_sizes_and_what_comes_next():
    task = _parity()(vocab_size=4)
    assert (task.n_predicted, task.n_choices, task.chance) == (16, 4, 1 / 4)
    assert set(task.measures) == rows.MEASURES.keys()
    assert (task.is_even, task.counts_examples, task.one_answer) == (True, True, True)
    refused = (task.parts, task.constructible, task.in_blocks, task.is_fresh)
    assert refused == (False, False, False, False)
    np.testing.assert_allclose(task.least_loss_unknown, np.log(2))
    np.testing.assert_array_equal(task.prior(task.sample()), np.full(16, 1 / 16))
    assert task.answers(task.sample()).tolist()[:6] == [0, 1, 0, 1, 1, 0]
    serving = [name for name in Architecture.kinds() if _serves(name, task)]
    assert set(serving) == {
        *("attention_only", "mlp", "gpt", "sequence_encoder"),
        *("modern", "mixture_of_experts", "product_key_memory"),
    }
    heads = AttentionOnly(d_model=4, d_head=4, n_heads=8)
    runs = [
        Run(task=task.replace(seed=seed), architecture=heads, method=method, seed=seed)
        for method in (QUICK, Training(n_batches=60, epochs=2, learning_rate=0.03).exact())
        for seed in (0, 1)
    ]
    assert [len(pack.runs) for pack in packing.plan(runs, "cpu")] == [2, 2]
    table = memobench.run(runs, progress=False)
    _assert_rows_lead_back(table, runs)
    assert table["accuracy"].max() == 1
    np.testing.assert_allclose(table["bits"], 16 * (2 - table["loss"] / np.log(2)), rtol=1e-5)
    for method, said in (
        (Search(training=QUICK), "^method: a Search does not serve the task 'parity'"),
        (Construction.named("dana2025")(), "'parity'"),
        (Annealing(), "^method: an Annealing does not train the task 'parity'"),
    ):
        with pytest.raises(UserError, match=said) as error:
            dataclasses.replace(runs[0], method=method)
        assert "\n" not in str(error.value)


def _serves(name, task):
    return small.serves(small.make(Architecture.named(name), small.ARCHITECTURE), task)


def test_an_architecture_needs_its_module_and_a_module_its_call():
    architecture, task = _bag()(d_model=3), Associations(vocab_size=5)
    module = architecture.build(task)
    assert (module.paddable, module.attends, module.deep) == ((), False, False)
    assert module.read_out() == module.attention_maps() == module.products() == ()
    variables = models.init(module, 2, jax.random.key(0))
    assert models.count_parameters(module, 2) == (15 + 20, 15 + 20)
    assert models.count_distinct(module, 2) == 35
    assert module.work(7, 2) == 7 * 35
    tokens_TxS = jnp.asarray(list(np.ndindex(5, 5)))
    alone = jax.jit(module.apply)
    every = jnp.stack([alone(variables, tokens_S) for tokens_S in tokens_TxS])
    np.testing.assert_allclose(module.all_logits(variables, tokens_TxS), every, atol=1e-6)
    assert architecture.shared_cells() == {
        **{"d_model": 3, "d_head": 3, "n_heads": 1, "n_layers": 1, "d_mlp": 0}
    }
    for trained in ("read_out", "all_but_attention"):
        with pytest.raises(UserError, match=f"^trained='{trained}': BagModule offers no"):
            Training(trained=trained).check_module(module)
    assert all(map(Training(trained="memory").trains(module), variables["params"]))


def test_models_that_do_not_pad_share_packs_with_their_own_size_by_every_method():
    bag, task = _bag(), Associations(vocab_size=5, n_sequences=20)
    exact = Training(n_batches=4, epochs=2, learning_rate=0.1).exact()
    methods = [
        QUICK,
        exact,
        Search(training=exact, doublings=0),
        Optimum(starts=2, adam_steps=5, polished=1, steps=5),
    ]
    runs = [
        Run(task=task, architecture=bag(d_model=d), method=method, seed=seed)
        for method in methods
        for d in (2, 3)
        for seed in (0, 1)
    ]
    packs = packing.plan(runs, "cpu")
    assert sorted(len(pack.runs) for pack in packs) == [2] * 8
    assert all(pack.waste == 0 and pack.memory_bytes > 0 for pack in packs)
    _assert_rows_lead_back(memobench.run(runs, progress=False), runs)
    packed = training.train_many(packing.make_pack(runs[:2]))
    alone = training.train_one(runs[1])
    np.testing.assert_allclose(packed.step_loss_RxL[1], alone.step_loss_RxL[0], atol=1e-5)


def test_a_method_needs_a_protocol_its_steps_whom_it_serves_and_its_training():
    @kind("untrained")
    class Untrained(Method):
        """The weights that a model starts out with."""

        protocol: ClassVar[str] = "none"
        steps: ClassVar[int] = 1

        def check_run(self, run):
            require(run.task.of_tokens, "method: an Untrained reads tokens; give it some")

        def train(self, pack, on_steps, checkpoints=None):
            still = Training(n_batches=1, epochs=1, learning_rate=0, final_learning_rate=0).exact()
            runs = [dataclasses.replace(run, method=still) for run in pack.runs]
            return training.train_many(packing.make_pack(runs, pack.module), on_steps)

    method = Untrained()
    assert (method.lanes, method.starts, method.batch_size, method.start) == (1, 1, None, None)
    assert (method.queues, method.solves, method.has_curve) == (False, False, False)
    assert Untrained.columns_of_rows() == {}
    task = Associations(vocab_size=5)
    runs = [
        Run(task=task, architecture=AttentionOnly(d_model=d, d_head=d), method=method, seed=seed)
        for d in (3, 4)
        for seed in (0, 1)
    ]
    (pack,) = packing.plan(runs, "cpu")
    assert method.rows_per_step(runs[0]) == 25
    assert method.predicted_steps(runs[0]) == 1
    assert packing.predicted_work(runs[0], pack.module) > 0
    assert len(method.programs(pack)) == 1
    assert method.programs(pack) == method.programs(pack)
    assert (costs.amounts(pack, 1) >= 0).all()
    table = memobench.run(runs, progress=False)
    _assert_rows_lead_back(table, runs)
    assert set(table["method"]) == {"untrained"}
    alone = training.train_one(dataclasses.replace(runs[0], method=Training(n_batches=1).exact()))
    np.testing.assert_allclose(table["loss"][0], alone.step_loss_RxL[0, 0], rtol=1e-5)
    with pytest.raises(UserError, match=r"^method: an Untrained reads tokens"):
        dataclasses.replace(runs[0], task=LabelledContexts(n_examples=4))


def test_an_optimiser_needs_its_transform():
    @kind("plain")
    class Plain(Optimizer):
        """Gradient descent."""

        def transform(self):
            return optax.identity()

    exact = Training(n_batches=2, epochs=1, learning_rate=0.5).exact()
    adam, plain = (
        Run(
            task=Associations(vocab_size=5),
            architecture=AttentionOnly(d_model=4, d_head=4),
            method=exact.replace(optimizer=optimizer),
        )
        for optimizer in (exact.optimizer, Plain())
    )
    assert len(packing.plan([adam, plain], "cpu")) == 2
    table = memobench.run([adam, plain], progress=False)
    _assert_rows_lead_back(table, [adam, plain])
    assert table["optimizer"].tolist() == ["adam", "plain"]
    module, task = plain.module(), plain.task
    variables, instance = models.init(module, 2, initializing.init_key(plain)), task.sample()

    @jax.jit
    def loss(params):
        return task.objective(module, {**variables, "params": params}, instance)[0]

    gradient = jax.grad(loss)(variables["params"])
    after = jax.tree.map(lambda p, g: p - 0.5 * g, variables["params"], gradient)
    np.testing.assert_allclose(
        table["curve_loss"][1], [loss(variables["params"]), loss(after)], rtol=1e-5
    )


def _table(*runs):
    return results.to_table([cells(run) for run in runs])


def test_kinds_say_under_which_label_their_rows_are_judged():
    @kind("guessed")
    class Guessed(Method):
        """The answer of a coin."""

        protocol: ClassVar[str] = "coins"
        steps: ClassVar[int] = 3

        def check_run(self, run):
            pass

    def labelled(base, name):
        cls = type(name, (base,), {"__annotations__": {name: str}, name: choice("", "a", "b")})
        cls.variant = classmethod(lambda cls, row: f"{name} {row[name]}")
        return kind(name)(cls)

    def label(**changes):
        plain = {"task": Associations(), "architecture": _bag()(d_model=3), "method": Guessed()}
        return claims.variant(_table(Run(**plain | changes))).item()

    assert Guessed().in_words == "guessed, coins protocol, 3 steps of all examples"
    assert label() == "coins"
    found = {"architecture": labelled(_bag(), "read")(read="a", d_model=3)}
    assert label(**found) == "coins, read a"
    found["task"] = labelled(Associations, "pairs")(pairs="b")
    assert label(**found) == "pairs b"
    found["method"] = labelled(Guessed, "coin")(coin="a")
    assert label(**found) == "coin a"


def test_kinds_say_which_theorems_are_about_them():
    own = theory.Bound(
        name="twice the width",
        source="here",
        value=lambda sizes: 2 * sizes["d_model"],
        about=("architecture",),
    )
    none = theory.Limit(
        name="nothing at all",
        source="here",
        measure=lambda sizes: sizes["accuracy"],
        value=lambda sizes: 0.5,
        about=("architecture",),
    )

    @kind("wide_bag")
    class Wide(_bag()):
        theorems: ClassVar[dict] = {
            own: lambda sizes: sizes["d_model"] > 2,
            none: theory.always,
            theory.RANDOM_FEATURES: theory.always,
            theory.PROPOSITION_3: theory.always,
        }

    task = Associations(vocab_size=5)
    seen = Distributions(vocab_size=5, conditional="uniform", n_next=2)
    bag = Run(task=seen, architecture=_bag()(d_model=3))
    runs = [Run(task=seen, architecture=Wide(d_model=d)) for d in (2, 3)]
    every = Run(task=task, architecture=Wide(d_model=2))
    assert {own} == set(theory.lower_bounds()) - set(theory.LOWER_BOUNDS)
    assert {none} == set(theory.upper_bounds()) - set(theory.UPPER_BOUNDS)
    # Nobody says that a theorem is about the bag; the other is about associations too.
    table = _table(bag, *runs, every)
    np.testing.assert_array_equal(theory.promised(table), [np.nan, np.nan, 6, 25])
    known = [float(theory.promised(cells(run))) for run in (bag, *runs, every)]
    np.testing.assert_array_equal(known, theory.promised(table))
    ((limit, _, beyond),) = theory.violations(
        table.assign(accuracy=[1.0, 0.4, 0.6, 0.5], n_params=9)
    )
    assert (limit, beyond.tolist()) == (none, [False, False, True, False])


def test_a_column_of_several_kinds_holds_what_any_of_them_writes():
    @kind("coarse")
    class Coarse(Optimizer):
        """An optimiser whose `eps` is a word."""

        eps: str = choice("how small", "tiny", "small", default="tiny")

    run = Run(
        task=Associations(vocab_size=5),
        architecture=AttentionOnly(d_model=4, d_head=4),
        method=Training(optimizer=Coarse()),
    )
    assert from_cells(cells(run)) == run
    eps, protocol = (spec_columns()[name].domain for name in ("eps", "protocol"))
    assert [eps.holds(x) for x in ("small", 1e-8, "huge", 0.0)] == [True, True, False, False]
    # What all rows have is not what one method may choose.
    assert all(map(protocol.holds, ("annealed", "published", "optimal", "constructed")))


def test_a_kind_made_anew_with_other_fields_has_their_columns():
    for options in ({"first": 1}, {"second": 2}):
        (field,) = options
        cls = type(
            "Anew", (Optimizer,), {"__annotations__": {field: int}, field: integer("a number", 1)}
        )
        made = kind("anew")(cls)
        assert field in spec_columns()
        assert made(**options, code=None).canonical() == {"name": "anew", **options}
    assert "first" not in spec_columns()
