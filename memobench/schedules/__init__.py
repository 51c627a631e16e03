"""Schedules of learning rates. A kind is one class in one file, found unlisted."""

from memobench.core.schedule import Schedule
from memobench.schedules.linear import LinearSchedule
