"""Weights rounded to fewer bits."""

import ml_dtypes
import numpy as np

# Integers share a float32 scale with the others of their block.
BLOCK = 32
_LEVELS = {"int8": 127, "int4": 7}
_BITS = {"float64": 64, "float32": 32, "bfloat16": 16, "int8": 8, "int4": 4}
# With the scales, as if all blocks were full.
BITS_PER_WEIGHT = {name: bits + 32 / BLOCK * (name in _LEVELS) for name, bits in _BITS.items()}


def stored(weights: np.ndarray, precision: str) -> np.ndarray:
    """The weights, float64, rounded to what the precision can hold.

    Integers are symmetric: in each block of BLOCK weights, in memory order, the largest magnitude
    becomes the largest level.

    >>> stored(np.array([1.0, 0.4, 0.2]), "int4").round(2).tolist()
    [1.0, 0.43, 0.14]
    """
    if precision == "float64":
        return weights.astype(np.float64)
    if precision in _LEVELS:
        return _in_blocks(weights, _LEVELS[precision])
    kind = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16}[precision]
    return weights.astype(kind).astype(np.float64)


def n_bytes(size: int, precision: str) -> int:
    """Bytes of an array of so many weights, and of the scales of its blocks.

    >>> n_bytes(40, "float32"), n_bytes(40, "int8"), n_bytes(39, "int4")
    (160, 48, 28)
    """
    scales = 4 * -(-size // BLOCK) if precision in _LEVELS else 0
    bits = _BITS[precision] * size
    return -(-bits // 8) + scales


def _in_blocks(weights: np.ndarray, most: int) -> np.ndarray:
    n_blocks = -(-weights.size // BLOCK)
    blocks_BxW = np.zeros((n_blocks, BLOCK))
    blocks_BxW.flat[: weights.size] = weights.ravel()
    largest_Bx1 = np.abs(blocks_BxW).max(axis=1, keepdims=True, initial=0)
    scale_Bx1 = (largest_Bx1 / most).astype(np.float32)
    # A block of zeros, or of values below the smallest float32, holds zeros whatever its scale.
    scale_Bx1[scale_Bx1 == 0] = 1
    rounded_BxW = np.rint(blocks_BxW / scale_Bx1).clip(-most, most) * scale_Bx1
    return rounded_BxW.flat[: weights.size].reshape(weights.shape)
