"""A user's own construction: its mistakes are one line each, and cost no other run."""

import dataclasses
import pathlib

import numpy as np
import pandas as pd
import pytest
from flax import linen as nn

import memobench
from memobench import claims, theory
from memobench.common.errors import UserError
from memobench.constructions import making
from memobench.constructions.problem import Constructed
from memobench.core.architecture import Architecture
from memobench.core.module import Module
from memobench.core.run import Run
from memobench.core.spec import kind
from memobench.experiment import load_file

STORY = pathlib.Path(__file__).parents[1] / "extending" / "construction.py"


@pytest.fixture
def changed():
    """Runs of the story's construction, after which what it made is changed."""
    (experiment,) = load_file(STORY)
    runs = experiment.presets["quick"]

    def make(change):
        @kind("changed")
        class Changed(type(runs[0].method)):
            def construct(self, problem):
                return change(super().construct(problem))

        return [dataclasses.replace(run, method=Changed()) for run in runs]

    return make


def _replaced(**fields):
    return lambda made: dataclasses.replace(made, **fields)


def _params(**others):
    return lambda made: dataclasses.replace(made, params=made.params | others)


def _certificate(**others):
    return lambda made: dataclasses.replace(made, certificate=made.certificate | others)


def _read_out(names):
    return lambda made: dataclasses.replace(made, read_out=names)


def _raises(made):
    raise RuntimeError(f"no\n{len(made.params)}")


def _of_units(made):
    return dataclasses.replace(made, params={"units": made.params["units"]})


MISTAKES = [
    (_raises, "theorem='changed': its construct raises RuntimeError: no 2"),
    (lambda made: None, "None is not a Constructed. Return one"),
    (_of_units, "the parameter unembedding is missing"),
    (_params(bias=np.zeros(3)), "the model has no parameter 'bias'"),
    (_params(units=np.zeros((2, 5, 3))), r"the parameter units has shape \(2, 5, 3\)"),
    (_params(unembedding=np.full((12, 5), 1j)), "'unembedding' is of complex128; give real"),
    (_params(unembedding=np.full((12, 5), np.nan)), "'unembedding' is not finite"),
    (_params(unembedding=np.full((12, 5), 1e308)), "theorem='changed': outputs are not finite"),
    (_params(unembedding=[[1.0], [1.0, 2.0]]), "the parameter 'unembedding' is not an array"),
    (_replaced(params={0: 1.0}), "a parameter's name must be a text, got 0"),
    (_replaced(certificate=None), "certificate=None is not a dict of numbers"),
    (_certificate(accuracy=1.0), "certificate has 'accuracy', no column of this method's rows"),
    (_certificate(condition=np.zeros(3)), "certificate has condition=.*; give a number"),
    (_read_out(("units",)), r"read_out=\('units',\) names are not twice the logits"),
    (_read_out(("unembeding",)), "read_out names 'unembeding'; did you mean unembedding"),
    (_read_out("unembedding"), "read_out='unembedding' is not a tuple of parameters' names"),
]


@pytest.mark.filterwarnings("ignore:overflow encountered")
@pytest.mark.parametrize(("change", "said"), MISTAKES)
def test_a_mistake_is_one_line(changed, change, said):
    with pytest.raises(UserError, match=said) as error:
        making.judged_variables(changed(change)[0])
    assert "\n" not in str(error.value)
    assert "theorem='changed'" in str(error.value)


def test_what_cannot_be_made_costs_no_other_run_and_breaks_the_promise(changed, caplog):
    runs = changed(lambda made: made if made.params["units"].shape[-1] == 16 else None)
    table = memobench.run(runs, progress=False)
    made = table[table["d_mlp"] == 16]
    assert (made["accuracy"] == 1).all()
    assert (table.loc[table["d_mlp"] == 12, "status"] == "diverged").all()
    assert "cannot be made: theorem='changed', from its construct: None is no" in caplog.text
    test = claims.every_run("accuracy", lambda rows: rows["accuracy"].astype(float), (1, 1))
    assert test(made).verdict == claims.HOLDS
    broken = test(table)
    assert (broken.verdict, broken.evidence) == (
        claims.FAILS,
        "accuracy: 3 of 6 runs could not be made",
    )
    of_made = claims.every_run(
        "accuracy",
        lambda rows: rows["accuracy"].astype(float),
        (1, 1),
        where=lambda rows: rows["d_mlp"] == 16,
    )
    assert of_made(table).verdict == claims.HOLDS


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (lambda sizes: sizes["d_mpl"], "theorem 'mine' reads 'd_mpl', no size of a run; did you"),
        (lambda sizes: sizes["d_mlp"] - 20, "theorem 'mine': its value is -8 at these sizes"),
        (lambda sizes: np.nan, "theorem 'mine': its value is nan at these sizes"),
        (lambda sizes: 1 / 0, "theorem 'mine': its value raises ZeroDivisionError"),
    ],
)
def test_a_promise_that_is_no_number_is_told_before_any_work(changed, value, said):
    run = changed(lambda made: made)[0]

    @kind("promising")
    class Promising(type(run.method)):
        bound = theory.Bound(name="mine", source="me", value=value)

    with pytest.raises(UserError, match=said) as error:
        memobench.run([dataclasses.replace(run, method=Promising())], progress=False)
    assert "\n" not in str(error.value)


def test_numbers_of_numpy_are_numbers(changed):
    run = changed(_certificate(feature_rank=np.int64(7), condition=np.float32(2)))[0]
    table = memobench.run([run], progress=False)
    assert table[["feature_rank", "condition"]].iloc[0].tolist() == [7, 2]


class NestedModule(Module):
    vocab_size: int

    @nn.compact
    def __call__(self, tokens_S):
        first_D = nn.Embed(self.vocab_size, self.vocab_size)(tokens_S[0])
        return nn.Dense(self.vocab_size, name="out")(first_D)


def test_parameters_may_be_nested_as_flax_nests_them(changed):
    @kind("nested")
    class Nested(Architecture):
        def module(self, task):
            return self.fill_module(NestedModule, task)

    run = changed(lambda made: made)[0]

    @kind("written")
    class Written(type(run.method)):
        def construct(self, problem):
            n = problem.module.vocab_size
            params = {"Embed_0": {"embedding": np.eye(n)}}
            params["out"] = {"kernel": np.eye(n), "bias": np.zeros(n)}
            return Constructed(params, {})

    nested = Run(task=run.task, architecture=Nested(d_model=1), method=Written(n_aimed=0))
    variables = making.judged_variables(nested)
    np.testing.assert_array_equal(variables["params"]["out"]["kernel"], np.eye(5))
    table = memobench.run([nested], progress=False)
    assert isinstance(table, pd.DataFrame)
    assert 0 < table["loss"].item() < np.inf
