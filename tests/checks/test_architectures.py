"""What is wrong with an architecture is said before anything trains."""

import itertools
import math
import pathlib
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

import memobench
from memobench import certificates
from memobench.checks import architectures as checking
from memobench.checks import tasks as task_checking
from memobench.common.errors import UserError
from memobench.core import module as models
from memobench.core.architecture import Architecture
from memobench.core.columns import choice, integer
from memobench.core.module import Module
from memobench.core.spec import kind
from memobench.core.task import Task
from memobench.methods.training import Training
from memobench.runtime import verify
from memobench.tasks.associations import Associations
from tests import small
from tests.drawn import assert_one_line

METHOD = Training(n_batches=2, epochs=1).exact()
NUMBERS = itertools.count()


class Own(Module):
    """A table of embeddings, and one fault."""

    vocab_size: int
    d_model: int
    fault: str

    paddable = ("d_model",)

    @nn.compact
    def __call__(self, tokens_S):
        n, d, normal = self.vocab_size, self.d_model, nn.initializers.normal()
        x_D = self.param("embedding", normal, (n, d))[tokens_S].sum(axis=0)
        if self.fault == "mean":
            return nn.Dense(n)(nn.Embed(n, d)(tokens_S).mean(axis=1))
        if self.fault == "reshape":
            return nn.Dense(n)(nn.Embed(n, d)(tokens_S).reshape(tokens_S.shape[0], -1))
        if self.fault == "batch":
            n_examples, _ = tokens_S.shape
            return nn.Dense(n)(nn.Embed(n, d)(tokens_S).reshape(n_examples, -1))
        if self.fault == "norm":
            x_D = nn.LayerNorm()(x_D)
        if self.fault == "random":
            key = self.make_rng("params") if self.is_initializing() else None
            x_D *= self.variable("constants", "gate", lambda: normal(key, (d,))).value
        if self.fault == "statistics":
            x_D -= self.variable("batch_stats", "mean", jnp.zeros, (d,)).value
        n_outputs = n + 1 if self.fault == "outputs" else n
        return self.param("unembedding", normal, (n_outputs, d)) @ x_D


FAULTS = {
    "outputs": r"its output has shape \(7,\), and the task asks for \(6,\)",
    "norm": "padding d_model with zeros changes its function or gradient",
    "random": "its constants are drawn at random",
    "statistics": "a collection 'batch_stats', which is neither trained nor counted",
    "mean": "it must read one example, got one that reads a batch. Leave the batch axis out",
    "reshape": "it must read one example, got one that reads a batch. Leave the batch axis out",
    "batch": r"not enough values to unpack .*test_.*py, line \d+\): it must read one example, got ",
    "": "n_neurons changes nothing",
}


@pytest.fixture
def own():
    @kind("own")
    class OwnArchitecture(Architecture):
        n_neurons: int = integer("of nothing", 1, default=3)

        def module(self, task: Any) -> Own:
            return Own(task.vocab_size, self.d_model, self.fault)

    return OwnArchitecture


@pytest.mark.parametrize(("fault", "said"), FAULTS.items())
def test_a_fault_is_said_and_never_trained(own, fault, said):
    own.fault = fault
    lines = memobench.check(own(d_model=3))
    assert re.search(said, lines[0])
    task = Associations(vocab_size=6)
    run = memobench.Run(task=task, architecture=own(d_model=3), method=METHOD)
    with pytest.raises(UserError, match=f"architecture own: .*{said}"):
        memobench.run([run], progress=False)


class Neurons(Module):
    """Embeddings, and neurons if there are any."""

    vocab_size: int
    d_model: int = 4
    d_mlp: int = 8
    activation: str = "relu"

    @nn.compact
    def __call__(self, tokens_S):
        x_D = nn.Embed(self.vocab_size, self.d_model)(tokens_S).sum(0)
        if self.d_mlp:
            x_D = nn.Dense(self.d_model)(getattr(nn, self.activation)(nn.Dense(self.d_mlp)(x_D)))
        return nn.Dense(self.vocab_size)(x_D)


