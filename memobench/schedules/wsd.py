"""Warm-up, stable, decay."""

from typing import Any

import numpy as np

from memobench.common.errors import require
from memobench.core.columns import number
from memobench.core.schedule import Schedule
from memobench.core.spec import kind


@kind("wsd")
class WSDSchedule(Schedule):
    """Warm-up, stable, decay (Hu et al. 2024): the first rate stays, and falls in the last epochs.

    It goes as 1 - sqrt there (Hagele et al. 2024).
    """

    decay_share: float = number(
        "share of the epochs, the last, in which the rate of schedule='wsd' goes to the final one",
        above=0,
        most=0.5,
    )

    def fraction(self, time_R: Any, warmup_R: Any) -> Any:
        del warmup_R
        return np.sqrt(np.maximum(time_R - (1 - self.decay_share), 0) / self.decay_share)

    def check_epochs(self, epochs: int) -> None:
        super().check_epochs(epochs)
        require(
            self.decay_share * epochs > 1,
            f"decay_share * epochs must be over 1, got {self.decay_share} * {epochs}: the rate, "
            "which is constant within an epoch, would never fall. Raise one of them",
        )
