"""Attention read out at a query, as in Mahdavi, Liao & Thrampoulidis (2024).

One example: a query and a context of vectors, no batch and no pack axis.

Shape letters: I input_dim, J input_dim and a constant 1, D d_model, H n_heads, K d_head, V d_value,
N context_length, M = N + 1 tokens, C outputs.
"""

import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from memobench import theory
from memobench.core.architecture import WithHeads
from memobench.core.columns import choice, flag, integer
from memobench.core.module import Module
from memobench.core.spec import kind
from memobench.models import positions
from memobench.numerics.initial_weights import Table, Weight, fan_in


class QueryAttentionModule(Module):
    """Outputs at the query after `n_layers` of attention; no token attends to itself.

    Class logits, or one output where a scalar is asked for. Layers before the last keep all
    tokens, the last is computed at the query only. Positions are added to the embedded vectors, the
    query's is 0.

    Of a single layer the maps of queries and keys (and the context, where all examples share it)
    are multiplied with each other first: under a `vmap` over examples that is done once, and the
    same function takes a thirtieth of the arithmetic or less.
    """

    input_dim: int
    context_length: int
    n_outputs: int
    d_model: int
    d_head: int
    n_heads: int
    d_value: int
    n_layers: int
    positions: str
    score_scale: str
    residual: bool
    shared_context: bool

    # Zero-padding these does not change the function: positions and the mask are constants.
    paddable = ("d_model", "d_head", "n_heads", "d_value", "context_length")

    def setup(self) -> None:
        self.weights, constants = self.create_variables()
        self.scale, self.mask_N = constants["score_scale"], constants["mask"]
        learned = self.positions == "learned"
        self.position_MxD = self.weights["position"] if learned else constants["position"]

    def streams(self, query_I: jax.Array, context_NxI: jax.Array) -> list[jax.Array]:
        """stream_MxD at the input of each layer; token 0 is the query."""
        tokens_MxI = jnp.concatenate([query_I[None], context_NxI])
        streams = [tokens_MxI @ self.weights["embedding"] + self._offset_MxD()]
        mask_MxM = self._mask_MxM()
        for layer in range(self.n_layers - 1):
            stream_MxD, _ = self._compute_layer(layer, streams[-1], mask_MxM)
            streams.append(stream_MxD)
        return streams

    def _compute_layer(
        self, layer: int, stream_MxD: jax.Array, mask_MxM: jax.Array
    ) -> tuple[Any, Any]:
        """stream_MxD after a layer, and its attention_HxMxM."""
        attention_HxMxM, head_HxMxV = self._attend(layer, stream_MxD, stream_MxD, mask_MxM)
        out_MxD = jnp.einsum("hmv,hvd->md", head_HxMxV, self._weight(layer, "output"))
        return stream_MxD + out_MxD if self.residual else out_MxD, attention_HxMxM

    def _attend(
        self, layer: int, to_MxD: jax.Array, from_NxD: jax.Array, mask_MxN: jax.Array
    ) -> tuple[Any, Any]:
        """attention_HxMxN, and head_HxMxV, the values that heads read with it."""
        query_HxMxK = jnp.einsum("md,hdk->hmk", to_MxD, self._weight(layer, "query"))
        key_HxNxK = jnp.einsum("nd,hdk->hnk", from_NxD, self._weight(layer, "key"))
        value_HxNxV = jnp.einsum("nd,hdv->hnv", from_NxD, self._weight(layer, "value"))
        score_HxMxN = self.scale * jnp.einsum("hmk,hnk->hmn", query_HxMxK, key_HxNxK)
        attention_HxMxN = _masked_softmax(score_HxMxN, mask_MxN[None])
        return attention_HxMxN, jnp.einsum("hmn,hnv->hmv", attention_HxMxN, value_HxNxV)

    def _mask_MxM(self) -> jax.Array:
        """1 where a token, by row, sees another: all but itself and the padding."""
        seen_M = jnp.concatenate([jnp.ones(1), self.mask_N])
        return seen_M[None] * (1 - jnp.eye(len(seen_M)))

    def _offset_MxD(self) -> jax.Array:
        return self.weights["embedding_bias"][None] + self.position_MxD

    def _weight(self, layer: int, name: str) -> jax.Array:
        return self.weights[f"layer{layer}_{name}"]

    def parameters(self) -> Table:
        """Every parameter's shape, and the bound of its uniform entries at the start."""
        d_in, d_model = self.input_dim, self.d_model
        h, k, v = self.n_heads, self.d_head, self.d_value
        table: Table = {
            "embedding": Weight((d_in, d_model), fan_in(d_in)),
            "embedding_bias": Weight((d_model,), fan_in(d_in)),
            "decoder": Weight((d_model, self.n_outputs), fan_in(d_model)),
            "decoder_bias": Weight((self.n_outputs,), fan_in(d_model)),
        }
        if self.positions == "learned":
            table["position"] = Weight((self.context_length + 1, d_model), fan_in(d_model))
        for layer in range(self.n_layers):
            table |= {
                f"layer{layer}_query": Weight((h, d_model, k), math.sqrt(6 / (d_model + k))),
                f"layer{layer}_key": Weight((h, d_model, k), math.sqrt(6 / (d_model + k))),
                f"layer{layer}_value": Weight((h, d_model, v), math.sqrt(6 / (d_model + v))),
                f"layer{layer}_output": Weight((h, v, d_model), math.sqrt(6 / (h * v + d_model))),
            }
        return table

    def constants(self) -> dict[str, Any]:
        """Arrays that depend on the true sizes and not on parameters; they are zero-padded."""
        scaled_by = self.d_model if self.score_scale == "d_model" else self.d_head
        table = {
            "score_scale": np.float32(1 / math.sqrt(scaled_by)),
            "mask": np.ones(self.context_length, np.float32),
        }
        shape = (self.context_length + 1, self.d_model)
        if self.positions == "sinusoidal":
            table["position"] = positions.sinusoids(*shape).astype(np.float32)
        elif self.positions == "none":
            table["position"] = np.zeros(shape, np.float32)
        return table

    def example(self, context_length: int) -> tuple[jax.Array, jax.Array]:
        return jnp.zeros(self.input_dim), jnp.zeros((self.context_length, self.input_dim))

    def __call__(self, query_I: jax.Array, context_NxI: jax.Array) -> jax.Array:
        """output_C of one example."""
        _, head_HxV = self._attend_last(query_I, context_NxI)
        output_HVD, decoder_DC = self._weight(self.n_layers - 1, "output"), self.weights["decoder"]
        decode_HVC = jnp.einsum("hvd,dc->hvc", output_HVD, decoder_DC)
        output_C = jnp.einsum("hv,hvc->c", head_HxV, decode_HVC) + self.weights["decoder_bias"]
        if self.residual:
            output_C += self.streams(query_I, context_NxI)[-1][0] @ decoder_DC
        return output_C

    def attention(self, query_I: jax.Array, context_NxI: jax.Array) -> jax.Array:
        """attention_HxN of the last layer from the query to the context; rows sum to 1."""
        return self._attend_last(query_I, context_NxI)[0]

    def _attend_last(self, query_I: jax.Array, context_NxI: jax.Array) -> tuple[Any, Any]:
        """attention_HxN from the query, and head_HxV, the values that heads read with it."""
        if self.n_layers == 1:
            return self._attend_folded(query_I, context_NxI)
        stream_MxD = self.streams(query_I, context_NxI)[-1]
        read = self._attend(self.n_layers - 1, stream_MxD[:1], stream_MxD[1:], self.mask_N[None])
        return read[0][:, 0], read[1][:, 0]

    def _attend_folded(self, query_I: jax.Array, context_NxI: jax.Array) -> tuple[Any, Any]:
        """attention_HxN and head_HxV of a single layer: as `_attend`, but multiplies weights first.

        A score is q^T (W_q W_k^T) x. For a shared context x is known before the query; otherwise
        x = W^T c + offset, the maps are multiplied down to the raw vectors c, and these are mixed
        before they are mapped to values.
        """
        embedding_ID, offset_MxD = self.weights["embedding"], self._offset_MxD()
        # A constant 1 after the raw query carries its offset.
        embedding_JD = self.scale * jnp.concatenate([embedding_ID, offset_MxD[:1]])
        query_J = jnp.concatenate([query_I, jnp.ones(1)])
        known_NxD = offset_MxD[1:]
        map_HDK, key_HDK, value_HDV = (self._weight(0, x) for x in ("query", "key", "value"))
        if self.shared_context:
            known_NxD += context_NxI @ embedding_ID
            key_HNK = jnp.einsum("nd,hdk->hnk", known_NxD, key_HDK)
            into_HDN = jnp.einsum("hdk,hnk->hdn", map_HDK, key_HNK)
            into_JHN = jnp.einsum("jd,hdn->jhn", embedding_JD, into_HDN)
            score_HxN = jnp.einsum("j,jhn->hn", query_J, into_JHN)
        else:
            # In this order no product reads its operands transposed (E is D, of keys).
            map_HED = jnp.einsum("hek,hdk->hed", key_HDK, map_HDK)
            into_JHE = jnp.einsum("jd,hed->jhe", embedding_JD, map_HED)
            into_JHN = jnp.einsum("jhe,ne->jhn", into_JHE, known_NxD)
            into_JHI = jnp.einsum("jhe,ie->jhi", into_JHE, embedding_ID)
            score_HxN = jnp.einsum("j,jhn->hn", query_J, into_JHN)
            query_HI = jnp.einsum("j,jhi->hi", query_J, into_JHI)
            score_HxN += jnp.einsum("hi,ni->hn", query_HI, context_NxI)
        attention_HxN = _masked_softmax(score_HxN, self.mask_N[None])
        value_HNV = jnp.einsum("nd,hdv->hnv", known_NxD, value_HDV)
        head_HxV = jnp.einsum("hn,hnv->hv", attention_HxN, value_HNV)
        if not self.shared_context:
            mixed_HxI = jnp.einsum("hn,ni->hi", attention_HxN, context_NxI)
            value_HIV = jnp.einsum("id,hdv->hiv", embedding_ID, value_HDV)
            head_HxV += jnp.einsum("hi,hiv->hv", mixed_HxI, value_HIV)
        return attention_HxN, head_HxV

    def work(self, n_examples: int, context_length: int) -> float:
        n, d_in, d_model, h = self.context_length, self.input_dim, self.d_model, self.n_heads
        head = h * self.d_head
        if self.n_layers == 1:
            fold = 2 * d_in * d_model * head + n * d_model * head + n * d_in * head
            read = h * n * d_in + h * (n + self.n_outputs) * self.d_value
            if not self.shared_context:
                fold += d_in * d_in * head
                read += h * d_in * d_in + h * d_in * (2 * n + self.d_value)
            return fold + n_examples * read
        project = d_model * h * (2 * self.d_head + 2 * self.d_value)
        attend = h * (n + 1) * (self.d_head + self.d_value)
        layers = self.n_layers * (n + 1) * (project + attend)
        return n_examples * (layers + n * d_in * d_model)

    def activations(self) -> float:
        n, h = self.context_length, self.n_heads
        per_token = h * (2 + self.d_value)
        if self.n_layers > 1:
            per_token += self.n_layers * (h * (2 * self.d_head + n + 1) + 2 * self.d_model)
        own = 0 if self.shared_context else n * self.input_dim + h * self.input_dim
        return 3 * n * per_token + own + 3 * self.n_outputs


