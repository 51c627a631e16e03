"""What a CPU computes in forms of its own is what the definitions say."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from memobench.numerics import cpu

SIZES = (1, 2, 7, 31, 32, 33, 37, 50, 64, 100, 200)


def _logits(n, *shape, seed=0):
    random = np.random.default_rng(seed)
    return (random.normal(size=(*shape, n)) * 30).astype(np.float32)


@pytest.mark.rounding
@pytest.mark.parametrize("n", SIZES)
def test_log_sum_exp_and_its_gradient(n):
    logits = _logits(n, 5)
    exact = logits.astype(np.float64)

    def summed(logits):
        found = cpu.logsumexp(logits)
        return found.sum(), found

    gradient, found = jax.jit(jax.grad(summed, has_aux=True))(logits)
    np.testing.assert_allclose(found, scipy.special.logsumexp(exact, axis=-1), rtol=1e-6)
    np.testing.assert_allclose(gradient, scipy.special.softmax(exact, axis=-1), atol=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_largest_of_all_kinds_of_numbers(dtype):
    tiny = np.finfo(dtype).smallest_subnormal
    for numbers in (
        [-1.0, -2.0, -3.0],
        [-0.0, 0.0],
        [-np.inf, -np.inf],
        [-np.inf, 1.0, np.inf],
        [-tiny, tiny],
        [-np.finfo(dtype).max, np.finfo(dtype).min / 2],
        list(np.linspace(-5, 5, 96)),
    ):
        with jax.enable_x64(dtype == np.float64):
            x = jnp.asarray(np.array(numbers, dtype))
            assert float(jax.jit(cpu._find_maximum)(x)) == max(numbers)


def test_log_sum_exp_of_what_is_out_of_range():
    assert np.isnan(cpu.logsumexp(jnp.array([1.0, jnp.nan])))
    assert np.isnan(cpu.logsumexp(jnp.array([1.0, -jnp.nan])))
    assert cpu.logsumexp(jnp.array([-jnp.inf, -jnp.inf])) == -jnp.inf
    assert cpu.logsumexp(jnp.array([-jnp.inf, 2.0])) == 2


@pytest.mark.parametrize("n", SIZES)
def test_counts(n):
    is_N = _logits(n) > 0
    assert int(jax.jit(cpu.count)(is_N)) == is_N.sum()


@pytest.mark.rounding
@pytest.mark.parametrize("biased", [False, True])
def test_an_affine_map_and_its_gradients(biased):
    x_BxM, weights = _logits(4, 6), [_logits(4, 5, seed=1), _logits(5, seed=2)][: 1 + biased]

    def plain(x_BxM, weight_NxM, bias_N=None):
        product_BxN = jnp.einsum("bm,nm->bn", x_BxM, weight_NxM)
        return product_BxN if bias_N is None else product_BxN + bias_N[None]

    def ours(x_BxM, *weights):
        return jax.vmap(lambda x_M: cpu.affine(x_M, *weights))(x_BxM)

    def values_and_gradients(form):
        places = tuple(range(1 + len(weights)))
        values = form(x_BxM, *weights)
        of_sum = jax.grad(lambda *x: jnp.sin(form(*x) / 100).sum(), argnums=places)
        return [values, *jax.jit(of_sum)(x_BxM, *weights)]

    for mine, theirs in zip(values_and_gradients(ours), values_and_gradients(plain), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-3)


@pytest.mark.rounding
@pytest.mark.parametrize("n_rows", [1, 3, cpu.FEW_NUMBERS])
def test_products_of_one_example_alone(n_rows):
    weight_H, x_HxI, key_I = _logits(n_rows), _logits(4, n_rows, seed=1), _logits(4, seed=2)
    close = {"rtol": 1e-4, "atol": 1e-3}
    np.testing.assert_allclose(cpu.mix(weight_H, x_HxI), np.dot(weight_H, x_HxI), **close)
    np.testing.assert_allclose(cpu.scores(x_HxI, key_I), np.dot(x_HxI, key_I), **close)
