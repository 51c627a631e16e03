"""Sequence encoders: one free vector per sequence, read out linearly (Dana et al. 2025).

The set L(N, S, d) of f(t) = W E(t), with W in R^{N x d} and E free, holds every Transformer of
width d: no Transformer of that width comes closer to its task (Proposition 1).

Shape letters: N vocab_size, S context_length, T = N^S sequences, D d_model.
"""

import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn

from memobench import theory
from memobench.common.errors import require
from memobench.core.architecture import Architecture
from memobench.core.module import Module, count_distinct, product_dimensions
from memobench.core.spec import kind
from memobench.numerics.lookup import rows

MOST_ROWS = 2**22


class SequenceEncoderModule(Module):
    """logits_N = W E(tokens_S): a table with a row for every sequence, and an unembedding."""

    vocab_size: int
    context_length: int
    d_model: int

    paddable = ("d_model",)

    @nn.compact
    def __call__(self, tokens_S: jax.Array) -> jax.Array:
        n, length, d_model = self.vocab_size, self.context_length, self.d_model
        initializer = nn.initializers.normal(1 / math.sqrt(d_model))
        encoding_TxD: Any = self.param("encoding", initializer, (n**length, d_model))
        unembedding_ND: Any = self.param("unembedding", initializer, (n, d_model))
        place_S = n ** jnp.arange(length - 1, -1, -1)
        return unembedding_ND @ rows(encoding_TxD, tokens_S @ place_S)

    def products(self) -> tuple[tuple[int, int, int, int], ...]:
        """Sizes (m, r, n) of products of two matrices, and how many: all of it is one product."""
        return ((self.vocab_size, self.d_model, self.vocab_size**self.context_length, 1),)

    def symmetries(self, task: Any) -> int:
        """A shift of all logits of a sequence: of d_model dimensions where the rank is that low."""
        n_sequences = self.vocab_size**self.context_length
        free = product_dimensions(task.n_outputs - 1, self.d_model, n_sequences)
        return count_distinct(self, task.context_length) - free


@kind("sequence_encoder")
class SequenceEncoder(Architecture):
    """The encoder of all sequences, of width `d_model`."""

    is_floor: ClassVar[bool] = True
    theorems: ClassVar[dict] = {
        theory.PROPOSITION_1: theory.always,
        theory.PROPOSITION_3: theory.always,
    }

    @property
    def family(self) -> str:
        return "sequence encoder"

    def module(self, task: Any) -> SequenceEncoderModule:
        n_rows = task.vocab_size**task.context_length
        require(
            n_rows <= MOST_ROWS,
            f"vocab_size^context_length must be at most {MOST_ROWS} rows of sequence_encoder, "
            f"got {task.vocab_size}^{task.context_length}. Lower context_length",
        )
        return self.fill_module(SequenceEncoderModule, task)
