"""Product-key memories (Lample et al. 2019): a token reads a few of many values.

Queries of `n_memory_heads` heads have two halves, which score `n_keys` keys each. A slot for every
pair of keys has the sum of both scores, and the softmax of the `top_k` best slots weighs their
values. There is no norm of queries.

All slots are computed, and those not read are weighed by zero: memories are small here. Padded keys
are never read, because which are true is data.

Shape letters: P positions, D d_model, H heads of the memory, I and J keys of both halves, K d_key,
half of a query, M slots.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from memobench.common.errors import require
from memobench.core.columns import integer
from memobench.core.spec import kind
from memobench.models.mixing import UNSEEN
from memobench.models.mixture_of_experts import weigh_largest
from memobench.models.modern import ModernBase, ModernModule
from memobench.numerics.initial_weights import Table, Weight, fan_in


@dataclasses.dataclass(frozen=True)
class ProductKeys:
    """A memory of n_keys^2 values of which each of `n_heads` heads reads `top_k`."""

    d_model: int
    d_key: int
    n_keys: int
    n_heads: int
    top_k: int

    def __call__(
        self, weights: Mapping[str, jax.Array], constants: Mapping[str, Any], x_PxD: jax.Array
    ) -> jax.Array:
        """added_PxD: the sum of the values that heads read at every position."""
        query_2xHxPxK = jnp.einsum("hckd,pd->chpk", weights["memory_query"], x_PxD)
        score_2xHxPxI = jnp.einsum("chpk,hcik->chpi", query_2xHxPxK, weights["memory_key"])
        is_key_I = constants["is_key"] > 0
        score_2xHxPxI = jnp.where(is_key_I[None, None, None], score_2xHxPxI, UNSEEN)
        first_HxPxI, second_HxPxJ = score_2xHxPxI
        score_HxPxIxJ = first_HxPxI[..., None] + second_HxPxJ[..., None, :]
        weight_HxPxM = weigh_largest(
            score_HxPxIxJ.reshape(*score_HxPxIxJ.shape[:2], -1), self.top_k
        )
        weight_HxPxIxJ = weight_HxPxM.reshape(score_HxPxIxJ.shape)
        return jnp.einsum("hpij,ijd->pd", weight_HxPxIxJ, weights["memory_value"])

    def parameters(self) -> Table:
        """2 H K D weights of queries, 2 H I K of keys, and I^2 D of values."""
        heads = self.n_heads, 2
        return {
            "memory_query": Weight((*heads, self.d_key, self.d_model), fan_in(self.d_model)),
            "memory_key": Weight((*heads, self.n_keys, self.d_key), fan_in(self.d_key)),
            "memory_value": Weight((self.n_keys, self.n_keys, self.d_model), fan_in(self.d_model)),
        }

    def constants(self) -> dict[str, Any]:
        """A mask of the keys that are not padding."""
        return {"is_key": np.ones(self.n_keys, np.float32)}


class MemoryModule(ModernModule):
    """A modern Transformer whose feed-forward blocks are product-key memories."""

    d_key: int
    n_keys: int
    n_memory_heads: int
    top_k: int

    paddable = ("d_model", "d_head", "n_kv_heads", "d_key", "n_keys")

    @property
    def neurons(self) -> ProductKeys:
        """The feed-forward block of a layer."""
        return ProductKeys(self.d_model, self.d_key, self.n_keys, self.n_memory_heads, self.top_k)

    def symmetries(self, task: Any) -> float:
        """NaN, for which slots are read, and so how many values count, differs between weights."""
        return math.nan

    def hidden_floats(self) -> float:
        return self.n_memory_heads * (6 * self.d_key + 3 * self.n_keys**2)

    def idle(self) -> int:
        n_idle = max(0, self.n_keys**2 - self.n_memory_heads * self.top_k)
        return self.n_layers * n_idle * self.d_model


@kind("product_key_memory")
class ProductKeyMemory(ModernBase):
    """A modern Transformer with a memory of n_keys^2 values in the place of neurons."""

    module_class: ClassVar[type[ModernModule]] = MemoryModule
    own_sizes: ClassVar[tuple[str, ...]] = ("d_key", "n_keys", "n_memory_heads")

    d_key: int = integer("dimensions of half a query of the memory", 1, most=2**20)
    n_keys: int = integer("keys of each half; slots are pairs of them", 2, most=2**10)
    n_memory_heads: int = integer("heads that read the memory", 1, default=1, most=2**10)
    top_k: int = integer(
        "slots that a head reads; of one the softmax is 1, and keys would learn nothing",
        2,
        default=2,
        most=16,
    )

    def check(self) -> None:
        super().check()
        n_slots = self.n_keys**2
        require(
            self.top_k <= n_slots,
            f"top_k must be at most the n_keys^2={n_slots} slots, got {self.top_k}. Lower top_k",
        )

    def block(self) -> dict[str, Any]:
        return {"has_neurons": True, "d_mlp": 0, "activation": ""}
