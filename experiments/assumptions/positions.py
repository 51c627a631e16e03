"""Learned and rotary position encodings as plain arrays in float64.

Shape letters: L positions, D width, F = D / 2 frequencies.
"""

import numpy as np

from memobench.common.errors import UserError
from memobench.models.positions import frequencies

# What BERT and GPT-2 begin with (Devlin et al. 2019, Radford et al. 2019).
_DEVIATION = 0.02


def learned(length: int, d_model: int, seed: int = 0) -> np.ndarray:
    """encoding_LxD: a table as it is before training, normal.

    >>> learned(2, 3).shape, bool((learned(2, 3) == learned(2, 3)).all())
    ((2, 3), True)
    """
    return np.random.default_rng(seed).normal(scale=_DEVIATION, size=(length, d_model))


def rotary(vectors_LxD: np.ndarray) -> np.ndarray:
    """rotated_LxD: pair i of the vector at position t turned by t times frequency i.

    Pairs are neighbours, coordinates 2i and 2i + 1 (Su et al. 2021); D is even, or UserError.

    >>> rotary(np.ones((2, 2))).round(2).tolist()
    [[1.0, 1.0], [-0.3, 1.38]]
    """
    length, d_model = vectors_LxD.shape
    if d_model % 2:
        raise UserError(f"d_model={d_model} is odd; rotary positions turn pairs, give an even one")
    angle_LxF = np.arange(length)[:, None] * frequencies(d_model)
    sine, cosine = np.sin(angle_LxF), np.cos(angle_LxF)
    even_LxF, odd_LxF = vectors_LxD[:, 0::2], vectors_LxD[:, 1::2]
    rotated_LxD = np.empty((length, d_model))
    rotated_LxD[:, 0::2] = even_LxF * cosine - odd_LxF * sine
    rotated_LxD[:, 1::2] = even_LxF * sine + odd_LxF * cosine
    return rotated_LxD
