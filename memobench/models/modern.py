"""Transformers of the blocks that are used today, each chosen by a field.

The default is the block of Llama (Touvron et al. 2023): RMSNorm before attention and before SwiGLU,
rotary positions, no biases. Blocks are in `attention`, `feed_forward` and `norms`; a layer is

    x + a f(norm(x))  (pre),    norm(x + a f(x))  (post),

once with attention as f and once with the feed-forward block, and a final norm before the
unembedding where norms come first.

One example, no batch and no pack axis. Every size but the number of layers and of heads in a group
is padded, norms included.

Shape letters: N vocab_size, S context_length and the positions, Q the last of them, D d_model.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from memobench.common.errors import require
from memobench.core.architecture import WithHeads, in_words, require_neurons, sizes_in_words
from memobench.core.columns import choice, flag, integer
from memobench.core.module import Module, count_distinct, has_room
from memobench.core.spec import kind
from memobench.models import feed_forward, norms
from memobench.models.attention import WEIGHINGS, Attention
from memobench.models.feed_forward import ACTIVATIONS, GATES, FeedForward
from memobench.models.norms import Norm, mean_weights
from memobench.numerics.initial_weights import (
    Table,
    Weight,
    add_prefix,
    fan_in,
    select_prefix,
    size,
)
from memobench.numerics.lookup import rows


class ModernModule(Module):
    """Logits of every token given those before it (`whole`), or of the one after all of them."""

    vocab_size: int
    context_length: int
    d_model: int
    d_head: int
    n_kv_heads: int
    group_size: int
    d_mlp: int
    n_layers: int
    whole: bool
    has_neurons: bool
    activation: str
    norm: str
    norm_position: str
    positions: str
    qk_norm: bool
    attention: str
    residual_scale: str
    tied: bool

    paddable: ClassVar[tuple[str, ...]] = ("d_model", "d_head", "n_kv_heads", "d_mlp")

    def setup(self) -> None:
        self.weights, self.known = self.create_variables()

    def __call__(self, tokens_S: jax.Array) -> jax.Array:
        """logits_SxN of every token given those before it, or logits_N of the next one."""
        weights = self.weights
        stream_SxD = rows(weights["token_embedding"], tokens_S)
        if self.whole:
            start_1xD = weights["start_embedding"][None]
            stream_SxD = jnp.concatenate([start_1xD, stream_SxD[:-1]])
        if self.positions == "learned":
            stream_SxD += weights["position_embedding"]
        for layer in range(self.n_layers):
            # The last layer looks from where logits are read.
            n_queries = 1 if layer == self.n_layers - 1 and not self.whole else len(stream_SxD)
            stream_SxD = self._compute_layer(layer, stream_SxD, n_queries)
        if self.norm_position == "pre":
            stream_SxD = self._normalize("", stream_SxD)
        unembedding_NxD = weights["token_embedding" if self.tied else "unembedding"]
        logits_SxN = stream_SxD @ unembedding_NxD.T
        return logits_SxN if self.whole else logits_SxN[-1]

    def _compute_layer(self, layer: int, stream_SxD: jax.Array, n_queries: int) -> jax.Array:
        """stream_QxD after attention and neurons of a layer."""
        own = select_prefix(f"layer{layer}_", self.weights)

        def attention(x_SxD: jax.Array) -> jax.Array:
            return self.heads(own, self.known, x_SxD, n_queries)

        stream_QxD = self._add_block(f"layer{layer}_attention_", attention, stream_SxD)
        if not self.has_neurons:
            return stream_QxD

        def neurons(x_QxD: jax.Array) -> jax.Array:
            return self.neurons(own, self.known, x_QxD)

        return self._add_block(f"layer{layer}_neurons_", neurons, stream_QxD)

    def _add_block(
        self, name: str, block: Callable[[jax.Array], jax.Array], stream_SxD: jax.Array
    ) -> jax.Array:
        """stream_QxD: the last positions of the stream, with the output of a block added."""
        is_pre = self.norm_position == "pre"
        added_QxD = block(self._normalize(name, stream_SxD) if is_pre else stream_SxD)
        if self._learns_scale:
            added_QxD *= self.weights[f"{name}scale"][None]
        elif self.residual_scale == "depth":
            added_QxD /= math.sqrt(2 * self.n_layers)
        stream_QxD = stream_SxD[-len(added_QxD) :] + added_QxD
        return stream_QxD if is_pre else self._normalize(name, stream_QxD)

    def _normalize(self, name: str, x_SxD: jax.Array) -> jax.Array:
        norm = Norm(self.norm, self.d_model)
        return norm(
            select_prefix(f"{name}norm_", self.weights), self.known.get("stream_mean"), x_SxD
        )

    @property
    def heads(self) -> Attention:
        """The attention of a layer."""
        return Attention(
            self.d_model,
            self.d_head,
            self.n_kv_heads,
            self.group_size,
            self.context_length,
            rotary=self.positions == "rope",
            normed=self.qk_norm,
            kind=self.attention,
        )

    @property
    def neurons(self) -> Any:
        """The feed-forward block of a layer."""
        return FeedForward(self.d_model, self.d_mlp, self.activation)

    @property
    def n_heads(self) -> int:
        """Heads of queries."""
        return self.n_kv_heads * self.group_size

    @property
    def _learns_scale(self) -> bool:
        return self.residual_scale == "learned"

    def parameters(self) -> Table:
        """Every parameter's shape, and the bound of its uniform entries at the start."""
        token = Weight((self.vocab_size, self.d_model), fan_in(self.d_model))
        table: Table = {"token_embedding": token} | ({} if self.tied else {"unembedding": token})
        if self.whole:
            table["start_embedding"] = Weight((self.d_model,), fan_in(self.d_model))
        if self.positions == "learned":
            shape = self.context_length, self.d_model
            table["position_embedding"] = Weight(shape, fan_in(self.d_model))
        norm = add_prefix("norm_", Norm(self.norm, self.d_model).parameters())
        of_block = norm | ({"scale": Weight((1,), deviation=0)} if self._learns_scale else {})
        blocks = {"attention": self.heads.parameters()}
        if self.has_neurons:
            blocks["neurons"] = self.neurons.parameters()
        for layer in range(self.n_layers):
            for block, own in blocks.items():
                table |= add_prefix(f"layer{layer}_{block}_", of_block) | add_prefix(
                    f"layer{layer}_", own
                )
        return table | (norm if self.norm_position == "pre" else {})

    def constants(self) -> dict[str, Any]:
        """Arrays that depend on the true width of the stream and of heads."""
        mean = {} if self.norm == "none" else {"stream_mean": mean_weights(self.d_model)}
        of_neurons = self.neurons.constants() if self.has_neurons else {}
        return mean | self.heads.constants() | of_neurons

    def work(self, n_examples: int, context_length: int) -> float:
        attend = 2 * self.n_layers * context_length**2 * self.n_heads * self.d_head
        return float(n_examples * (context_length * size(self.parameters()) + attend))

    def activations(self) -> float:
        heads, length = self.n_heads, self.context_length
        block = 8 * self.d_model + heads * (6 * self.d_head + 3 * length) + self.hidden_floats()
        n_read = length if self.whole else 1
        return self.n_layers * length * block + 3 * n_read * self.vocab_size

    def hidden_floats(self) -> float:
        """Floats that the feed-forward block keeps at a position."""
        return 5 * self.d_mlp

    def parts(self) -> dict[str, tuple[str, ...]]:
        names = [x for x in self.heads.parameters() if x.startswith(("query", "key"))]
        maps = tuple(f"layer{layer}_{name}" for layer in range(self.n_layers) for name in names)
        return {"attention_maps": maps}

    def products(self) -> tuple[tuple[int, int, int, int], ...]:
        """Sizes of products of two matrices, and how many there are of them."""
        return tuple((m, r, n, self.n_layers * x) for m, r, n, x in self.heads.products())

    def symmetries(self, task: Any) -> float | None:
        """The stream's, those of heads and neurons, and scales that a later matrix can have."""
        n, d_model = self.vocab_size, self.d_model
        n_written = n**self.context_length * d_model
        has_formula = (
            self.context_length > 1
            and 1 < d_model < n
            and self.norm != "layer"
            and not (self.attention == "delta" and self._unread())
            # With fewer tokens one dimension more may be missing.
            and (self.norm_position == "pre" or 2 * d_model <= n)
            and has_room(count_distinct(self, self.context_length), n_written)
        )
        # At the last position of the first layer only tokens differ.
        first, later = self.heads.symmetries(n), self.heads.symmetries(None)
        if task.question != "next token" or not has_formula or first is None or later is None:
            return None
        n_blocks = self.n_layers * (1 + self.has_neurons)
        return (
            first
            + (self.n_layers - 1) * later
            + (self.n_layers * self.neuron_symmetries() if self.has_neurons else 0)
            + self._stream_symmetries(n_blocks)
            + n_blocks * self._learns_scale
            # Tokens and positions may be shifted against each other, and all logits of a sequence.
            + d_model * (self.positions == "learned")
            + (self.context_length - 1) * self._unread()
            + d_model * (not self.tied)
        )

    def _unread(self) -> int:
        """The dimensions of positions before the last that no key or value of one layer reads."""
        is_norm_between = self.norm != "none" and self.norm_position == "pre"
        if self.positions != "learned" or self.n_layers > 1 or is_norm_between:
            return 0
        return max(0, self.d_model - 2 * self.heads.n_kv_heads * self.d_head)

    def neuron_symmetries(self) -> int:
        """The dimensions of changes of a feed-forward block that leave its output as it is."""
        return feed_forward.symmetries(self.d_model, self.d_mlp, self.activation)

    def _stream_symmetries(self, n_blocks: int) -> int:
        """The dimensions of the stream's bases, and of scales of norms."""
        d_model = self.d_model
        turns = d_model * (d_model - 1) // 2
        if self.norm == "none":
            return turns if self.tied else d_model**2
        # A norm's scale is that of the matrices after it, where nothing else reads the stream.
        last = 0 if self.tied else d_model
        if self.norm_position == "pre":
            return n_blocks * d_model + (0 if self.tied else turns) + last
        return last + (turns if n_blocks == 1 and not self.tied else 0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModernBase(WithHeads):
    """All but the feed-forward block of a Transformer of today.

    Attributes:
        residual_scale: the factor of what attention and neurons add: `one`, 1/sqrt(2 n_layers) by
            `depth`, or a number that is `learned` and starts at zero (Bachlechner et al. 2020).
    """

    answers: ClassVar[tuple[str, ...]] = ("next token", "fact", "every token", "context")
    module_class: ClassVar[type[ModernModule]] = ModernModule
    # Sizes of a feed-forward block that only its kind has: no options.
    own_sizes: ClassVar[tuple[str, ...]] = ()

    n_kv_heads: int | None = integer(
        "heads of keys and values, which heads share evenly; none for as many as heads",
        1,
        default=None,
        most=2**20,
    )
    n_layers: int = integer("layers", 1, default=1, most=64)
    norm: str = choice("of the stream", *norms.KINDS, default="rms")
    norm_position: str = choice(
        "norms come before a block or after its sum with the stream", "pre", "post", default="pre"
    )
    positions: str = choice("of tokens", "rope", "learned", "none", default="rope")
    qk_norm: bool = flag("whether queries and keys are normed", default=False)
    attention: str = choice("what weighs values", *WEIGHINGS, default="softmax")
    residual_scale: str = choice(
        "of what a block adds to the stream", "one", "depth", "learned", default="one"
    )
    tied: bool = flag("whether the unembedding is the token embedding", default=False)

    def check(self) -> None:
        super().check()
        kv_heads = self.n_kv_heads
        require(
            kv_heads is None or (kv_heads < self.n_heads and self.n_heads % kv_heads == 0),
            f"n_kv_heads must be a divisor of n_heads={self.n_heads} and smaller, got {kv_heads}. "
            "Change it, or leave it out for as many",
        )
        require(
            self.norm != "none" or self.norm_position == "pre",
            "norm_position must be 'pre' with norm='none', got 'post'. Leave norm_position out",
        )
        require(
            self.positions != "rope" or self.d_head > 1,
            "d_head must be at least 2 with positions='rope', got 1. Set positions to another",
        )

    def module(self, task: Any) -> ModernModule:
        groups = self.n_kv_heads or self.n_heads
        return self.fill_module(
            self.module_class,
            task,
            n_kv_heads=groups,
            group_size=self.n_heads // groups,
            whole=task.question == "every token",
            **self.block(),
        )

    def block(self) -> dict[str, Any]:
        """The module's fields about feed-forward blocks that are not fields of the spec."""
        raise NotImplementedError

    @property
    def family(self) -> str:
        """The kind with options that are not default and narrow heads: these are other models."""
        options = [x for x in super().shown_sizes if x not in self.shown_sizes]
        name = f"{self.name} ({', '.join(options)})" if options else self.name
        if self.d_head < self.d_model:
            name += ", narrow head" if self.side[0] == "MLP" else ", narrow heads"
        return in_words(name, self.shared_cells())

    @property
    def shown_sizes(self) -> list[str]:
        own = [f"{name}={getattr(self, name)}" for name in self.own_sizes]
        usual = sizes_in_words(self.shared_cells())
        return usual + [x for x in super().shown_sizes if x in own]


@kind("modern")
class Modern(ModernBase):
    """A Transformer of today's blocks, by default Llama's. d_mlp = 0 means attention alone."""

    d_mlp: int = integer("hidden neurons of a layer's MLP", 0, default=0, most=2**24)
    activation: str = choice("of hidden neurons", *ACTIVATIONS, *GATES, default="swiglu")

    def check(self) -> None:
        super().check()
        require_neurons(self, "swiglu")

    def block(self) -> dict[str, Any]:
        return {"has_neurons": self.d_mlp > 0}

    @property
    def family(self) -> str:
        alone = "" if self.d_mlp else " attention"
        return super().family.replace(self.name, self.name + alone, 1)

    @property
    def side(self) -> tuple[str, str]:
        if self.attention != "softmax":
            return super().side
        heads = "narrow" if self.d_head < self.d_model else "full"
        if not self.d_mlp:
            return "attention alone", heads
        return "MLP" if self.n_heads == 1 else "attention + MLP", heads
