"""The Transformers of Dana, Pydi & Chevaleyre (2025), attention-only and with an MLP.

One example, no batch and no pack axis. The work is split where a token's own part ends:
`tables` projects every token of the vocabulary once, `read` combines the rows of one example.
Under a `vmap` over examples the tables do not depend on the example and are computed once.

Shape letters: N vocab_size, S context_length, D d_model, I width of a head's input (d_model, or
d_head where the stream is compressed), K d_head, H n_heads, W d_mlp.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from memobench.errors import UserError
from memobench.specs import Architecture, Task

Rows = dict[str, jax.Array]


def _uniform(bound: float) -> nn.initializers.Initializer:
    def initialize(key: jax.Array, shape: Any, dtype: Any = jnp.float32) -> jax.Array:
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return initialize


def _fan_in(fan_in: int) -> nn.initializers.Initializer:
    return _uniform(1 / math.sqrt(max(fan_in, 1)))


class Layer(NamedTuple):
    """One layer's weights, with W_Q^T W_K and W_O W_V folded: only these products matter."""

    query_key_HIJ: jax.Array
    output_value_HIJ: jax.Array
    mlp_in_WD: jax.Array
    mlp_in_bias_W: jax.Array
    mlp_out_DW: jax.Array


class Transformer(nn.Module):
    """Next-token logits at the last of `context_length` tokens; causal, no layer norm.

    `full`: positions join the residual stream and heads act on it (equations 1-2 of the paper).
    Otherwise, as in the released code, a learned position in R^{d_in} is added to the input of the
    heads only, and `compress` puts one shared map D -> K before all heads and one K -> D after
    their sum.
    """

    vocab_size: int
    context_length: int
    d_model: int
    d_head: int
    n_heads: int
    d_mlp: int
    n_layers: int
    full: bool
    compress: bool

    def setup(self) -> None:
        d_in = self.d_head if self.compress else self.d_model
        self.token_embedding_ND = self.param(
            "token_embedding", _fan_in(self.d_model), (self.vocab_size, self.d_model)
        )
        self.position_embedding_SI = self.param(
            "position_embedding", _fan_in(d_in), (self.context_length, d_in)
        )
        if self.compress:
            self.compress_KD = self.param(
                "compress", _fan_in(self.d_model), (self.d_head, self.d_model)
            )
            self.decompress_DK = self.param(
                "decompress", _fan_in(self.d_head), (self.d_model, self.d_head)
            )
        # Depends on the true size and not on the parameters: it survives padding as data.
        self.score_scale = self.variable(
            "constants", "score_scale", lambda: jnp.float32(1 / math.sqrt(self.d_head))
        )
        self.layers = [self._layer_weights(layer, d_in) for layer in range(self.n_layers)]
        self.unembedding_ND = self.param(
            "unembedding", _fan_in(self.d_model), (self.vocab_size, self.d_model)
        )

    def _layer_weights(self, layer: int, d_in: int) -> Layer:
        def weight(name: str, initializer: nn.initializers.Initializer, *shape: int) -> jax.Array:
            return self.param(f"layer{layer}_{name}", initializer, shape)

        d_model, d_head, n_heads, d_mlp = self.d_model, self.d_head, self.n_heads, self.d_mlp
        xavier = _uniform(math.sqrt(6 / (3 * d_head + d_in)))
        query_HKI = weight("query", xavier, n_heads, d_head, d_in)
        key_HKI = weight("key", xavier, n_heads, d_head, d_in)
        value_HKI = weight("value", xavier, n_heads, d_head, d_in)
        output_HIK = weight("output", _fan_in(d_head), n_heads, d_in, d_head)
        return Layer(
            query_key_HIJ=jnp.einsum("hki,hkj->hij", query_HKI, key_HKI) * self.score_scale.value,
            output_value_HIJ=jnp.einsum("hik,hkj->hij", output_HIK, value_HKI),
            mlp_in_WD=weight("mlp_in", _fan_in(d_model), d_mlp, d_model),
            mlp_in_bias_W=weight("mlp_in_bias", _fan_in(d_model), d_mlp),
            mlp_out_DW=weight("mlp_out", _fan_in(d_mlp), d_model, d_mlp),
        )

    def __call__(self, tokens_S: jax.Array) -> jax.Array:
        """logits_N of the token that follows tokens_S."""
        rows = [
            jax.tree.map(lambda table_N, t=token: table_N[t], table)
            for token, table in zip(tokens_S, self.tables(), strict=True)
        ]
        return self.read(rows)

    def tables(self) -> list[Rows]:
        """For each position, the rows of every token: a list of S trees with leading axis N."""

        def row(position: int, embedding_D: jax.Array) -> Rows:
            x_D = embedding_D
            if self.full:
                x_D = x_D + self.position_embedding_SI[position]
            return self._project(0, position, x_D)

        return [
            jax.vmap(lambda embedding_D, s=s: row(s, embedding_D))(self.token_embedding_ND)
            for s in range(self.context_length)
        ]

    def read(self, rows: list[Rows]) -> jax.Array:
        """logits_N of one example from the first layer's rows of its S tokens."""
        for layer in range(self.n_layers):
            last = layer == self.n_layers - 1
            positions = [self.context_length - 1] if last else range(self.context_length)
            streams_D = [self._layer(layer, rows[: s + 1]) for s in positions]
            if not last:
                rows = [self._project(layer + 1, s, x_D) for s, x_D in enumerate(streams_D)]
        return self.unembedding_ND @ streams_D[-1]

    def _project(self, layer: int, position: int, x_D: jax.Array) -> Rows:
        """What attention needs of one row of the stream.

        query_HI is such that its product with a key row is the head's score; value_HI is what the
        head adds to the output where its whole attention is on this row.
        """
        weights = self.layers[layer]
        x_I = self.compress_KD @ x_D if self.compress else x_D
        if not self.full:
            x_I = x_I + self.position_embedding_SI[position]
        value_HI = jnp.einsum("j,hij->hi", x_I, weights.output_value_HIJ)
        row = {"stream_D": x_D, "key_I": x_I, "value_HI": value_HI}
        if layer < self.n_layers - 1 or position == self.context_length - 1:
            row["query_HI"] = jnp.einsum("i,hij->hj", x_I, weights.query_key_HIJ)
        return row

    def _layer(self, layer: int, rows: list[Rows]) -> jax.Array:
        """The stream at the last of the rows after attention and MLP, both residual."""
        weights = self.layers[layer]
        query_HI = rows[-1]["query_HI"]
        scores_SH = jnp.stack([jnp.einsum("hi,i->h", query_HI, row["key_I"]) for row in rows])
        attention_SH = jax.nn.softmax(scores_SH, axis=0)
        attended_SI = [
            jnp.einsum("h,hi->i", attention_H, row["value_HI"])
            for attention_H, row in zip(attention_SH, rows, strict=True)
        ]
        attended_I = sum(attended_SI[1:], attended_SI[0])
        x_D = rows[-1]["stream_D"] + (
            self.decompress_DK @ attended_I if self.compress else attended_I
        )
        hidden_W = nn.gelu(weights.mlp_in_WD @ x_D + weights.mlp_in_bias_W, approximate=False)
        return x_D + weights.mlp_out_DW @ hidden_W


def _transformer(task: Task, architecture: Architecture) -> Transformer:
    full = architecture.heads == "full"
    return Transformer(
        vocab_size=task.vocab_size,
        context_length=task.context_length,
        d_model=architecture.d_model,
        d_head=architecture.d_head,
        n_heads=architecture.n_heads,
        d_mlp=architecture.d_mlp,
        n_layers=architecture.n_layers,
        full=full,
        compress=not full and architecture.d_head != architecture.d_model,
    )


def attention_only(task: Task, architecture: Architecture) -> Transformer:
    """The attention-only Transformer (AoT). Raises UserError where an MLP is asked for."""
    if architecture.d_mlp:
        raise UserError(
            f"d_mlp={architecture.d_mlp} is forbidden by attention_only; "
            "set d_mlp=0 or use the architecture 'mlp'"
        )
    return _transformer(task, architecture)


def mlp(task: Task, architecture: Architecture) -> Transformer:
    """The MLP Transformer: attention followed by a residual MLP of width d_mlp in every layer."""
    return _transformer(task, architecture)
