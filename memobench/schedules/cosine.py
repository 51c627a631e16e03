"""The cosine schedule."""

from typing import Any

import numpy as np

from memobench.core.schedule import Schedule
from memobench.core.spec import kind


@kind("cosine")
class CosineSchedule(Schedule):
    """By half a cosine after the warm-up: slowly, fast, slowly."""

    def fraction(self, time_R: Any, warmup_R: Any) -> Any:
        done_R = np.maximum(time_R - warmup_R, 0) / (1 - warmup_R)
        return (1 - np.cos(np.pi * done_R)) / 2
