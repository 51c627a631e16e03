"""What is wrong with an architecture is said before anything trains."""

import itertools
import re
from typing import Any

import jax.numpy as jnp
import pytest
from flax import linen as nn

import memobench
from memobench.columns import integer
from memobench.errors import UserError
from memobench.methods.training import Training
from memobench.models import checking
from memobench.models.base import Architecture, Module
from memobench.spec import kind
from memobench.tasks import checking as task_checking
from memobench.tasks.associations import Associations
from memobench.tasks.base import Task
from tests import small

METHOD = Training(n_batches=2, epochs=1).exact()


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
    if not fault:  # A size that does nothing makes no result wrong.
        assert len(memobench.plan([run])) == 1
        return
    with pytest.raises(UserError, match=f"architecture own: .*{said}"):
        memobench.run([run], progress=False)


class Plain(nn.Module):
    """No module of memobench."""


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (lambda spec, _: None, "its module is a 'NoneType'; return a memobench"),
        (lambda spec, _: Plain(), "its module is a 'Plain'; return a memobench"),
        (lambda spec, task: spec.made(Own, task), "neither it nor the task 'associations' has"),
    ],
)
def test_a_module_that_cannot_be_made_is_one_line(own, monkeypatch, module, said):
    monkeypatch.setattr(own, "module", module)
    with pytest.raises(UserError, match=f"^architecture own: {said}"):
        own(d_model=3).build(Associations(vocab_size=6))


@pytest.mark.parametrize(
    ("paddable", "said"),
    [(("d_model", "rnak"), "paddable names 'rnak', which its module"), ("d_model", "no tuple")],
)
def test_sizes_to_pad_are_those_of_the_module(own, monkeypatch, paddable, said):
    own.fault = ""
    monkeypatch.setattr(Own, "paddable", paddable)
    with pytest.raises(UserError, match=f"^architecture own: .*{said}"):
        own(d_model=4).build(Associations(vocab_size=6))


class Drawn(Associations):
    """A task with one fault."""

    def sample_next(self, key):
        next_Tx1, one_Tx1 = super().sample_next(key)
        if self.fault == "token":
            next_Tx1 += self.vocab_size
        if self.fault == "shape":
            next_Tx1 = next_Tx1[:, 0]
        if self.fault == "probability":
            one_Tx1 *= 2
        if self.fault == "seed":
            next_Tx1 += next(NUMBERS) % 2
            next_Tx1 %= self.vocab_size
        return next_Tx1, one_Tx1

    def _sample_prior(self, key):
        prior_T = super()._sample_prior(key)
        return prior_T[1:] if self.fault == "prior" else prior_T

    def prior(self, data):
        return super().prior(data) / (2 if self.fault == "shares" else 1)


NUMBERS = itertools.count()
TASK_FAULTS = {
    "token": "sample_next gives tokens [67] to 11; return those from 0 to 5",
    "shape": r"sample_next gives shapes \(36,\) and \(36, 1\); return \(36, K\) twice",
    "probability": "the probabilities that sample_next gives do not sum to 1",
    "seed": "its seed draws another instance each time",
    "prior": r"sample gives .*float32\[35\].* and shapes .*float32\[36\]",
    "shares": r"its prior has shape \(36,\) and sums to 0.5",
}


@pytest.mark.parametrize(("fault", "said"), TASK_FAULTS.items())
def test_a_fault_of_a_task_is_said_and_never_trained(fault, said):
    own = kind("own_task")(type("OwnTask", (Drawn,), {"fault": fault, "version": "1"}))
    heads = memobench.AttentionOnly(d_model=3, d_head=3)
    run = memobench.Run(task=own(vocab_size=6), architecture=heads, method=METHOD)
    with pytest.raises(UserError, match=f"^task own_task: {said}"):
        memobench.run([run], progress=False)
    del Task.registry["own_task"]


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
    del Architecture.registry["shares"]


def test_a_kind_without_its_method_is_one_line():
    @kind("of_nothing")
    class OfNothing(Architecture):
        pass

    with pytest.raises(UserError, match=r"^architecture of_nothing has no method module"):
        OfNothing(d_model=3).build(Associations(vocab_size=6))
    del Architecture.registry["of_nothing"]


@pytest.mark.parametrize(
    ("architecture", "task"),
    [x for x in small.pairs() if x.values[1].name in ("associations", "labelled_contexts")],
)
def test_ours_are_sound(architecture, task):
    assert memobench.check(architecture, task) == ()


def test_a_budget_is_met_on_the_boards_task():
    """Not on a small one, which has fewer tokens, unless it is given."""
    architecture = memobench.MLP(d_model=3, d_head=3, d_mlp=17, heads="full")
    assert memobench.check(architecture, budget=256) == ()
    (line,) = memobench.check(architecture, budget=512)
    assert line == "it has 353 parameters, 31% below the budget 512"
    (line,) = memobench.check(architecture, Associations(vocab_size=6), budget=256)
    assert line == "it has 197 parameters, 23% below the budget 256"
    with pytest.raises(UserError, match="budget=300 is none of the board's"):
        memobench.check(architecture, budget=300)
    with pytest.raises(UserError, match="budget=0 is not an integer >= 1"):
        memobench.check(architecture, Associations(vocab_size=6), budget=0)


def test_there_is_a_small_task_for_every_question_that_tasks_ask():
    asked = {kind.question for kind in Task.kinds().values()}
    assert {task.question for task in checking.TASKS} == asked
