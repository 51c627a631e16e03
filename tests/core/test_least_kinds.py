"""The least that a user writes is enough: small kinds of each family, from packs to rows."""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd
import pytest
from flax import linen as nn

import memobench
from memobench import claims, theory
from memobench.analysis import theorems
from memobench.common.errors import RunsFailed, UserError, require
from memobench.constructions.base import Construction
from memobench.core import module as models
from memobench.core.architecture import Architecture
from memobench.core.cells import cells, from_cells, spec_columns
from memobench.core.columns import Column, by_name, choice, float_between, integer, number
from memobench.core.module import Module
from memobench.core.run import Cost, Method, PackResult, Run
from memobench.core.spec import kind
from memobench.engine import initializing
from memobench.experiments.mahdavi2024.own_methods import Annealing
from memobench.methods import training
from memobench.methods.optimum import Optimum
from memobench.methods.search import Search
from memobench.methods.training import Training
from memobench.models.transformer import AttentionOnly
from memobench.optimizers import Optimizer
from memobench.planner import costs, packing
from memobench.store import results, rows
from memobench.tasks.associations import Associations
from memobench.tasks.distributions import Distributions
from memobench.tasks.labelled_contexts import LabelledContexts
from memobench.tasks.tokens import TokenTask
from tests import small


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
    assert (task.is_even, task.one_answer) == (True, True)
    refused = (not task.slicing_error, task.constructible, task.in_blocks, task.is_fresh)
    assert refused == (False, False, False, False)
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
        (Construction.get_kind("dana2025")(), "'parity'"),
        (Annealing(), "^method: an Annealing does not train the task 'parity'"),
    ):
        with pytest.raises(UserError, match=said) as error:
            dataclasses.replace(runs[0], method=method)
        assert "\n" not in str(error.value)


def _serves(name, task):
    return small.serves(small.make(Architecture.get_kind(name), small.ARCHITECTURE), task)


def test_an_architecture_needs_its_module_and_a_module_its_call():
    architecture, task = _bag()(d_model=3), Associations(vocab_size=5)
    module = architecture.module_for(task)
    assert module.paddable == module.products() == ()
    assert module.parts() == {}
    assert not models.has_attention(module)
    variables = models.init(module, 2, jax.random.key(0))
    assert models.count_parameters(module, 2) == (15 + 20, 15 + 20)
    assert models.count_distinct(module, 2) == 35
    assert module.work(7, 2) == 7 * 35
    tokens_TxS = jnp.asarray(list(np.ndindex(5, 5)))
    alone = jax.jit(module.apply)
    every = jnp.stack([alone(variables, tokens_S) for tokens_S in tokens_TxS])
    np.testing.assert_allclose(models.all_logits(module, variables, tokens_TxS), every, atol=1e-6)
    assert architecture.shared_cells() == {
        **{"d_model": 3, "d_head": 3, "n_heads": 1, "n_layers": 1, "d_mlp": 0}
    }
    for trained in ("read_out", "all_but_attention"):
        run = Run(task=task, architecture=architecture, method=Training(trained=trained))
        with pytest.raises(UserError, match=f"^trained='{trained}': BagModule offers no"):
            run.method.check_model(run)
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
        for d in (2, 3)[: 1 + (method is QUICK)]
        for seed in (0, 1)
    ]
    packs = packing.plan(runs, "cpu")
    assert sorted(len(pack.runs) for pack in packs) == [2] * 5
    assert all(pack.waste == 0 and pack.memory_bytes > 0 for pack in packs)
    _assert_rows_lead_back(memobench.run(runs, progress=False), runs)
    packed = small.train(packing.make_pack(runs[:2]))
    alone = training.train_one(runs[1])
    np.testing.assert_allclose(packed.step_loss_RxL[1], alone.step_loss_RxL[0], atol=1e-5)


def test_a_method_needs_a_protocol_its_steps_whom_it_serves_and_its_training():
    @kind("untrained")
    class Untrained(Method):
        """The weights that a model starts out with."""

        protocol: ClassVar[str] = "none"
        steps: ClassVar[int] = 1

        def check_run(self, run):
            require(
                isinstance(run.task, TokenTask), "method: an Untrained reads tokens; give it some"
            )

        def train(self, pack, on_steps, checkpoints=None):
            still = Training(n_batches=1, epochs=1, learning_rate=0, final_learning_rate=0).exact()
            runs = [dataclasses.replace(run, method=still) for run in pack.runs]
            return small.train(packing.make_pack(runs, pack.module), on_steps)

    method = Untrained()
    assert method.batch_size is None
    assert Untrained.columns_of_rows() == {}
    task = Associations(vocab_size=5)
    runs = [
        Run(task=task, architecture=AttentionOnly(d_model=d, d_head=d), method=method, seed=seed)
        for d in (3, 4)
        for seed in (0, 1)
    ]
    (pack,) = packing.plan(runs, "cpu")
    module = runs[0].module()
    flops = 6 * module.work(25, 2)
    assert (
        method.cost(runs[0], module)
        == method.cost(runs[0])
        == Cost(steps=1, sequential_steps=1, rows_per_step=25, flops_per_step=flops)
    )
    assert packing.predicted_work(runs[0], pack.module) > 0
    assert len(packing.programs(pack)) == 1
    assert packing.programs(pack) == packing.programs(pack)
    assert costs.estimate_seconds(pack, 1) > costs.estimate_seconds(pack, 0) > 0
    table = memobench.run(runs, progress=False)
    _assert_rows_lead_back(table, runs)
    assert set(table["method"]) == {"untrained"}
    alone = training.train_one(dataclasses.replace(runs[0], method=Training(n_batches=1).exact()))
    np.testing.assert_allclose(table["loss"][0], alone.step_loss_RxL[0, 0], rtol=1e-5)
    with pytest.raises(UserError, match=r"^method: an Untrained reads tokens"):
        dataclasses.replace(runs[0], task=LabelledContexts(n_examples=4))