@pytest.mark.parametrize(
    ("given", "dropped"),
    [
        ({"d_model", "d_mlp", "activation"}, ()),
        ({"d_model", "d_mlp"}, ("activation",)),
        ({"d_model"}, ("activation", "d_mlp")),
        ({"d_mlp", "activation"}, ("d_model",)),
    ],
)
def test_a_field_that_the_module_is_not_given_is_refused(given, dropped):
    """The module's default would be trained, and ranked under the field's value."""

    @kind("own")
    class Drops(Architecture):
        d_mlp: int = integer("neurons", 0)
        activation: str = choice("of neurons", "relu", "gelu", default="relu")

        def module(self, task: Any) -> Neurons:
            read = {"activation"} if not self.d_mlp else set()
            return Neurons(task.vocab_size, **{x: getattr(self, x) for x in given - read})

    # Without neurons their activation changes nothing, and is no fault.
    for d_mlp in (0, 8):
        own = Drops(d_model=3, d_mlp=d_mlp, activation="gelu")
        lines = memobench.check(own)
        place = rf" changes nothing: .* \({__file__}, line \d+\); give it to the module or leave "
        assert [line.split()[0] for line in lines] == list(dropped)
        assert all(re.search(place, line) for line in lines)
        run = memobench.Run(task=Associations(vocab_size=6), architecture=own, method=METHOD)
        if not dropped:
            assert len(memobench.plan([run])) == 1
            continue
        with pytest.raises(UserError, match=f"architecture own: {dropped[0]}{place}"):
            memobench.run([run], progress=False)


class Trains(Module):
    """It asks whether it trains, which nothing tells it."""

    vocab_size: int

    @nn.compact
    def __call__(self, tokens_S, train):
        return nn.Embed(self.vocab_size, self.vocab_size)(tokens_S).mean(0)


def test_arguments_that_nothing_gives_are_named_with_their_line():
    @kind("own")
    class Asks(Architecture):
        def module(self, task: Any) -> Trains:
            return Trains(task.vocab_size)

    said = rf"Trains.__call__ must take 1 argument, .*\(tokens_S, train\) \({__file__}, line \d+\)"
    assert re.match(said, memobench.check(Asks(d_model=16))[0])
    with pytest.raises(UserError, match=said):
        memobench.board_run(Asks(d_model=16), budget=256)


def _starting(value):
    return lambda key, shape, dtype: jnp.full(shape, value, dtype)


def _of_numpy(key, shape, dtype):
    """Numbers that a trace makes constants of the program: all seeds have them."""
    return jnp.asarray(np.random.default_rng().normal(size=shape), dtype)


def _half_of_numpy(key, shape, dtype):
    return nn.initializers.normal()(key, shape, dtype) + np.random.default_rng().normal()


NORMAL = nn.initializers.normal()
# Name, initializer and type of the first parameter.
FIRST = {
    "complex": ("first", NORMAL, jnp.complex64),
    "bfloat16": ("first", NORMAL, jnp.bfloat16),
    "float16": ("first", NORMAL, jnp.float16),
    "int": ("first", nn.initializers.ones, jnp.int32),
    "bool": ("first", nn.initializers.ones, jnp.bool_),
    "slash": ("fir/st", NORMAL, jnp.float32),
    "space": ("fir st", NORMAL, jnp.float32),
    "metadata": ("__metadata__", NORMAL, jnp.float32),
    "numpy": ("first", _of_numpy, jnp.float32),
    "half numpy": ("first", _half_of_numpy, jnp.float32),
    "nan": ("first", _starting(np.nan), jnp.float32),
    "infinite": ("first", _starting(-np.inf), jnp.float32),
    "boxed": ("first", nn.with_partitioning(NORMAL, ("rows", None)), jnp.float32),
}


