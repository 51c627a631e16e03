"""Evaluation of constructed weights, by the module's own forward pass.

Shape letters: T examples of the task, A of them aimed at, C outputs.
"""

import dataclasses
from typing import Any

import numpy as np
import scipy.special

# Logits are scaled until the least certain answer has this advantage, in nats, if all are right.
SURE = 40.0
_MOST_DOUBLINGS = 60


@dataclasses.dataclass(frozen=True)
class Judged:
    """Measures of every example.

    Attributes:
      loss_T: nats, or squared error.
      correct_T: whether it is known.
      margin_T: the right answer's advantage, as a share of the largest output; NaN for scalars and
        for several right answers.
    """

    loss_T: np.ndarray
    correct_T: np.ndarray
    margin_T: np.ndarray


def judge(task: Any, data: Any, output_TxC: np.ndarray) -> Judged:
    """Every example's loss, whether it is known, and its margin."""
    output_TxC = output_TxC.astype(np.float64)
    margin_T = np.full(len(output_TxC), np.nan)
    if task.one_answer:
        margin_T = _advantage(output_TxC, task.answers(data))
        margin_T /= max(np.abs(output_TxC).max(), np.finfo(np.float64).tiny)
    loss_T, correct_T = task.judge(data, output_TxC)
    return Judged(loss_T, correct_T, margin_T)


def doublings(task: Any, data: Any, output_TxC: np.ndarray, prior_T: np.ndarray) -> int:
    """The k for which the logits times 2^k have the least loss, or all have the advantage SURE.

    A power of two changes no digit of any weight. Zero where there is more than one right answer.
    """
    if not task.one_answer or not np.isfinite(output_TxC).all() or not output_TxC.any():
        return 0
    output_TxC = output_TxC.astype(np.float64)
    answer_T = task.answers(data)
    right_T = output_TxC[np.arange(len(answer_T)), answer_T]
    advantage = float(_advantage(output_TxC, answer_T).min())

    def loss(k: int) -> float:
        normalizer_T = scipy.special.logsumexp(output_TxC * 2.0**k, axis=1)
        return float(prior_T @ (normalizer_T - right_T * 2.0**k))

    def is_sure(k: int) -> bool:
        return advantage * 2.0**k >= SURE

    best = round(-np.log2(np.abs(output_TxC).max()))
    direction = 1 if loss(best + 1) < loss(best) else -1
    for _ in range(_MOST_DOUBLINGS):
        # The loss is convex in the scale, so it first rises right after its minimum.
        if (direction > 0 and is_sure(best)) or loss(best + direction) >= loss(best):
            break
        best += direction
    return best


def _advantage(output_TxC: np.ndarray, answer_T: np.ndarray) -> np.ndarray:
    rows_T = np.arange(len(answer_T))
    others_TxC = output_TxC.astype(np.float64)
    right_T = others_TxC[rows_T, answer_T].copy()
    others_TxC[rows_T, answer_T] = -np.inf
    return right_T - others_TxC.max(axis=1)
