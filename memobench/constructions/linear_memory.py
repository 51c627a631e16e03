"""A linear associative memory written down: by outer products, or by least squares.

Keys and values are random directions. Outer products (Kohonen 1972, Anderson 1972) add v k^T for
every association and solve nothing; the others' crosstalk is noise, and `theory.OUTER_PRODUCTS`
says how many associations survive it. Least squares makes W k = v exact for up to d_model keys,
which are independent, and beyond that has the least error.

Shape letters: T associations, N vocab_size, D d_model.
"""

import dataclasses
from typing import Any, ClassVar, NamedTuple

import numpy as np

from memobench import theory
from memobench.constructions import linear
from memobench.constructions.base import Solved
from memobench.constructions.problem import Constructed, Problem
from memobench.core.spec import kind
from memobench.models.linear_memory import LinearMemoryModule


class Associated(NamedTuple):
    """key_TxD and value_TxD of associations, how often each occurs, and the mean of all values."""

    key_TxD: np.ndarray
    value_TxD: np.ndarray
    prior_T: np.ndarray
    mean_D: np.ndarray


@dataclasses.dataclass(frozen=True, kw_only=True)
class OnLinearMemory(Solved):
    """Base of these: random keys and values. A kind defines `memorize`."""

    def memorize(
        self, found: Associated, rng: np.random.Generator
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """memory_DxD of the associations, and its certificate."""
        raise NotImplementedError

    def construct(self, problem: Problem) -> Constructed:
        module: Any = problem.module
        problem.require(
            isinstance(module, LinearMemoryModule),
            f"{problem.run.architecture.name} is not a linear memory; take the architecture "
            "linear_memory",
        )
        examples = problem.one_answer_each(module.d_model)
        key_NxD, value_NxD = problem.directions(), problem.directions()
        found = Associated(
            key_NxD[examples.tokens_TxS[:, 0]],
            value_NxD[examples.next_TxK[:, 0]],
            examples.prior_T,
            value_NxD.mean(axis=0),
        )
        memory_DxD, certificate = self.memorize(found, problem.rng)
        params = {"token_embedding": key_NxD, "memory": memory_DxD, "unembedding": value_NxD}
        return Constructed(params, certificate, read_out=("memory",))


@kind("linear_least_squares")
class LinearLeastSquares(OnLinearMemory):
    """W_DxD of least norm among those that minimise the sum of |W k - v|^2 over associations."""

    bound: ClassVar[theory.Bound] = theory.LINEAR_LEAST_SQUARES

    def memorize(
        self, found: Associated, rng: np.random.Generator
    ) -> tuple[np.ndarray, dict[str, Any]]:
        del rng
        solution = linear.solve(found.key_TxD, found.value_TxD, self.solve)
        return solution.weights_FxD.T, solution.certificate()


@kind("outer_products")
class OuterProducts(OnLinearMemory):
    """W_DxD = sum of v k^T over the associations.

    Nothing is solved for: solve='exact' allows at most as many as the guide says, 'least_squares'
    any number; the weights are the same.
    """

    bound: ClassVar[theory.Bound] = theory.OUTER_PRODUCTS

    def memorize(
        self, found: Associated, rng: np.random.Generator
    ) -> tuple[np.ndarray, dict[str, Any]]:
        del rng
        memory_DxD = found.value_TxD.T @ found.key_TxD
        error = np.abs(found.key_TxD @ memory_DxD.T - found.value_TxD).max(initial=0)
        return memory_DxD, {"fit_error": float(error)}