class Odd(Module):
    """A table of embeddings, and something odd."""

    vocab_size: int
    d_model: int
    odd: str

    @nn.compact
    def __call__(self, tokens_S):
        shape, odd = (self.vocab_size, self.d_model), self.odd
        name, initializer, dtype = FIRST.get(odd, ("first", NORMAL, jnp.float32))
        x_D = self.param(name, initializer, shape, dtype)[tokens_S].sum(axis=0)
        x_D = x_D.real.astype(jnp.float32)
        if odd == "tuple":
            x_D += self.param("both", lambda key: (jnp.ones(()), jnp.zeros(())))[0]
        if odd == "scalar":
            x_D *= self.param("scale", nn.initializers.ones, ())
        if odd == "dropout":
            x_D = nn.Dropout(0.5, deterministic=False)(x_D)
        if odd == "noise":
            x_D += jax.random.normal(self.make_rng("noise"), x_D.shape)
        if odd == "asserts":
            raise AssertionError("too\nnarrow")
        if odd == "logarithm":
            x_D = jnp.log(-jnp.abs(x_D))
        if "random" in odd:
            x_D += np.random.default_rng().standard_normal(x_D.shape)
        if odd == "hidden random":
            return 1e-6 * self.param("unembedding", nn.initializers.zeros, shape) @ x_D
        if odd == "pole":
            x_D += jnp.linalg.norm(self.param("zero", nn.initializers.zeros, (2,)))
        if odd == "endless":
            x_D = jax.lax.while_loop(lambda x_D: x_D.sum() > 1, lambda x_D: x_D / 2, x_D)
        return self.param("unembedding", NORMAL, shape) @ x_D

    def work(self, n_examples, context_length):
        if self.odd == "work":
            return "much"
        if self.odd == "no work":
            return 0
        return super().work(n_examples, context_length)

    def idle(self):
        if self.odd == "idle":
            raise LookupError("no experts")
        return 37 * (self.odd == "more idle")


class Empty(Module):
    """A model without parameters."""

    vocab_size: int

    def __call__(self, tokens_S):
        return jnp.zeros(self.vocab_size).at[tokens_S[0]].set(1.0)


def _line(odd, which="odd"):
    """Where a module or a task raises."""
    lines = pathlib.Path(__file__).read_text().splitlines()
    (place,) = (i for i, line in enumerate(lines) if line.endswith(f'if {which} == "{odd}":'))
    return rf"\({re.escape(__file__)}, line {place + 2}\); fix it"


NAMED = "must each have a name of letters, digits, dots and dashes; rename it"
ODDITIES = {
    **{
        odd: f"the parameter 'first' must be float32, got {FIRST[odd][2].dtype}; give self.param"
        for odd in ("complex", "bfloat16", "float16", "int", "bool")
    },
    "slash": f"the parameter 'fir/st' must be an array, and it .* {NAMED}; nn.WeightNorm names ",
    "space": f"the parameter 'fir st' must be an array, and it .* {NAMED}",
    "metadata": f"the parameter '__metadata__' must be an array, and it .* {NAMED}",
    "tuple": f"the parameter 'both/0' must be an array, and it .* {NAMED}",
    "numpy": "the parameter 'first' must follow from the key, got other numbers each time; draw",
    "half numpy": "the parameter 'first' must follow from the key, got other numbers",
    "nan": "the parameter 'first' must start finite, got nan; fix its initializer",
    "infinite": "the parameter 'first' must start finite, got -inf; fix its initializer",
    "logarithm": "its outputs must be finite with initial weights, got nan; fix",
    "random": "its outputs must follow from weights and tokens, got others each time",
    "hidden random": "its outputs must follow from weights and tokens, got others each time",
    "pole": "its gradient must be finite with initial weights, got nan; fix",
    "endless": "its module raises ValueError: Reverse-mode differentiation does not work for",
    "dropout": f'its module raises InvalidRngError: .*"dropout".* {_line("dropout")}: nothing but',
    "noise": f'its module raises InvalidRngError: .*"noise".* {_line("noise")}: nothing but',
    "asserts": f"its module raises AssertionError: too narrow {_line('asserts')}$",
    "work": "its work must be a number >= 0, got 'much'; fix it",
    "no work": "its work must be above 0, got 0: packs are planned by it; fix it",
    "idle": f"its module raises LookupError: no experts {_line('idle', 'self.odd')}$",
    "more idle": "its n_params_active must be a number >= 0, got -1; fix it",
    "empty": "it must have parameters, got none",
    "of no module": f"its method module raises ZeroDivisionError: .* {_line('of no module')}$",
}


@pytest.fixture
def odd():
    @kind("odd")
    class OddArchitecture(Architecture):
        odd: str = choice("about it", "", *FIRST, *ODDITIES, "scalar", default="")

        def module(self, task: Any) -> Module:
            odd = self.odd
            if odd == "of no module":
                1 / 0  # noqa: B018
            if odd == "empty":
                return Empty(task.vocab_size)
            return Odd(task.vocab_size, self.d_model, odd)

    return OddArchitecture


def _run(architecture):
    return memobench.Run(task=Associations(vocab_size=6), architecture=architecture, method=METHOD)


