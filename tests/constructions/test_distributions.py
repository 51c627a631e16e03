"""Constructed weights for distributions over what comes next: as near as any sequence encoder."""

import functools
import types

import numpy as np
import pandas as pd
import pytest

import memobench
from memobench import theory
from memobench.constructions import evaluation, making, random_attention
from memobench.methods.optimum import Optimum
from memobench.tasks.distributions import Distributions
from tests.constructed import run_of

FULL_SUPPORT = Distributions(
    vocab_size=4,
    conditional="dirichlet",
    n_next=4,
    conditional_parameter=0.5,
    zipf_exponent=1.0,
)


def _check_distribution(run, n_aimed):
    (_, row) = next(memobench.run([run], progress=False).iterrows())
    assert abs(row["gamma"]) < 1e-6
    assert row["gamma"] == pytest.approx(row["aimed_loss"] - row["encoder_loss"], abs=1e-12)
    # With several right answers only the divergence means something.
    for measure in ("accuracy", "bits", "memorized", "aimed_accuracy", "margin"):
        assert pd.isna(row[measure])
    assert row["feature_rank"] == n_aimed == len(making.aimed_examples(run))
    return row


def test_distributions_come_as_near_as_any_sequence_encoder(monkeypatch):
    encoder = tuple(np.random.default_rng(0).standard_normal((2, 16, 2)))
    encoder = (encoder[0], encoder[1][:4])
    monkeypatch.setattr(random_attention, "_encoder", lambda _: encoder)
    run = run_of(task=FULL_SUPPORT, d_model=2, d_head=2, n_heads=7, heads="full")
    row = _check_distribution(run, 16)
    data = FULL_SUPPORT.sample()
    judged = evaluation.judge(FULL_SUPPORT, data, encoder[0] @ encoder[1].T)
    expected = FULL_SUPPORT.prior(data) @ judged.loss_T
    assert row["encoder_loss"] == pytest.approx(expected, abs=1e-12)
    assert row["loss"] == pytest.approx(expected, abs=1e-6)


def test_distributions_come_as_near_as_the_best_encoder_on_what_occurs_most(monkeypatch):
    # Few steps of the search: how good the encoder is does not matter here.
    cheap = functools.partial(Optimum, starts=2, adam_steps=20, polished=1, steps=20)
    monkeypatch.setattr(
        random_attention, "Method", types.SimpleNamespace(get_kind={"optimised": cheap}.get)
    )
    n_most = theory.t_eps(16, 1.0, 0.1)
    assert n_most == 12
    method = {"n_aimed": n_most}
    sizes = {"d_model": 2, "d_head": 2, "n_heads": 5, "heads": "compressed"}
    run = run_of(task=FULL_SUPPORT, method=method, **sizes)
    row = _check_distribution(run, n_most)
    # Half the divergence of no opinion at least is gone; what is not aimed at is not matched.
    assert 1e-3 < row["encoder_loss"] < np.log(4) / 2
    assert row["loss"] > row["aimed_loss"] + 0.01
    prior_T = FULL_SUPPORT.prior(FULL_SUPPORT.sample())
    aimed_A = making.aimed_examples(run)
    assert prior_T[aimed_A].sum() > 0.9
    assert prior_T[aimed_A].min() > np.delete(prior_T, aimed_A).max()
