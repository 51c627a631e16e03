"""Causal attention as it is used today: rotary positions, grouped queries, normed queries and keys.

    score = q_t . k_s / sqrt(d_head),    head = sum over s <= t of weight_ts v_s

`kind` is how scores become weights:

- `softmax`; `softmax1`, with a further score of 0, so that a head may look nowhere (Miller 2023);
- `sigmoid` of score - log n_positions (Ramapuram et al. 2024);
- `linear`, the scores themselves: a state of d_head^2 numbers that is the sum of v_s k_s^T;
- `delta`, DeltaNet (Schlag et al. 2021, Yang et al. 2024): the state moves by b_s (v_s - state k_s)
  k_s^T with keys of norm 1 and a learned rate b_s = sigmoid(rate . x_s).

- Rotary positions (Su et al. 2021) turn pairs of coordinates (2i, 2i + 1) of queries and keys at
  position t by the angle t 10000^(-2i / d_head), so that scores depend on the distance t - s. Of an
  odd d_head the last coordinate stays.
- Grouped queries (Ainslie et al. 2023): `group_size` heads share each head of keys and values.
- Normed queries and keys (Henry et al. 2020), here by an RMSNorm whose scale the heads share, as in
  models of today (Dehghani et al. 2023).

Everything that depends on the true size of heads is data. Heads of keys and values, and the size of
heads, may be zero-padded; heads of a group may not, for they would look at true values.

Shape letters: P positions, Q the last of them, which look, D d_model, G heads of keys and values, R
heads in a group, K d_head.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from memobench.models.mixing import UNSEEN
from memobench.models.norms import Norm, mean_weights
from memobench.models.positions import frequencies
from memobench.numerics.initial_weights import Table, Weight, fan_in

_TINY = 1e-6


@dataclasses.dataclass(frozen=True)
class Attention:
    """Heads of one layer over `context_length` positions."""

    d_model: int
    d_head: int
    n_kv_heads: int
    group_size: int
    context_length: int
    rotary: bool
    normed: bool
    kind: str = "softmax"

    def __call__(
        self,
        weights: Mapping[str, jax.Array],
        constants: Mapping[str, Any],
        x_PxD: jax.Array,
        n_queries: int,
    ) -> jax.Array:
        """added_QxD: the sum of all heads at the last `n_queries` positions."""
        first = len(x_PxD) - n_queries
        query_GxRxQxK = jnp.einsum("grkd,qd->grqk", weights["query"], x_PxD[first:])
        key_GxPxK = jnp.einsum("gkd,pd->gpk", weights["key"], x_PxD)
        value_GxPxK = jnp.einsum("gkd,pd->gpk", weights["value"], x_PxD)
        if self.normed:
            norm, mean_K = Norm("rms", self.d_head), constants["head_mean"]
            query_GxRxQxK = norm({"scale": weights["query_norm_scale"]}, mean_K, query_GxRxQxK)
            key_GxPxK = norm({"scale": weights["key_norm_scale"]}, mean_K, key_GxPxK)
        if self.rotary:
            query_GxRxQxK = rotate(query_GxRxQxK, constants["rotary"][:, first:])
            key_GxPxK = rotate(key_GxPxK, constants["rotary"])
        if self.kind == "delta":
            square_GxPx1 = (key_GxPxK**2).sum(axis=-1, keepdims=True)
            key_GxPxK *= jax.lax.rsqrt(square_GxPx1 + _TINY)
        score_GxRxQxP = jnp.einsum("grqk,gpk->grqp", query_GxRxQxK, key_GxPxK)
        score_GxRxQxP *= constants["score_scale"]
        seen_QxP = np.tri(len(x_PxD), dtype=bool)[first:]
        attention_GxRxQxP = WEIGHINGS[self.kind](score_GxRxQxP, jnp.asarray(seen_QxP)[None, None])
        if self.kind == "delta":
            rate_GxP = jax.nn.sigmoid(weights["key_rate"] @ x_PxD.T)
            value_GxPxK = corrections(key_GxPxK, rate_GxP) @ value_GxPxK
        head_GxRxQxK = jnp.einsum("grqp,gpk->grqk", attention_GxRxQxP, value_GxPxK)
        return jnp.einsum("grdk,grqk->qd", weights["output"], head_GxRxQxK)

    def parameters(self) -> Table:
        """2 (G R + G) K D weights, 2 K scales of norms, and G D of rates."""
        groups, into, by_model = self.n_kv_heads, (self.d_head, self.d_model), fan_in(self.d_model)
        heads = groups, self.group_size
        n_inputs = groups * self.group_size * self.d_head
        scales = Norm("rms", self.d_head).parameters() if self.normed else {}
        rates = {"key_rate": Weight((groups, self.d_model), by_model)}
        return {
            "query": Weight((*heads, *into), by_model),
            "key": Weight((groups, *into), by_model),
            "value": Weight((groups, *into), by_model),
            "output": Weight((*heads, *into[::-1]), fan_in(n_inputs)),
            **{f"{of}_norm_{name}": x for of in ("query", "key") for name, x in scales.items()},
            **(rates if self.kind == "delta" else {}),
        }

    def constants(self) -> dict[str, Any]:
        """Arrays that depend on the true size of heads."""
        found: dict[str, Any] = {"score_scale": np.float32(1 / math.sqrt(self.d_head))}
        if self.normed:
            found["head_mean"] = mean_weights(self.d_head)
        if self.rotary:
            found["rotary"] = rotations(self.context_length, self.d_head)
        return found

    def products(self) -> tuple[tuple[int, int, int, int], ...]:
        """Sizes of products: values and outputs, and queries and keys with nothing between them."""
        free = not (self.rotary or self.normed or self.kind == "delta")
        rows = self.group_size * self.d_model
        return ((rows, self.d_head, self.d_model, self.n_kv_heads * (1 + free)),)

    def symmetries(self, n_seen: int | None) -> int | None:
        """The dimensions of changes of queries and keys that leave scores as they are.

        Args:
          n_seen: different inputs of the last position; None for as many as matter.

        Returns:
          Those of products are not among them; None where no formula is known to be right.
        """
        width, n_heads = self.d_head, self.n_kv_heads * self.group_size
        if self.kind == "linear" and n_heads > 1:
            # Wide heads of which only the sum counts may be mixed.
            return None
        # Scores and values may be scaled against each other where scores are the weights.
        scaled = n_heads * (self.kind in ("linear", "delta"))
        if self.kind == "delta":
            # Keys of norm 1 may be turned, and with rotary positions each pair of coordinates.
            turns = width // 2 if self.rotary else width * (width - 1) // 2
            return None if self.normed or width == 1 else scaled + self.n_kv_heads * turns
        if self.normed:
            # Scales of queries against those of keys, of a pair of coordinates or of each.
            return scaled + (math.ceil(width / 2) if self.rotary else width)
        if not self.rotary:
            return scaled
        # Bases of a head's queries and keys that each pair's rotation leaves as they are.
        turns = width
        if self.context_length == 2:
            # A position's score with itself is a quadratic form, which says less of the basis.
            both = max(0, 2 * width - self.d_model)
            form = width**2 - both * (both - 1) // 2
            form = form if n_seen is None else min(form, n_seen)
            turns = max(turns, width**2 - self.group_size * form)
        return scaled + self.n_kv_heads * turns


# From scores and whether they are seen; the last two axes are what looks, and what it looks at.
Weighing = Callable[[jax.Array, jax.Array], jax.Array]


def _softmax(score_XxQxP: jax.Array, seen_XxQxP: jax.Array) -> jax.Array:
    return jax.nn.softmax(jnp.where(seen_XxQxP, score_XxQxP, UNSEEN), axis=-1)


def _softmax_with_zero(score_XxQxP: jax.Array, seen_XxQxP: jax.Array) -> jax.Array:
    last = [(0, 0)] * (score_XxQxP.ndim - 1) + [(0, 1)]
    seen = jnp.pad(jnp.broadcast_to(seen_XxQxP, score_XxQxP.shape), last, constant_values=True)
    return _softmax(jnp.pad(score_XxQxP, last), seen)[..., :-1]


def _sigmoid(score_XxQxP: jax.Array, seen_XxQxP: jax.Array) -> jax.Array:
    weight_XxQxP = jax.nn.sigmoid(score_XxQxP - math.log(score_XxQxP.shape[-1]))
    return jnp.where(seen_XxQxP, weight_XxQxP, 0.0)


def _linear(score_XxQxP: jax.Array, seen_XxQxP: jax.Array) -> jax.Array:
    return jnp.where(seen_XxQxP, score_XxQxP, 0.0)


# Of deltas the weights are those of `linear`, times `corrections`.
WEIGHINGS: dict[str, Weighing] = {
    "softmax": _softmax,
    "softmax1": _softmax_with_zero,
    "sigmoid": _sigmoid,
    "linear": _linear,
    "delta": _linear,
}


def corrections(key_GxPxK: jax.Array, rate_GxP: jax.Array) -> jax.Array:
    """correction_GxPxP: by which values become what the delta rule adds of them to its state.

    Each position adds its rate times its value less what the state before it has for its key.
    """
    same_GxPxP = jnp.einsum("gpk,gsk->gps", key_GxPxK, key_GxPxK)
    n_positions = rate_GxP.shape[-1]
    corrections: list[jax.Array] = []
    for p, own_P in enumerate(np.eye(n_positions, dtype=np.float32)):
        added_GxP = jnp.broadcast_to(own_P, rate_GxP.shape)
        for s, before_GxP in enumerate(corrections):
            added_GxP -= same_GxPxP[:, p, s, None] * before_GxP
        corrections.append(rate_GxP[:, p, None] * added_GxP)
    return jnp.stack(corrections, axis=1)


def rotations(n_positions: int, d_head: int) -> np.ndarray:
    """rotary_2xPxK: cosines and sines by which `rotate` turns pairs; unpaired, 1 and 0."""
    angle_PxK = np.zeros((n_positions, d_head))
    for pair, frequency in enumerate(frequencies(d_head)[: d_head // 2]):
        angle_PxK[:, 2 * pair : 2 * pair + 2] = np.arange(n_positions)[:, None] * frequency
    return np.stack([np.cos(angle_PxK), np.sin(angle_PxK)]).astype(np.float32)


def rotate(x_XxPxK: jax.Array, rotary_2xPxK: jax.Array) -> jax.Array:
    """Queries or keys with pairs of coordinates turned by the angles of their positions."""
    leading = (1,) * (x_XxPxK.ndim - 2)
    cosine, sine = (x_PxK.reshape(leading + x_PxK.shape) for x_PxK in rotary_2xPxK)
    # The other one of each pair, with the sign of the rotation.
    is_first_K = np.arange(x_XxPxK.shape[-1]) % 2 == 0
    other = jnp.where(
        is_first_K.reshape((*leading, 1, -1)),
        -jnp.roll(x_XxPxK, -1, axis=-1),
        jnp.roll(x_XxPxK, 1, axis=-1),
    )
    return cosine * x_XxPxK + sine * other
