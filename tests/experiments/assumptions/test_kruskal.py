"""Kruskal ranks and position encodings against sets whose ranks are known."""

import doctest

import numpy as np
import pytest

from memobench.common.errors import UserError
from memobench.experiments.assumptions import kruskal, positions
from memobench.models.positions import sinusoids


def by_size(vectors_TxD, sizes, **options):
    table = kruskal.kruskal_curve(vectors_TxD, sizes, **{"n_subsets": 50, **options})
    return table.set_index("size")


@pytest.mark.parametrize("module", [kruskal, positions])
def test_examples_of_docstrings(module):
    done = doctest.testmod(module)
    assert done.attempted
    assert not done.failed


def test_a_vandermonde_matrix_is_in_general_position():
    nodes_T = np.linspace(-1, 1, 9)
    vectors_TxD = nodes_T[:, None] ** np.arange(5)
    assert by_size(vectors_TxD, [5, 6])["full_rank"].tolist() == [1, 0]


def test_repeated_vectors_are_dependent_for_certain(rng):
    curve = by_size(np.tile(rng.normal(size=6), (10, 1)), [1, 2, 6])
    assert curve["full_rank"].tolist() == [1, 0, 0]
    assert (curve.loc[2:, "decided_by"] == "whole set").all()
    assert (curve.loc[2:, ["low", "high"]] == 0).all(axis=None)


def test_a_set_of_low_rank_keeps_it_and_no_more(rng):
    vectors_TxD = rng.normal(size=(30, 4)) @ rng.normal(size=(4, 10))
    curve = by_size(vectors_TxD, [1, 4, 5, 10])
    assert curve["full_rank"].tolist() == [1, 1, 0, 0]
    assert curve.loc[5, "decided_by"] == "whole set"


def test_independent_vectors_need_no_subsets(rng):
    curve = by_size(rng.normal(size=(6, 10)), [1, 3, 6])
    assert curve["full_rank"].tolist() == [1, 1, 1]
    assert (curve["n_subsets"] == 0).all()


def test_a_planted_dependency_is_found_at_its_rate(rng):
    # Three of twelve vectors lie in a plane: subsets of four hold them all with chance 9/495.
    vectors_TxD = rng.normal(size=(12, 8))
    vectors_TxD[2] = vectors_TxD[0] - 2 * vectors_TxD[1]
    curve = by_size(vectors_TxD, [2, 4, 8], n_subsets=400)
    assert curve.loc[2, "full_rank"] == 1
    for size, dependent in ((4, 9 / 495), (8, 126 / 495)):
        assert curve.loc[size, "low"] <= 1 - dependent <= curve.loc[size, "high"]
    assert curve.loc[8, "full_rank"] < curve.loc[4, "full_rank"]


def test_bisection_agrees_with_the_decomposition_of_every_subset(rng):
    spectrum_D = 10.0 ** -np.arange(0, 12, 0.5)
    vectors_TxD = rng.normal(size=(40, 24)) * spectrum_D
    sizes, tolerances = range(1, 25), [1e-4, 1e-8]
    table = kruskal.kruskal_curve(vectors_TxD, sizes, n_subsets=20, tolerances=tolerances)
    draws = np.random.default_rng(0)
    orders = [draws.permutation(40) for _ in range(20)]
    for row in table.itertuples():
        ranks = [
            np.linalg.matrix_rank(vectors_TxD[order[: row.size]], rtol=row.tolerance)
            for order in orders
        ]
        assert row.full_rank == np.mean(np.array(ranks) == row.size)
    assert set(table["decided_by"]) == {"whole set", "subsets"}


def test_one_repeat_spoils_the_subsets_that_hold_both(rng):
    vectors_TxD = rng.normal(size=(10, 6))
    vectors_TxD[7] = vectors_TxD[2]
    curve = by_size(vectors_TxD, [2, 5], n_subsets=500)
    for size, spoiled in ((2, 1 / 45), (5, 10 / 45)):
        assert curve.loc[size, "low"] <= 1 - spoiled <= curve.loc[size, "high"]


def test_rounding_to_float32_is_not_taken_for_rank(rng):
    exact_TxD = rng.normal(size=(20, 3)) @ rng.normal(size=(3, 16))
    rounded_TxD = exact_TxD.astype(np.float32)
    assert by_size(rounded_TxD, [3, 4])["full_rank"].tolist() == [1, 0]
    unaware = by_size(rounded_TxD.astype(np.float64), [3, 4])
    assert unaware["full_rank"].tolist() == [1, 1]
    told = kruskal.relative_tolerance((4, 16), np.float32)
    assert by_size(exact_TxD, [4], tolerances=[told])["tolerance"].item() == told


def test_contexts_of_lower_rank_are_found(rng):
    contexts_BxNxD = rng.normal(size=(3, 4, 6))
    contexts_BxNxD[1, 3] = contexts_BxNxD[1, 0] + contexts_BxNxD[1, 1]
    contexts_BxNxD[2] = 0
    table = kruskal.context_ranks(contexts_BxNxD)
    assert table["rank"].tolist() == [4, 3, 0]
    looser = kruskal.context_ranks(contexts_BxNxD, tolerances=[1e-12, 0.99])
    assert looser["rank"].tolist() == [4, 3, 0, 1, 1, 0]
    assert table["full_rank"].tolist() == [True, False, False]
    assert not kruskal.context_ranks(rng.normal(size=(1, 7, 6)))["full_rank"].item()


@pytest.mark.parametrize(
    ("vectors", "options", "message"),
    [
        (np.ones(3), {}, "vectors_TxD has shape"),
        (np.full((2, 2), np.nan), {}, "NaN"),
        (np.array([["a", "b"]]), {}, "dtype"),
        (np.eye(3), {"sizes": [0, 1]}, "sizes"),
        (np.eye(3), {"sizes": [4]}, "sizes"),
        (np.eye(3), {"sizes": []}, "sizes"),
        (np.eye(3), {"n_subsets": 0}, "n_subsets"),
    ],
)
def test_mistakes_are_named(vectors, options, message):
    with pytest.raises(UserError, match=message):
        kruskal.kruskal_curve(vectors, **{"sizes": [1], **options})


def test_short_sinusoidal_positions_have_full_rank():
    assert kruskal.context_ranks(sinusoids(8, 64)[None])["rank"].item() == 8


def test_long_sinusoidal_positions_have_it_only_in_exact_arithmetic():
    rank = kruskal.context_ranks(sinusoids(197, 768)[None])["rank"].item()
    assert 197 / np.pi < rank < 197


def test_learned_positions_are_independent_and_follow_the_seed():
    encoding_LxD = positions.learned(50, 64, seed=1)
    assert kruskal.context_ranks(encoding_LxD[None])["rank"].item() == 50
    assert not np.allclose(encoding_LxD, positions.learned(50, 64, seed=2))


def test_rotary_turns_and_its_products_depend_on_the_distance(rng):
    query_D, key_D = rng.normal(size=(2, 8))
    queries_LxD = positions.rotary(np.tile(query_D, (6, 1)))
    keys_LxD = positions.rotary(np.tile(key_D, (6, 1)))
    np.testing.assert_allclose(np.linalg.norm(queries_LxD, axis=1), np.linalg.norm(query_D))
    products_LxL = queries_LxD @ keys_LxD.T
    np.testing.assert_allclose(products_LxL[1:, 1:], products_LxL[:-1, :-1])
    with pytest.raises(UserError, match="odd"):
        positions.rotary(np.ones((2, 3)))
