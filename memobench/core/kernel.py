"""The contract of kernels: a module's own code for all steps of a chunk of a model."""

import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

# Takes a chunk, given its number of steps, the examples between two steps' batches, and arrays:
# weights_RxP and two moments, count_R of steps before, examples (bytes in words: all tokens and the
# next; then, where examples have weights, the bits of that), begin_R and size_R of batches among
# them, scale_R of scores, rate_RxC, factor_RxP of what the optimiser's update is multiplied with
# for a matrix's shape, and seen_2xRxC for losses and accuracies. The first three and the last are
# overwritten, or replaced in the list.
Launch = Callable[[int, int, list[Any]], None]


class Kernel(NamedTuple):
    """A source in C++, with CUDA's words or without, that trains a module.

    Tokens are read a few at a time, and one next token is learnt. `Launch` says what it is called
    with.

    Attributes:
      source: the file.
      sizes: the constants that it needs, by name.
      flatten: from the parameters of one model, all of them in the kernel's order, a vector.
      restore: its inverse.
      scale: from the constants of one model, the factor of its scores.
    """

    source: pathlib.Path
    sizes: tuple[tuple[str, int], ...]
    flatten: Callable[[Any], jax.Array]
    restore: Callable[[jax.Array], Any]
    scale: Callable[[Any], jax.Array]
