"""Ranks of what a read-out at a query can be made of, against ranks known by construction."""

import jax
import numpy as np
import pytest

from memobench.core import module as models
from memobench.core.run import Run
from memobench.engine import initializing
from memobench.experiments.mahdavi2024 import ranks
from memobench.experiments.mahdavi2024.own_methods import Annealing
from memobench.experiments.mahdavi2024.own_models import QueryAttention
from memobench.tasks.labelled_contexts import LabelledContexts


def _ranks(
    n_layers, residual, contexts="shared", n_examples=40, change=lambda variables: variables
):
    run = Run(
        task=LabelledContexts(
            n_examples=n_examples, context_length=4, contexts=contexts, input_dim=8, n_classes=3
        ),
        architecture=QueryAttention(
            d_model=8,
            d_head=8,
            n_heads=3,
            n_layers=n_layers,
            residual=residual,
        ),
        method=Annealing(),
    )
    module = run.module()
    variables = change(models.init(module, 4, initializing.init_key(run)))
    data = jax.device_put(run.task.sample())
    return ranks.columns(module, variables, data, n_examples)


@pytest.mark.parametrize("residual", [False, True])
def test_attention_has_the_rank_that_rows_adding_up_to_one_allow(residual):
    found = _ranks(1, residual)
    assert found == {"stream_ranks": [8], "attention_rank": 3 * (4 - 1) + 1}


def test_few_examples_have_no_more_ranks_than_there_are():
    assert _ranks(2, True, n_examples=5) == {"stream_ranks": [5, 5], "attention_rank": 5}


@pytest.mark.parametrize("contexts", ["shared", "random"])
def test_without_residuals_a_layer_leaves_a_rank_for_each_head(contexts):
    # Three heads with values of dimension 1.
    assert _ranks(3, False, contexts)["stream_ranks"] == [8, 3, 3]
    assert _ranks(3, True, contexts)["stream_ranks"] == [8, 8, 8]


def test_ranks_that_single_precision_would_lose_are_found():
    def nearly_flat(variables):
        # All queries but the first two coordinates shrink to a billionth.
        shrunk_ID = np.array(variables["params"]["embedding"])
        shrunk_ID[:, 2:] *= 1e-9
        params = {**variables["params"], "embedding": shrunk_ID}
        zeros = np.zeros_like(variables["constants"]["position"])
        bias_D = np.zeros_like(variables["params"]["embedding_bias"])
        constants = {**variables["constants"], "position": zeros}
        return {"params": {**params, "embedding_bias": bias_D}, "constants": constants}

    assert _ranks(1, False, change=nearly_flat)["stream_ranks"] == [8]
