"""What was memorized: accuracy, memorized, bits. Pure functions on arrays or numbers."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def kl_and_correct(
    logits_N: jax.Array, next_K: jax.Array, probability_K: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """KL(next tokens || softmax) in nats, and whether the likeliest next token has the top logit.

    The likeliest is the first. A tie for the top is an error, so that a model without an opinion
    memorizes nothing.
    """
    logit_K = logits_N[next_K]
    correct = jnp.sum(logits_N >= logit_K[0]) == 1
    entropy = jax.scipy.special.entr(probability_K).sum()
    return jax.nn.logsumexp(logits_N) - (probability_K * logit_K).sum() - entropy, correct


def chance_corrected(accuracy: Any, n_examples: Any, vocab_size: Any) -> Any:
    """Associations memorized, X in accuracy = 1/N + (1 - 1/N) X/T (Dana et al. 2025, section 5).

    >>> chance_corrected(1.0, 2500, 50)
    2500.0
    """
    chance = 1 / vocab_size
    return n_examples * (accuracy - chance) / (1 - chance)


def memorized_bits(mean_nll_nats: Any, n_examples: Any, vocab_size: Any) -> Any:
    """Bits memorized: T log2 N minus the negative log-likelihood in bits, floored at 0.

    The labels are uniform and independent, so T log2 N is their entropy (Morris et al. 2025).
    """
    bits = n_examples * (np.log(vocab_size) - mean_nll_nats) / np.log(2)
    return np.maximum(bits, 0)
