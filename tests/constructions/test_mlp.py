"""Constructions of MLP Transformers: what they promise, what they refuse, what they rest on."""

import numpy as np
import pytest

from memobench.common.errors import UserError
from memobench.constructions import bubeck2020, linear, making
from memobench.constructions.bubeck2020 import Bubeck2020
from memobench.constructions.random_features import RandomFeatures
from memobench.core.run import Run
from memobench.models.transformer import MLP
from memobench.planner import packing
from memobench.tasks.associations import Associations
from memobench.tasks.distributions import Distributions

every_kind_of_heads = pytest.mark.parametrize(
    "heads",
    [
        {"heads": "full"},
        {"heads": "full", "d_head": 2, "n_heads": 2},
        {"heads": "compressed"},
        {"heads": "compressed", "d_head": 3},
    ],
)


def _run(theorem, n_sequences, *, kind=Associations, seed=0, task=None, method=None, **sizes):
    sizes = {"d_model": 5, "d_head": 5, "d_mlp": 18, "heads": "full", **sizes}
    return Run(
        task=kind(vocab_size=7, n_sequences=n_sequences, seed=seed, **(task or {})),
        architecture=MLP(**sizes),
        method=theorem(**(method or {})),
        seed=seed,
    )


def bubeck(n_sequences=16, **options):
    return _run(Bubeck2020, n_sequences, **{"activation": "relu", **options})


def features(n_sequences=23, **options):
    return _run(RandomFeatures, n_sequences, **options)


def _row(run):
    made = making.construct_pack(packing.make_pack([run]))
    return {"accuracy": made.accuracy_R[0], **made.columns[0]}


def _knows_all(row):
    return row["accuracy"] == pytest.approx(1)


@pytest.mark.rounding
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("weights", ["float64", "float32"])
def test_bubeck_knows_as_many_as_promised(weights, seed):
    row = _row(bubeck(seed=seed, method={"weights": weights}))
    assert _knows_all(row)
    assert row["fit_error"] < 1e-8
    assert row["margin"] > 0


@every_kind_of_heads
def test_bubeck_takes_any_heads(heads):
    assert _knows_all(_row(bubeck(**heads)))


@pytest.mark.parametrize("n_sequences", [1, 3, 13])
def test_bubeck_takes_groups_that_are_not_full(n_sequences):
    assert _knows_all(_row(bubeck(n_sequences)))


def test_bubeck_knows_all_pairs_and_longer_sequences():
    assert _knows_all(_row(bubeck(None, d_mlp=52)))
    assert _knows_all(_row(bubeck(task={"context_length": 4})))
    assert _knows_all(_row(bubeck(8, d_model=2, d_head=2, d_mlp=32)))


def test_a_group_leaves_all_other_points_alone():
    rng = np.random.default_rng(0)
    x_TxD = np.column_stack([rng.standard_normal((30, 4)), np.ones(30)])
    target_T = rng.standard_normal(30)
    groups = bubeck2020.partition(x_TxD, target_T, rng)
    members = [i for group in groups for i in group.members_G]
    assert sorted(members) == list(range(30))
    assert [len(group.members_G) for group in groups] == 7 * [4] + [2]
    for group in groups:
        in_WxD, bias_W, out_W = group.neurons()
        hidden_TxW = np.maximum(x_TxD @ in_WxD.T + bias_W, 0)
        wanted_T = np.zeros(30)
        wanted_T[group.members_G] = target_T[group.members_G]
        np.testing.assert_allclose(hidden_TxW @ out_W, wanted_T, atol=1e-9)
        # Where no neuron is on there is no rounding either, which holds for half of them.
        off_T = (hidden_TxW == 0).all(axis=1)
        assert off_T.sum() >= 10


@pytest.mark.parametrize(
    ("run", "told"),
    [
        (bubeck(17), "promises 16 examples"),
        (bubeck(activation="silu"), "activation='relu'"),
        (bubeck(activation="gelu"), "activation='relu'"),
        (bubeck(n_layers=2), "n_layers=1"),
        (bubeck(1, d_model=1, d_head=1, method={"n_aimed": 0}), "besides the constant one"),
        (features(24), "promises 23 examples"),
        (features(5, d_mlp=0), "d_mlp >= 1"),
        (features(n_layers=2), "n_layers=1"),
    ],
)
def test_what_is_not_promised_is_refused_in_one_line(run, told):
    with pytest.raises(UserError, match=told) as refused:
        making.construct(run)
    assert "\n" not in str(refused.value)


def test_bubeck_solves_exactly_alone():
    assert Bubeck2020().solve == "exact"
    with pytest.raises(TypeError, match="unexpected keyword argument 'solve'"):
        Bubeck2020(solve="least_squares")


def test_bubeck_writes_one_next_token():
    task = {"conditional": "uniform", "n_next": 2}
    with pytest.raises(UserError, match="n_next=1"):
        making.construct(bubeck(kind=Distributions, task=task))


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("activation", ["gelu", "relu", "silu"])
def test_features_know_as_many_as_promised(activation, seed):
    row = _row(features(seed=seed, activation=activation))
    assert _knows_all(row)
    assert row["feature_rank"] == 23
    assert row["condition"] < 1e7


@every_kind_of_heads
def test_features_take_any_heads(heads):
    assert _knows_all(_row(features(**heads)))


def test_features_in_float32_and_of_longer_sequences():
    assert _knows_all(_row(features(method={"weights": "float32"})))
    assert _knows_all(_row(features(task={"context_length": 4})))
    assert _knows_all(_row(features(1)))


def test_features_have_no_higher_rank():
    problem = making._problem(features(24))
    with pytest.raises(linear.NotExact) as lost:
        problem.method.construct(problem)
    assert lost.value.usable == 23


def test_least_squares_takes_more_than_the_rank():
    row = _row(features(30, method={"solve": "least_squares"}))
    assert row["feature_rank"] == 23
    assert 0.5 < row["accuracy"] < 1
