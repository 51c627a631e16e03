"""Outputs that tell tokens or classes apart: distinct unit vectors.

Where the stream ends as the vector of a token, that token has the top logit. Shape letters: N
tokens, D width.
"""

import numpy as np

_SPREADING_STEPS = 200
_SHARPNESS = 30.0


def circle(n: int, d_model: int = 2) -> np.ndarray:
    """codes_NxD: evenly on a circle, zero beyond the first two coordinates.

    Dana, Pydi & Chevaleyre 2025, Proposition 3: two dimensions suffice.

    >>> circle(4).round(3).tolist()
    [[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [-0.0, -1.0]]
    """
    angle_N = 2 * np.pi * np.arange(n) / n
    codes_NxD = np.zeros((n, d_model))
    codes_NxD[:, 0], codes_NxD[:, 1] = np.cos(angle_N), np.sin(angle_N)
    return codes_NxD


def spread(n: int, d_model: int, rng: np.random.Generator) -> np.ndarray:
    """codes_NxD: unit vectors that repel each other, on the circle where d_model is 2.

    The farther they are apart, the larger the errors that an answer survives. Where there are at
    most d_model vectors they are orthonormal: the change of basis needs the dimensions they span.
    """
    if n <= d_model:
        return np.linalg.qr(rng.standard_normal((d_model, n)))[0].T
    if d_model == 2:
        return circle(n)
    codes_NxD = unit(rng.standard_normal((n, d_model)))
    for _ in range(_SPREADING_STEPS):
        nearness_NxN = codes_NxD @ codes_NxD.T
        np.fill_diagonal(nearness_NxN, -1)
        push_NxN = np.exp(_SHARPNESS * (nearness_NxN - nearness_NxN.max(axis=1, keepdims=True)))
        push_NxN /= push_NxN.sum(axis=1, keepdims=True)
        codes_NxD = unit(codes_NxD - 0.1 * push_NxN @ codes_NxD)
    return codes_NxD


def unit(vectors_NxD: np.ndarray) -> np.ndarray:
    """The directions of vectors."""
    return vectors_NxD / np.linalg.norm(vectors_NxD, axis=1, keepdims=True)