def _masked_softmax(scores: jax.Array, mask: jax.Array) -> jax.Array:
    return jax.nn.softmax(jnp.where(mask > 0, scores, -jnp.inf))


def _passes_queries_on(sizes: theory.Sizes) -> Any:
    # Deeper models hold what one layer does only where residual connections pass queries on.
    return (sizes["n_layers"] == 1) | (sizes["residual"] == True)  # noqa: E712


@kind("query_attention")
class QueryAttention(WithHeads):
    """Attention that answers queries about a context.

    The defaults are those of Mahdavi et al. (2024).

    Attributes:
        d_value: dimensions of a head's values.
        positions: sinusoidal, learned or none.
        score_scale: the size by whose square root scores are divided.
    """

    answers: ClassVar[tuple[str, ...]] = ("query",)
    theorems: ClassVar[dict] = {
        theory.THEOREM_1: _passes_queries_on,
    }

    n_layers: int = integer("layers", 1, default=1, most=64)
    d_value: int = integer("dimensions of a head's values", 1, default=1, most=2**20)
    positions: str = choice("of tokens", "sinusoidal", "learned", "none", default="sinusoidal")
    score_scale: str = choice(
        "whose square root divides scores", "d_model", "d_head", default="d_model"
    )
    residual: bool = flag("whether layers have residual connections", default=False)

    def module(self, task: Any) -> QueryAttentionModule:
        shared, n_outputs = task.contexts == "shared", task.n_classes or 1
        return self.fill_module(
            QueryAttentionModule, task, n_outputs=n_outputs, shared_context=shared
        )
