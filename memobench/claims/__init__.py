"""Decides by statistics whether a claim of a paper holds on a results table.

A claim has a test, a function of the rows of one variant at one number of steps. Most tests
estimate a statistic by least squares on the means over seeds, take its 95% interval (Student's,
docs/intervals.md), and compare it with the region in which the claim is true: it holds where the
interval lies inside, fails where it lies outside, and is undecided otherwise, since absence of
evidence is not evidence. A claim made for another design than that of the runs (larger models, say)
is *not tested there*. Pure functions; no files.

`claim` defines claims, findings and verdicts, `analysis.statistics` the means and their intervals
(how many seeds they need; 95% is `analysis.seeds.CONFIDENCE`), `evidence` how an interval decides;
the tests that several papers share are in `slopes` and `counts`, those of one with its experiments.
"""

from memobench.analysis.statistics import (
    MIN_SEEDS,
    compared_accuracy,
    interval,
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
    findings,
    restrict,
    use_all_examples,
    variant,
    verdicts,
)
from memobench.claims.counts import above_bound, every_run
from memobench.claims.evidence import Region, p_value
from memobench.claims.slopes import linear_in_heads, slopes_in_heads
