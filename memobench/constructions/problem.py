"""The problem that a construction is given, and the weights it gives back. NumPy in float64.

Shape letters: T examples aimed at, K next tokens, S tokens, I input_dim, N vocab_size or context
vectors, D d_model.
"""

import dataclasses
from typing import Any

import numpy as np
from flax import linen as nn

from memobench.common.errors import UserError
from memobench.constructions import codes
from memobench.core.run import Run
from memobench.numerics import precision
from memobench.tasks.tokens import Tokens


@dataclasses.dataclass(frozen=True)
class Problem:
    """The examples for which weights of a module are made.

    Attributes:
      run: of a construction.
      module: the model.
      constants: of the module, as its forward pass will read them.
      examples: aimed at, as `Task.to_construct` gives them.
      rng: derived from the run's seed.
    """

    run: Run
    module: nn.Module
    constants: dict[str, np.ndarray]
    examples: Any
    rng: np.random.Generator

    @property
    def method(self) -> Any:
        """The construction's options."""
        return self.run.method

    def held(self, weights: np.ndarray) -> np.ndarray:
        """The weights as they will be stored: whatever is solved next corrects the rounding."""
        return precision.round_to(weights, self.method.weights)

    def all_held(self, params: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """`held` of each."""
        return {name: self.held(weights) for name, weights in params.items()}

    def directions(self) -> np.ndarray:
        """A random row of norm 1 for every token, N x D, as stored."""
        module: Any = self.module
        drawn_NxD = self.rng.standard_normal((module.vocab_size, module.d_model))
        return self.held(codes.unit(drawn_NxD))

    def one_answer_each(self, d_model: int) -> Tokens:
        """The examples. Raises UserError for several answers, or a single dimension for them."""
        examples: Tokens = self.examples
        n_next = examples.next_TxK.shape[1]
        self.require(n_next == 1, f"n_next={n_next}; it is about one next token, set n_next=1")
        self.require(d_model >= 2, "one dimension holds two answers; take d_model >= 2")
        return examples

    def require(self, holds: bool, message: str) -> None:
        """Raises UserError naming the theorem unless it holds."""
        if not holds:
            raise UserError(f"theorem={self.method.name!r}: {message}")


@dataclasses.dataclass(frozen=True)
class Constructed:
    """Weights, float64, at the module's true size; names as Flax nests them, or flat with "/".

    Attributes:
      params: the weights.
      certificate: columns for the run's row, such as `feature_rank`, `condition`, `fit_error`.
      read_out: parameters such that scaling all of them scales the logits, which changes no answer.
        Empty where the logits' scale is part of the construction.
    """

    params: dict[str, np.ndarray]
    certificate: dict[str, Any]
    read_out: tuple[str, ...] = ()
