"""The assumptions behind memorization theorems, checked on any array of representations.

Mahdavi, Liao & Thrampoulidis (2024) assume that the query vectors have a Kruskal rank of at least n
(every n of them are independent), that every context matrix has rank n or, in its place, that every
n sums of a query and its context's mean are independent; earlier work assumes general position
(every D vectors are independent). All of it is decided by singular values in float64: a matrix has
full rank where its smallest one exceeds `tolerance` times its largest. Pure functions of arrays.

Shape letters: T vectors, D width, K a subset's size, B contexts, N tokens in a context.
"""

import bisect
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from memobench.analysis.statistics import share_interval
from memobench.common.errors import UserError

N_SUBSETS = 1000


def relative_tolerance(shape: Sequence[int], dtype: npt.DTypeLike) -> float:
    """The larger side times the epsilon of the precision in which the entries were computed.

    It is the default of `numpy.linalg.matrix_rank`. Rounding to `dtype` moves singular values by
    about as much: what lies below could be noise, and a matrix that was computed in float32 looks
    full of it under the tolerance of float64. Integers count as exact, like float64.

    >>> relative_tolerance((2, 512), np.float32) == 512 * 2.0**-23
    True
    """
    exact = not np.issubdtype(dtype, np.floating)
    return float(max(shape) * np.finfo(np.float64 if exact else dtype).eps)


def kruskal_curve(
    vectors_TxD: np.ndarray,
    sizes: Iterable[int],
    *,
    n_subsets: int = N_SUBSETS,
    tolerances: Sequence[float] | None = None,
    seed: int = 0,
) -> pd.DataFrame:
    """The share of subsets of each size with full rank; the Kruskal rank is where it leaves 1.

    Every draw is a random order of the vectors; its beginnings are random subsets of all sizes, so
    the shares of a curve are exact means over `n_subsets` subsets but not independent of each
    other. One more vector can only lower the smallest singular value and raise the largest, so full
    rank, once lost, stays lost, and bisection finds where with a few decompositions per order. A
    beginning with a repeated vector needs none. Sizes that the singular values of the whole set
    decide are not drawn: their share is certain and its interval a point.

    Args:
      vectors_TxD: any real array; decompositions are made in float64.
      sizes: subset sizes from 1 to T; those beyond D have no full rank.
      n_subsets: how many random orders.
      tolerances: relative tolerances, all decided from the same decompositions; by default one, by
        the dtype of `vectors_TxD` (`relative_tolerance`).
      seed: of the orders.

    Returns:
      A table with a row per tolerance and size: `tolerance`, `size`, `full_rank` (the share),
      `low`, `high` (the ends of its interval over all subsets of these T vectors), `n_subsets`,
      `decided_by` ("whole set" or "subsets") and `conditioning`, the smallest over the largest
      singular value of the first subset.

    Raises:
      UserError: an array is not a finite matrix, or a size is out of range.
    """
    vectors, default = _matrices("vectors_TxD", vectors_TxD, 2)
    n_vectors = len(vectors)
    tolerances = [default] if tolerances is None else list(tolerances)
    sizes = _checked_sizes(sizes, n_vectors)
    if n_subsets < 1:
        raise UserError(f"n_subsets={n_subsets} is below 1; draw at least one subset")
    group_T = np.unique(vectors, axis=0, return_inverse=True)[1].ravel()
    certain = _certain(vectors, sizes, tolerances, n_distinct=int(group_T.max()) + 1)
    n_open = {tolerance: known.count(None) for tolerance, known in certain.items()}
    full = {tolerance: np.zeros(len(sizes), int) for tolerance in tolerances}
    conditioning = np.full(len(sizes), np.nan)
    rng = np.random.default_rng(seed)
    for draw in range(n_subsets if any(n_open.values()) else 1):
        ratio = _ratios(vectors, sizes, group_T, rng.permutation(n_vectors))
        if draw == 0:
            conditioning[:] = [ratio(i) for i in range(len(sizes))]
        for tolerance in tolerances:
            full[tolerance][: _count_full_rank(ratio, n_open[tolerance], tolerance)] += 1
    rows: list[dict[str, Any]] = []
    for tolerance in tolerances:
        for i, (size, known) in enumerate(zip(sizes, certain[tolerance], strict=True)):
            n_full = int(full[tolerance][i])
            shares = n_full / n_subsets, *share_interval(n_full, n_subsets)
            value, low, high = shares if known is None else (float(known),) * 3
            rows.append(
                {
                    "tolerance": tolerance,
                    "size": size,
                    "full_rank": value,
                    "low": low,
                    "high": high,
                    "n_subsets": n_subsets if known is None else 0,
                    "decided_by": "subsets" if known is None else "whole set",
                    "conditioning": conditioning[i],
                }
            )
    return pd.DataFrame(rows)


