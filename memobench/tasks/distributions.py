"""Distributions: every sequence has several next tokens with given probabilities.

Dana, Pydi & Chevaleyre (2025), section on the distribution task: d_KL(pi, T) is the mean over the
prior of KL(pi(.|t) || softmax T(t)).
"""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from memobench import theory
from memobench.common.errors import require
from memobench.core.columns import choice, integer, number
from memobench.core.spec import kind
from memobench.tasks.tokens import Array, SampledTask


@kind("distributions")
class Distributions(SampledTask):
    """Each sequence is followed by `n_next` tokens whose probabilities fall as `conditional` says.

    `uniform`; `power_law`, proportional to rank ** -conditional_parameter; `dirichlet`, symmetric
    with that concentration. Sequences and their frequencies are sampled as those of `Associations`.
    """

    theorems: ClassVar[dict] = {theory.COUNTING: theory.always}

    conditional: str = choice(
        "how probabilities of next tokens fall", "uniform", "power_law", "dirichlet"
    )
    n_next: int = integer("next tokens of a sequence", 1, most=2**24)
    conditional_parameter: float | None = number(
        "exponent or concentration of the probabilities", default=None, above=0
    )

    def check(self) -> None:
        super().check()
        require(
            self.n_next <= self.vocab_size,
            f"n_next={self.n_next} exceeds vocab_size={self.vocab_size}; lower n_next",
        )
        uniform = self.conditional == "uniform"
        require(
            not uniform or self.conditional_parameter is None,
            "conditional_parameter must be None with conditional='uniform'",
        )
        require(
            uniform or self.conditional_parameter is not None,
            f"conditional_parameter=None is not a number > 0, which {self.conditional} needs; "
            "give conditional_parameter such a value",
        )

    @property
    def measures(self) -> tuple[str, ...]:
        """With several right answers only the divergence is meaningful."""
        return ("loss",)

    @property
    def one_answer(self) -> bool:
        """True where every sequence has a single next token."""
        return self.n_next == 1

    def sample_next(self, key: jax.Array) -> tuple[Array, Array]:
        """next_TxK, int32, distinct within a sequence, and probability_TxK, float32, falling."""
        n_examples, parameter = self.n_examples, self.conditional_parameter
        tokens_key, weights_key = jax.random.split(key)
        # The tokens of the K largest of N random numbers are a uniform choice without replacement.
        random_TxN = jax.random.uniform(tokens_key, (n_examples, self.vocab_size))
        next_TxK = jax.lax.top_k(random_TxN, self.n_next)[1].astype(jnp.int32)
        if parameter is None:
            weight_TxK: Any = np.ones((n_examples, self.n_next), np.float32)
        elif self.conditional == "power_law":
            rank_K = jnp.arange(1, self.n_next + 1, dtype=jnp.float32)
            weight_TxK = jnp.tile(rank_K**-parameter, (n_examples, 1))
        else:
            # Logarithms: small concentrations give weights below the smallest float32.
            shape = (n_examples, self.n_next)
            log_TxK = jax.random.loggamma(weights_key, parameter, shape)
            weight_TxK = jax.nn.softmax(-jnp.sort(-log_TxK, axis=1), axis=1)
        return next_TxK, weight_TxK / weight_TxK.sum(axis=1, keepdims=True)
