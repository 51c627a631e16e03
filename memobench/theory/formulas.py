"""Formulas of papers that figures and tables compare with."""

import math

import numpy as np
import scipy.special


def t_eps(n_examples: int, zipf_exponent: float | None, eps: float) -> int:
    """T_eps: the least number of sequences whose prior mass exceeds 1 - eps (Dana et al. 2025).

    >>> t_eps(100, None, 0.1), t_eps(100, 1.0, 0.1), t_eps(100, 1.0, 0.0)
    (91, 60, 100)
    """
    weight_T = np.arange(1.0, n_examples + 1) ** -(zipf_exponent or 0.0)
    mass_T = np.cumsum(weight_T) / weight_T.sum()
    # All sequences have the whole mass and no more, so that eps = 0 asks for all of them.
    above = np.flatnonzero(mass_T > 1 - eps + 1e-12)
    return int(above[0]) + 1 if len(above) else n_examples


def encoder_bound(
    vocab_size: int, d_model: int, n_next: int, conditional: str, parameter: float | None = None
) -> float:
    """Upper bound on the divergence of the best sequence encoder, Dana et al. (2025), Theorem 2.

    Nearly orthogonal outputs (Johnson-Lindenstrauss) for a look-up table with noise: the likeliest
    token g with probability pi(g), the others as `conditional` says. Infinite where the theorem
    says nothing, which is below d_model = 128 ln(vocab_size + 1); NaN for `dirichlet`, whose
    weights differ between sequences.

    >>> encoder_bound(10, 100, 2, "uniform"), round(encoder_bound(10, 10**9, 2, "uniform"), 3)
    (inf, 1.1)
    """
    if conditional == "dirichlet":
        return float("nan")
    weight_K = np.arange(1, n_next + 1) ** -(parameter or 0.0)
    pi_K = weight_K / weight_K.sum()
    perplexity = math.exp(scipy.special.entr(pi_K).sum())
    if perplexity <= 1:
        return 0.0  # (1 - pi) log(1 / (perplexity - 1)) vanishes with the entropy.
    crosstalk = math.sqrt(32 * math.log(vocab_size + 1) / d_model)
    if 2 * crosstalk >= 1:
        return float("inf")
    noise_N = np.zeros(vocab_size - 1)
    noise_N[: n_next - 1] = pi_K[1:] / pi_K[1:].sum()
    from_uniform = np.abs(noise_N - 1 / (vocab_size - 1)).sum() / 2
    factor = (1 + 2 * crosstalk + crosstalk * from_uniform) / (1 - 2 * crosstalk)
    return float((1 - pi_K[0]) * math.log((vocab_size - 1) / (perplexity - 1)) * factor)
