"""Estimates, with intervals, from values over tables and trainings."""

import math

import numpy as np

from memobench.analysis import statistics
from memobench.methods.thresholds import Estimate


def estimate_mean(value_TxS: np.ndarray) -> Estimate:
    """The mean over tables and starts; the interval is Student's of the means of tables.

    Tables are drawn independently, and starts within each: whatever the two variances are, means of
    tables are independent and of one distribution. Equal means show no spread, and no interval.

    >>> estimate_mean(np.array([[9.0, 11.0], [11.0, 13.0], [10.0, 12.0]])).value
    11.0
    """
    mean_T = value_TxS.mean(axis=1)
    if len(mean_T) < statistics.MIN_SEEDS or np.ptp(mean_T) == 0:
        return Estimate(float(mean_T.mean()), math.nan, math.nan)
    mean, half = float(mean_T.mean()), float(statistics.half_widths(mean_T))
    return Estimate(mean, mean - half, mean + half)


def estimate_gain(value_KxTxS: np.ndarray) -> Estimate:
    """The ratio of the last rung's mean to that of the one before, on the same tables.

    A table has the same starts on every rung, so that the interval is narrower than of two
    independent means.

    >>> estimate_gain(np.array([[[8.0], [10.0], [12.0]], [[10.0], [11.0], [12.0]]])).value
    1.1
    """
    mean_BxK = statistics.replicates(value_KxTxS[-2:].mean(axis=2).T)
    gain_B = mean_BxK[:, 1] / mean_BxK[:, 0]
    return Estimate(float(gain_B[0]), *statistics.interval(gain_B, value_KxTxS.shape[1]))