@pytest.mark.parametrize(("what", "said"), ODDITIES.items(), ids=ODDITIES)
def test_what_cannot_be_trained_is_one_line_before_anything_trains(odd, what, said, monkeypatch):
    monkeypatch.setattr(Training, "train", None)
    run = _run(odd(d_model=3, odd=what))
    with pytest.raises(UserError) as error:
        memobench.run([run], progress=False)
    assert_one_line(error.value, "architecture odd: ")
    assert re.search(f"^architecture odd: {said}", str(error.value))
    if what == "of no module":  # There is nothing to check.
        with pytest.raises(UserError, match=said):
            memobench.check(run.architecture, run.task)
    else:
        line, *_ = memobench.check(run.architecture, run.task)
        assert f"architecture odd: {line}" == str(error.value)


def test_scalars_and_boxed_parameters_are_trained_kept_and_verified(odd, tmp_path):
    runs = [_run(odd(d_model=3, odd=what)) for what in ("", "boxed", "scalar")]
    assert all(memobench.check(run.architecture, run.task) == () for run in runs)
    table = memobench.run(runs, tmp_path, progress=False)
    assert table["status"].tolist() == ["ok"] * 3
    assert table["n_params"].tolist() == [36, 36, 37]
    # What boxes say is of where a parameter lies, which changes no number.
    assert table["loss"][0] == table["loss"][1]
    kept = [memobench.weights(run, tmp_path)["params"] for run in runs]
    np.testing.assert_array_equal(kept[0]["first"], kept[1]["first"])
    assert kept[2]["scale"].shape == ()
    found = verify.verify(tmp_path, recompute=True)
    assert (found.runs, found.errors) == (3, ())


def test_weights_of_a_name_with_a_slash_are_refused_in_one_line(odd, tmp_path, monkeypatch):
    """As an earlier version kept them: one such file does not end the check of a whole folder."""
    run = _run(odd(d_model=3, odd="slash"))
    with monkeypatch.context() as unchecked:
        unchecked.setattr(
            checking,
            "_SOUND",
            {(models.structure(run.module()), run.task.pack_key()): {run.module()}},
        )
        unchecked.setattr(
            certificates, "shapes", lambda *_: {"fir/st": (6, 3), "unembedding": (6, 3)}
        )
        memobench.run([run], tmp_path, progress=False)
    for recompute in (False, True):
        found = verify.verify(tmp_path, recompute=recompute)
        (line,) = found.errors
        assert "the parameter 'fir/st' has a slash in its name; rename it" in line


class Grouped(Module):
    """Of unit norm in groups of eight features or more: one group below 16."""

    vocab_size: int
    d_model: int
    paddable = ("d_model",)

    @nn.compact
    def __call__(self, tokens_S):
        first, last = (
            self.param(name, nn.initializers.normal(0.3), (self.vocab_size, self.d_model))
            for name in ("first", "last")
        )
        x_GxD = first[tokens_S].prod(axis=0).reshape(max(1, self.d_model // 8), -1)
        x_GxD /= jnp.sqrt((x_GxD**2).sum(axis=1, keepdims=True) + 1e-3)
        return last @ x_GxD.ravel()


@pytest.mark.parametrize("sizes", [(12, 16), (16, 12)])
def test_padding_is_checked_up_to_the_largest_size_of_a_sweep(sizes):
    """Two more dimensions leave one group of 12; 16 have two."""

    class OfGroups(Architecture):
        version = "1"

        def module(self, task):
            return self.fill_module(Grouped, task)

    own = kind("of_groups")(OfGroups)
    runs = [
        memobench.Run(task=Associations(vocab_size=6), architecture=own(d_model=d), method=METHOD)
        for d in sizes
    ]
    with pytest.raises(UserError, match=r"^architecture of_groups: padding d_model.* with zeros"):
        memobench.run(runs, progress=False)
    memobench.run(runs[:1] if sizes[0] == 12 else runs[1:], progress=False)
    with pytest.raises(UserError, match=r"^architecture of_groups: padding d_model.* with zeros"):
        memobench.run(runs, progress=False)


def test_a_module_that_refuses_some_sizes_is_told_of_these_alone(odd, monkeypatch):
    """A size that is packed with one that was checked is looked at as well."""
    called = Odd.__call__

    def refusing(self, tokens_S):
        if self.d_model == 5:
            raise AssertionError("no fives")
        return called(self, tokens_S)

    monkeypatch.setattr(Odd, "__call__", refusing)
    monkeypatch.setattr(Odd, "paddable", ("d_model",))
    runs = [_run(odd(d_model=d)) for d in (4, 5)]
    assert memobench.check(runs[0].architecture) == ()
    assert len(memobench.plan(runs[:1])) == 1
    with pytest.raises(UserError, match=r"^architecture odd: its module raises .*: no fives \("):
        memobench.plan(runs)


def test_a_program_is_traced_twice_and_compiled_once(odd, monkeypatch):
    """Whether initial weights follow from the key costs a trace, where they do."""
    made, initializer = [], models.initializer

    def counted(*arguments):
        made.append(initializer(*arguments))
        return made[-1]

    monkeypatch.setattr(models, "initializer", counted)
    assert memobench.check(odd(d_model=7)) == ()
    assert [jitted._cache_size() for jitted in made] == [0, 0]


class Plain(nn.Module):
    """No module of memobench."""


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (lambda spec, _: None, "its module is a 'NoneType'; return a memobench"),
        (lambda spec, _: Plain(), "its module is a 'Plain'; return a memobench"),
        (
            lambda spec, task: spec.fill_module(Own, task),
            "neither it nor the task 'associations' has",
        ),
    ],
)
def test_a_module_that_cannot_be_made_is_one_line(own, monkeypatch, module, said):
    monkeypatch.setattr(own, "module", module)
    with pytest.raises(UserError, match=f"^architecture own: {said}"):
        own(d_model=3).module_for(Associations(vocab_size=6))


