"""The Transformer of Nichani, Lee & Bietti (2025), section 4, which recalls facts from noise.

One layer of attention without positions, read at the end, and a residual MLP. Embeddings are
random, and a method with trained='memory' fixes them; answers are scored by their embeddings.

    z = sum_h W_O^T W_V X softmax(X^T W_K^T W_Q x_end),    logits_C = A (z + W_2 relu(W_1 z))

There is no residual connection around attention. The authors' released code, `RELEASED` here, has
embeddings of norm about 1, scores over sqrt(d_head), a bias in W_1, and other initial weights.

Shape letters: N vocab_size, C answers, I input tokens, S context_length, D d_model, H n_heads, K
d_head, W d_mlp.
"""

import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from memobench.common.errors import require
from memobench.core.architecture import WithHeads, require_neurons
from memobench.core.columns import choice, integer
from memobench.core.module import Module, product_dimensions
from memobench.core.spec import kind
from memobench.models import feed_forward
from memobench.models.feed_forward import ACTIVATIONS
from memobench.numerics import lookup
from memobench.numerics.initial_weights import Table, Weight, fan_in

# The fields with which the model is that of the authors' code.
RELEASED = {
    "embeddings": "scaled",
    "score_scale": "d_head",
    "initial": "released",
    "biases": "hidden",
}


# Exponents e^-43 .. e^43 and their squares are float32 numbers; see `_attend_by_counts`.
_REACH = 43.0


class RecallTransformerModule(Module):
    """logits_C of the answers, the first tokens of the vocabulary, to sequences with an end.

    Only the end token, always the same, has queries: their products with the key maps are computed
    once for all examples.
    """

    vocab_size: int
    n_outputs: int
    context_length: int
    d_model: int
    d_head: int
    n_heads: int
    d_mlp: int
    activation: str = "relu"
    embeddings: str = "unit"
    score_scale: str | None = None
    initial: str | None = None
    biases: str | None = None

    paddable = ("d_model", "d_head", "n_heads", "d_mlp")

    def setup(self) -> None:
        weights, self.scales = self.create_variables()
        self.query_HKD, self.key_HKD = weights["query"], weights["key"]
        self.value_HKD, self.output_HKD = weights["value"], weights["output"]
        self.in_WD, self.out_DW = weights["mlp_in"], weights["mlp_out"]
        self.bias_W = weights["mlp_in_bias"] if self.biases else 0.0
        self.embedding_ND = weights["token_embedding"]

    def _answer(self, head_HxK: jax.Array) -> jax.Array:
        """logits_C from what the heads read."""
        x_D = jnp.einsum("hkd,hk->d", self.output_HKD, head_HxK)
        hidden_W = ACTIVATIONS[self.activation](x_D @ self.in_WD.T + self.bias_W)
        return (x_D + hidden_W @ self.out_DW.T) @ self.embedding_ND[: self.n_outputs].T

    def parameters(self) -> Table:
        """Embeddings, and the 4 H K D + 2 W D weights of the memory with their bounds."""
        d_model, d_mlp, n_inputs = self.d_model, self.d_mlp, self.n_heads * self.d_head
        heads = (self.n_heads, self.d_head, d_model)
        of_heads = fan_in(d_model), 1 / math.sqrt(self.d_head)
        norm = 1 / math.sqrt(d_model) if self.embeddings == "scaled" else 1.0
        embedding = Weight(
            (self.vocab_size, d_model), deviation=norm, unit=self.embeddings == "unit"
        )
        biases = {"mlp_in_bias": Weight((d_mlp,), deviation=0)} if self.biases else {}
        return {
            "query": self._weight(heads, *of_heads),
            "key": self._weight(heads, *of_heads),
            "value": self._weight(heads, *of_heads),
            "output": self._weight(heads, fan_in(n_inputs), 1 / math.sqrt(d_model)),
            "mlp_in": self._weight((d_mlp, d_model), fan_in(d_model), fan_in(d_model)),
            **biases,
            "mlp_out": self._weight((d_model, d_mlp), fan_in(d_mlp), fan_in(d_mlp)),
            "token_embedding": embedding,
        }

    def _weight(self, shape: tuple[int, ...], bound: float, deviation: float) -> Weight:
        """Uniform within a bound, or normal where weights start as those of the released code."""
        return Weight(shape, deviation=deviation) if self.initial else Weight(shape, bound)

    def constants(self) -> dict[str, Any]:
        scale = {"score_scale": np.float32(1 / math.sqrt(self.d_head))}
        return scale if self.score_scale else {}

    def parts(self) -> dict[str, tuple[str, ...]]:
        return {"attention_maps": ("query", "key")}

    def products(self) -> tuple[tuple[int, int, int, int], ...]:
        """Sizes of products of two matrices: each head's queries and keys, output and value."""
        return ((self.d_model, self.d_head, self.d_model, 2 * self.n_heads),)

    def symmetries(self, task: Any) -> int | None:
        """Bases of what heads read and of what they write, a shift of logits, scales of neurons.

        Heads look from the end token alone: each has one vector for queries and keys.
        """
        n_inputs, d_model = self.vocab_size - self.n_outputs, self.d_model
        if task.question != "fact" or d_model >= min(n_inputs, self.n_outputs):
            return None
        maps = self.n_heads * (product_dimensions(d_model, self.d_head, d_model) - d_model)
        of_neurons = feed_forward.symmetries(d_model, self.d_mlp, self.activation)
        return maps + 2 * d_model**2 + d_model + of_neurons

    def __call__(self, tokens_S: jax.Array) -> jax.Array:
        """logits_C of the answers to tokens_S, whose last must be the end token."""
        return self._answer(
            self._attend_by_counts(tokens_S) if self.score_scale else self._attend(tokens_S)
        )

    def attention(self, tokens_S: jax.Array) -> jax.Array:
        """attention_HxS from the end to all tokens; rows sum to 1."""
        return self._attention_SxH(self.embedding_ND[tokens_S]).T

    def _attention_SxH(self, token_SxD: jax.Array) -> jax.Array:
        return jax.nn.softmax(self._scores(token_SxD), axis=0)

    def _scores(self, token_SxD: jax.Array) -> jax.Array:
        """score_SxH: of the end's queries with the tokens' keys."""
        # The end token's embedding and not the last token's, though they are the same: without the
        # example in it, one product serves all examples.
        query_HxK = self.query_HKD @ self.embedding_ND[-1]
        asked_HxD = jnp.einsum("hk,hkd->hd", query_HxK, self.key_HKD)
        return token_SxD @ (asked_HxD * self.scales.get("score_scale", 1.0)).T

    def _attend(self, tokens_S: jax.Array) -> jax.Array:
        """head_HxK: what the heads read by the attention to every token of the sequence."""
        token_SxD = lookup.rows(self.embedding_ND, tokens_S)
        # In this order of factors a vmap over examples and models makes fast products on CPUs.
        recalled_HxD = self._attention_SxH(token_SxD).T @ token_SxD
        return jnp.einsum("hkd,hd->hk", self.value_HKD, recalled_HxD)

    def _attend_by_counts(self, tokens_S: jax.Array) -> jax.Array:
        """head_HxK, with exponents and values of each token computed once for all examples.

        A sequence is then its counts of tokens, and sums over it are one product. No score may be
        subtracted that differs between sequences: there are two products, for sequences whose
        largest score is up to 86, and up to 172, above that of the end, which is in all of them.
        Higher scores count as that.
        """
        input_IxD = self.embedding_ND[self.n_outputs :]
        count_I = lookup.select_by_platform(
            lambda t: jnp.zeros(len(input_IxD)).at[t].add(1),
            lambda t: jax.nn.one_hot(t, len(input_IxD)).sum(0),
            tokens_S - self.n_outputs,
        )
        score_IxH = self._scores(input_IxD)
        value_IxHxK = jnp.einsum("hkd,id->ihk", self.value_HKD, input_IxD)

        def sums(shift: float) -> tuple[jax.Array, jax.Array]:
            weight_IxH = jnp.exp(jnp.minimum(score_IxH - score_IxH[-1:] - shift, _REACH))
            weighed_IxHxK = weight_IxH[:, :, None] * value_IxHxK
            return count_I @ weight_IxH, jnp.tensordot(count_I, weighed_IxHxK, 1)

        (low_H, low_HxK), (high_H, high_HxK) = sums(_REACH), sums(3 * _REACH)
        is_high_H = high_H > math.exp(-_REACH)
        total_H = jnp.where(is_high_H, high_H, low_H)
        return jnp.where(is_high_H[:, None], high_HxK, low_HxK) / total_H[:, None]

    def work(self, n_examples: int, context_length: int) -> float:
        if self.score_scale:
            n_inputs = self.vocab_size - self.n_outputs
            attend = self.n_heads * (2 * n_inputs * (self.d_head + 1) + self.d_head * self.d_model)
        else:
            attend = 2 * self.n_heads * self.d_model * (self.context_length + self.d_head)
        read = self.d_model * (2 * self.d_mlp + self.n_outputs)
        return n_examples * (attend + read)

    def activations(self) -> float:
        heads = self.n_heads * (2 * self.context_length + self.d_model + self.d_head)
        return self.context_length * self.d_model + heads + 3 * self.d_mlp + 3 * self.n_outputs


