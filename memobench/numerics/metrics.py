"""Measures of memorization: loss, accuracy, bits. Pure functions on arrays or numbers."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special

from memobench.numerics import cpu, lookup

# A scalar label, uniform(0, 1), counts as known within this distance.
SCALAR_TOLERANCE = 0.05
# A set counts as known completely from this accuracy on.
NEARLY = 0.99


def kl_and_correct(
    logits_N: jax.Array, next_K: jax.Array, probability_K: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """KL(next tokens || softmax) in nats, and whether the likeliest next token has the top logit.

    The likeliest is the first. A tie for the top is an error, so that a model without an opinion
    memorizes nothing.
    """
    logit_K = _entries(logits_N, next_K)
    entropy = jax.scipy.special.entr(probability_K).sum()
    normalizer, correct = lookup.select_by_platform(
        _compare_on_cpus, _compare_on_accelerators, logits_N, next_K[0], logit_K[0]
    )
    return normalizer - (probability_K * logit_K).sum() - entropy, correct


def _compare_on_cpus(logits_N: jax.Array, token: jax.Array, logit: jax.Array) -> tuple[Any, Any]:
    """The logits' log sum exp, and whether that of a token alone is the largest."""
    return cpu.logsumexp(logits_N), cpu.count(logits_N >= logit) == 1


def _compare_on_accelerators(
    logits_N: jax.Array, token: jax.Array, logit: jax.Array
) -> tuple[Any, Any]:
    """The same: the largest of the others is found while the softmax seeks its own."""
    is_other_N = jnp.arange(len(logits_N)) != token
    largest = jnp.max(logits_N, initial=-jnp.inf, where=is_other_N)
    return jax.nn.logsumexp(logits_N), logit > largest


@jax.custom_vjp
def _entries(x_N: jax.Array, number_K: jax.Array) -> jax.Array:
    """x_N[number_K], whose gradient compares numbers; that of a plain gather is a scatter."""
    return x_N[number_K]


def _entries_forward(x_N: jax.Array, number_K: jax.Array) -> tuple[jax.Array, Any]:
    return x_N[number_K], (number_K, jnp.arange(len(x_N)))


def _entries_backward(kept: Any, gradient_K: jax.Array) -> tuple[jax.Array, None]:
    number_K, number_N = kept
    is_entry_KxN = number_K[:, None] == number_N[None]
    return jnp.where(is_entry_KxN, gradient_K[:, None], 0).sum(axis=0), None


_entries.defvjp(_entries_forward, _entries_backward)


def loss_and_correct(output_C: jax.Array, label: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The loss of one labelled example, and whether it is known.

    Of a class, int32: cross-entropy in nats, known if it alone has the top logit. Of a scalar,
    float32: squared error, known if the error is at most SCALAR_TOLERANCE.
    """
    if jnp.issubdtype(label.dtype, jnp.integer):
        return kl_and_correct(output_C, label[None], jnp.ones(1))
    error = output_C[0] - label
    return error**2, jnp.abs(error) <= SCALAR_TOLERANCE


def judge(
    output_TxN: np.ndarray, next_TxK: np.ndarray, probability_TxK: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """loss_T and correct_T as `kl_and_correct` defines them, in NumPy and float64.

    T stands for any leading axes.

    >>> judge(np.array([[0.0, 2.0], [1.0, 1.0]]), np.array([[1], [1]]), np.ones((2, 1)))[1]
    array([ True, False])
    """
    output_TxN = np.asarray(output_TxN, np.float64)
    logit_TxK = np.take_along_axis(output_TxN, next_TxK, axis=-1)
    correct_T = (output_TxN >= logit_TxK[..., :1]).sum(axis=-1) == 1
    entropy_T = scipy.special.entr(probability_TxK).sum(axis=-1)
    normalizer_T = scipy.special.logsumexp(output_TxN, axis=-1)
    return normalizer_T - (probability_TxK * logit_TxK).sum(axis=-1) - entropy_T, correct_T


def correct_for_chance(accuracy: Any, n_examples: Any, guessing: Any) -> Any:
    """Examples memorized, X in accuracy = c + (1 - c) X/T (Dana et al. 2025, section 5).

    >>> correct_for_chance(1.0, 2500, 1 / 50)
    2500.0
    """
    return n_examples * (accuracy - guessing) / (1 - guessing)


def memorized_bits(loss: Any, n_predicted: Any, n_choices: Any) -> Any:
    """Bits memorized: T log2 N minus the negative log-likelihood in bits, floored at 0.

    The labels are uniform and independent, so T log2 N is their entropy (Morris et al. 2025). NaN
    for scalars, which are not choices.

    Args:
      loss: mean negative log-likelihood of an answer, in nats.
      n_predicted: answers in all, T.
      n_choices: among how many each was drawn, N; None for scalars.

    >>> float(memorized_bits(0.0, 10, 8)), float(memorized_bits(9.0, 10, 8))
    (30.0, 0.0)
    """
    entropy = np.nan if n_choices is None else np.log(n_choices)
    return np.maximum(n_predicted * (entropy - loss) / np.log(2), 0)
