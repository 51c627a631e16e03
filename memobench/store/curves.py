"""Training curves: the steps at which points are kept, and the accuracy that papers report.

A point is the mean over the steps since the previous point. The accuracy that the published code
reports is a mean over steps too: there are points where it begins and ends, which determine it.
"""

import itertools
import math

import numpy as np

# The most log-spaced points.
POINTS = 24


def reported_steps(n_steps: int) -> range:
    """The steps over which the published code takes its accuracy: the last 100 but the very last.

    A single step counts itself.

    >>> reported_steps(4096), reported_steps(5), reported_steps(1)
    (range(3996, 4095), range(0, 4), range(0, 1))
    """
    return range(max(0, n_steps - 100), max(1, n_steps - 1))


def stops(n_steps: int) -> list[int]:
    """The steps after which points are kept: log-spaced, and at both ends of `reported_steps`.

    >>> stops(5)
    [1, 2, 3, 4, 5]
    """
    spaced = (math.ceil(stop) for stop in np.geomspace(1, n_steps, POINTS))
    steps = reported_steps(n_steps)
    return sorted({*spaced, steps.start, steps.stop} - {0})


def published_accuracy(accuracy_RxL: np.ndarray) -> np.ndarray:
    """accuracy_R as the published code reports it, from each step's batch before its update.

    On the sampled set (Dana et al. 2025, released code).
    """
    steps = reported_steps(accuracy_RxL.shape[1])
    return accuracy_RxL[:, steps.start : steps.stop].mean(axis=1)


def points(
    accuracy_L: np.ndarray, loss_L: np.ndarray
) -> tuple[list[int], list[float], list[float | None]]:
    """`stops`, and the mean batch accuracy and loss since the one before.

    A loss that is not finite is None.
    """
    steps = stops(len(accuracy_L))
    of_spans = [slice(*ends) for ends in itertools.pairwise([0, *steps])]
    losses = [float(loss_L[span].mean()) for span in of_spans]
    return (
        steps,
        [float(accuracy_L[span].mean()) for span in of_spans],
        [loss if math.isfinite(loss) else None for loss in losses],
    )
