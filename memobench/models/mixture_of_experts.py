"""Mixtures of experts: a token meets a few of many feed-forward blocks.

A router's softmax sends x to its `top_k` experts and weighs them: by the softmax itself for one
expert (Fedus et al. 2022), divided by the sum of those chosen for more (Jiang et al. 2024). There
is no loss that balances experts.

All experts are computed, and those not chosen are weighed by zero: models are small here. Padded
experts are never chosen, because which are true is data.

Shape letters: P positions, D d_model, W d_mlp, E experts, X any.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from memobench.common.errors import require
from memobench.core.columns import integer
from memobench.core.spec import kind
from memobench.models.feed_forward import FeedForward
from memobench.models.mixing import UNSEEN
from memobench.models.modern import Modern, ModernModule
from memobench.numerics.initial_weights import Table, Weight, fan_in, size


@dataclasses.dataclass(frozen=True)
class Experts:
    """`n_experts` feed-forward blocks of `d_mlp` neurons each, of which a token meets `top_k`."""

    d_model: int
    d_mlp: int
    activation: str
    n_experts: int
    top_k: int

    def __call__(
        self, weights: Mapping[str, jax.Array], constants: Mapping[str, Any], x_PxD: jax.Array
    ) -> jax.Array:
        """added_PxD: the output of a token's experts at every position."""
        score_PxE = x_PxD @ weights["router"].T
        score_PxE = jnp.where(constants["is_expert"][None] > 0, score_PxE, UNSEEN)
        weight_PxE = weigh_largest(score_PxE, self.top_k)
        if self.top_k == 1:
            # Its own softmax is 1: the router's says how much of the expert is added.
            weight_PxE *= jax.nn.softmax(score_PxE, axis=-1)
        of_experts = {name: weights[name] for name in self._expert.parameters()}
        added_ExPxD = jax.vmap(lambda own: self._expert(own, {}, x_PxD))(of_experts)
        return jnp.einsum("pe,epd->pd", weight_PxE, added_ExPxD)

    @property
    def _expert(self) -> FeedForward:
        return FeedForward(self.d_model, self.d_mlp, self.activation)

    def parameters(self) -> Table:
        """E D weights of the router, and those of the experts, stacked."""
        router = Weight((self.n_experts, self.d_model), fan_in(self.d_model))
        experts = {
            name: weight._replace(shape=(self.n_experts, *weight.shape))
            for name, weight in self._expert.parameters().items()
        }
        return {"router": router, **experts}

    def constants(self) -> dict[str, Any]:
        """A mask of the experts that are not padding."""
        return {"is_expert": np.ones(self.n_experts, np.float32)}


def weigh_largest(score_XxE: jax.Array, top_k: int) -> jax.Array:
    """The softmax over the largest `top_k` of the last axis, zero elsewhere; without a sort.

    Of equal ones the first are taken.

    >>> [round(x, 2) for x in weigh_largest(jnp.array([[1.0, 3.0, 2.0, 1.0]]), 2).tolist()[0]]
    [0.0, 0.73, 0.27, 0.0]
    """
    rest_XxE = jax.lax.stop_gradient(score_XxE)
    for _ in range(top_k):
        is_largest_XxE = jax.nn.one_hot(rest_XxE.argmax(axis=-1), rest_XxE.shape[-1], dtype=bool)
        rest_XxE = jnp.where(is_largest_XxE, -jnp.inf, rest_XxE)
    return jax.nn.softmax(jnp.where(jnp.isinf(rest_XxE), score_XxE, UNSEEN), axis=-1)


class MixtureModule(ModernModule):
    """A modern Transformer whose neurons are those of experts."""

    n_experts: int
    top_k: int

    paddable = (*ModernModule.paddable, "n_experts")

    @property
    def neurons(self) -> Experts:
        """The feed-forward block of a layer."""
        sizes = self.d_model, self.d_mlp, self.activation
        return Experts(*sizes, self.n_experts, self.top_k)

    def hidden_floats(self) -> float:
        return self.n_experts * super().hidden_floats()

    def neuron_symmetries(self) -> int:
        """Those of every expert, and a shift of all scores of the router."""
        return self.n_experts * super().neuron_symmetries() + self.d_model

    def idle(self) -> int:
        an_expert = size(FeedForward(self.d_model, self.d_mlp, self.activation).parameters())
        return self.n_layers * (self.n_experts - self.top_k) * an_expert


@kind("mixture_of_experts")
class MixtureOfExperts(Modern):
    """A modern Transformer with `n_experts` blocks of `d_mlp` neurons in the place of one."""

    module_class: ClassVar[type[ModernModule]] = MixtureModule

    n_experts: int = integer("feed-forward blocks of a layer", 2, most=2**16)
    top_k: int = integer("experts that a token meets", 1, default=1, most=16)

    def check(self) -> None:
        super().check()
        require(self.d_mlp > 0, "d_mlp must be at least 1 with experts, got 0. Raise d_mlp")
        require(
            self.top_k < self.n_experts,
            f"top_k must be below n_experts={self.n_experts}, got {self.top_k}. Lower top_k",
        )
