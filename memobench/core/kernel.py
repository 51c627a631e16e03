"""The contract of kernels: a module's own code for all steps of a chunk, one block a model."""

import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax


class Kernel(NamedTuple):
    """A source in CUDA's C++ that trains a module by Adam, weights and moments in shared memory.

    Tokens are read two at a time, and one next token is learnt. `memobench/engine/resident.py` says
    what it is called with.

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
