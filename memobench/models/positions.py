"""Sinusoidal position encodings as plain arrays in float64. Imports no JAX.

Shape letters: L positions, D width.
"""

import numpy as np

_BASE = 10_000.0


def frequencies(d_model: int) -> np.ndarray:
    """The angle per position of every second coordinate, falling from 1 (Vaswani et al. 2017)."""
    return _BASE ** (-np.arange(0, d_model, 2) / d_model)


def sinusoids(length: int, d_model: int) -> np.ndarray:
    """encoding_LxD: sines in the even and cosines in the odd coordinates (Vaswani et al. 2017).

    >>> sinusoids(2, 4).round(2).tolist()
    [[0.0, 1.0, 0.0, 1.0], [0.84, 0.54, 0.01, 1.0]]
    """
    angle_LxF = np.arange(length)[:, None] * frequencies(d_model)
    encoding_LxD = np.empty((length, d_model))
    encoding_LxD[:, 0::2] = np.sin(angle_LxF)
    encoding_LxD[:, 1::2] = np.cos(angle_LxF[:, : d_model // 2])
    return encoding_LxD
