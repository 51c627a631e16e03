"""Findings from statistics, which are compared with the region of a claim and put into words."""

import dataclasses
import fractions
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import scipy

from memobench.analysis.statistics import CONFIDENCE, MIN_SEEDS, NORMAL, bonferroni_factor, interval
from memobench.claims.claim import FAILS, HOLDS, UNDECIDED, Finding, Fit
from memobench.common.errors import require
from memobench.common.notation import pluralize

SEVERITY = (FAILS, UNDECIDED, HOLDS)
# More seeds or label tables than these nobody trains.
_MOST = 10_000
# An interval excludes an edge with 80% chance if the truth lies half an interval and so many
# standard errors away from it.
_POWER = float(scipy.special.ndtri(0.8))

Region = tuple[float, float]  # Closed: both ends belong to it.
# "Above 0" starts at the least positive number, so that a tie is not inside.
POSITIVE: Region = (float(np.finfo(float).tiny), np.inf)


def decide(low: float, high: float, region: Region) -> str:
    """The verdict: holds if the interval is inside the region, fails if outside, else undecided.

    >>> [decide(low, high, (0, 1)) for low, high in ((0.2, 0.9), (1.1, 2), (0.9, 1.1))]
    ['holds', 'fails', 'undecided']
    """
    if region[0] <= low and high <= region[1]:
        return HOLDS
    return FAILS if high < region[0] or low > region[1] else UNDECIDED


def p_value(estimate: float, low: float, high: float, region: Region, seeds: int) -> float:
    """The p-value of a verdict: that the truth lies on an edge which the interval excludes.

    By Student's t with seeds - 1 degrees of freedom, as the 95% interval. NaN where the interval
    decides nothing.

    >>> [round(p_value(1.0, 0.8, 1.2, region, 5), 3) for region in ((0.8, 9.0), (0.5, 9.0))]
    [0.05, 0.002]
    """
    verdict = decide(low, high, region)
    if verdict == UNDECIDED or seeds < MIN_SEEDS:
        return math.nan
    t = scipy.stats.t(seeds - 1)
    p_values = []
    for edge in region:
        arm = estimate - low if edge < estimate else high - estimate
        ratio = abs(estimate - edge) / arm if arm else math.inf
        p_values.append(2 * float(t.sf(float(t.ppf(0.5 + CONFIDENCE / 2)) * ratio)))
    # Inside both edges are excluded, outside the one on its side.
    return max(p_values) if verdict == HOLDS else p_values[int(estimate > region[1])]


def combine_verdicts(decided: Iterable[str]) -> str:
    """The verdict on all: holds if all hold and there are some, fails if any fails."""
    return min(decided, key=SEVERITY.index, default=UNDECIDED)


@dataclasses.dataclass(frozen=True)
class Statistic:
    """An estimate, its 95% interval, and the region in which the claim is true."""

    name: str
    estimate: float
    low: float
    high: float
    region: Region
    seeds: int
    details: str = ""
    fits: tuple[Fit, ...] = ()
    # What seeds are called; "" where more of them would not narrow the interval as means' are.
    of: str = "seed"

    @property
    def verdict(self) -> str:
        return decide(self.low, self.high, self.region)

    @property
    def seeds_needed(self) -> str:
        """The number of seeds that would decide with 80% chance, were the estimate true, in words.

        "" where it is decided, has no interval, or depends on more than seeds.
        """
        if self.verdict != UNDECIDED or not np.isfinite([self.low, self.high]).all() or not self.of:
            return ""
        # The arm of the interval that reaches over an edge, in units of the way there.
        over = []
        for edge in (edge for edge in self.region if self.low <= edge <= self.high):
            arm = self.estimate - self.low if edge < self.estimate else self.high - self.estimate
            over.append(arm / max(abs(self.estimate - edge), 1e-9))
        n = self.seeds * ((1 + _POWER / NORMAL) * max(over)) ** 2
        needed = f"about {math.ceil(n):,}" if n < _MOST else f"more than {_MOST:,}"
        return (
            f"{pluralize(self.seeds, self.of)} so far; {needed} {self.of}s would decide it with "
            "80% chance, were this the true value"
        )

    def bonferroni(self, n: int) -> "Statistic":
        """The statistic as one of n that must all lie in their regions, by Bonferroni's correction.

        That all hold needs none. That any fails has it: of many some interval lies outside by
        chance.
        """
        if n == 1 or self.verdict != FAILS or not np.isfinite(self.estimate):
            return self
        factor = bonferroni_factor(n, self.seeds)
        low = self.estimate - factor * (self.estimate - self.low)
        high = self.estimate + factor * (self.high - self.estimate)
        return dataclasses.replace(self, low=low, high=high)

    @property
    def distance(self) -> float:
        """The distance of the estimate from the region, negative inside."""
        low, high = self.region
        distance = max(low - self.estimate, self.estimate - high)
        return -np.inf if np.isnan(distance) else distance

    def __str__(self) -> str:
        estimate = _format_interval(self.estimate, self.low, self.high)
        return f"{self.name} {estimate} against {region_text(self.region)}"


def statistic_of(
    name: str,
    values_B: np.ndarray,
    region: Region,
    seeds: int,
    details: str = "",
    fits: tuple[Fit, ...] = (),
) -> Statistic:
    """The statistic of an estimate and its replicates, with its interval."""
    low, high = interval(values_B, seeds)
    return Statistic(name, float(values_B[0]), low, high, region, seeds, details, fits)


