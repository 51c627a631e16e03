"""Linear associative memory: one matrix takes a token's key to the value of the next token.

The oldest model of memory (Kohonen 1972, Anderson 1972); how many facts it holds is what Nichani,
Lee & Bietti (2025) and Barnfield et al. (2026) study. As there, keys and values start out as random
directions: a method with trained='memory' fixes them.

Shape letters: N vocab_size, D d_model.
"""

import math
from typing import Any, ClassVar

import jax

from memobench import theory
from memobench.core.architecture import Architecture, require_one_token
from memobench.core.module import TabledModule, count_distinct, product_dimensions
from memobench.core.spec import kind
from memobench.numerics.initial_weights import Table, Weight
from memobench.numerics.lookup import rows

# The memory starts out as a map that shrinks keys by this factor.
SMALL = 0.1


class LinearMemoryModule(TabledModule):
    """logits_N = V W K[t]: keys K (token_embedding), the memory W, and values V (unembedding)."""

    vocab_size: int
    d_model: int

    # vocab_size only for bijections, where tokens without a prior cannot be answers.
    paddable = ("vocab_size", "d_model")

    def setup(self) -> None:
        weights, _ = self.create_variables()
        self.key_ND, self.value_ND = weights["token_embedding"], weights["unembedding"]
        self.memory_DD = weights["memory"]

    def __call__(self, tokens_S: jax.Array) -> jax.Array:
        """logits_N of the token that follows the single token in tokens_S."""
        return self.value_ND @ (self.memory_DD @ rows(self.key_ND, tokens_S[0]))

    def parameters(self) -> Table:
        """The memory, keys and values, in the order in which they are drawn."""
        directions = Weight((self.vocab_size, self.d_model), unit=True)
        small = SMALL / math.sqrt(self.d_model)
        return {
            "memory": Weight((self.d_model, self.d_model), deviation=small),
            "token_embedding": directions,
            "unembedding": directions,
        }

    def parts(self) -> dict[str, tuple[str, ...]]:
        """The logits are linear in the memory: keys and values are fixed."""
        return {"read_out": ("memory",)}

    def symmetries(self, task: Any) -> int:
        """All but a matrix of rank d_model, of which a shift of all rows changes nothing."""
        n = self.vocab_size
        free = product_dimensions(task.n_outputs - 1, self.d_model, n)
        return count_distinct(self, task.context_length) - free

    def work(self, n_examples: int, context_length: int) -> float:
        return n_examples * self.d_model * (self.d_model + self.vocab_size)

    def tables(self) -> list[jax.Array]:
        """recalled_ND, the memory's output for every token's key, of the one position."""
        return [self.key_ND @ self.memory_DD.T]

    def read(self, rows: list[jax.Array]) -> jax.Array:
        """logits_N from what was recalled."""
        (recalled_D,) = rows
        return self.value_ND @ recalled_D


@kind("linear_memory")
class LinearMemory(Architecture):
    """A d_model x d_model memory, for tasks with one token per sequence."""

    theorems: ClassVar[dict] = {
        theory.PROPOSITION_1: theory.always,
        # Keys are parameters, so a token's key may be equal to its answer's value.
        theory.PROPOSITION_3: theory.always,
        theory.LINEAR_LEAST_SQUARES: theory.always,
        theory.OUTER_PRODUCTS: theory.always,
        theory.GRADIENT_STEP: theory.always,
        theory.MUON_STEP: theory.always,
    }

    def module(self, task: Any) -> LinearMemoryModule:
        require_one_token(task, self)
        return self.fill_module(LinearMemoryModule, task)
