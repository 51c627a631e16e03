"""Numbers of more or fewer bits: weights rounded, trees of arrays cast."""

import math
from typing import Any

import jax
import ml_dtypes
import numpy as np

# Integers share a float32 scale with the others of their block.
BLOCK = 32
LEVELS = {"int8": 127, "int4": 7}
_BITS = {"float64": 64, "float32": 32, "bfloat16": 16, "int8": 8, "int4": 4}
PRECISIONS = tuple(_BITS)
# Those in which nothing is computed.
COARSE = tuple(name for name, bits in _BITS.items() if bits < 32)
# With the scales, as if all blocks were full.
BITS_PER_WEIGHT = {name: bits + 32 / BLOCK * (name in LEVELS) for name, bits in _BITS.items()}


def round_to(weights: np.ndarray, precision: str) -> np.ndarray:
    """The weights, float64, rounded to what the precision can hold.

    Integers are symmetric: in each block of BLOCK weights, in memory order, the largest magnitude
    becomes the largest level.

    >>> round_to(np.array([1.0, 0.4, 0.2]), "int4").round(2).tolist()
    [1.0, 0.43, 0.14]
    """
    if precision == "float64":
        return weights.astype(np.float64)
    if precision in LEVELS:
        block = block_of(weights.shape)
        largest_B = np.zeros(n_blocks(weights.size))
        np.maximum.at(largest_B, block, np.abs(weights))
        return round_to_levels(weights.astype(np.float64), largest_B[block], precision)
    kind = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16}[precision]
    return weights.astype(kind).astype(np.float64)


def cast(tree: Any, kind: type[np.floating] = np.float64) -> Any:
    """A tree whose arrays of floating-point numbers are NumPy's, of this kind; others stay."""

    def cast_array(x: Any) -> Any:
        x = np.asarray(x)
        return x.astype(kind) if np.issubdtype(x.dtype, np.floating) else x

    return jax.tree.map(cast_array, tree)


def n_bytes(size: int, precision: str) -> int:
    """Bytes of an array of so many weights, and of the scales of its blocks.

    >>> n_bytes(40, "float32"), n_bytes(40, "int8"), n_bytes(39, "int4")
    (160, 48, 28)
    """
    scales = 4 * n_blocks(size) if precision in LEVELS else 0
    bits = _BITS[precision] * size
    return -(-bits // 8) + scales


def n_blocks(size: int) -> int:
    """Blocks of so many weights."""
    return -(-size // BLOCK)


def block_of(shape: tuple[int, ...]) -> np.ndarray:
    """The block of each weight."""
    return (np.arange(math.prod(shape), dtype=np.int32) // BLOCK).reshape(shape)


def round_to_levels(weights: Any, largest: Any, precision: str, numpy: Any = np) -> Any:
    """Weights rounded to multiples of a scale, given the largest magnitude of each one's block.

    Args:
      weights: an array.
      largest: the magnitude of each weight's block.
      precision: one of LEVELS.
      numpy: the module of the arrays, NumPy or JAX's.
    """
    most = LEVELS[precision]
    scale = (largest / most).astype(np.float32)
    # A block of zeros, or of values below the smallest float32, holds zeros whatever its scale.
    scale = numpy.where(scale == 0, np.float32(1), scale)
    return numpy.rint(weights / scale).clip(-most, most) * scale
