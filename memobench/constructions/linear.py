"""The linear systems of constructions, solved in float64 and never silently approximated.

Shape letters: T examples, F features, D targets of an example.
"""

from typing import NamedTuple

import numpy as np
import scipy.linalg

from memobench.common.errors import UserError

# The largest deviation, relative to the largest target or 1, of what counts as exact.
EXACT = 1e-5


class NotExact(UserError):
    """A solution that should be exact is not, to the precision of float64.

    Attributes:
      usable: an estimate of how many examples can be fitted.
    """

    def __init__(self, message: str, usable: int) -> None:
        super().__init__(message)
        self.usable = usable


class Solution(NamedTuple):
    """weights_FxD; the rank and condition of the features; the largest error of the fit."""

    weights_FxD: np.ndarray
    feature_rank: int
    condition: float
    fit_error: float

    def certificate(self) -> dict[str, float]:
        """Its columns of a row."""
        columns = self._asdict()
        columns.pop("weights_FxD")
        return columns


def solve(features_TxF: np.ndarray, targets_TxD: np.ndarray, how: str) -> Solution:
    """Weights of least norm with features_TxF @ weights_FxD = targets_TxD.

    Args:
      features_TxF: float64.
      targets_TxD: float64.
      how: `exact`, or `least_squares` for the weights with the least squared error.

    Raises:
      NotExact: `exact`, and the features' rank is below T. A singular value counts if it exceeds
        max(T, F) times the epsilon of float64 times the largest.

    >>> solve(np.eye(2), np.ones((2, 1)), "exact").weights_FxD.ravel().tolist()
    [1.0, 1.0]
    """
    n_examples, n_features = features_TxF.shape
    if n_examples == 0:
        return Solution(np.zeros((n_features, targets_TxD.shape[1])), 0, 1.0, 0.0)
    # The triangle of a QR decomposition has the features' singular values and is smaller.
    q_FxT, r_TxT = np.linalg.qr(features_TxF.T)
    singular = np.linalg.svd(r_TxT, compute_uv=False)
    least = max(features_TxF.shape) * np.finfo(np.float64).eps * singular[0]
    rank = int((singular > least).sum())
    condition = float(singular[0] / singular[rank - 1]) if rank else float("inf")
    if how == "exact" and rank < n_examples:
        raise _rank_lost(rank, n_examples)
    if how == "exact":
        weights_FxD = _least_norm(features_TxF, targets_TxD, q_FxT, r_TxT)
    else:
        weights_FxD = np.linalg.lstsq(features_TxF, targets_TxD, rcond=None)[0]
    error = float(np.abs(features_TxF @ weights_FxD - targets_TxD).max())
    if how == "exact" and not error <= EXACT * max(np.abs(targets_TxD).max(), 1):
        # The features have full rank, but rounding loses the solution.
        usable = int((singular > singular[0] * 1e-12).sum())
        raise _rank_lost(min(usable, n_examples - 1), n_examples)
    return Solution(weights_FxD, rank, condition, error)


def _rank_lost(rank: int, wanted: int) -> NotExact:
    """Features that should be independent are not."""
    return NotExact(f"the features of {wanted} examples have rank {rank}", rank)


def _least_norm(
    features_TxF: np.ndarray, targets_TxD: np.ndarray, q_FxT: np.ndarray, r_TxT: np.ndarray
) -> np.ndarray:
    """The solution of least norm for independent rows, refined once."""

    def solve_once(right_TxD: np.ndarray) -> np.ndarray:
        return q_FxT @ scipy.linalg.solve_triangular(r_TxT, right_TxD, trans="T")

    weights_FxD = solve_once(targets_TxD)
    return weights_FxD + solve_once(targets_TxD - features_TxF @ weights_FxD)
