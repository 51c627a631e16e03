"""Degrees of freedom by formula are the rank of the Jacobian of log-probabilities."""

import math
import pathlib

import jax
import numpy as np
import pytest

from memobench.analysis import freedom
from memobench.core import module as models
from memobench.core.architecture import Architecture
from memobench.core.cells import cells
from memobench.core.run import Run
from memobench.experiments.mahdavi2024.own_models import QueryAttention
from memobench.experiments.pages.freedom import MODELS, line
from memobench.methods.training import Training
from memobench.models.gpt import GPT
from memobench.models.mlp_memory import MLPMemory
from memobench.models.modern import Modern
from memobench.models.product_key_memory import ProductKeyMemory
from memobench.models.transformer import MLP, AttentionOnly
from memobench.tasks.associations import Associations
from memobench.tasks.labelled_contexts import LabelledContexts
from memobench.tasks.sequences import Sequences

# Of 246, 257, 258, 248 and 520 parameters, measured by other code.
EXAMPLES = (159, 224, 217, 178, 368)
# Kinds without a formula: layer norms, values that are read or not, inputs that are no tokens.
WITHOUT = {"gpt", "product_key_memory", "query_attention"}
SMALL = Associations(vocab_size=5)


def _by_formula(architecture, task):
    return models.degrees_of_freedom(architecture.module_for(task), task)


def test_formulas_give_what_other_code_measured():
    assert tuple(_by_formula(*each) for each in MODELS[: len(EXAMPLES)]) == EXAMPLES


def test_every_kind_has_a_formula_or_is_known_to_have_none():
    kinds = {name for name, kind in Architecture.kinds().items() if not hasattr(kind, "code")}
    assert {architecture.name for architecture, _ in MODELS} == kinds - WITHOUT


def _cases():
    """All models; of each kind without an example the first one, the others in minutes."""
    kinds = [architecture.name for architecture, _ in MODELS]
    for i, each in enumerate(MODELS):
        at_once = i >= len(EXAMPLES) and i == kinds.index(kinds[i])
        marks = () if at_once else (pytest.mark.slow,)
        yield pytest.param(*each, id=each[0].full_name, marks=marks)


@pytest.mark.parametrize(("architecture", "task"), [*_cases()])
def test_formulas_are_the_rank_of_the_jacobian(architecture, task):
    module = architecture.module_for(task)
    assert freedom.rank(module, task) == _by_formula(architecture, task)


@pytest.mark.slow
def test_quadratic_forms_have_no_more_values_than_tokens():
    """Those of scores of a position with itself, 28 numbers of a width of 7."""
    task = Associations(vocab_size=12)
    wide = Modern(d_model=7, d_head=7, norm="none")
    assert freedom.rank(wide.module_for(task), task) == _by_formula(wide, task) == 222


def test_bilinear_neurons_fill_quadratic_maps():
    rng = np.random.default_rng(0)
    for d_model in range(1, 5):
        for d_mlp in range(1, 16):
            out, into, gate = rng.normal(size=(3, d_mlp, d_model))
            pairs = np.triu_indices(d_model)
            rows = [
                np.multiply.outer(a, (np.outer(b, c) + np.outer(c, b))[pairs]).ravel()
                for w in range(d_mlp)
                for unit in np.eye(d_model)
                for a, b, c in (
                    (unit, into[w], gate[w]),
                    (out[w], unit, gate[w]),
                    (out[w], into[w], unit),
                )
            ]
            module = Modern(
                d_model=d_model,
                d_head=d_model,
                d_mlp=d_mlp,
                activation="bilinear",
                norm="none",
                positions="none",
            ).module_for(SMALL)
            free = 3 * d_mlp * d_model - module.neuron_symmetries()
            assert np.linalg.matrix_rank(np.array(rows), tol=1e-9) == free


def test_without_a_formula_small_models_have_their_rank_and_others_nothing(monkeypatch):
    task = Sequences(vocab_size=4, context_length=2, n_sequences=5)
    module = GPT(d_model=2, d_head=2, d_mlp=2).module_for(task)
    assert models.degrees_of_freedom(module, task) is None
    found = freedom.degrees_of_freedom(module, task)
    assert found == freedom.rank(module, task)
    assert 0 < found < models.count_distinct(module, 2)
    freedom.degrees_of_freedom.cache_clear()
    monkeypatch.setattr(freedom, "MOST_PARAMETERS", 10)
    assert freedom.degrees_of_freedom(module, task) is None


