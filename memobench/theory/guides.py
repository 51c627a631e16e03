"""Asymptotic guides to the examples that a memory holds. No theorems: nothing is promised."""

import bisect
import functools
import math
from typing import Any

import numpy as np

from memobench.theory.theorem import Bound, Sizes, number, plane


def outer_products_guide(vocab_size: int, d_model: int) -> int:
    """The associations that a sum of outer products holds, all at once: an asymptotic guide.

    Keys and values are random unit vectors, labels uniform. For an association with the value v and
    another token's value w, (v - w) W k is 1 - v.w, plus crosstalk of the other T - 1: each adds
    k.k' (v - w).v', of variance 2/d^2, or 1/d where v' is v or w, as 2T/N of them are. Taken as
    Gaussian, of variance s = 2T/d^2 + (1 + 2T/N)/d in all, each of T N comparisons is lost with a
    probability below exp(-1/(2s)), and the guide is the largest T with T N exp(-1/(2s)) <= 1.

    For large d and T = N that is d^2 = 8 N ln N. If a vanishing share may be lost, each association
    stands for itself, only the largest of its N wrong answers matters, and it is 2 N ln N.

    >>> [outer_products_guide(n, 256) for n in (833, 10_000)]
    [833, 874]
    """

    def exponent(n_examples: int) -> float:
        n_own = 1 + 2 * n_examples / vocab_size
        variance = 2 * n_examples / d_model**2 + n_own / d_model
        return 2 * variance * math.log(n_examples * vocab_size)

    # One association has no crosstalk.
    return 1 + bisect.bisect_right(range(2, d_model**2 + 2), 1.0, key=exponent)


# Of no rows NumPy needs to be told the type.
_outer_products = np.vectorize(outer_products_guide, otypes=[int])
OUTER_PRODUCTS = Bound(
    name="linear memory, outer products: about d²/(8 ln N)",
    source="asymptotic guide, no theorem: `outer_products_guide`",
    value=lambda sizes: _outer_products(sizes["vocab_size"], sizes["d_model"]),
    assumptions="crosstalk is Gaussian; up to one instance in ten loses an association",
    about=("architecture",),
    where=plane,
    proven=False,
)


def _hebbian_guide(sizes: Sizes, noise: float) -> Any:
    """The largest F with noise F / (m d) + 3 F / d^3 at most 1 / (8 ln N)."""
    d_model, d_mlp = (np.asarray(sizes[x], np.float64) for x in ("d_model", "d_mlp"))
    variance = noise / np.maximum(d_mlp * d_model, 1) + 3 / d_model**3
    return np.maximum(np.floor(1 / (_confusions(sizes) * variance)), 1)


def _confusions(sizes: Sizes) -> Any:
    """8 ln N, as in `outer_products_guide`: none of N^2 comparisons is lost to Gaussian noise."""
    return 8 * np.log(np.maximum(number(sizes["vocab_size"]), 2))


def _whitened_guide(sizes: Sizes) -> Any:
    """The largest F with a share rank/F of the answer left to it: rho / (1 - rho) = 8 ln N / d.

    Random features of m neurons have rank m, or that of all quadratic forms of d numbers.
    """
    d_model = np.asarray(sizes["d_model"], np.float64)
    rank = np.minimum(sizes["d_mlp"], d_model * (d_model + 1) / 2)
    return np.maximum(np.floor(rank * (1 + d_model / _confusions(sizes))), 1)


def _memory(sizes: Sizes) -> Any:
    return plane(sizes) & (sizes["d_mlp"] > 0)


_guide = functools.partial(
    Bound,
    source="asymptotic guide, no theorem: Gaussian crosstalk to leading order",
    assumptions="keys and values are random directions, whose crosstalk is Gaussian",
    about=("architecture",),
    where=_memory,
    proven=False,
)
# Memories of bilinear neurons written down, Garcia et al. (2026).
HEBBIAN = _guide(
    name="bilinear memory, outer products: F/(m·d) + 3F/d³ < 1/(8 ln N)",
    value=lambda sizes: _hebbian_guide(sizes, noise=1.0),
)
NTK = _guide(
    name="linearised relu memory: 2F/(m·d) + 3F/d³ < 1/(8 ln N)",
    value=lambda sizes: _hebbian_guide(sizes, noise=2.0),
)
WHITENED = _guide(
    name="bilinear memory, least squares: m·(1 + d/(8 ln N))",
    value=_whitened_guide,
)


def _one_step(sizes: Sizes, power: float) -> Any:
    """About d^(power + 1 / (2 alpha)) of the most frequent, N at most."""
    exponent = power + 0.5 / number(sizes["zipf_exponent"])
    return np.minimum(np.asarray(sizes["d_model"], np.float64) ** exponent, sizes["n_examples"])


_step = functools.partial(
    Bound,
    source="Kim, Nichani, Wu, Bietti & Lee 2026: up to constants and logarithms, alpha > 1",
    assumptions="frequencies by Zipf's law, large batches",
    about=("architecture",),
    where=lambda sizes: plane(sizes) & (number(sizes["zipf_exponent"]) > 1),
    proven=False,
)
GRADIENT_STEP = _step(
    name="linear memory, one gradient step: d^(1/(2α))",
    value=lambda sizes: _one_step(sizes, 0.0),
)
MUON_STEP = _step(
    name="linear memory, one step of Muon: d^(1 + 1/(2α))",
    value=lambda sizes: _one_step(sizes, 1.0),
)
