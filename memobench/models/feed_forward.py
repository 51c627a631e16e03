"""Feed-forward blocks and their activations: hidden neurons that add to the stream, by position.

Plain ones have two matrices, gated ones three (Shazeer 2020), none has biases:

    f(x) = W_out a(W_in x),    f(x) = W_out (a(W_gate x) * W_in x)

All are 0 at 0, so that hidden neurons and the stream's width may be zero-padded.

Shape letters: P positions, D d_model, W d_mlp.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
from flax import linen as nn

from memobench.numerics.initial_weights import Table, Weight, fan_in


@dataclasses.dataclass(frozen=True)
class FeedForward:
    """A block of `d_mlp` hidden neurons.

    Attributes:
        activation: one of ACTIVATIONS, or of GATES for a gated block.
    """

    d_model: int
    d_mlp: int
    activation: str

    def __call__(
        self, weights: Mapping[str, jax.Array], constants: Mapping[str, Any], x_PxD: jax.Array
    ) -> jax.Array:
        """added_PxD: the output of the block at every position."""
        del constants
        hidden_PxW = x_PxD @ weights["mlp_in"].T
        if self.activation in GATES:
            hidden_PxW *= GATES[self.activation](x_PxD @ weights["mlp_gate"].T)
        else:
            hidden_PxW = ACTIVATIONS[self.activation](hidden_PxW)
        return hidden_PxW @ weights["mlp_out"].T

    def parameters(self) -> Table:
        """2 D W weights, or 3 D W of a gated block."""
        into = Weight((self.d_mlp, self.d_model), fan_in(self.d_model))
        gate = {"mlp_gate": into} if self.activation in GATES else {}
        return {**gate, "mlp_in": into, "mlp_out": Weight(into.shape[::-1], fan_in(self.d_mlp))}

    def constants(self) -> dict[str, Any]:
        """No arrays: nothing depends on the true size."""
        return {}


Elementwise = Callable[[jax.Array], jax.Array]


def gelu(x: jax.Array) -> jax.Array:
    """The exact gelu, x times the normal distribution below x, by erf as PyTorch has it.

    By erfc far negative inputs are a little more exact, and a step takes up to a fifth longer.
    """
    return 0.5 * x * (1 + jax.lax.erf(x * math.sqrt(0.5)))


ACTIVATIONS: dict[str, Elementwise] = {
    "gelu": gelu,
    "relu": nn.relu,
    "silu": nn.silu,
    "relu_squared": lambda x: nn.relu(x) ** 2,
}


# Gated blocks, by the activation of their gate.
GATES: dict[str, Elementwise] = {
    "swiglu": ACTIVATIONS["silu"],
    "geglu": ACTIVATIONS["gelu"],
    "reglu": ACTIVATIONS["relu"],
    "bilinear": lambda x: x,
}


# Factors that the weights of a neuron have to spare: its output stays the same.
_SCALES = {"relu": 1, "relu_squared": 1, "swiglu": 1, "geglu": 1, "reglu": 2}


def symmetries(d_model: int, d_mlp: int, activation: str) -> int:
    """The dimensions of changes of a block's weights that leave its output as it is.

    Bilinear neurons are terms of a quadratic map, and no more than fill the space of such maps.

    >>> [symmetries(4, 5, each) for each in ("gelu", "swiglu")], symmetries(2, 28, "bilinear")
    ([0, 5], 162)
    """
    if activation == "bilinear":
        of_maps = d_model * d_model * (d_model + 1) // 2
        return 3 * d_model * d_mlp - min(d_mlp * (3 * d_model - 2), of_maps)
    return d_mlp * _SCALES.get(activation, 0)


def neurons(activation: str, n_params: float, d_model: int) -> int:
    """The number of hidden neurons with which a block has about `n_params` parameters.

    >>> neurons("gelu", 4096, 16), neurons("swiglu", 4096, 16)
    (128, 85)
    """
    return round(n_params / d_model / (3 if activation in GATES else 2))
