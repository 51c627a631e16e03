"""The contract of schedules: how a rate warms up, and goes from the first to the final one."""

import dataclasses
from typing import Any

import numpy as np

from memobench.common.errors import UserError, require
from memobench.core.spec import Spec


@dataclasses.dataclass(frozen=True, kw_only=True)
class Schedule(
    Spec, noun="schedule", package="memobench.schedules", order=("linear", "cosine", "wsd")
):
    """Base of all schedules. The first and the final rate, and the warm-up, are the method's."""

    def fraction(self, time_R: Any, warmup_R: Any) -> Any:
        """The fraction of the way from the first to the final rate that is behind, by lanes.

        Args:
          time_R: share of a training that is over, in [0, 1). Float64.
          warmup_R: share of it in which the rate comes to the first one, in [0, 0.5]; fractions
            there are of the rate that the warm-up multiplies. Float64.

        Returns:
          fraction_R, in [0, 1]; each lane's follows from its own time and warm-up. Float64.
        """
        raise UserError(
            f"schedule {self.name} has no method fraction; define fraction(self, time_R, warmup_R)"
        )

    def warm_up(self, epoch_R: Any, epochs_R: Any, warmup_R: Any) -> Any:
        """The factor of the rates in the warm-up, which rises linearly to 1 and stays there.

        Args:
          epoch_R: the epoch that each lane is in, from 0.
          epochs_R: how many it takes.
          warmup_R: share of them in which the rate rises.
        """
        return np.minimum(1, (epoch_R + 1) / (1 + warmup_R * epochs_R))

    def check_epochs(self, epochs: int) -> None:
        """Raises UserError where in so many epochs the rate never goes as the schedule says."""
        require(
            epochs > 1,
            f"epochs must be over 1 with schedule {self.name!r}, got {epochs}: the rate is "
            "constant within an epoch. Leave schedule out, or raise epochs",
        )
