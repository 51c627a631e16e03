"""Norms of the stream, and of queries and keys, that may be zero-padded.

    rms:   scale * x / sqrt(mean(x^2) + eps)                      (Zhang & Sennrich 2019)
    layer: scale * (x - mean(x)) / sqrt(var(x) + eps) + bias      (Ba et al. 2016)

A mean over the true width weighs by `averaging`, 1/size and zero in the padding: what is padded
then neither counts nor has a gradient.

Shape letters: D the width that is normed.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from memobench.models.initial_weights import Table, Weight

KINDS = ("rms", "layer", "none")
# PyTorch's constant, and Llama's.
EPSILON = 1e-5


def averaging(size: int) -> np.ndarray:
    """mean_D: by which x_D is weighed for its mean; a constant of the module."""
    return np.full(size, 1 / size, np.float32)


@dataclasses.dataclass(frozen=True)
class Norm:
    """A norm of `size` numbers; kind: one of KINDS."""

    kind: str
    size: int

    def parameters(self) -> Table:
        """The scale, and the bias of a layer norm."""
        scale, bias = Weight((self.size,), mean=1, deviation=0), Weight((self.size,), deviation=0)
        return {"rms": {"scale": scale}, "layer": {"scale": scale, "bias": bias}, "none": {}}[
            self.kind
        ]

    def __call__(self, weights: Mapping[str, jax.Array], mean_D: Any, x: jax.Array) -> jax.Array:
        """Normed along the last axis of x; mean_D is not read where the kind is none."""

        def along_last(weight_D: jax.Array) -> jax.Array:
            return weight_D.reshape((1,) * (x.ndim - 1) + (-1,))

        if self.kind == "none":
            return x
        # Every entry of the product is the mean: on a CPU faster than sums over a short axis.
        mean_DxD = jnp.broadcast_to(mean_D[:, None], (len(mean_D), len(mean_D)))
        if self.kind == "layer":
            x = x - x @ mean_DxD
        normed = along_last(weights["scale"]) * x * jax.lax.rsqrt(x**2 @ mean_DxD + EPSILON)
        return normed + along_last(weights["bias"]) if self.kind == "layer" else normed