def context_ranks(
    contexts_BxNxD: np.ndarray, *, tolerances: Sequence[float] | None = None
) -> pd.DataFrame:
    """The rank of every context matrix, and whether it is N.

    Args:
      contexts_BxNxD: any real array; decompositions are made in float64.
      tolerances: relative tolerances, all decided from the same decompositions; by default one, by
        the dtype of `contexts_BxNxD` (`relative_tolerance`).

    Returns:
      A table with a row per tolerance and context: `tolerance`, `rank`, `n`, `d`, `full_rank` and
      `conditioning`, the smallest of N singular values over the largest.

    Raises:
      UserError: an array is not a finite stack of matrices.
    """
    contexts, default = _matrices("contexts_BxNxD", contexts_BxNxD, 3)
    _, n, d = contexts.shape
    # One by one: a stack of large matrices would be copied whole.
    singular = np.array([np.linalg.svd(context, compute_uv=False) for context in contexts])
    largest = np.where(singular[:, :1] > 0, singular[:, :1], 1.0)
    relative = singular / largest
    columns = {"n": n, "d": d, "conditioning": relative[:, -1] if n <= d else 0.0}
    rows = []
    for tolerance in [default] if tolerances is None else tolerances:
        rank = (relative > tolerance).sum(axis=1)
        found = {"tolerance": tolerance, "rank": rank, "full_rank": rank == n, **columns}
        rows.append(pd.DataFrame(found))
    return pd.concat(rows, ignore_index=True)


def _matrices(name: str, array: np.ndarray, n_axes: int) -> tuple[np.ndarray, float]:
    """The array in float64, and the tolerance that its own precision asks for."""
    array = np.asarray(array)
    if array.ndim != n_axes or 0 in array.shape:
        raise UserError(f"{name} has shape {array.shape}; give a filled array of {n_axes} axes")
    if not np.issubdtype(array.dtype, np.floating) and not np.issubdtype(array.dtype, np.integer):
        raise UserError(f"{name} has dtype {array.dtype}; give real numbers")
    default = relative_tolerance(array.shape[-2:] if n_axes == 3 else array.shape[1:], array.dtype)
    array = array.astype(np.float64)
    if not np.isfinite(array).all():
        raise UserError(f"{name} holds NaN or infinity; leave those vectors out")
    return array, default


def _checked_sizes(sizes: Iterable[int], n_vectors: int) -> list[int]:
    sizes = sorted(set(sizes))
    if not sizes or sizes[0] < 1 or sizes[-1] > n_vectors:
        raise UserError(f"sizes={sizes} must lie from 1 to the number of vectors, {n_vectors}")
    return sizes


def _ratios(
    vectors: np.ndarray, sizes: Sequence[int], group_T: np.ndarray, order: np.ndarray
) -> Callable[[int], float]:
    """Smallest over largest singular value of the beginning of the i-th size; each decided once."""
    n_distinct = _before_repeat(group_T[order])

    @functools.cache
    def ratio(i: int) -> float:
        if sizes[i] > min(n_distinct, vectors.shape[1]):
            return 0.0
        singular = np.linalg.svd(vectors[order[: sizes[i]]], compute_uv=False)
        return float(singular[-1] / singular[0]) if singular[0] > 0 else 0.0

    return ratio


def _count_full_rank(ratio: Callable[[int], float], n_sizes: int, tolerance: float) -> int:
    """The number of sizes, from the first on, of full rank; tries the last first, as often all."""
    if n_sizes and ratio(n_sizes - 1) > tolerance:
        return n_sizes
    return bisect.bisect_left(range(n_sizes), True, key=lambda i: ratio(i) <= tolerance)


def _certain(
    vectors: np.ndarray, sizes: Sequence[int], tolerances: Sequence[float], n_distinct: int
) -> dict[float, list[bool | None]]:
    """By tolerance, what the whole set says of all subsets of each size; None where nothing.

    The k-th singular value of k vectors is at most that of the whole set, and their largest at
    least their length along any one direction. The other way round, their smallest is at least that
    of an independent whole set.
    """
    n_vectors, width = vectors.shape
    _, singular, right = np.linalg.svd(vectors, full_matrices=False)
    # The direction of the largest singular value, along which subsets are longest.
    least_largest_T = np.sqrt(np.cumsum(np.sort(np.abs(vectors @ right[0])) ** 2))

    def decide(size: int, tolerance: float) -> bool | None:
        if size > min(width, n_distinct):
            return False
        if singular[size - 1] <= tolerance * least_largest_T[size - 1]:
            return False
        independent = n_vectors <= width and singular[-1] > tolerance * singular[0]
        return True if independent else None

    return {tolerance: [decide(size, tolerance) for size in sizes] for tolerance in tolerances}


def _before_repeat(labels_K: np.ndarray) -> int:
    """The number of labels before the first repeated one.

    >>> _before_repeat(np.array([3, 1, 2, 1])), _before_repeat(np.array([0, 1]))
    (3, 2)
    """
    is_new = np.zeros(len(labels_K), bool)
    is_new[np.unique(labels_K, return_index=True)[1]] = True
    return len(labels_K) if is_new.all() else int(is_new.argmin())
