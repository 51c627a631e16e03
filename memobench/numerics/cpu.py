"""Products and reductions of small models in the forms that a CPU computes fast.

Equal to what they stand for up to rounding. They are meant for the branch of
`lookup.select_by_platform` that is compiled for CPUs. What makes the difference there (XLA of JAX
0.10):

- Sums of numbers are vector code, and so are maxima of integers; maxima of floats are not.
- A sum of more than 32 numbers becomes windows of 32, each a pass over memory of its own.
- The gradient of a matrix is a product of few rows and columns and many examples: fast where the
  longer of its axes is the last.
- Products of matrices of one example alone, of a few numbers each, take longer than their sums.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

# XLA splits longer reductions.
_WINDOW = 32
# A matrix of one example that has no more numbers is multiplied by sums.
FEW_NUMBERS = 128


def logsumexp(x_N: jax.Array) -> jax.Array:
    """The logarithm of the sum of exponentials of the last axis.

    >>> round(float(logsumexp(jnp.log(jnp.array([1.0, 3.0, 4.0])))), 4)
    2.0794
    """
    largest = jax.lax.stop_gradient(_find_maximum(x_N))
    largest = jnp.where(jnp.isfinite(largest), largest, 0)
    sum_exp = _reduce_in_parts(jnp.sum, jnp.exp(x_N - largest[..., None]))
    return jnp.log(sum_exp) + largest


def count(is_N: jax.Array) -> jax.Array:
    """The number of true entries along the last axis.

    >>> int(count(jnp.arange(100) < 7))
    7
    """
    return _reduce_in_parts(jnp.sum, is_N.astype(jnp.int32))


def affine(x_M: jax.Array, weight_NxM: jax.Array, bias_N: jax.Array | None = None) -> jax.Array:
    """Computes weight @ x + bias with gradients whose last axis are the outputs, N.

    The gradient of a bias is a row of that of the weights, and no sum over examples of its own.

    >>> affine(jnp.ones(2), jnp.array([[1.0, 2.0]]), jnp.array([3.0])).tolist()
    [6.0]
    """
    if bias_N is not None:
        weight_NxM = jnp.concatenate([weight_NxM, bias_N[:, None]], axis=1)
        x_M = jnp.concatenate([x_M, jnp.ones(1, x_M.dtype)])
    return x_M @ _transpose(weight_NxM)


def mix(weight_H: jax.Array, x_HxI: jax.Array) -> jax.Array:
    """The weighted sum of rows, weight @ x, both of one example alone."""
    if x_HxI.size > FEW_NUMBERS:
        return weight_H @ x_HxI
    return (weight_H[:, None] * x_HxI).sum(axis=0)


def scores(x_HxI: jax.Array, key_I: jax.Array) -> jax.Array:
    """The products of rows with a vector, x @ key, both of one example alone."""
    if x_HxI.size > FEW_NUMBERS:
        return x_HxI @ key_I
    return (x_HxI * key_I[None]).sum(axis=1)


@jax.custom_vjp
def _transpose(weight_NxM: jax.Array) -> jax.Array:
    """weight_MxN, with a gradient that is computed in this layout.

    Without barriers XLA merges the transposition into the product, in both directions.
    """
    return jax.lax.optimization_barrier(weight_NxM.T)


def _transpose_forward(weight_NxM: jax.Array) -> tuple[jax.Array, None]:
    return _transpose(weight_NxM), None


def _transpose_backward(_: None, gradient_MxN: jax.Array) -> tuple[jax.Array]:
    return (jax.lax.optimization_barrier(gradient_MxN).T,)


_transpose.defvjp(_transpose_forward, _transpose_backward)


def _find_maximum(x_N: jax.Array) -> jax.Array:
    """The maximum over the last axis, found among integers in the order of the floats."""
    integer = np.dtype(f"int{8 * x_N.dtype.itemsize}")
    key_N = _flip_negative(jax.lax.bitcast_convert_type(x_N, integer))
    return jax.lax.bitcast_convert_type(_flip_negative(_reduce_in_parts(jnp.max, key_N)), x_N.dtype)


def _flip_negative(bits: jax.Array) -> jax.Array:
    """Flips all bits but the sign of negative numbers; its own inverse."""
    n_others = 8 * bits.dtype.itemsize - 1
    return bits ^ ((bits >> n_others) & np.array(2**n_others - 1, bits.dtype))


def _reduce_in_parts(reduce: Callable[..., jax.Array], x_N: jax.Array) -> jax.Array:
    """reduce(x_N) over the last axis, as that of parts which XLA does not split."""
    n = x_N.shape[-1]
    part = max(size for size in range(1, _WINDOW + 1) if n % size == 0)
    if n <= _WINDOW or part == 1:
        return reduce(x_N, axis=-1)
    x_PxM = x_N.reshape(*x_N.shape[:-1], n // part, part)
    # XLA would make one reduction of both.
    return reduce(jax.lax.optimization_barrier(reduce(x_PxM, axis=-1)), axis=-1)
