"""Training curves: the points that are kept of all steps, and what they say of other measures.

A point is the mean over the steps since the one before it. The accuracy that the published code
reports is a mean over steps too, so that points bound it; those that are kept since schema 2 begin
and end where it does, and give it.
"""

import itertools
import math
from collections.abc import Sequence

import numpy as np

# Log-spaced points at most.
POINTS = 24


def reported(n_steps: int) -> range:
    """The steps over which the published code takes its accuracy: the last 100 but the very last.

    A single step counts itself.

    >>> reported(4096), reported(5), reported(1)
    (range(3996, 4095), range(0, 4), range(0, 1))
    """
    return range(max(0, n_steps - 100), max(1, n_steps - 1))


def stops(n_steps: int) -> list[int]:
    """Numbers of steps at which points are kept: log-spaced, and around `reported`.

    >>> stops(5)
    [1, 2, 3, 4, 5]
    """
    spaced = (math.ceil(stop) for stop in np.geomspace(1, n_steps, POINTS))
    steps = reported(n_steps)
    return sorted({*spaced, steps.start, steps.stop} - {0})


def spans(steps: Sequence[int]) -> list[range]:
    """The steps that each point is the mean of.

    >>> spans([1, 2, 5])
    [range(0, 1), range(1, 2), range(2, 5)]
    """
    return [range(*span) for span in itertools.pairwise([0, *steps])]


def bounds(steps: Sequence[int], mean_P: Sequence[float]) -> tuple[float, float]:
    """The least and the largest accuracy that the published code can report where it has points.

    Of each span the steps outside of `reported` may have been all right or all wrong.

    >>> bounds([2, 5], [0.5, 0.5]), bounds([2, 4, 5], [0.5, 0.5, 0.5])
    ((0.375, 0.625), (0.5, 0.5))
    """
    wanted, least, most = reported(steps[-1]), 0.0, 0.0
    for span, mean in zip(spans(steps), mean_P, strict=True):
        inside = len(range(max(span.start, wanted.start), min(span.stop, wanted.stop)))
        right = mean * len(span)
        least += max(0.0, right - (len(span) - inside))
        most += min(float(inside), right)
    return least / len(wanted), most / len(wanted)
