"""GPT-2 style Transformers (Radford et al. 2019), as Morris et al. (2025) train them on sequences.

Learned positions, blocks of causal multi-head attention and an MLP behind layer norms, a final
layer norm and a separate unembedding. Position 0 comes before the first token, which is predicted
from it alone, before anything was read. The MLP's gelu is the exact one.

One example, no batch and no pack axis. Every size but the number of layers is padded.

Shape letters: N vocab_size, S context_length, P positions, D d_model, H n_heads, K d_head, W d_mlp.
"""

import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from memobench.core.architecture import WithHeads, require_neurons
from memobench.core.columns import choice, integer
from memobench.core.module import Module
from memobench.core.spec import kind
from memobench.models.feed_forward import ACTIVATIONS
from memobench.models.norms import Norm, mean_weights
from memobench.numerics.initial_weights import Table, Weight, add_prefix, select_prefix
from memobench.numerics.lookup import rows

# GPT-2's deviation of weights at the start.
DEVIATION = 0.02


class GPTModule(Module):
    """Logits of every token given those before it (`whole`), or of the one after all of them."""

    vocab_size: int
    context_length: int
    d_model: int
    d_head: int
    n_heads: int
    d_mlp: int
    n_layers: int
    whole: bool
    has_neurons: bool
    activation: str = "gelu"

    paddable = ("d_model", "d_head", "n_heads", "d_mlp")

    def setup(self) -> None:
        self.weights, constants = self.create_variables()
        self.score_scale, self.mean_D = constants["score_scale"], constants["mean"]

    def __call__(self, tokens_S: jax.Array) -> jax.Array:
        """logits_SxN of every token given those before it, or logits_N of the next one."""
        weights = self.weights
        read_P = tokens_S[:-1] if self.whole else tokens_S
        # Nothing was read at position 0.
        token_PxD = jnp.pad(rows(weights["token_embedding"], read_P), ((1, 0), (0, 0)))
        x_PxD = token_PxD + weights["position_embedding"]
        for layer in range(self.n_layers):
            x_PxD = x_PxD + self._attend(layer, self._normalize(f"layer{layer}_norm1", x_PxD))
            if self.has_neurons:
                x_PxD = x_PxD + self._feed_forward(
                    layer, self._normalize(f"layer{layer}_norm2", x_PxD)
                )
        if not self.whole:
            x_PxD = x_PxD[-1:]
        logits_PxN = self._normalize("norm", x_PxD) @ weights["unembedding"].T
        return logits_PxN if self.whole else logits_PxN[0]

    def _attend(self, layer: int, x_PxD: jax.Array) -> jax.Array:
        """added_PxD: the output of attention at every position."""

        def heads(name: str) -> jax.Array:
            bias_HK = self._weight(layer, f"bias_{name}")
            projected = jnp.einsum("hkd,pd->hpk", self._weight(layer, name), x_PxD)
            return projected + bias_HK[:, None]

        query_HPK, key_HPK, value_HPK = map(heads, ("query", "key", "value"))
        score_HPP = jnp.einsum("hpk,hqk->hpq", query_HPK, key_HPK) * self.score_scale
        n_positions = len(x_PxD)
        seen_PP = np.tril(np.ones((n_positions, n_positions), bool))
        attention_HPP = jax.nn.softmax(jnp.where(seen_PP[None], score_HPP, -jnp.inf), axis=-1)
        head_HPK = jnp.einsum("hpq,hqk->hpk", attention_HPP, value_HPK)
        added_PxD = jnp.einsum("hdk,hpk->pd", self._weight(layer, "output"), head_HPK)
        return added_PxD + self._weight(layer, "output_bias")[None]

    def _feed_forward(self, layer: int, x_PxD: jax.Array) -> jax.Array:
        """added_PxD: the output of the MLP at every position."""
        hidden_PxW = x_PxD @ self._weight(layer, "mlp_in").T
        hidden_PxW = hidden_PxW + self._weight(layer, "mlp_in_bias")[None]
        added_PxD = ACTIVATIONS[self.activation](hidden_PxW) @ self._weight(layer, "mlp_out").T
        return added_PxD + self._weight(layer, "mlp_out_bias")[None]

    def _normalize(self, name: str, x_PxD: jax.Array) -> jax.Array:
        return self.norm(select_prefix(f"{name}_", self.weights), self.mean_D, x_PxD)

    @property
    def norm(self) -> Norm:
        return Norm("layer", self.d_model)

    def _weight(self, layer: int, name: str) -> jax.Array:
        return self.weights[f"layer{layer}_{name}"]

    def parameters(self) -> Table:
        """Every parameter's shape, and the deviation of its normal entries at the start."""
        n, d_model, d_mlp = self.vocab_size, self.d_model, self.d_mlp
        heads = (self.n_heads, self.d_head, d_model)
        # The stream is a sum of 2 n_layers parts: each layer adds its attention and its MLP.
        added = DEVIATION / math.sqrt(2 * self.n_layers)
        n_positions = self.context_length + (not self.whole)
        table: Table = {
            "token_embedding": Weight((n, d_model), deviation=DEVIATION),
            "position_embedding": Weight((n_positions, d_model), deviation=DEVIATION),
            "unembedding": Weight((n, d_model), deviation=DEVIATION),
            **add_prefix("norm_", self.norm.parameters()),
        }
        for layer in range(self.n_layers):
            block: Table = {
                **add_prefix("norm1_", self.norm.parameters()),
                "query": Weight(heads, deviation=DEVIATION),
                "key": Weight(heads, deviation=DEVIATION),
                "value": Weight(heads, deviation=DEVIATION),
                "bias_query": Weight(heads[:2], deviation=0),
                "bias_key": Weight(heads[:2], deviation=0),
                "bias_value": Weight(heads[:2], deviation=0),
                "output": Weight((self.n_heads, d_model, self.d_head), deviation=added),
                "output_bias": Weight((d_model,), deviation=0),
            }
            if self.has_neurons:
                block |= {
                    **add_prefix("norm2_", self.norm.parameters()),
                    "mlp_in": Weight((d_mlp, d_model), deviation=DEVIATION),
                    "mlp_in_bias": Weight((d_mlp,), deviation=0),
                    "mlp_out": Weight((d_model, d_mlp), deviation=added),
                    "mlp_out_bias": Weight((d_model,), deviation=0),
                }
            table |= add_prefix(f"layer{layer}_", block)
        return table

    def constants(self) -> dict[str, Any]:
        """Arrays that depend on the true sizes of the stream and of heads."""
        scale = np.float32(1 / math.sqrt(self.d_head))
        return {"score_scale": scale, "mean": mean_weights(self.d_model)}

    def work(self, n_examples: int, context_length: int) -> float:
        length, heads = context_length + (not self.whole), self.n_heads * self.d_head
        block = self.d_model * (4 * heads + 2 * self.d_mlp) + 2 * length * heads
        read = (length if self.whole else 1) * self.vocab_size * self.d_model
        return n_examples * (self.n_layers * length * block + read)

    def activations(self) -> float:
        length, heads = self.context_length + (not self.whole), self.n_heads * self.d_head
        block = 8 * self.d_model + 4 * heads + 3 * self.n_heads * length + 3 * self.d_mlp
        read = (length if self.whole else 1) * 3 * self.vocab_size
        return self.n_layers * length * block + read

    def parts(self) -> dict[str, tuple[str, ...]]:
        names = ("query", "key", "bias_query", "bias_key")
        maps = tuple(f"layer{layer}_{name}" for layer in range(self.n_layers) for name in names)
        return {"attention_maps": maps}

    def products(self) -> tuple[tuple[int, int, int, int], ...]:
        """Sizes of products of two matrices: each head's queries and keys, output and value."""
        return ((self.d_model, self.d_head, self.d_model, 2 * self.n_layers * self.n_heads),)


@kind("gpt")
class GPT(WithHeads):
    """The model of whole sequences, facts or next tokens. d_mlp = 0 means no MLP."""

    answers: ClassVar[tuple[str, ...]] = ("next token", "fact", "every token")

    n_layers: int = integer("layers", 1, default=1, most=64)
    d_mlp: int = integer("hidden neurons of a layer's MLP", 0, default=0, most=2**24)
    activation: str = choice("of hidden neurons", *ACTIVATIONS, default="gelu")

    def check(self) -> None:
        super().check()
        require_neurons(self, "gelu")

    def module(self, task: Any) -> GPTModule:
        every, neurons = task.question == "every token", self.d_mlp > 0
        return self.fill_module(GPTModule, task, whole=every, has_neurons=neurons)
