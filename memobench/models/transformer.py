"""The Transformers of Dana, Pydi & Chevaleyre (2025), attention-only and with an MLP.

One example, no batch and no pack axis. `tests/reference.py` has the definition, written out.

Shape letters: N vocab_size, S and T context_length, D d_model, I and J width of a head's input
(d_model, or d_head where the stream is compressed), K d_head, H n_heads, W d_mlp.
"""

import dataclasses
import itertools
import math
import pathlib
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from memobench import theory
from memobench.core.architecture import WithHeads, in_words, require_neurons, sizes_in_words
from memobench.core.columns import choice, integer
from memobench.core.kernel import Kernel
from memobench.core.module import KernelModule, TabledModule, count_distinct, has_room
from memobench.core.spec import kind
from memobench.models import feed_forward, mixing
from memobench.models.feed_forward import ACTIVATIONS
from memobench.numerics import cpu, lookup
from memobench.numerics.initial_weights import Table, Weight, fan_in, select_prefix


def _writes_two(sizes: theory.Sizes) -> Any:
    # Compressed heads of one dimension write one coordinate, which tells only two tokens apart.
    return (sizes["heads"] == "full") | (sizes["d_head"] > 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Dana(WithHeads):
    """The fields and theorems that both Transformers share."""

    theorems: ClassVar[dict] = {
        theory.COROLLARY_2: _writes_two,
        theory.SILENT_MLP: _writes_two,
        theory.MAHDAVI_1: _writes_two,
        theory.PROPOSITION_1: theory.always,
    }

    n_layers: int = integer("layers", 1, default=1, most=64)
    heads: str = choice(
        "parameterisation of the heads: the equations' or the released code's",
        *("full", "compressed"),
        default="compressed",
    )

    @classmethod
    def variant(cls, row: Mapping[str, Any]) -> str:
        return row["heads"] or ""

    @property
    def head_form(self) -> str:
        """`compressed`, `full`, or `narrow`: full with fewer dimensions than the stream has."""
        is_narrow = self.heads == "full" and self.d_head < self.d_model
        return "narrow" if is_narrow else self.heads

    def make_transformer(self, task: Any, d_mlp: int, activation: str) -> "Transformer":
        """The module of these sizes."""
        full = self.heads == "full"
        compress = not full and self.d_head != self.d_model
        more = {"full": full, "compress": compress, "d_mlp": d_mlp, "activation": activation}
        return self.fill_module(Transformer, task, **more)


@kind("attention_only")
class AttentionOnly(_Dana):
    """The attention-only Transformer (AoT).

    `heads` chooses the parameterisation of Dana et al. (2025): "compressed", the default, is that
    of their released experiments (one shared map into R^{d_head} before all heads and one back),
    "full" that of their equations (W_Q, W_K, W_V in R^{d_head x d_model}). *Narrow* heads, which
    memorize most per parameter, must be asked for: heads="full" with d_head < d_model.
    """

    def module(self, task: Any) -> "Transformer":
        return self.make_transformer(task, 0, "gelu")

    @property
    def family(self) -> str:
        return in_words(f"attention-only, {self.head_form} heads", self.shared_cells())

    @property
    def side(self) -> tuple[str, str]:
        return "attention alone", self.head_form

    @property
    def shown_sizes(self) -> list[str]:
        return sizes_in_words(self.shared_cells(), always_heads=True)


@kind("mlp")
class MLP(_Dana):
    """The MLP Transformer: attention followed by a residual MLP of width d_mlp in every layer.

    Its heads are those of AttentionOnly: "compressed" unless heads="full". The published sweep over
    widths begins at d_mlp = 0.
    """

    theorems: ClassVar[dict] = {
        **_Dana.theorems,
        theory.RANDOM_FEATURES: theory.always,
        theory.BUBECK: lambda sizes: sizes["activation"] == "relu",
    }

    d_mlp: int = integer("hidden neurons of a layer's MLP", 0, most=2**24)
    activation: str = choice("of hidden neurons", *ACTIVATIONS, default="gelu")

    def check(self) -> None:
        super().check()
        require_neurons(self, "gelu")

    def module(self, task: Any) -> "Transformer":
        return self.make_transformer(task, self.d_mlp, self.activation)

    @property
    def family(self) -> str:
        name = "MLP" if self.n_heads == 1 else "attention + MLP"
        name += f" ({self.activation})" if self.activation != "gelu" else ""
        if self.head_form == "narrow":
            name += ", narrow head" if self.n_heads == 1 else ", narrow heads"
        return in_words(name, self.shared_cells())

    @property
    def side(self) -> tuple[str, str]:
        return "MLP" if self.n_heads == 1 else "attention + MLP", self.head_form

    @property
    def shown_sizes(self) -> list[str]:
        heads = [] if self.heads == "full" else [self.heads]
        return heads + sizes_in_words(self.shared_cells())


Rows = dict[str, jax.Array]


class FoldedLayer(NamedTuple):
    """One layer's weights, and the products W_Q^T W_K and W_O W_V, on which alone logits depend."""

    query_key_HJI: jax.Array
    output_value_HJI: jax.Array
    query_HKI: jax.Array
    key_HKI: jax.Array
    value_HKI: jax.Array
    output_HIK: jax.Array
    mlp_in_WD: jax.Array
    mlp_in_bias_W: jax.Array
    mlp_out_DW: jax.Array


class Transformer(TabledModule, KernelModule):
    """Next-token logits at the last of `context_length` tokens; causal, no layer norm.

    In two forms, by the platform. On CPUs, and of all sequences at once, what depends on a single
    token is computed apart: `tables` projects every token of the vocabulary once, `read` combines
    the rows of one example. Under a `vmap` over examples the tables do not depend on the example
    and are computed once. What is an example's own comes first in products with weights: examples
    are then the rows of the result, which a CPU would otherwise transpose again and again.

    On accelerators all places of a layer are computed at once: few kernels, few bytes.

    Attributes:
        full: positions join the residual stream and heads act on it (equations 1-2 of the paper).
            Otherwise, as in the released code, a learned position in R^{d_in} is added to the
            input of the heads only.
        compress: one shared map D -> K before all heads, and one K -> D after their sum.
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
    activation: str = "gelu"

    paddable = ("d_model", "d_head", "n_heads", "d_mlp")
    skipped = ("n_heads", "d_mlp")

    def setup(self) -> None:
        self.weights, constants = self.create_variables()
        self.score_scale = constants["score_scale"]
        self.layers = [self._fold(layer) for layer in range(self.n_layers)]

    def parameters(self) -> Table:
        """Every parameter's shape, and the bound of its uniform entries at the start."""
        n, d_model, d_head = self.vocab_size, self.d_model, self.d_head
        d_in = self._width
        by_model, by_head, by_mlp = fan_in(d_model), fan_in(d_head), fan_in(self.d_mlp)
        xavier = math.sqrt(6 / (3 * d_head + d_in))
        into_heads, out_of_heads = (self.n_heads, d_head, d_in), (self.n_heads, d_in, d_head)
        table: Table = {
            "token_embedding": Weight((n, d_model), by_model),
            "position_embedding": Weight((self.context_length, d_in), fan_in(d_in)),
            "unembedding": Weight((n, d_model), by_model),
        }
        if self.compress:
            table["compress"] = Weight((d_head, d_model), by_model)
            table["decompress"] = Weight((d_model, d_head), by_head)
        for layer in range(self.n_layers):
            table |= {
                f"layer{layer}_query": Weight(into_heads, xavier),
                f"layer{layer}_key": Weight(into_heads, xavier),
                f"layer{layer}_value": Weight(into_heads, xavier),
                f"layer{layer}_output": Weight(out_of_heads, by_head),
                f"layer{layer}_mlp_in": Weight((self.d_mlp, d_model), by_model),
                f"layer{layer}_mlp_in_bias": Weight((self.d_mlp,), by_model),
                f"layer{layer}_mlp_out": Weight((d_model, self.d_mlp), by_mlp),
            }
        return table

    def constants(self) -> dict[str, Any]:
        """The scale of scores, which depends on the true size of heads."""
        return {"score_scale": np.float32(1 / math.sqrt(self.d_head))}

    @property
    def _width(self) -> int:
        """Width of a head's input."""
        return self.d_head if self.compress else self.d_model

    def parts(self) -> dict[str, tuple[str, ...]]:
        layers, last = range(self.n_layers), f"layer{self.n_layers - 1}"
        read_out = (f"{last}_output", f"{last}_mlp_out", "unembedding")
        maps = tuple(f"layer{layer}_{name}" for layer in layers for name in ("query", "key"))
        return {
            "read_out": ("decompress", *read_out) if self.compress else read_out,
            "attention_maps": maps,
        }

    def products(self) -> tuple[tuple[int, int, int, int], ...]:
        """Sizes (m, r, n) of every head's products, of queries and keys and of output and value."""
        d_in = self._width
        return ((d_in, self.d_head, d_in, 2 * self.n_layers * self.n_heads),)

    def symmetries(self, task: Any) -> int | None:
        """The stream's basis, a shift of logits, scales of neurons, and what heads share.

        Tokens and positions that are added up may be shifted against each other; compressed heads
        read and write in bases of their own; few narrow heads of one layer see a part of positions.
        """
        n, d_model = self.vocab_size, self.d_model
        n_written = n**self.context_length * min(d_model, self._width)
        has_formula = (
            self.context_length > 1
            and d_model < n
            and not (self.compress and self.d_head > d_model)
            and has_room(count_distinct(self, self.context_length), n_written)
        )
        if task.question != "next token" or not has_formula:
            return None
        shared = d_model if self.full else 2 * self.d_head**2 * self.compress
        if self.full and self.n_layers == 1:
            # Of positions before the last, heads alone see what their keys and values read.
            unread = max(0, d_model - 2 * self.n_heads * self.d_head)
            shared += (self.context_length - 1) * unread
        of_neurons = feed_forward.symmetries(d_model, self.d_mlp, self.activation)
        return d_model**2 + d_model + shared + self.n_layers * of_neurons

    def kernel(self) -> Kernel | None:
        """`transformer.cuh`: few narrow layers, few tokens."""
        is_served = self.n_layers <= MOST_LAYERS and 2 <= self.context_length <= MOST_TOKENS
        is_served = is_served and max(self.d_model, self.d_head) <= MOST_WIDTH
        is_served = is_served and self.n_heads + self.d_mlp <= MOST_FEATURES
        # What a subclass changes the kernel does not know.
        is_served = is_served and type(self) is Transformer
        if not (is_served and self.activation in ("gelu", "relu") and self.vocab_size <= 256):
            return None
        sizes = {"D": self.d_model, "K": self.d_head, "H": self.n_heads, "W": self.d_mlp}
        sizes |= {"N": self.vocab_size, "S": self.context_length, "LAYERS": self.n_layers}
        sizes |= {"RELU": int(self.activation == "relu")}
        sizes |= {"FULL": int(self.full), "COMPRESS": int(self.compress)}
        return Kernel(SOURCE, tuple(sizes.items()), _flatten, self._restore, _scale_of_scores)

    def _restore(self, flat_P: jax.Array) -> dict[str, jax.Array]:
        """The inverse of `_flatten`."""
        params, start = {}, 0
        table = self.parameters()
        for name in _in_kernel(table, self.n_layers):
            shape = table[name].shape
            is_turned = name.endswith(_TURNED)
            turned = (*shape[:-2], shape[-1], shape[-2]) if is_turned else shape
            size = math.prod(shape)
            x = flat_P[start : start + size].reshape(turned)
            params[name] = jnp.swapaxes(x, -1, -2) if is_turned else x
            start += size
        return params

    @property
    def has_short_rows(self) -> bool:
        """True where queries, keys and values are shorter than rows of products of maps."""
        return 2 * self.d_head <= self._width

    def work(self, n_examples: int, context_length: int) -> float:
        """Multiplications of a forward pass over `n_examples`; each token is projected once."""
        n, length, d_model = self.vocab_size, context_length, self.d_model
        d_in = self._width
        compress = d_model * d_in * self.compress
        if self.has_short_rows:
            width = self.n_heads * self.d_head
            project, attend, fold = 3 * width * d_in, (2 * length + d_in) * width, 0
        else:
            project = compress + 2 * self.n_heads * d_in**2
            attend = 2 * length * self.n_heads * d_in + compress
            fold = 2 * self.n_layers * self.n_heads * self.d_head * d_in**2
        attend += 2 * d_model * self.d_mlp
        deeper = (self.n_layers - 1) * length * (project + attend)
        return n * length * project + fold + n_examples * (deeper + attend + n * d_model)

    def _fold(self, layer: int) -> FoldedLayer:
        own = select_prefix(f"layer{layer}_", self.weights)
        return FoldedLayer(
            query_key_HJI=mixing.fold("hki,hkj->hij", own["query"], own["key"]),
            output_value_HJI=mixing.fold("hik,hkj->hij", own["output"], own["value"]),
            query_HKI=own["query"],
            key_HKI=own["key"],
            value_HKI=own["value"],
            output_HIK=own["output"],
            mlp_in_WD=own["mlp_in"],
            mlp_in_bias_W=own["mlp_in_bias"],
            mlp_out_DW=own["mlp_out"],
        )

    def __call__(self, tokens_S: jax.Array) -> jax.Array:
        """logits_N of the token that follows tokens_S."""
        return lookup.select_by_platform(
            lambda tokens_S: self.read(self._look_up(tokens_S), alone=True),
            self._compute_on_accelerators,
            tokens_S,
        )

    def attention(self, tokens_S: jax.Array) -> jax.Array:
        """attention_HxS of the last layer from the last token to all; rows sum to 1."""
        return self._attend(self._project_last(self._look_up(tokens_S))).T

    def _compute_on_accelerators(self, tokens_S: jax.Array) -> jax.Array:
        """logits_N by layers, all places of a layer at once."""
        stream_SxD = lookup.rows(self.weights["token_embedding"], tokens_S)
        if self.full:
            stream_SxD += self.weights["position_embedding"]
        for layer in range(self.n_layers):
            stream_SxD = self._add_layer_on_accelerators(layer, stream_SxD)
        return self.weights["unembedding"] @ stream_SxD[-1]

    def _add_layer_on_accelerators(self, layer: int, stream_SxD: jax.Array) -> jax.Array:
        """The stream after a layer; after the last one at the last place only."""
        weights, length = self.layers[layer], self.context_length
        key_SxI = stream_SxD @ self.weights["compress"].T if self.compress else stream_SxD
        if not self.full:
            key_SxI += self.weights["position_embedding"]
        # Of Q places, the last ones, the stream goes on.
        first = length - 1 if layer == self.n_layers - 1 else 0
        attended_QxI = mixing.attend(
            key_SxI,
            weights.query_key_HJI,
            weights.output_value_HJI,
            self.score_scale,
            length - first,
        )
        if self.compress:
            attended_QxI @= self.weights["decompress"].T
        stream_QxD = stream_SxD[first:] + attended_QxI
        hidden_QxW = stream_QxD @ weights.mlp_in_WD.T + weights.mlp_in_bias_W[None]
        return stream_QxD + ACTIVATIONS[self.activation](hidden_QxW) @ weights.mlp_out_DW.T

    def _look_up(self, tokens_S: jax.Array) -> list[Rows]:
        """The rows of one example's tokens, from the tables of all tokens."""
        return [
            jax.tree.map(lambda table_N, t=token: table_N[t], table)
            for token, table in zip(tokens_S, self.tables(), strict=True)
        ]

    def tables(self) -> list[Rows]:
        """For each position, the rows of every token: a list of S trees with leading axis N."""
        return [
            jax.vmap(lambda x_D, s=s: self._project_token(s, x_D, True))(
                self.weights["token_embedding"]
            )
            for s in range(self.context_length)
        ]

    def _project_token(self, position: int, embedding_D: jax.Array, values: bool) -> Rows:
        """The rows of a token at a position for the first layer."""
        position_D = self.weights["position_embedding"][position] if self.full else 0.0
        return self._project(0, position, embedding_D + position_D, values)

    def read(self, rows: list[Rows], alone: bool = False) -> jax.Array:
        """logits_N of one example from the first layer's rows of its S tokens.

        Args:
            rows: of each of the S tokens, one tree of `tables`.
            alone: examples share no rows, on a CPU: sums of few numbers are then faster than
                products of matrices.
        """
        rows = self._project_last(rows, alone)
        stream_D = self._add_layer(self.n_layers - 1, rows, alone)
        return lookup.select_by_platform(cpu.affine, _affine, stream_D, self.weights["unembedding"])

    def _project_last(self, rows: list[Rows], alone: bool = False) -> list[Rows]:
        """The rows of the last layer from those of the first."""
        for layer in range(self.n_layers - 1):
            before = [rows[: s + 1] for s in range(self.context_length)]
            streams_D = [self._add_layer(layer, each, alone) for each in before]
            rows = [self._project(layer + 1, s, x_D, False) for s, x_D in enumerate(streams_D)]
        return rows

    def _project(self, layer: int, position: int, x_D: jax.Array, values: bool) -> Rows:
        """The rows of one place of the stream, which are all that attention reads of it.

        The product of query_HI and a key row is the head's score; value_HI is what the head adds to
        the output where its whole attention is on this row. Values pay off where many examples
        share the row; without them heads mix keys and map the mixture. Of narrow heads queries,
        keys and values themselves are shorter.
        """
        weights = self.layers[layer]
        x_I = x_D @ self.weights["compress"].T if self.compress else x_D
        if not self.full:
            x_I = x_I + self.weights["position_embedding"][position]
        row = {"stream_D": x_D}
        is_last = position == self.context_length - 1
        if self.has_short_rows:
            maps = {"key_HK": weights.key_HKI, "value_HK": weights.value_HKI}
            if layer < self.n_layers - 1 or is_last:
                maps["query_HK"] = weights.query_HKI * self.score_scale
            return row | {name: jnp.einsum("hki,i->hk", x, x_I) for name, x in maps.items()}
        row["key_I"] = x_I
        if values:
            row["value_HI"] = jnp.einsum("j,hji->hi", x_I, weights.output_value_HJI)
        if layer < self.n_layers - 1 or is_last:
            scaled_HJI = weights.query_key_HJI * self.score_scale
            row["query_HI"] = jnp.einsum("i,hji->hj", x_I, scaled_HJI)
        return row

    def _add_layer(self, layer: int, rows: list[Rows], alone: bool = False) -> jax.Array:
        """The stream at the last of the rows after attention and MLP, both residual."""
        weights = self.layers[layer]
        attended_I = self._mix(layer, self._attend(rows, alone), rows, alone)
        x_D = rows[-1]["stream_D"] + (
            attended_I @ self.weights["decompress"].T if self.compress else attended_I
        )
        hidden_W = lookup.select_by_platform(
            cpu.affine, _affine, x_D, weights.mlp_in_WD, weights.mlp_in_bias_W
        )
        return x_D + ACTIVATIONS[self.activation](hidden_W) @ weights.mlp_out_DW.T

    def _mix(self, layer: int, attention_SH: jax.Array, rows: list[Rows], alone: bool) -> jax.Array:
        """The sum of what all heads add to the output, in R^I."""
        if self.has_short_rows:
            mixed_SxHK = [
                attention_H[:, None] * row["value_HK"]
                for attention_H, row in zip(attention_SH, rows, strict=True)
            ]
            mixed_HK = sum(mixed_SxHK[1:], mixed_SxHK[0])
            output_IHK = self.layers[layer].output_HIK.swapaxes(0, 1)
            return output_IHK.reshape(len(output_IHK), -1) @ mixed_HK.reshape(-1)
        if "value_HI" in rows[0]:
            product = cpu.mix if alone else jnp.matmul
            attended_SI = [
                product(attention_H, row["value_HI"])
                for attention_H, row in zip(attention_SH, rows, strict=True)
            ]
            return sum(attended_SI[1:], attended_SI[0])
        key_SI = jnp.stack([row["key_I"] for row in rows])
        mixed_HI = jnp.einsum("sh,si->hi", attention_SH, key_SI)
        return jnp.einsum("hj,hji->i", mixed_HI, self.layers[layer].output_value_HJI)

    def _attend(self, rows: list[Rows], alone: bool = False) -> jax.Array:
        if self.has_short_rows:
            scores = [(rows[-1]["query_HK"] * row["key_HK"]).sum(axis=1) for row in rows]
        else:
            query_HI, product = rows[-1]["query_HI"], cpu.scores if alone else jnp.matmul
            scores = [product(query_HI, row["key_I"]) for row in rows]
        if len(rows) > mixing.FEW_PLACES:
            return _softmax_SH(*scores)
        # A GPU's kernels then hold scores and attention only inside; a CPU would take longer.
        return lookup.select_by_platform(
            _softmax_SH, lambda *scores: jnp.stack(mixing.softmax(scores)), *scores
        )


# Of `transformer.cuh`: wider models XLA trains about as fast, and compiles faster.
MOST_LAYERS, MOST_TOKENS, MOST_WIDTH = 2, 8, 16
# Heads and neurons together, which it holds in one row of sums.
MOST_FEATURES = 2**12
# The order of `transformer.cuh`: what has rows of D entries, what has rows of I, and biases.
SOURCE = pathlib.Path(__file__).with_suffix(".cuh")
_ROWS = (
    (("token_embedding", "unembedding", "compress", "decompress"), ("mlp_in", "mlp_out")),
    (("position_embedding",), ("query", "key", "value", "output")),
    ((), ("mlp_in_bias",)),
)
_TURNED = ("decompress", "output", "mlp_out")


def _in_kernel(table: Mapping[str, Any], n_layers: int) -> list[str]:
    layers = range(n_layers)
    names = [
        (*shared, *(f"layer{layer}_{name}" for layer in layers for name in own))
        for shared, own in _ROWS
    ]
    return [name for name in itertools.chain(*names) if name in table]


def _flatten(params: Mapping[str, jax.Array]) -> jax.Array:
    """All parameters, one after another."""
    names = _in_kernel(params, MOST_LAYERS)
    turned = [jnp.swapaxes(params[x], -1, -2) if x.endswith(_TURNED) else params[x] for x in names]
    return jnp.concatenate([x.reshape(-1) for x in turned])


def _scale_of_scores(constants: Mapping[str, jax.Array]) -> jax.Array:
    return constants["score_scale"]


def _affine(x_M: jax.Array, weight_NxM: jax.Array, bias_N: Any = 0.0) -> jax.Array:
    return x_M @ weight_NxM.T + bias_N


def _softmax_SH(*scores: jax.Array) -> jax.Array:
    if len(scores) == 2:  # A CPU computes the gradient of a softmax in four times as long.
        first_H = jax.nn.sigmoid(scores[0] - scores[1])
        return jnp.stack([first_H, 1 - first_H])
    return jax.nn.softmax(jnp.stack(scores), axis=0)
