"""Durations, as flags have them."""

import re

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
