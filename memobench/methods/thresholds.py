"""Estimates of what many trainings of one architecture know. Pure functions; no files.

*Typical* capacity is a mean over label tables and initial weights at a stated number of steps. The
largest set known completely is a threshold with noise:
`fit_half_known` is the size at which half of the trainings know 99%.

Shape letters: K rungs (numbers of steps), T label tables, S starts of each, F learning rates, P
pilots of each, G values on a grid of thresholds, W on one of widths, I trials.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import scipy.special

from memobench.numerics.metrics import NEARLY

# A trial that knows less than the second after the first share of its steps is given up. Its
# learning rate falls linearly to a twentieth, and what is not known by then is hardly learnt: of
# 171 trials with 256 to 1,024 parameters that came to know all none had known less.
GIVE_UP = ((0.5, 0.9), (0.75, 0.97))
# Widths of thresholds, in logarithms of the number of examples.
_WIDTH_W = np.geomspace(0.01, 0.5, 16)
_GRID = 400
# Trainings fail that know less than this share of their median; of sets that half of them know,
# those that do not come to know a set smaller by it. Fewer than so many tell no share.
FAILING = 0.8
_LEAST_SMALLER = 5


class Estimate(NamedTuple):
    """A number and its 95% interval, NaN where too little is known."""

    value: float
    low: float
    high: float


class Trial(NamedTuple):
    """One training on so many examples, and whether it came to know them completely."""

    n_examples: int
    complete: bool


def count_failed(bits: np.ndarray) -> int:
    """The number of trainings that know far less than half of their like.

    >>> count_failed(np.array([[2.9, 3.0], [2.3, 3.1]]))
    1
    """
    return int((bits < FAILING * np.median(bits)).sum())


def share_failed(trials: Sequence[Trial], half_known: float) -> float:
    """The share of trainings that fail on sets far smaller than those that half of them know.

    NaN where there are too few.

    >>> trials = [Trial(60, True)] * 4 + [Trial(70, False)] + [Trial(95, False)]
    >>> share_failed(trials, 100.0)
    0.2
    """
    failed = [not trial.complete for trial in trials if trial.n_examples < FAILING * half_known]
    return sum(failed) / len(failed) if len(failed) >= _LEAST_SMALLER else float("nan")


def is_complete(known: int, n_examples: int, share: float = NEARLY) -> bool:
    """True where that many examples are at least so large a share of all."""
    return known >= share * n_examples - 1e-9


def should_give_up(progress: float, known: float) -> bool:
    """True where a trial of the exact gradient can be given up.

    Args:
      progress: the share of its steps that it has taken.
      known: the largest share of its examples that it has known so far.

    >>> should_give_up(0.5, 0.93), should_give_up(0.75, 0.93)
    (False, True)
    """
    return any(progress >= share and known < least for share, least in GIVE_UP)


def threshold_range(known: float, n_examples: int, chance: float) -> tuple[float, float]:
    """The range of thresholds that are possible, from what is known of a set too large.

    From a quarter of what is memorized of all, beyond the share that guesses know, to three times
    as much. On the published board half of the trainings know sets of 0.4 to 2 times as many.
    """
    memorized = (known - chance * n_examples) / (1 - chance)
    high = min(max(3 * memorized, 8.0), float(n_examples))
    return min(max(memorized / 4, 1.0), high / 2), high


def best_factor(bits: Mapping[float, float]) -> float:
    """The factor with most bits, or the largest threshold; of equal ones the least.

    >>> best_factor({3: 9.0, 1: 9.0, 0.3: 8.0})
    1
    """
    return max(bits, key=lambda factor: (bits[factor], -factor))


def extend_grid(
    factors: Sequence[float], bits: Mapping[float, float], step: float, most: int
) -> list[float]:
    """The factors to try: those given, and one beyond the edge while that is best; `most` at most.

    Args:
      factors: to begin with, rising.
      bits: of those tried so far, which may be more.
      step: the ratio of neighbours.
      most: how many factors are tried in the end.

    >>> extend_grid([1, 3], {1: 9.0, 3: 8.0}, 3, 4)
    [0.3333333333333333, 1, 3]
    """
    factors = sorted({*factors, *bits})
    if len(factors) >= most or not set(factors) <= bits.keys():
        return factors
    best = best_factor({factor: bits[factor] for factor in factors})
    beyond = {factors[0]: best / step, factors[-1]: best * step}
    return sorted([*factors, beyond[best]]) if best in beyond else factors


def fit_half_known(trials: Sequence[Trial], range_: tuple[float, float]) -> Estimate:
    """The number of examples that half of the trainings come to know completely.

    By the posterior of a logistic curve in the logarithm of that number, flat in both its logarithm
    within the range and that of its width. Of trials at one learning rate, chosen without them: of
    the best of several rates by these same trials it would be too large.
    """
    return _fit_half_known(tuple(trials), range_)


# A page estimates the same trials for its table, its figure and its sentences.
@functools.lru_cache(maxsize=1024)
def _fit_half_known(trials: tuple[Trial, ...], range_: tuple[float, float]) -> Estimate:
    n_G, weight_G, _ = _posterior(trials, range_)
    share_G = np.cumsum(weight_G) - weight_G / 2
    low, value, high = np.exp(np.interp((0.025, 0.5, 0.975), share_G, np.log(n_G)))
    return Estimate(float(value), float(low), float(high))


def next_sizes(
    trials: Sequence[Trial], range_: tuple[float, float], n_more: int, n_examples: int
) -> list[int]:
    """Sizes of further trials: where the threshold may be, a width to each side in turn.

    Of the set's n_examples at most; such a trial may still know all of them.
    """
    n_G, weight_G, width = _posterior(trials, range_)
    at_I = (np.arange(n_more) + 0.5) / n_more
    centre_I = np.interp(at_I, np.cumsum(weight_G) - weight_G / 2, np.log(n_G))
    aside_I = width * (np.arange(n_more) % 3 - 1)
    return np.clip(np.rint(np.exp(centre_I + aside_I)), 1, n_examples).astype(int).tolist()


def _posterior(
    trials: Sequence[Trial], range_: tuple[float, float]
) -> tuple[np.ndarray, np.ndarray, float]:
    """n_G, weight_G of thresholds, and the mean width."""
    log_G = np.linspace(np.log(range_[0]), np.log(range_[1]), _GRID)
    log_n_I = np.log([trial.n_examples for trial in trials])
    sign_I = np.array([1.0 if trial.complete else -1.0 for trial in trials])
    margin_GxI = (log_G[:, None] - log_n_I) * sign_I
    likelihood_GxW = scipy.special.log_expit(margin_GxI[:, None] / _WIDTH_W[:, None]).sum(axis=2)
    weight_GxW = np.exp(likelihood_GxW - likelihood_GxW.max())
    weight_GxW /= weight_GxW.sum()
    return np.exp(log_G), weight_GxW.sum(axis=1), float(weight_GxW.sum(axis=0) @ _WIDTH_W)
