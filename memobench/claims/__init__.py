"""Decisions by statistics on the claims of papers, from a table of results.

A claim has a test, a function of the rows of one variant at one number of steps. Most tests
estimate a statistic by least squares on the means over seeds, take its 95% interval (Student's,
docs/intervals.md), and compare it with the region in which the claim is true: it holds where the
interval lies inside, fails where it lies outside, and is undecided otherwise, since absence of
evidence is not evidence. A claim made for another design than that of the runs (larger models, say)
is *not tested there*. Pure functions; no files.

`claim` defines claims, findings and verdicts, `statistics` the means and their intervals (how many
seeds they need; 95% is `analysis.seeds.CONFIDENCE`), `evidence` how an interval decides; the tests
are in `growth`, `slopes`, `families`, `groups`, `exposure`, `scaling` and `counts`.
"""

from memobench.analysis.statistics import (
    MIN_SEEDS,
    aicc,
    compared_accuracy,
    interval,
    power,
    profile,
)
from memobench.claims.claim import (
    CONSTRUCTED,
    EXACT,
    FAILS,
    HOLDS,
    MADE,
    MISSING,
    NEAREST,
    NOT_TESTED,
    OPTIMUM,
    UNDECIDED,
    VARIANTS,
    Claim,
    Finding,
    Fit,
    Test,
    findings,
    restrict,
    use_all_examples,
    variant,
    verdicts,
)
from memobench.claims.counts import above_bound, every_run, on_average
from memobench.claims.evidence import Region, combine_verdicts, decide
from memobench.claims.exposure import attention_over_mlp
from memobench.claims.families import better_at_equal_parameters, gains_more_from_steps
from memobench.claims.groups import Groups, Measure, bits_per_parameter, compare_best
from memobench.claims.growth import (
    LINEAR,
    QUADRATIC,
    broken_line,
    jump_at_full_width,
    levels_off,
    linear_in_heads,
    never_falls,
    power_law,
)
from memobench.claims.scaling import constant, exchange, exponent, greatest_density, limit
from memobench.claims.slopes import (
    equal_slopes,
    exponent_of_slopes,
    slope_over_bound,
    slopes_in_heads,
)

__all__ = [
    "CONSTRUCTED",
    "EXACT",
    "FAILS",
    "HOLDS",
    "LINEAR",
    "MADE",
    "MIN_SEEDS",
    "MISSING",
    "NEAREST",
    "NOT_TESTED",
    "OPTIMUM",
    "QUADRATIC",
    "UNDECIDED",
    "VARIANTS",
    "Claim",
    "Finding",
    "Fit",
    "Groups",
    "Measure",
    "Region",
    "Test",
    "above_bound",
    "aicc",
    "attention_over_mlp",
    "better_at_equal_parameters",
    "bits_per_parameter",
    "broken_line",
    "combine_verdicts",
    "compare_best",
    "compared_accuracy",
    "constant",
    "decide",
    "equal_slopes",
    "every_run",
    "exchange",
    "exponent",
    "exponent_of_slopes",
    "findings",
    "gains_more_from_steps",
    "greatest_density",
    "interval",
    "jump_at_full_width",
    "levels_off",
    "limit",
    "linear_in_heads",
    "never_falls",
    "on_average",
    "power",
    "power_law",
    "profile",
    "restrict",
    "slope_over_bound",
    "slopes_in_heads",
    "use_all_examples",
    "variant",
    "verdicts",
]