def test_vectors_and_queries_are_inputs_as_well():
    task = LabelledContexts(n_examples=8, context_length=3, n_classes=3, input_dim=2)
    module = QueryAttention(d_model=2, d_head=2, d_value=1).module_for(task)
    n_params, _ = models.count_parameters(module, 3)
    assert 0 < freedom.degrees_of_freedom(module, task) < n_params


@pytest.mark.parametrize(
    ("architecture", "task"),
    [
        (ProductKeyMemory(d_model=2, d_head=2, d_key=2, n_keys=3), SMALL),
        (MLPMemory(d_model=2, d_mlp=4), Associations(vocab_size=6, context_length=1)),
    ],
)
def test_a_rank_that_differs_between_weights_is_none(architecture, task):
    assert freedom.degrees_of_freedom(architecture.module_for(task), task) is None


def test_where_functions_are_few_there_is_no_formula():
    """Rather than a wrong one: of more heads than pairs have room for, or of one token."""
    crowded = AttentionOnly(d_model=2, d_head=2, n_heads=24, heads="full")
    assert _by_formula(crowded, Associations(vocab_size=8)) is None
    assert _by_formula(crowded, Associations(vocab_size=8, context_length=1)) is None
    assert _by_formula(Modern(d_model=2, d_head=2, norm="layer"), SMALL) is None


def test_rows_have_the_number_of_their_model_whatever_they_say():
    architecture, task = MODELS[1]
    run = Run(task=task, architecture=architecture, method=Training())
    row = {**cells(run), "degrees_of_freedom": 1}
    assert freedom.count_freedom(row) == EXAMPLES[1]
    assert math.isnan(freedom.count_freedom(row | {"architecture": "nobody's"}))


def test_a_symmetry_leaves_all_log_probabilities_as_they_are():
    """What formulas subtract: a basis of the stream, and shifts of positions and of logits."""
    architecture = MLP(d_model=3, d_head=3, d_mlp=4, heads="full")
    module = architecture.module_for(SMALL)
    params = models.init_on_host(module, 2, jax.random.key(0))
    rng = np.random.default_rng(0)
    basis, shift = rng.normal(size=(3, 3)), rng.normal(size=3)
    moved = dict(params["params"])
    moved["token_embedding"] = (moved["token_embedding"] + shift) @ basis
    moved["position_embedding"] = (moved["position_embedding"] - shift) @ basis
    back = np.linalg.inv(basis)
    for name in ("query", "key", "value"):
        moved[f"layer0_{name}"] = moved[f"layer0_{name}"] @ back.T
    moved["layer0_output"] = np.einsum("ji,hjk->hik", basis, moved["layer0_output"])
    moved["layer0_mlp_in"] = moved["layer0_mlp_in"] @ back.T
    moved["layer0_mlp_out"] = basis.T @ moved["layer0_mlp_out"]
    moved["unembedding"] = (moved["unembedding"] + rng.normal(size=3)) @ back.T
    tokens = np.array([(a, b) for a in range(5) for b in range(5)], np.int32)

    def log_probabilities(params):
        held = {**{"constants": module.constants()}, "params": params}
        return jax.nn.log_softmax(jax.vmap(lambda each: module.apply(held, each))(tokens))

    assert np.allclose(
        log_probabilities(params["params"]), log_probabilities(moved), rtol=1e-3, atol=1e-4
    )


def test_the_page_has_all_formulas_of_today_and_equal_ranks():
    page = pathlib.Path(__file__).parents[2] / "docs/freedom.md"
    rows = [x.strip("| ").split(" | ") for x in page.read_text().splitlines() if " of " in x[:99]]
    found = [row for row in rows if len(row) == 5]
    lines = [line(*each) for each in MODELS]
    assert found == [[*map(str, each.values()), str(each["formula"])] for each in lines]
