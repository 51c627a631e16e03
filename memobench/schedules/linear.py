"""The linear schedule."""

from typing import Any

import numpy as np

from memobench.core.schedule import Schedule
from memobench.core.spec import kind


@kind("linear")
class LinearSchedule(Schedule):
    """As much in every epoch after the warm-up; in a single epoch the first rate stays."""

    def fraction(self, time_R: Any, warmup_R: Any) -> Any:
        return np.maximum(time_R - warmup_R, 0) / (1 - warmup_R)

    def check_epochs(self, epochs: int) -> None:
        """Any number will do."""