@pytest.mark.parametrize(
    ("paddable", "said"),
    [
        (("d_model", "rnak"), "paddable names 'rnak', which its module"),
        ("d_model", "is not a tuple"),
    ],
)
def test_sizes_to_pad_are_those_of_the_module(own, monkeypatch, paddable, said):
    own.fault = ""
    monkeypatch.setattr(Own, "paddable", paddable)
    with pytest.raises(UserError, match=f"^architecture own: .*{said}"):
        own(d_model=4).module_for(Associations(vocab_size=6))


class Drawn(Associations):
    """A task with one fault."""

    def sample_next(self, key):
        if self.fault == "raises":
            raise LookupError("nothing follows")
        next_Tx1, one_Tx1 = super().sample_next(key)
        if self.fault == "token":
            next_Tx1 += self.vocab_size
        if self.fault == "float":
            next_Tx1 = next_Tx1.astype("float32")
        if self.fault == "shape":
            next_Tx1 = next_Tx1[:, 0]
        if self.fault == "probability":
            one_Tx1 *= 2
        if self.fault == "nan":
            one_Tx1 *= math.nan
        if self.fault in ("twice", "order"):
            second_Tx1 = (next_Tx1 + (self.fault == "order")) % self.vocab_size
            next_Tx2 = jnp.concatenate([next_Tx1, second_Tx1], axis=1)
            return next_Tx2, jnp.concatenate([0.25 * one_Tx1, 0.75 * one_Tx1], axis=1)
        if self.fault == "seed":
            next_Tx1 += next(NUMBERS) % 2
            next_Tx1 %= self.vocab_size
        return next_Tx1, one_Tx1

    def sample_sequences(self, key, next_TxK):
        tokens_TxS = super().sample_sequences(key, next_TxK)
        return tokens_TxS * (self.fault != "copies")

    def _sample_prior(self, key):
        prior_T = super()._sample_prior(key)
        return prior_T[1:] if self.fault == "prior" else prior_T

    def prior(self, data):
        return super().prior(data) / (2 if self.fault == "shares" else 1)


TASK_FAULTS = {
    "token": "sample_next gives tokens [67] to 11; return those from 0 to 5",
    "float": "sample_next gives tokens of float32; return those of int32",
    "nan": "the probabilities that sample_next gives do not sum to 1",
    "shape": r"sample_next gives shapes \(36,\) and \(36, 1\); return \(36, K\) twice",
    "probability": "the probabilities that sample_next gives do not sum to 1",
    "twice": "sample_next gives a next token twice; add its probabilities",
    "order": "sample_next gives next tokens out of order; return the likeliest first",
    "copies": "sample_sequences gives a sequence twice, with other answers; drop one",
    "raises": f"its code raises LookupError: nothing follows {_line('raises', 'self.fault')}",
    "seed": "its seed draws another instance each time",
    "prior": r"sample gives .*float32\[35\].* and shapes .*float32\[36\]",
    "shares": r"its prior has shape \(36,\) and sums to 0.5",
}


