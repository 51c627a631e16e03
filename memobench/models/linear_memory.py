"""Linear associative memory: one matrix takes a token's key to the value of the next token.

The oldest model of memory (Kohonen 1972, Anderson 1972); how many facts it holds is what Nichani,
Lee & Bietti (2025) and Barnfield et al. (2026) study.

Shape letters: N vocab_size, D d_model.
"""

import math
from typing import Any

import jax
import numpy as np
from flax import linen as nn

from memobench.errors import UserError
from memobench.models.tokens import require_only_width, require_tokens
from memobench.specs import Architecture, LabelledContexts, Task

# The memory starts this much smaller than keys and values, whose norms are 1 on average.
SMALL = 0.1


class LinearMemory(nn.Module):
    """logits_N = V W K[t]: keys K (token_embedding), the memory W, and values V (unembedding)."""

    vocab_size: int
    d_model: int

    # Of a bijection, where tokens without a prior are no answers; other tasks fix vocab_size.
    paddable = ("vocab_size", "d_model")

    def setup(self) -> None:
        weights: dict[str, Any] = {
            name: self.param(name, nn.initializers.normal(deviation), shape)
            for name, (shape, deviation) in self.parameters().items()
        }
        self.key_ND = weights["token_embedding"]
        self.memory_DD = weights["memory"]
        self.value_ND = weights["unembedding"]

    def parameters(self) -> dict[str, tuple[tuple[int, int], float]]:
        """Every parameter's shape and the deviation of its initial normal distribution."""
        n, d_model = self.vocab_size, self.d_model
        unit = 1 / math.sqrt(d_model)
        return {
            "token_embedding": ((n, d_model), unit),
            "memory": ((d_model, d_model), SMALL * unit),
            "unembedding": ((n, d_model), unit),
        }

    def initial(self, key: jax.Array) -> Any:
        """The same distribution as `init`'s, drawn without a compilation for every size."""
        normal = np.random.default_rng(np.asarray(jax.random.key_data(key))).standard_normal
        params = {
            name: (deviation * normal(shape)).astype(np.float32)
            for name, (shape, deviation) in self.parameters().items()
        }
        return {"params": params, "constants": {}}

    def work(self, n_examples: int) -> float:
        """Multiplications of a forward pass over as many examples."""
        return n_examples * self.d_model * (self.d_model + self.vocab_size)

    def read_out(self) -> tuple[str, ...]:
        """The logits are linear in the memory: keys and values stay as they are."""
        return ("memory",)

    def __call__(self, tokens_S: jax.Array) -> jax.Array:
        """logits_N of the token that follows the only one of tokens_S."""
        return self.value_ND @ (self.memory_DD @ self.key_ND[tokens_S[0]])

    def tables(self) -> list[jax.Array]:
        """What the memory makes of every token's key: recalled_ND of the one position."""
        return [self.key_ND @ self.memory_DD.T]

    def read(self, rows: list[jax.Array]) -> jax.Array:
        """logits_N from what was recalled."""
        (recalled_D,) = rows
        return self.value_ND @ recalled_D


def linear_memory(task: Task | LabelledContexts, architecture: Architecture) -> LinearMemory:
    """The memory of a task with one token to a sequence. Raises UserError for other sizes."""
    task = require_tokens(task, architecture, "activation")
    if task.context_length != 1:
        raise UserError(
            f"context_length={task.context_length}: linear_memory reads one token; "
            "set context_length=1"
        )
    require_only_width(architecture)
    return LinearMemory(task.vocab_size, architecture.d_model)
