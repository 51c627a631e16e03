"""Durations and times of day, as flags have them."""

import datetime
import re
import time

from absl import flags

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class Duration(flags.ArgumentParser[float]):
    """A flag of seconds, given as a number with a unit.

    >>> [Duration().parse(text) for text in ("90s", "1.5h", "2d")]
    [90.0, 5400.0, 172800.0]
    """

    syntactic_help = "a number with s, m, h or d"

    def parse(self, argument: str) -> float:
        found = re.fullmatch(r"(\d+(?:\.\d*)?)([smhd])", argument)
        if found is None or not float(found[1]):
            raise ValueError("give a number above 0 with a unit: s, m, h or d, such as 90m")
        return float(found[1]) * _UNITS[found[2]]


class ClockTime(flags.ArgumentParser[float]):
    """A flag of the next HH:MM of this machine's clock, as a value of `time.monotonic`."""

    syntactic_help = "HH:MM"

    def parse(self, argument: str) -> float:
        try:
            at = datetime.datetime.strptime(argument, "%H:%M").time()
        except ValueError:
            raise ValueError("give a time of day as HH:MM, such as 07:30") from None
        now = datetime.datetime.now()
        seconds = (datetime.datetime.combine(now, at) - now).total_seconds()
        return time.monotonic() + seconds % (24 * 3600)
