"""A linear associative memory written down: by outer products, or by least squares.

Keys and values are random directions. Outer products (Kohonen 1972, Anderson 1972) add v k^T for
every association and solve nothing; the others' crosstalk is noise, and `theory.OUTER_PRODUCTS`
says how many associations survive it. Least squares makes W k = v exact for up to d_model keys,
which are independent, and beyond that has the least error. A single step from W = 0 down the
gradient of the cross-entropy adds outer products by how often they occur; Muon's makes the singular
values of that sum equal (Kim, Nichani, Wu, Bietti & Lee 2026, arXiv 2603.26554).

Shape letters: T associations, N vocab_size, D d_model.
"""

import dataclasses
from typing import Any, ClassVar, NamedTuple

import numpy as np

from memobench import theory
from memobench.constructions import linear
from memobench.constructions.base import Solved
from memobench.constructions.problem import Constructed, Problem
from memobench.core.columns import integer
from memobench.core.spec import kind
from memobench.models.linear_memory import LinearMemoryModule


class Associated(NamedTuple):
    """key_TxD and value_TxD of associations, how often each occurs, and the mean of all values."""

    key_TxD: np.ndarray
    value_TxD: np.ndarray
    prior_T: np.ndarray
    mean_D: np.ndarray


@dataclasses.dataclass(frozen=True, kw_only=True)
class _LinearMemory(Solved):
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
class LinearLeastSquares(_LinearMemory):
    """W_DxD of least norm among those that minimise the sum of |W k - v|^2 over associations."""

    bound: ClassVar[theory.Bound] = theory.LINEAR_LEAST_SQUARES

    def memorize(
        self, found: Associated, rng: np.random.Generator
    ) -> tuple[np.ndarray, dict[str, Any]]:
        del rng
        solution = linear.solve(found.key_TxD, found.value_TxD, self.solve)
        return solution.weights_FxD.T, solution.certificate()


@kind("outer_products")
class OuterProducts(_LinearMemory):
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


@kind("gradient_step")
class GradientStep(_LinearMemory):
    """A step from W = 0 down the gradient of the cross-entropy over all N values.

    Of all associations as often as they occur, or of a batch of `drawn` ones. Its length does not
    matter. Nothing is solved for: take solve='least_squares', which allows any number.
    """

    bound: ClassVar[theory.Bound] = theory.GRADIENT_STEP

    drawn: int | None = integer(
        "examples of the step's batch; none for all as often as they occur",
        1,
        default=None,
        most=2**40,
    )

    def memorize(
        self, found: Associated, rng: np.random.Generator
    ) -> tuple[np.ndarray, dict[str, Any]]:
        share_T = found.prior_T / found.prior_T.sum()
        if self.drawn is not None:
            share_T = rng.multinomial(self.drawn, share_T) / self.drawn
        # At W = 0 all N values are equally likely.
        error_TxD = (found.value_TxD - found.mean_D) * share_T[:, None]
        return self.direction(error_TxD.T @ found.key_TxD, share_T), {}

    def direction(self, gradient_DxD: np.ndarray, share_T: np.ndarray) -> np.ndarray:
        """The step that is taken, up to its length."""
        del share_T
        return gradient_DxD


@kind("muon_step")
class MuonStep(GradientStep):
    """A step of Muon from W = 0: singular values z of the gradient become z / sqrt(z^2 + l^2).

    With l the share of the association whose rank is d, as in the analysis, and 1 over the batch at
    least; those far above l become 1, as in Muon itself.
    """

    bound: ClassVar[theory.Bound] = theory.MUON_STEP

    def direction(self, gradient_DxD: np.ndarray, share_T: np.ndarray) -> np.ndarray:
        rank = min(len(gradient_DxD), len(share_T))
        if not rank:
            return gradient_DxD
        least = max(np.sort(share_T)[-rank], 1 / self.drawn if self.drawn else 0.0)
        left_DxD, singular_D, right_DxD = np.linalg.svd(gradient_DxD)
        return (left_DxD * (singular_D / np.hypot(singular_D, least))) @ right_DxD