@kind("recall_transformer")
class RecallTransformer(WithHeads):
    """The Transformer of a task of facts. d_mlp = 0 means no MLP.

    Attributes:
        embeddings: random directions of norm 1, `unit`, or standard `normal` entries, or those over
            sqrt(d_model), `scaled`.
        score_scale: the size by whose square root scores are divided.
        initial: weights at the start: uniform within 1/sqrt(inputs), or normal as `released`, with
            1/sqrt(d_head) of queries, keys and values, 1/sqrt(d_model) of outputs, and
            1/sqrt(inputs) of the MLP.
    """

    answers: ClassVar[tuple[str, ...]] = ("fact",)

    d_mlp: int = integer("hidden neurons of a layer's MLP", 0, default=0, most=2**24)
    activation: str = choice("of hidden neurons", *ACTIVATIONS, default="relu")
    embeddings: str = choice("of tokens at the start", "unit", "normal", "scaled", default="unit")
    score_scale: str | None = choice(
        "whose square root divides scores; none for no division",
        "d_head",
        default=None,
        omit=None,
    )
    initial: str | None = choice(
        "weights at the start, as in the authors' code; none for uniform ones",
        "released",
        default=None,
        omit=None,
    )
    biases: str | None = choice(
        "neurons that have biases; none without", "hidden", default=None, omit=None
    )

    def check(self) -> None:
        super().check()
        require_neurons(self, "relu")
        require(
            self.d_mlp > 0 or self.biases is None,
            f"biases must be None with d_mlp=0, got {self.biases!r}. Leave biases out",
        )

    def module(self, task: Any) -> RecallTransformerModule:
        return self.fill_module(RecallTransformerModule, task)