@pytest.mark.parametrize(("fault", "said"), TASK_FAULTS.items())
def test_a_fault_of_a_task_is_said_and_never_trained(fault, said):
    own = kind("own_task")(type("OwnTask", (Drawn,), {"fault": fault, "version": "1"}))
    heads = memobench.AttentionOnly(d_model=3, d_head=3)
    task = own(vocab_size=6, n_sequences=36 if fault == "copies" else None)
    run = memobench.Run(task=task, architecture=heads, method=METHOD)
    with pytest.raises(UserError, match=f"^task own_task: {said}"):
        memobench.run([run], progress=False)


@pytest.mark.parametrize("name", Task.kinds())
def test_our_tasks_are_sound(name):
    for task in small.tasks(name):
        assert not list(task_checking.faults(task))


class Shares(Module):
    """Its softmax over neurons counts padded ones."""

    vocab_size: int
    d_model: int
    d_ff: int

    paddable = ("d_model", "d_ff")

    @nn.compact
    def __call__(self, tokens_S):
        n, d, normal = self.vocab_size, self.d_model, nn.initializers.normal()
        one_hot_SxN = tokens_S[:, None] == jnp.arange(n)[None]
        x_D = (one_hot_SxN @ self.param("embedding", normal, (n, d))).sum(axis=0)
        hidden_F = nn.softmax(self.param("into", normal, (self.d_ff, d)) @ x_D)
        return self.param("out", normal, (n, self.d_ff)) @ hidden_F


def test_a_size_that_follows_from_others_is_checked_too():
    @kind("shares")
    class OfShares(Architecture):
        def module(self, task: Any) -> Shares:
            return Shares(task.vocab_size, self.d_model, 2 * self.d_model)

    said = memobench.check(OfShares(d_model=3))
    assert said[0].startswith("padding d_ff with zeros changes its function")


def test_a_kind_without_its_method_is_one_line():
    @kind("of_nothing")
    class OfNothing(Architecture):
        pass

    with pytest.raises(UserError, match=r"^architecture of_nothing has no method module"):
        OfNothing(d_model=3).module_for(Associations(vocab_size=6))


def _ours():
    """Two of all: `test_a_padded_model_is_the_smaller_one` asks the same of each."""
    for name, task in (
        ("attention_only", "associations"),
        ("query_attention", "labelled_contexts"),
    ):
        architecture = small.make(Architecture.get_kind(name), small.ARCHITECTURE)
        yield pytest.param(architecture, small.tasks(task)[0], id=name)


@pytest.mark.parametrize(("architecture", "task"), list(_ours()))
def test_ours_are_sound(architecture, task):
    assert memobench.check(architecture, task) == ()


def test_a_budget_is_met_on_the_boards_task():
    """Not on a small one, which has fewer tokens, unless it is given."""
    architecture = memobench.MLP(d_model=3, d_head=3, d_mlp=17, heads="full")
    assert memobench.check(architecture, budget=256) == ()
    (line,) = memobench.check(architecture, budget=512)
    said = (
        "it has 353 parameters, 31% below the budget 512; set n_heads=5 or n_layers=2 or d_mlp=40"
    )
    assert line == said
    task = Associations(vocab_size=6)
    (line,) = memobench.check(architecture, task, budget=256)
    assert line.startswith("it has 197 parameters, 23% below the budget 256; set ")
    with pytest.raises(UserError, match="budget must be one of the board's"):
        memobench.check(architecture, budget=300)
    sizes = re.findall(r"(\w+)=(\d+)", *memobench.check(architecture, task, budget=300))
    for name, size in sizes:
        module = architecture.replace(**{name: int(size)}).module_for(task)
        assert models.count_parameters(module, 2)[0] == pytest.approx(300, rel=0.05)
    assert sizes
    with pytest.raises(UserError, match="budget=0 is not an integer >= 1"):
        memobench.check(architecture, task, budget=0)


def test_there_is_a_small_task_for_every_question_that_tasks_ask():
    asked = {kind.question for kind in Task.kinds().values()}
    assert {task.question for task in checking.small_tasks()} == asked