@pytest.mark.parametrize(
    ("left_out", "changed", "said"),
    [
        ("protocol", {}, "method lucky has no protocol; define it"),
        ("steps", {}, "method lucky has no steps; define it"),
        ("check_run", {}, "method lucky has no check_run; define it"),
        ("train", {}, "method lucky has no train; define it"),
        ("", {"protocol": "my own"}, "protocol='my own' is not a name"),
    ],
)
def test_a_method_that_lacks_something_is_refused(left_out, changed, said):
    whole = {"protocol": "none", "steps": 1, "check_run": lambda *_: None, "train": lambda *_: None}
    given = {name: x for name, x in {**whole, **changed}.items() if name != left_out}
    with pytest.raises(UserError, match=said):
        kind("lucky")(type("Lucky", (Method,), {**given, "version": "1"}))


@pytest.fixture
def lucky():
    """Runs a method of these steps that returns all else for its one model."""

    def run(**how):
        class Lucky(Method):
            protocol: ClassVar[str] = "none"
            steps: ClassVar[int] = how.pop("steps", 1)
            version: ClassVar[str] = "1"

            def check_run(self, run):
                pass

            def train(self, pack, on_steps, checkpoints=None):
                ends = {"accuracy_R": np.ones(1), "loss_R": np.zeros(1), "compile_seconds": 0.0}
                return PackResult.of_ends(**ends | how) if how else None

            @classmethod
            def columns_of_rows(cls):
                return by_name(Column("luck", "of it", float_between()))

        heads = AttentionOnly(d_model=3, d_head=3)
        task = Associations(vocab_size=5)
        run = Run(task=task, architecture=heads, method=kind("lucky")(Lucky)())
        return memobench.run([run], progress=False)

    return run


@pytest.mark.parametrize(
    ("result", "said"),
    [
        ({}, "its train must return a PackResult, got None"),
        *[
            ({"loss_R": loss_R}, "accuracy_R, loss_R, .* of its PackResult must be of 1 run and")
            for loss_R in (np.zeros(2), np.zeros((1, 1)), np.zeros((1, 0)))
        ],
        ({"columns": ({}, {})}, "columns of its PackResult must be of 1 run, got those of 2"),
        ({"weights": (None, None)}, "weights of its PackResult must be of 1 run, got those of 2"),
        (
            {"columns": ({"loss": 0},)},
            "PackResult has the column 'loss'; name it in columns_of_rows",
        ),
        ({"columns": ({"fortune": 0},)}, "PackResult has the column 'fortune'; name it in"),
        ({"columns": ({"luck": "much"},)}, r"row 1 has luck='much', not a number"),
        ({"columns": ({"luck": object()},)}, "not JSON serializable; report it, or fix the kind"),
        ({"variables": {"params": {}}}, "variables of its PackResult must be those of pack"),
    ],
)
def test_what_a_method_returns_is_looked_at(lucky, result, said):
    with pytest.raises(RunsFailed, match=said):
        lucky(**result)


def test_a_method_has_steps(lucky):
    with pytest.raises(UserError, match=r"^the steps of a method must be at least 1, got 0"):
        lucky(steps=0)


@pytest.mark.parametrize(("given", "kept"), [(np.float32(2), 2), (jnp.ones(()), 1), (np.nan, None)])
def test_columns_of_a_method_may_be_numbers_of_any_library(lucky, given, kept):
    (luck,) = lucky(columns=({"luck": given},))["luck"]
    assert luck == kept or (kept is None and pd.isna(luck))


def test_a_field_that_the_method_has_too_is_refused_before_anything_trains(monkeypatch):
    @kind("rated")
    class Rated(Optimizer):
        learning_rate: float = number("of its own", default=1.0)

        def transform(self):
            return optax.identity()

    monkeypatch.setattr(Training, "train", None)
    heads = AttentionOnly(d_model=3, d_head=3)
    run = Run(task=Associations(vocab_size=5), architecture=heads, method=QUICK)
    rated = dataclasses.replace(run, method=QUICK.replace(optimizer=Rated()))
    with pytest.raises(UserError, match="learning_rate is a column of two fields of trained"):
        memobench.run([run, rated], progress=False)


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

        def train(self, pack, on_steps, checkpoints=None):
            raise AssertionError

    def labelled(base, name):
        cls = type(name, (base,), {"__annotations__": {name: str}, name: choice("", "a", "b")})
        cls.variant = classmethod(lambda cls, row: f"{name} {row[name]}")
        return kind(name)(cls)

    def label(**changes):
        plain = {"task": Associations(), "architecture": _bag()(d_model=3), "method": Guessed()}
        return claims.variant(_table(Run(**plain | changes))).item()

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
    assert {own} == set(theorems.lower_bounds()) - set(theory.LOWER_BOUNDS)
    assert {none} == set(theorems.upper_bounds()) - set(theory.UPPER_BOUNDS)
    # Nobody says that a theorem is about the bag; the other is about associations too.
    table = _table(bag, *runs, every)
    np.testing.assert_array_equal(theorems.promised_examples(table), [np.nan, np.nan, 6, 25])
    known = [float(theorems.promised_examples(cells(run))) for run in (bag, *runs, every)]
    np.testing.assert_array_equal(known, theorems.promised_examples(table))
    ((limit, _, beyond),) = theorems.violations(
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
