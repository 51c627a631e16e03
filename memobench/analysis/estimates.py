"""Estimates, with intervals, from values over tables and trainings."""

from collections.abc import Sequence

import numpy as np

from memobench.analysis import statistics
from memobench.methods.thresholds import Estimate

# A capacity is converged where its last rung is within this share of the limit's whole interval.
GAIN = 0.02


def estimate_mean(value_TxS: np.ndarray) -> Estimate:
    """The mean over tables and starts; the interval is Student's of the means of tables.

    Tables are drawn independently, and starts within each: whatever the two variances are, means of
    tables are independent and of one distribution.

    >>> estimate_mean(np.array([[9.0, 11.0], [11.0, 13.0], [10.0, 12.0]])).value
    11.0
    """
    found_BxK = statistics.replicates(value_TxS.mean(axis=1, keepdims=True))
    low, high = statistics.interval(found_BxK[:, 0], len(value_TxS))
    return Estimate(float(found_BxK[0, 0]), low, high)


def estimate_limit(steps_K: Sequence[int], value_KxTxS: np.ndarray) -> Estimate:
    """The limit L of capacities with more steps, L - a steps^-p.

    NaN where the rungs do not decide it: where they grow as if without a limit, and where the last
    is lower than one before, with an interval that excludes 0. The interval ends at infinity where
    growth without a limit cannot be excluded. A table has the same starts on every rung, so that
    what is above the curve on one is above it on all.
    """
    value_BxK = statistics.replicates(value_KxTxS.mean(axis=2).T)
    n_tables = value_KxTxS.shape[1]
    limit_B = statistics.fit_limit(steps_K, value_BxK)
    most = int(value_BxK[0].argmax())
    falls = statistics.interval(value_BxK[:, -1] - value_BxK[:, most], n_tables)[1] < 0
    if falls or np.isinf(limit_B[0]):
        return Estimate(*[np.nan] * 3)
    return Estimate(float(limit_B[0]), *statistics.interval(limit_B, n_tables))


def is_converged(reached: float, limit: Estimate) -> bool | None:
    """True if what was reached is within GAIN of the limit, False if it is not.

    None if the ends of the limit's interval disagree, or where there is no limit.

    >>> near, far = Estimate(100.0, 98.0, 100.5), Estimate(100.0, 98.0, 105.0)
    >>> is_converged(99.0, near), is_converged(99.0, far)
    (True, None)
    """
    if np.isnan(limit).any():
        return None
    near = [reached >= (1 - GAIN) * end for end in (limit.high, limit.low)]
    return near[0] if near[0] == near[1] else None
