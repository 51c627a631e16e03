"""Norms of the stream, and of queries and keys, that may be zero-padded.

    rms:   scale * x / sqrt(mean(x^2) + eps)                      (Zhang & Sennrich 2019)
    layer: scale * (x - mean(x)) / sqrt(var(x) + eps) + bias      (Ba et al. 2016)

A mean over the true width weighs by `mean_weights`, 1/size and zero in the padding: what is padded
then neither counts nor has a gradient.

Shape letters: D the width that is normed.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from memobench.numerics.initial_weights import Table, Weight

KINDS = ("rms", "layer", "none")
# PyTorch's constant, and Llama's.
EPSILON = 1e-5


@dataclasses.dataclass(frozen=True)
class Norm:
    """A norm of `size` numbers.

    Attributes:
        kind: one of KINDS.
    """

    kind: str
    size: int

    def __call__(self, weights: Mapping[str, jax.Array], mean_D: Any, x: jax.Array) -> jax.Array:
        """x, normed along its last axis; mean_D is not read where the kind is "none"."""

        def put_last(weight_D: jax.Array) -> jax.Array:
            return weight_D.reshape((1,) * (x.ndim - 1) + (-1,))

        if self.kind == "none":
            return x

        def mean(y: jax.Array) -> jax.Array:
            return (y * put_last(mean_D)).sum(axis=-1, keepdims=True)

        if self.kind == "layer":
            x -= mean(x)
        normed = put_last(weights["scale"]) * x * jax.lax.rsqrt(mean(x**2) + EPSILON)
        return normed + put_last(weights["bias"]) if self.kind == "layer" else normed

    def parameters(self) -> Table:
        """The scale, and the bias of a layer norm."""
        scale, bias = Weight((self.size,), mean=1, deviation=0), Weight((self.size,), deviation=0)
        return {"rms": {"scale": scale}, "layer": {"scale": scale, "bias": bias}, "none": {}}[
            self.kind
        ]


def mean_weights(size: int) -> np.ndarray:
    """mean_D: the weights of a mean of x_D; a constant of the module."""
    return np.full(size, 1 / size, np.float32)
