"""A single optimiser step from W = 0 that writes a linear associative memory.

A step down the gradient of the cross-entropy adds outer products by how often they occur; Muon's
makes the singular values of that sum equal (Kim, Nichani, Wu, Bietti & Lee 2026, arXiv 2603.26554).

Shape letters: T associations, D d_model.
"""

from typing import Any, ClassVar

import numpy as np

from memobench import theory
from memobench.constructions.linear_memory import Associated, OnLinearMemory
from memobench.core.columns import integer
from memobench.core.spec import kind


@kind("gradient_step")
class GradientStep(OnLinearMemory):
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
