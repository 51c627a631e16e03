"""The Transformer of Nichani, Lee & Bietti (2025), section 4, which recalls facts from noise.

One layer of attention without positions, read at the end, and a residual MLP. Embeddings are
random, directions of norm 1 or standard normal entries, and a method with trained='memory' fixes
them; answers are scored by their embeddings. Only the end token, always the same, has queries:
their products with the key maps are computed once for all examples.

    z = sum_h W_O^T W_V X softmax(X^T W_K^T W_Q x_end),    logits_C = A (z + W_2 relu(W_1 z))

There is no residual connection around attention.

Shape letters: N vocab_size, C answers, S context_length, D d_model, H n_heads, K d_head, W d_mlp.
"""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from memobench.columns import choice, integer
from memobench.models import lookup
from memobench.models.base import Module, WithHeads, require_neurons
from memobench.models.initial_weights import Table, Weight, fan_in
from memobench.models.transformer import ACTIVATIONS
from memobench.spec import kind


class RecallTransformerModule(Module):
    """logits_C of the answers, the first tokens of the vocabulary, to sequences with an end."""

    vocab_size: int
    n_outputs: int
    context_length: int
    d_model: int
    d_head: int
    n_heads: int
    d_mlp: int
    activation: str = "relu"
    embeddings: str = "unit"

    paddable = ("d_model", "d_head", "n_heads", "d_mlp")
    attends = True

    def setup(self) -> None:
        weights, _ = self.declared()
        self.query_HKD, self.key_HKD = weights["query"], weights["key"]
        self.value_HKD, self.output_HKD = weights["value"], weights["output"]
        self.in_WD, self.out_DW = weights["mlp_in"], weights["mlp_out"]
        self.embedding_ND = weights["token_embedding"]

    def parameters(self) -> Table:
        """Embeddings, and the 4 H K D + 2 W D weights of the memory with their bounds."""
        d_model, d_mlp = self.d_model, self.d_mlp
        heads = (self.n_heads, self.d_head, d_model)
        return {
            "query": Weight(heads, fan_in(d_model)),
            "key": Weight(heads, fan_in(d_model)),
            "value": Weight(heads, fan_in(d_model)),
            "output": Weight(heads, fan_in(self.n_heads * self.d_head)),
            "mlp_in": Weight((d_mlp, d_model), fan_in(d_model)),
            "mlp_out": Weight((d_model, d_mlp), fan_in(d_mlp)),
            "token_embedding": Weight((self.vocab_size, d_model), unit=self.embeddings == "unit"),
        }

    def work(self, n_examples: int, context_length: int) -> float:
        heads = self.n_heads * self.d_model
        attend = 2 * heads * (self.context_length + self.d_head)
        read = self.d_model * (2 * self.d_mlp + self.n_outputs)
        return n_examples * (attend + read)

    def activations(self) -> float:
        heads = self.n_heads * (2 * self.context_length + self.d_model + self.d_head)
        return self.context_length * self.d_model + heads + 3 * self.d_mlp + 3 * self.n_outputs

    def attention_maps(self) -> tuple[str, ...]:
        return ("query", "key")

    def products(self) -> tuple[tuple[int, int, int, int], ...]:
        """Sizes of products of two matrices: each head's queries and keys, output and value."""
        return ((self.d_model, self.d_head, self.d_model, 2 * self.n_heads),)

    def __call__(self, tokens_S: jax.Array) -> jax.Array:
        """logits_C of the answers to tokens_S, whose last must be the end token."""
        token_SxD = lookup.rows(self.embedding_ND, tokens_S)
        # In this order of factors a vmap over examples and models makes fast products on CPUs.
        recalled_HxD = self._attention_SxH(token_SxD).T @ token_SxD
        head_HxK = jnp.einsum("hkd,hd->hk", self.value_HKD, recalled_HxD)
        x_D = jnp.einsum("hkd,hk->d", self.output_HKD, head_HxK)
        hidden_W = ACTIVATIONS[self.activation](x_D @ self.in_WD.T)
        return (x_D + hidden_W @ self.out_DW.T) @ self.embedding_ND[: self.n_outputs].T

    def attention(self, tokens_S: jax.Array) -> jax.Array:
        """attention_HxS from the end to all tokens; rows sum to 1."""
        return self._attention_SxH(self.embedding_ND[tokens_S]).T

    def _attention_SxH(self, token_SxD: jax.Array) -> jax.Array:
        # The end token's embedding and not the last token's, though they are the same: without the
        # example in it, one product serves all examples.
        query_HxK = self.query_HKD @ self.embedding_ND[-1]
        asked_HxD = jnp.einsum("hk,hkd->hd", query_HxK, self.key_HKD)
        return jax.nn.softmax(token_SxD @ asked_HxD.T, axis=0)


@kind("recall_transformer")
class RecallTransformer(WithHeads):
    """The Transformer of a task of facts. d_mlp = 0 means no MLP.

    `embeddings` are random directions of norm 1, `unit`, or have standard `normal` entries.
    """

    answers: ClassVar[tuple[str, ...]] = ("fact",)

    d_mlp: int = integer("hidden neurons of a layer's MLP", 0, default=0, most=2**24)
    activation: str = choice("of hidden neurons", *ACTIVATIONS, default="relu")
    embeddings: str = choice("of tokens at the start", "unit", "normal", default="unit")

    def check(self) -> None:
        super().check()
        require_neurons(self, "relu")

    def module(self, task: Any) -> RecallTransformerModule:
        return self.made(RecallTransformerModule, task)