def smallest_mean(
    name: str,
    values_BX: np.ndarray,
    region: Region,
    seeds: int,
    details: str = "",
    possible: Region = (-np.inf, np.inf),
) -> Statistic:
    """The smallest of many means of at least `seeds` runs each, with Student's intervals.

    The lower end of its interval needs no correction, since one of them is the smallest; the upper
    end has Bonferroni's, since any of them may look smallest. Both are clipped to `possible`.
    """
    low = high = float("nan")
    if seeds >= MIN_SEEDS:
        # Replicates are as wide as one interval.
        half_X = NORMAL * values_BX[1:].std(axis=0)
        corrected_X = bonferroni_factor(values_BX.shape[1], seeds) * half_X
        low, high = np.clip(
            ((values_BX[0] - half_X).min(), (values_BX[0] + corrected_X).min()), *possible
        )
    estimate = float(values_BX[0].min())
    return Statistic(name, estimate, float(low), float(high), region, seeds, details)


def conclude(statistics: Sequence[Statistic], evidence: str = "") -> Finding:
    """The finding of the deciding statistic, where all must lie in their regions."""
    return _conclude([each.bonferroni(len(statistics)) for each in statistics], evidence)


def _conclude(statistics: Sequence[Statistic], evidence: str = "") -> Finding:
    deciding = _pick_deciding(statistics)
    few = deciding.seeds < MIN_SEEDS
    return Finding(
        deciding.verdict,
        join_parts(
            _count_too_few(deciding.seeds) if few else "",
            evidence or join_parts(str(deciding), deciding.details),
        ),
        deciding.estimate,
        deciding.low,
        deciding.high,
        deciding.region,
        tuple(fit for statistic in statistics for fit in statistic.fits),
        deciding.seeds,
        deciding.seeds_needed,
    )


def pick_severest(*statistics: Statistic) -> Statistic:
    """Of statistics that must all lie in their regions, the first with the severest verdict."""
    corrected = [statistic.bonferroni(len(statistics)) for statistic in statistics]
    return min(corrected, key=lambda statistic: SEVERITY.index(statistic.verdict))


def _count_too_few(seeds: int) -> str:
    found = (
        pluralize(seeds, "seed") if seeds > 1 else "one seed, or equal runs, which show no spread"
    )
    return f"{found}; at least {MIN_SEEDS} are needed"


def _pick_deciding(statistics: Sequence[Statistic]) -> Statistic:
    """The statistic farthest out of its region among those with the verdict on all."""
    verdict = combine_verdicts(statistic.verdict for statistic in statistics)
    candidates = [statistic for statistic in statistics if statistic.verdict == verdict]
    return max(candidates, key=lambda statistic: statistic.distance)


def conclude_groups(statistics: dict[Any, Statistic], group: str | None, needed: str) -> Finding:
    """The finding over all groups with enough points, by the number that hold and the worst one."""
    if not statistics:
        return report_too_few(needed)
    statistics = {value: each.bonferroni(len(statistics)) for value, each in statistics.items()}
    if group is None or len(statistics) == 1:
        return _conclude(list(statistics.values()))
    nouns, letter = ("widths", "d") if group == "d_model" else (f"values of {group}", group)
    counts = [
        (verdict, sum(statistic.verdict == verdict for statistic in statistics.values()))
        for verdict in (HOLDS, FAILS, UNDECIDED)
    ]
    listed = ", ".join(
        f"{verdict} for {count}" + (f" of {len(statistics)} {nouns}" if verdict == HOLDS else "")
        for verdict, count in counts
        if count or verdict == HOLDS
    )
    deciding = _pick_deciding(list(statistics.values()))
    value = next(value for value, statistic in statistics.items() if statistic is deciding)
    evidence = join_parts(listed, f"{letter} = {value}: {deciding}", deciding.details)
    return _conclude(list(statistics.values()), evidence)


def report_too_few(needed: str) -> Finding:
    """The finding that a claim is undecided, and what it would need."""
    return Finding(UNDECIDED, f"too few points: {needed}")


def join_parts(*parts: str) -> str:
    """The parts that are not empty, with semicolons between."""
    return "; ".join(part for part in parts if part)


def format_number(value: float) -> str:
    """A number with three digits; n/a for NaN."""
    return "n/a" if np.isnan(value) else f"{value + 0.0:.3g}"


def _format_interval(estimate: float, low: float, high: float) -> str:
    if np.isnan(low):
        return format_number(estimate)
    return f"{format_number(estimate)} [{format_number(low)}, {format_number(high)}]"


def format_estimate(values_B: np.ndarray, seeds: int) -> str:
    """An estimate and, with enough seeds, its interval."""
    statistic = statistic_of("", values_B, POSITIVE, seeds)
    return _format_interval(statistic.estimate, statistic.low, statistic.high)


def region_text(region: Region) -> str:
    """A region in words.

    >>> region_text((2 / 3, 3 / 2)), region_text((0.05, np.inf)), region_text(POSITIVE)
    ('2/3 to 1.5', 'at least 0.05', 'above 0')
    """
    require(region[0] <= region[1], f"region must be (least, largest), got {region}.")
    low, high = map(_limit_text, region)
    if region == POSITIVE:
        return "above 0"
    if np.isinf(region[1]):
        return f"at least {low}"
    return f"at most {high}" if np.isinf(region[0]) else f"{low} to {high}"


def _limit_text(limit: float) -> str:
    """A few digits, or a simple fraction that a few digits are not."""
    text = f"{limit:g}"
    if not np.isfinite(limit) or float(text) == limit:
        return text
    fraction = fractions.Fraction(limit).limit_denominator(9)
    return str(fraction) if float(fraction) == limit else text
