"""Position encodings as plain arrays in float64. Imports no JAX.

Shape letters: L positions, D width.
"""

import numpy as np

from memobench.errors import UserError

_BASE = 10_000.0


def frequencies(d_model: int) -> np.ndarray:
    """The angle per position of every second coordinate, falling from 1 (Vaswani et al. 2017)."""
    return _BASE ** (-np.arange(0, d_model, 2) / d_model)


def sinusoidal(length: int, d_model: int) -> np.ndarray:
    """encoding_LxD: sines in the even and cosines in the odd coordinates (Vaswani et al. 2017).

    >>> sinusoidal(2, 4).round(2).tolist()
    [[0.0, 1.0, 0.0, 1.0], [0.84, 0.54, 0.01, 1.0]]
    """
    angle_LxF = np.arange(length)[:, None] * frequencies(d_model)
    encoding_LxD = np.empty((length, d_model))
    encoding_LxD[:, 0::2] = np.sin(angle_LxF)
    encoding_LxD[:, 1::2] = np.cos(angle_LxF[:, : d_model // 2])
    return encoding_LxD


def learned(length: int, d_model: int, seed: int = 0, scale: float = 0.02) -> np.ndarray:
    """encoding_LxD: a table as it is before training, normal with deviation `scale`.

    0.02 is what BERT and GPT-2 begin with (Devlin et al. 2019, Radford et al. 2019).

    >>> learned(2, 3).shape, bool((learned(2, 3) == learned(2, 3)).all())
    ((2, 3), True)
    """
    return np.random.default_rng(seed).normal(scale=scale, size=(length, d_model))


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
