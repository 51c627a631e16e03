"""A linear associative memory written down: by outer products, or by least squares.

Keys and values are random directions. Outer products (Kohonen 1972, Anderson 1972) add v k^T for
every association and solve nothing; the others' crosstalk is noise, and `theory.OUTER_PRODUCTS`
says how many associations survive it. Least squares makes W k = v exact for up to d_model keys,
which are independent, and beyond that has the least error.

Shape letters: T associations, N vocab_size, D d_model.
"""

import dataclasses
from typing import Any, ClassVar

import numpy as np

from memobench import theory
from memobench.constructions import codes, linear
from memobench.constructions.problem import Constructed, Problem
from memobench.methods.construction import Solved
from memobench.models.linear_memory import LinearMemoryModule
from memobench.spec import kind


@dataclasses.dataclass(frozen=True, kw_only=True)
class _LinearMemory(Solved):
    """What both share: random keys and values. A kind defines `memorize`."""

    def memorize(
        self, key_TxD: np.ndarray, value_TxD: np.ndarray
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
        key_NxD, value_NxD = (
            codes.unit(problem.rng.standard_normal((module.vocab_size, module.d_model)))
            for _ in range(2)
        )
        memory_DxD, certificate = self.memorize(
            key_NxD[examples.tokens_TxS[:, 0]], value_NxD[examples.next_TxK[:, 0]]
        )
        params = {"token_embedding": key_NxD, "memory": memory_DxD, "unembedding": value_NxD}
        return Constructed(params, certificate, read_out=("memory",))


@kind("linear_least_squares")
class LinearLeastSquares(_LinearMemory):
    """W_DxD of least norm among those that minimise the sum of |W k - v|^2 over associations."""

    bound: ClassVar[theory.Bound] = theory.LINEAR_LEAST_SQUARES

    def memorize(
        self, key_TxD: np.ndarray, value_TxD: np.ndarray
    ) -> tuple[np.ndarray, dict[str, Any]]:
        solution = linear.solve(key_TxD, value_TxD, self.solve)
        return solution.weights_FxD.T, solution.certificate()


@kind("outer_products")
class OuterProducts(_LinearMemory):
    """W_DxD = sum of v k^T over the associations.

    Nothing is solved for: solve='exact' allows at most as many as the guide says, 'least_squares'
    any number; the weights are the same.
    """

    bound: ClassVar[theory.Bound] = theory.OUTER_PRODUCTS

    def memorize(
        self, key_TxD: np.ndarray, value_TxD: np.ndarray
    ) -> tuple[np.ndarray, dict[str, Any]]:
        memory_DxD = value_TxD.T @ key_TxD
        error = np.abs(key_TxD @ memory_DxD.T - value_TxD).max(initial=0)
        return memory_DxD, {"fit_error": float(error)}
