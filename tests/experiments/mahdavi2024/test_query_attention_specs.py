"""Specs of query attention: the modules they make, options by default, and what is refused."""

import dataclasses

import pytest

from memobench.common.errors import UserError
from memobench.core import module as models
from memobench.core.architecture import Architecture
from memobench.core.run import Run
from memobench.experiments.mahdavi2024.own_methods import Annealing
from memobench.experiments.mahdavi2024.own_models import QueryAttention
from memobench.tasks.associations import Associations
from memobench.tasks.labelled_contexts import LabelledContexts
from tests import small
from tests.experiments.mahdavi2024.test_query_attention import BASE


def _run(task=None, **sizes):
    fields = {"n_examples": 9, "context_length": 4, "n_classes": 3, "input_dim": 6}
    sizes = {"d_model": 8, "d_head": 5, "n_heads": 3, **sizes}
    return Run(
        task=LabelledContexts(**(fields | (task or {}))),
        architecture=QueryAttention(**sizes),
        method=Annealing(batch_size=4, steps=10, evaluate_every=5),
    )


def test_the_papers_number_of_parameters():
    # 64 classes of the input and the model; H (2 d d_h + 2 d) for the heads of value dimension 1.
    run = _run(d_model=64, d_head=64, n_heads=20, task={"input_dim": 64, "n_classes": 100})
    n_params, _ = models.count_parameters(run.module(), 4)
    assert n_params == 64 * 64 + 64 + 64 * 100 + 100 + 20 * (2 * 64 * 64 + 2 * 64)


def test_a_spec_without_options_is_the_published_model():
    assert _run({"contexts": "random"}).module() == BASE
    assert _run().module() == BASE.clone(shared_context=True)
    assert _run({"n_classes": None}).module().n_outputs == 1
    options = {"positions": "learned", "d_value": 2, "score_scale": "d_head", "residual": True}
    assert _run(n_layers=2, **options).module() == BASE.clone(
        n_layers=2, shared_context=True, **options
    )


DEFAULTS = {
    "positions": "sinusoidal",
    "d_value": 1,
    "score_scale": "d_model",
    "residual": False,
    "n_layers": 1,
}


@pytest.mark.parametrize(("option", "value"), DEFAULTS.items())
def test_an_option_given_as_it_is_by_default_is_the_same_run(option, value):
    assert _run(**{option: value}).run_id == _run().run_id


OF_TOKENS = [name for name, kind in Architecture.kinds().items() if "query" not in kind.answers]


@pytest.mark.parametrize("option", ["positions", "d_value", "score_scale", "residual"])
@pytest.mark.parametrize("name", OF_TOKENS)
def test_architectures_of_tokens_refuse_the_options(name, option):
    architecture = small.make(Architecture.get_kind(name), small.ARCHITECTURE)
    # Some have a choice of the same name, but none this value of it.
    refused = f"unexpected keyword argument '{option}'|^{option}='{DEFAULTS[option]}' is not"
    with pytest.raises((TypeError, UserError), match=refused):
        architecture.replace(**{option: DEFAULTS[option]})


@pytest.mark.parametrize("name", OF_TOKENS)
def test_architectures_of_tokens_refuse_labelled_contexts(name):
    architecture = small.make(Architecture.get_kind(name), small.ARCHITECTURE)
    run = dataclasses.replace(_run(), architecture=architecture)
    said = f"^architecture {name} does not serve the task 'labelled_contexts', .* query_attention$"
    with pytest.raises(UserError, match=said):
        run.module()


def test_query_attention_refuses_what_it_has_not():
    for foreign in ("d_mlp", "heads", "activation", "embeddings"):
        with pytest.raises(TypeError, match=f"unexpected keyword argument '{foreign}'"):
            _run(**{foreign: 3})
    architecture = QueryAttention(d_model=4, d_head=4)
    run = Run(task=Associations(vocab_size=5), architecture=architecture)
    with pytest.raises(UserError, match=r"^architecture query_attention does not serve .*'next t"):
        run.module()


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("positions", "rotary"),
        ("d_value", 0),
        ("score_scale", 1),
        ("d_head", 9),
        ("residual", "no"),
        ("residual", None),
    ],
)
def test_an_unknown_option_names_itself(option, value):
    with pytest.raises(UserError, match=f"^{option}={value!r} "):
        _run(**{option: value})
