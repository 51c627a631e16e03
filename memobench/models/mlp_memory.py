"""MLP associative memory: hidden neurons between a token's key and the value of the next token.

Nichani, Lee & Bietti (2025), section 3.2: with m neurons it holds about m d facts. Keys and values
are random directions, which a method with trained='memory' fixes. With a gated activation and
`tied` it is the bilinear MLP of Garcia et al. (2026).

Shape letters: N vocab_size, C answers, D d_model, W d_mlp.
"""

import math
from typing import Any, ClassVar

import jax

from memobench import theory
from memobench.core.architecture import Architecture, require_one_token
from memobench.core.columns import choice, flag, integer
from memobench.core.module import TabledModule, count_distinct, product_dimensions
from memobench.core.spec import kind
from memobench.models.feed_forward import ACTIVATIONS, GATES
from memobench.numerics.initial_weights import Table, Weight, fan_in
from memobench.numerics.lookup import rows

# Activations whose derivative is almost nowhere zero.
_SMOOTH = ("gelu", "silu", "swiglu", "geglu", "bilinear")


class MLPMemoryModule(TabledModule):
    """logits_C = V W_out act(W_in K[t] + b): keys K (token_embedding), values V (unembedding).

    With a gated activation there are no biases: V W_out (W_in K[t] * a(W_gate K[t])). `tied` values
    are the keys.
    """

    vocab_size: int
    d_model: int
    d_mlp: int
    activation: str = "relu"
    initial: str | None = None
    tied: bool = False
    # So many tokens, the first, may be answers, and have logits; None for all.
    n_values: int | None = None

    # vocab_size only for bijections, where tokens without a prior cannot be answers.
    paddable = ("vocab_size", "d_model", "d_mlp")

    def setup(self) -> None:
        weights, _ = self.create_variables()
        self.key_ND = weights["token_embedding"]
        value_ND = weights["token_embedding" if self.tied else "unembedding"]
        self.value_CD = value_ND[: self.n_values]
        self.in_WD, self.out_DW = weights["mlp_in"], weights["mlp_out"]
        # One of them is there.
        self.gate_WD: Any = weights.get("mlp_gate")
        self.in_bias_W: Any = weights.get("mlp_in_bias")

    def __call__(self, tokens_S: jax.Array) -> jax.Array:
        """logits_C of the token that follows the single token in tokens_S."""
        return self.value_CD @ self._recall(rows(self.key_ND, tokens_S[0]))

    def _recall(self, key_D: jax.Array) -> jax.Array:
        hidden_W = self.in_WD @ key_D
        if self.is_gated:
            hidden_W *= GATES[self.activation](self.gate_WD @ key_D)
        else:
            hidden_W = ACTIVATIONS[self.activation](hidden_W + self.in_bias_W)
        return self.out_DW @ hidden_W

    @property
    def is_gated(self) -> bool:
        """True where neurons are multiplied by gates, and have no biases."""
        return self.activation in GATES

    def parameters(self) -> Table:
        """Keys and values, and the weights between them with the bounds of their entries."""
        d_model, d_mlp = self.d_model, self.d_mlp
        directions = Weight((self.vocab_size, d_model), unit=True)

        def weight(shape: tuple[int, ...], bound: float, deviation: float) -> Weight:
            return Weight(shape, deviation=deviation) if self.initial else Weight(shape, bound)

        into = weight((d_mlp, d_model), fan_in(d_model), fan_in(d_model))
        bias = {"mlp_in_bias": weight((d_mlp,), fan_in(d_model), 0.0)}
        return {
            "mlp_in": into,
            **({"mlp_gate": into} if self.is_gated else bias),
            "mlp_out": weight((d_model, d_mlp), fan_in(d_mlp), fan_in(d_mlp)),
            "token_embedding": directions,
            **({} if self.tied else {"unembedding": directions}),
        }

    def parts(self) -> dict[str, tuple[str, ...]]:
        """The parameters that map the neurons linearly to logits; values are fixed."""
        return {"read_out": ("mlp_out",)}

    def symmetries(self, task: Any) -> float | None:
        """All but logits of a rank, of which a shift of all changes nothing.

        As keys are parameters, smooth neurons take them to anything that so many can hold. NaN for
        others, of which those that are silent for a token differ between weights.
        """
        if self.tied:
            return None
        if self.activation not in _SMOOTH:
            return math.nan
        n_passed = min(self.d_model, self.d_mlp)
        free = product_dimensions(self._n_logits - 1, n_passed, self.vocab_size)
        return count_distinct(self, task.context_length) - free

    @property
    def _n_logits(self) -> int:
        return self.n_values or self.vocab_size

    def work(self, n_examples: int, context_length: int) -> float:
        return n_examples * self.d_model * ((2 + self.is_gated) * self.d_mlp + self._n_logits)

    def activations(self) -> float:
        return 4 * self._n_logits + 8 * (self.d_model + self.d_mlp)

    def tables(self) -> list[jax.Array]:
        """recalled_ND, the memory's output for every token's key, of the one position."""
        return [jax.vmap(self._recall)(self.key_ND)]

    def read(self, rows: list[jax.Array]) -> jax.Array:
        """logits_C from what was recalled."""
        (recalled_D,) = rows
        return self.value_CD @ recalled_D


@kind("mlp_memory")
class MLPMemory(Architecture):
    """A memory of `d_mlp` hidden neurons, for tasks with one token per sequence.

    Gated neurons, three matrices, have no biases.

    Attributes:
        initial: weights at the start: uniform within 1/sqrt(inputs), biases too, or as `released`,
            normal with 1/sqrt(inputs), and biases 0.
        tied: values are the keys, and not a table of their own.
    """

    theorems: ClassVar[dict] = {
        theory.HEBBIAN: lambda sizes: sizes["activation"] == "bilinear",
        theory.WHITENED: lambda sizes: sizes["activation"] == "bilinear",
        theory.NTK: lambda sizes: sizes["activation"] == "reglu",
    }

    d_mlp: int = integer("hidden neurons of a layer's MLP", 1, most=2**24)
    activation: str = choice("of hidden neurons", *ACTIVATIONS, *GATES, default="relu")
    initial: str | None = choice(
        "weights at the start, as in the authors' code; none for uniform ones",
        "released",
        default=None,
        omit=None,
    )
    tied: bool = flag("whether the unembedding is the token embedding", default=False, omit=False)

    def module(self, task: Any) -> MLPMemoryModule:
        require_one_token(task, self)
        return self.fill_module(MLPMemoryModule, task, n_values=getattr(task, "n_values", None))
