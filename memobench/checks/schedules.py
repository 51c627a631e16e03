"""Faults of a user's schedule, found before anything trains."""

from collections.abc import Iterable

import numpy as np

from memobench.common.errors import name_source, require
from memobench.core import own_code
from memobench.core.schedule import Schedule


def require_sound(schedules: Iterable[Schedule]) -> None:
    """Raises UserError for the first schedule whose fractions are not between 0 and 1 or mix lanes.

    Those of memobench itself are checked by its tests.
    """
    for schedule in schedules:
        if own_code.in_tree(type(schedule)):
            continue
        where = f"schedule {schedule.name}: fraction"
        time_R = np.append(np.arange(63) / 63, np.nextafter(1, 0))
        warmup_R = np.tile([0.0, 0.25], 32)
        with name_source(f"schedule {schedule.name}: its code"):
            # Copies, for it may compute in place.
            fraction_R = np.array(schedule.fraction(time_R.copy(), warmup_R.copy()))
            alone = [
                schedule.fraction(time_R[i : i + 1].copy(), warmup_R[i : i + 1].copy())
                for i in range(len(time_R))
            ]
        require(
            fraction_R.shape == time_R.shape,
            f"{where} must give one number for each of {len(time_R)} lanes, got the shape "
            f"{fraction_R.shape}; compute with whole arrays",
        )
        require(
            bool(((fraction_R >= 0) & (fraction_R <= 1)).all()),
            f"{where} must be between 0 and 1, got {fraction_R.min():g} to {fraction_R.max():g}; "
            "it is the share of the way from the first to the final rate",
        )
        require(
            # Vectors of other lengths may be rounded otherwise.
            np.allclose(fraction_R, np.concatenate(alone), rtol=1e-9, atol=1e-9),
            f"{where} of a lane depends on other lanes; compute it of its own time and warm-up",
        )
