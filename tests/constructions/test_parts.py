"""What constructions are made of: linear systems, codes, precisions, and how outputs are judged."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import scipy.linalg

from memobench.constructions import codes, evaluation, linear
from memobench.constructions.base import WEIGHTS
from memobench.numerics import precision
from memobench.tasks.associations import Associations
from memobench.tasks.distributions import Distributions
from memobench.tasks.labelled_contexts import LabelledContexts


def _normal(*shape, seed=0):
    return np.random.default_rng([7, seed]).standard_normal(shape)


@pytest.mark.parametrize(("n_examples", "n_features"), [(1, 1), (5, 5), (4, 9), (30, 33)])
@pytest.mark.parametrize("how", ["exact", "least_squares"])
def test_independent_features_reach_any_target_with_the_least_norm(n_examples, n_features, how):
    features_TxF, targets_TxD = _normal(n_examples, n_features), _normal(n_examples, 3, seed=1)
    solution = linear.solve(features_TxF, targets_TxD, how)
    fitted_TxD = features_TxF @ solution.weights_FxD
    np.testing.assert_allclose(fitted_TxD, targets_TxD, atol=1e-11)
    assert solution.fit_error == np.abs(fitted_TxD - targets_TxD).max()
    expected_FxD = np.linalg.pinv(features_TxF) @ targets_TxD
    np.testing.assert_allclose(solution.weights_FxD, expected_FxD, atol=1e-10)
    assert solution.feature_rank == n_examples
    assert solution.condition == pytest.approx(np.linalg.cond(features_TxF))
    assert set(solution.certificate()) == {"feature_rank", "condition", "fit_error"}


def test_more_examples_than_rank_are_refused_or_fitted_as_well_as_can_be():
    features_TxF = _normal(9, 4) @ _normal(4, 6, seed=1)
    targets_TxD = _normal(9, 2, seed=2)
    with pytest.raises(linear.NotExact, match="the features of 9 examples have rank 4") as lost:
        linear.solve(features_TxF, targets_TxD, "exact")
    assert lost.value.usable == 4
    solution = linear.solve(features_TxF, targets_TxD, "least_squares")
    assert solution.feature_rank == 4
    error_TxD = features_TxF @ solution.weights_FxD - targets_TxD
    # What is left is orthogonal to all features, and its largest entry is what is told.
    np.testing.assert_allclose(features_TxF.T @ error_TxD, 0, atol=1e-10)
    assert solution.fit_error == pytest.approx(np.abs(error_TxD).max())
    assert solution.fit_error > 0.1


@pytest.mark.parametrize("exponent", range(2, 24, 3))
def test_an_exact_solution_is_exact_or_refused(exponent):
    """Singular values from 1 down to 10^-exponent: what float64 cannot solve is not returned."""
    rotation_1, rotation_2 = (scipy.linalg.qr(_normal(20, 20, seed=s))[0] for s in (1, 2))
    singular = np.logspace(0, -exponent, 20)
    features_TxF, targets_TxD = rotation_1 * singular @ rotation_2, _normal(20, 2, seed=3)
    try:
        solution = linear.solve(features_TxF, targets_TxD, "exact")
    except linear.NotExact:
        assert exponent > 11
        return
    error = np.abs(features_TxF @ solution.weights_FxD - targets_TxD).max()
    assert error <= linear.EXACT * np.abs(targets_TxD).max()
    assert solution.condition == pytest.approx(10.0**exponent, rel=1e-2)
    assert exponent < 16


def test_no_examples_need_no_weights():
    for how in ("exact", "least_squares"):
        solution = linear.solve(np.zeros((0, 4)), np.zeros((0, 2)), how)
        assert solution.weights_FxD.shape == (4, 2)
        assert not solution.weights_FxD.any()
        assert solution.certificate() == {"feature_rank": 0, "condition": 1, "fit_error": 0}


@pytest.mark.parametrize("n", [2, 3, 50])
@pytest.mark.parametrize("d_model", [2, 5])
def test_codes_on_a_circle_are_even(n, d_model):
    codes_NxD = codes.circle(n, d_model)
    assert codes_NxD.shape == (n, d_model)
    nearness_NxN = codes_NxD @ codes_NxD.T
    np.testing.assert_allclose(np.diag(nearness_NxN), 1)
    apart = 2 * np.pi * np.abs(np.subtract.outer(np.arange(n), np.arange(n))) / n
    np.testing.assert_allclose(nearness_NxN, np.cos(apart), atol=1e-12)
    assert not codes_NxD[:, 2:].any()


@pytest.mark.parametrize(("n", "d_model"), [(2, 3), (4, 3), (10, 4), (50, 10)])
def test_spread_codes_are_their_own_nearest_and_farther_apart_than_random_ones(n, d_model):
    def largest(codes_NxD):
        nearness_NxN = codes_NxD @ codes_NxD.T
        np.testing.assert_array_equal(nearness_NxN.argmax(axis=1), np.arange(n))
        return (nearness_NxN - 2 * np.eye(n)).max()

    spread_NxD = codes.spread(n, d_model, np.random.default_rng(0))
    np.testing.assert_allclose(np.linalg.norm(spread_NxD, axis=1), 1)
    random_NxD = np.random.default_rng(0).standard_normal((n, d_model))
    random_NxD /= np.linalg.norm(random_NxD, axis=1, keepdims=True)
    assert largest(spread_NxD) < largest(random_NxD) - 0.1
    # No n unit vectors can be farther apart on average than a simplex.
    assert largest(spread_NxD) >= -1 / (n - 1) - 1e-12


def test_codes_in_the_plane_are_the_circle():
    rng = np.random.default_rng(0)
    np.testing.assert_array_equal(codes.spread(7, 2, rng), codes.circle(7))


SHAPES = [(), (0, 4), (1,), (32,), (33,), (5, 7), (3, 4, 21)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("weights", WEIGHTS)
def test_stored_weights_keep_shape_and_are_doubles(shape, weights):
    held = precision.round_to(_normal(*shape), weights)
    assert held.shape == shape
    assert held.dtype == np.float64
    # What is stored can be stored again without another loss.
    np.testing.assert_allclose(precision.round_to(held, weights), held, rtol=1e-6, atol=0)
    assert not precision.round_to(np.zeros(shape), weights).any()


def test_floating_point_weights_are_those_of_numpy():
    weights = np.concatenate([_normal(100), 1e-6 * _normal(100), 1e6 * _normal(100), [0.0, -0.0]])
    np.testing.assert_array_equal(precision.round_to(weights, "float64"), weights)
    single = precision.round_to(weights, "float32")
    np.testing.assert_array_equal(single, weights.astype(np.float32))
    np.testing.assert_allclose(single, weights, rtol=2**-24)
    brain = precision.round_to(weights, "bfloat16")
    np.testing.assert_array_equal(brain, weights.astype(ml_dtypes.bfloat16).astype(float))
    np.testing.assert_array_equal(brain, jnp.asarray(single, jnp.bfloat16).astype(float))
    # Eight bits of significand.
    np.testing.assert_allclose(brain, weights, rtol=2**-8)
    assert not (brain.astype(np.float32).view(np.uint32) & 0xFFFF).any()


@pytest.mark.parametrize(("weights", "most"), [("int8", 127), ("int4", 7)])
@pytest.mark.parametrize("size", [1, 31, 32, 33, 64, 100])
def test_integers_are_within_half_a_level_of_their_block(weights, most, size):
    exact = _normal(size) * 10.0 ** np.repeat([-3, 2, 0, -8], 32)[:size]
    held = precision.round_to(exact, weights)
    for start in range(0, size, precision.BLOCK):
        block = slice(start, start + precision.BLOCK)
        level = np.abs(exact[block]).max() / most
        assert np.abs(held[block] - exact[block]).max() <= level / 2 * (1 + 1e-5)
        counted = held[block] / level
        np.testing.assert_allclose(counted, np.rint(counted), atol=1e-4)
        assert np.abs(np.rint(counted)).max() == most
        # A block is stored as if it were alone.
        np.testing.assert_array_equal(held[block], precision.round_to(exact[block], weights))


def test_blocks_run_in_memory_order():
    exact = _normal(4, 40)
    for weights in ("int8", "int4"):
        flat = precision.round_to(exact.ravel(), weights)
        np.testing.assert_array_equal(precision.round_to(exact, weights).ravel(), flat)


def test_what_no_scale_can_hold_is_zero_and_not_a_number():
    for weights in ("int8", "int4"):
        assert precision.round_to(np.array([1e-60, 0.0, -1e-60]), weights).tolist() == [0, 0, 0]
        mixed = precision.round_to(np.array([1e-60] * 32 + [1.0]), weights)
        assert mixed.tolist() == [0] * 32 + [pytest.approx(1, rel=1e-6)]


def test_bits_count_the_scales():
    assert precision.BITS_PER_WEIGHT == {
        **{"float64": 64, "float32": 32, "bfloat16": 16},
        **{"int8": 9, "int4": 5},
    }


TASK = Associations(vocab_size=6)


def _loss(task, data, output_TxC, k):
    prior_T = task.prior(data)
    return prior_T @ evaluation.judge(task, data, output_TxC * 2.0**k).loss_T


@pytest.mark.parametrize("size", [1e-3, 1.0, 300.0])
@pytest.mark.parametrize("signal", [0.0, 0.7, 2.0])
def test_the_scale_of_logits_is_the_best_of_its_neighbours(size, signal):
    for seed in range(2):
        task = Associations(vocab_size=6, seed=seed, zipf_exponent=1.0 if seed else None)
        data = task.sample()
        right_TxN = np.eye(6)[np.asarray(data.next_TxK)[:, 0]]
        output_TxN = size * (_normal(36, 6, seed=seed) + signal * right_TxN)
        k = evaluation.doublings(task, data, output_TxN, task.prior(data))
        if signal:
            for other in (k - 1, k + 1, k - 5, k + 5):
                assert _loss(task, data, output_TxN, k) <= _loss(task, data, output_TxN, other)
        # However large the logits were given, what is judged is the same.
        larger = evaluation.doublings(task, data, 8 * output_TxN, task.prior(data))
        assert larger == k - 3
        assert _loss(task, data, output_TxN, k) <= np.log(6) + 1e-9


def test_known_logits_grow_until_all_are_sure():
    data = TASK.sample()
    right_TxN = np.eye(6)[np.asarray(data.next_TxK)[:, 0]]
    prior_T = TASK.prior(data)
    for lead in (1.0, 1e-3, 40.0):
        output_TxN = _normal(36, 6) * 0.1 * lead + right_TxN * lead
        k = evaluation.doublings(TASK, data, output_TxN, prior_T)
        others_TxN = np.where(right_TxN > 0, -np.inf, output_TxN)
        advantage = ((output_TxN * right_TxN).sum(axis=1) - others_TxN.max(axis=1)).min()
        assert advantage > 0
        # The loss may vanish in rounding before all are SURE; no further doubling follows.
        assert evaluation.SURE / 2 <= advantage * 2.0**k < 2 * evaluation.SURE
        assert _loss(TASK, data, output_TxN, k) < 1e-9


def test_no_scale_is_fitted_where_it_means_something_else():
    scalars = LabelledContexts(n_examples=5, context_length=2, input_dim=3, n_classes=None)
    several = Distributions(vocab_size=6, conditional="uniform", n_next=2)
    for task, output_TxC in ((scalars, _normal(5, 1)), (several, _normal(36, 6))):
        data = task.sample()
        assert evaluation.doublings(task, data, output_TxC, task.prior(data)) == 0
    data = TASK.sample()
    prior_T = TASK.prior(data)
    for output_TxN in (np.zeros((36, 6)), np.full((36, 6), np.nan), np.full((36, 6), np.inf)):
        assert evaluation.doublings(TASK, data, output_TxN, prior_T) == 0


def test_margins_are_shares_of_the_largest_output():
    task = LabelledContexts(n_examples=3, context_length=2, input_dim=3, n_classes=3)
    data = task.sample()._replace(label_T=jnp.asarray([0, 1, 2], jnp.int32))
    output_TxC = np.array([[4.0, 1.0, -2.0], [1.0, -8.0, 0.0], [0.0, 3.0, 3.0]])
    judged = evaluation.judge(task, data, output_TxC)
    # 4 leads 1 by 3; -8 trails 1 by 9; a tie leads by nothing and is no answer. The largest is 8.
    np.testing.assert_allclose(judged.margin_T, np.array([3, -9, 0]) / 8)
    assert judged.correct_T.tolist() == [True, False, False]
    expected = np.log(np.exp(output_TxC).sum(axis=1)) - np.array([4.0, -8.0, 3.0])
    np.testing.assert_allclose(judged.loss_T, expected, rtol=1e-12)
    # Margins of scaled outputs are the same.
    scaled = evaluation.judge(task, data, 1e3 * output_TxC)
    np.testing.assert_allclose(scaled.margin_T, judged.margin_T)


def test_scalars_and_several_answers_have_no_margin():
    task = LabelledContexts(n_examples=2, context_length=2, input_dim=3, n_classes=None)
    data = task.sample()._replace(label_T=jnp.asarray([0.25, 0.5]))
    judged = evaluation.judge(task, data, np.array([[0.28], [0.75]]))
    assert np.isnan(judged.margin_T).all()
    assert judged.correct_T.tolist() == [True, False]
    np.testing.assert_allclose(judged.loss_T, [0.03**2, 0.25**2], rtol=1e-6)
    several = Distributions(vocab_size=3, conditional="uniform", n_next=2)
    data = several.sample()
    logits_TxN = _normal(9, 3)
    judged = evaluation.judge(several, data, logits_TxN)
    assert np.isnan(judged.margin_T).all()
    log_TxN = logits_TxN - np.log(np.exp(logits_TxN).sum(axis=1, keepdims=True))
    of_next_TxK = np.take_along_axis(log_TxN, np.asarray(data.next_TxK), axis=1)
    # Two next tokens, a half each: the entropy is log 2.
    np.testing.assert_allclose(judged.loss_T, -of_next_TxK.mean(axis=1) - np.log(2), atol=1e-12)


def test_the_prior_is_a_probability():
    for task in (
        TASK,
        Associations(vocab_size=6, zipf_exponent=1.5),
        LabelledContexts(n_examples=7),
    ):
        prior_T = task.prior(task.sample())
        assert prior_T.dtype == np.float64
        assert prior_T.sum() == pytest.approx(1, abs=1e-14)
    assert not jax.config.jax_enable_x64
