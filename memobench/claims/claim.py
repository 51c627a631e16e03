"""Claims of papers, and the findings on them for every variant and number of steps."""

import collections
import dataclasses
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from memobench.common.errors import UserError, check_arguments, in_a_line, require, short_repr
from memobench.common.notation import pluralize
from memobench.constructions.base import CONSTRUCTED, NEAREST
from memobench.core.architecture import Architecture
from memobench.core.cells import spec_columns
from memobench.core.run import Method
from memobench.core.task import Task
from memobench.methods.optimum import OPTIMUM
from memobench.methods.training import FINE_TUNED, FIXED_ATTENTION, READ_OUT
from memobench.store.rows import configuration

HOLDS, FAILS, UNDECIDED = "holds", "fails", "undecided"
# Instead of these where no run is of the design that the claim was made for.
NOT_TESTED = "not tested there"
# In the evidence where declared runs are not there.
MISSING = "missing, of "

VARIANTS = {
    ("published", "compressed"): "(a) published protocol, compressed heads",
    ("exact", "compressed"): "(b) exact gradient, compressed heads",
    ("exact", "full"): "(c) exact gradient, full heads",
}
FROM_SCRATCH, EXACT = "from scratch, published protocol", "from scratch, exact gradient"
# How weights came about, in the order of a report.
MADE = (CONSTRUCTED, NEAREST, READ_OUT, FIXED_ATTENTION, FINE_TUNED, FROM_SCRATCH, EXACT)
# Beside claims that compare variants.
TOGETHER = "together"
_LABELS = {**VARIANTS, ("published", "full"): FROM_SCRATCH}


@dataclasses.dataclass(frozen=True)
class Fit:
    """A fitted line to draw.

    Attributes:
      label: its name in the legend.
      group: the value of the grouping column that it belongs to; None without one.
      x_name: the column that it is against.
      x: values of it.
      y: fitted at these.
      y_name: what was fitted.
    """

    label: str
    group: Any
    x_name: str
    x: np.ndarray
    y: np.ndarray
    y_name: str = "accuracy"


@dataclasses.dataclass(frozen=True)
class Finding:
    """A verdict, one line of evidence, and the statistic that decided it, NaN without one.

    Attributes:
      region: the least and the largest value with which the claim is true; None without a statistic
        that has an interval.
      seeds: the number of seeds, or of label tables, on which the statistic rests; None where it
        does not say.
      needed: how many would decide what is undecided, in words; "" where more would not.
    """

    verdict: str
    evidence: str
    estimate: float = np.nan
    low: float = np.nan
    high: float = np.nan
    region: tuple[float, float] | None = None
    fits: tuple[Fit, ...] = ()
    seeds: int | None = None
    needed: str = ""


Test = Callable[[pd.DataFrame], Finding]
# Of claims declared below it what a test raises is a mistake of ours.
_OWN = "memobench.experiments."


def _declaring_module() -> str:
    """The name of the module whose code makes a claim."""
    frame = sys._getframe(1)
    # The claim's own initialiser, and what checks its arguments.
    while frame.f_back and frame.f_globals.get("__name__") in (
        __name__,
        check_arguments.__module__,
    ):
        frame = frame.f_back
    return str(frame.f_globals.get("__name__"))


@check_arguments
@dataclasses.dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim of a paper, in one sentence, and the test that decides it.

    Attributes:
      name: short, unique within an experiment.
      test: takes the rows of one variant at one number of steps, or, with `across_steps`, at all.
      variants: the labels of those it is about; empty for all.
      across_variants: whether it compares them, and is decided on all rows at once.
      value: that it says its statistic has; the region in which it counts as true leaves a margin.
      made_for: the design that the source tested, in words, where these runs may be of another. A
        claim that was not tested where it was made neither holds nor fails: its evidence says what
        is found here.
      covers: whether a table of runs is of that design, never by default.
      declared_in: the module that declares it. If the test of a user's claim raises, the claim is
        undecided; if one of memobench's own raises anything but UserError, that is a bug, and is
        raised.
    """

    name: str
    statement: str
    source: str
    test: Test
    across_steps: bool = False
    variants: tuple[str, ...] = ()
    across_variants: bool = False
    value: float | None = None
    made_for: str = ""
    covers: Callable[[pd.DataFrame], bool] | None = None
    declared_in: str = dataclasses.field(
        default_factory=_declaring_module, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        if not callable(self.test):
            fix = "Give a function from a table to a Finding."
            raise UserError(
                f"claim {self.name!r}: test must be callable, got {short_repr(self.test)}. {fix}"
            )
        labels = isinstance(self.variants, tuple) and all(isinstance(x, str) for x in self.variants)
        if not labels:
            raise UserError(
                f"claim {self.name!r}: variants must be a tuple of labels, such as ('exact',), "
                f"got {short_repr(self.variants)}."
            )
        require(
            not (self.variants and self.across_variants),
            f"claim {self.name!r}: variants must be empty with across_variants, got "
            f"{short_repr(self.variants)}. Leave them out.",
        )
        require(
            bool(self.made_for) or self.covers is None,
            f"claim {self.name!r}: covers must come with made_for, got none. Name the design.",
        )


def findings(
    claims: Iterable[Claim], table: pd.DataFrame, wanted: pd.DataFrame | None = None
) -> Iterator[tuple[Claim, str, int, Finding]]:
    """Every claim on every variant and number of steps in the table, in this order.

    A claim across steps is reported once per variant, at the fewest steps, and so is one on
    variants that are not there, as undecided. With `wanted`, the rows of the wanted runs
    (`core.cells.cells`), claims are decided on these runs only, and are undecided while one of the
    variant and number of steps is missing.
    """
    if isinstance(claims, Claim):
        raise UserError(f"claims must be a list, got {short_repr(claims)}. Give [claim].")
    missing = _missing_runs(table, wanted)
    if wanted is not None:
        table = table[table["run_id"].isin(wanted["run_id"])]
    variants = split_by_variant(table)
    together = [(TOGETHER, table)][: len(table)]
    for claim in claims:
        named = [x for x in variants if not claim.variants or x[0] in claim.variants]
        if variants and not named:
            lacking = missing[missing["variant"].isin(claim.variants)]
            there = "; ".join(label for label, _ in variants)
            none = Finding(UNDECIDED, f"no run is of this variant; there are: {there}")
            finding = _finding_without(lacking) if len(lacking) else none
            yield claim, " or ".join(claim.variants), int(table["steps"].min()), finding
        for label, rows in together if claim.across_variants else named:
            budgets = sorted(set(rows["steps"]))
            for steps in budgets[:1] if claim.across_steps else budgets:
                chosen = rows if claim.across_steps else rows[rows["steps"] == steps]
                lacking = _runs_needed(claim, label, steps, missing)
                finding = _finding_without(lacking) if len(lacking) else _test_claim(claim, chosen)
                yield claim, label, int(steps), finding


def _missing_runs(table: pd.DataFrame, wanted: pd.DataFrame | None) -> pd.DataFrame:
    """The wanted runs that are not in the table, with their variants."""
    if wanted is None:
        return pd.DataFrame(columns=["variant", "steps"])
    missing = wanted[~wanted["run_id"].isin(table["run_id"])]
    return missing.assign(variant=variant(missing))


def _runs_needed(claim: Claim, label: str, steps: int, missing: pd.DataFrame) -> pd.DataFrame:
    """The missing runs without which a claim on a variant and number of steps is undecided."""
    of_variant = (missing["variant"] == label) | claim.across_variants
    of_steps = (missing["steps"] == steps) | claim.across_steps
    # All variants are compared with the optimum, their floor.
    return missing[of_variant & of_steps | (missing["variant"] == OPTIMUM)]


def _finding_without(lacking: pd.DataFrame) -> Finding:
    """The finding while these runs are missing."""
    lacking = lacking.drop_duplicates("run_id")
    keys = [name for name in configuration() if name in lacking]
    n_configurations = len(lacking[keys].astype(str).drop_duplicates())
    seeds = sorted(set(lacking["seed"]))
    return Finding(
        UNDECIDED,
        f"{pluralize(len(lacking), 'run')} {'is' if len(lacking) == 1 else 'are'} {MISSING}"
        f"{pluralize(n_configurations, 'configuration')} "
        f"(seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))})",
    )


def _test_claim(claim: Claim, table: pd.DataFrame) -> Finding:
    # After hours of training a claim that does not fit the runs must not cost the page.
    try:
        finding = claim.test(table.copy())
    except UserError as error:
        return Finding(UNDECIDED, str(error))
    except Exception as error:
        if claim.declared_in.startswith(_OWN):
            error.add_note(
                f"The test of the claim {claim.name!r} of {claim.declared_in} raised it."
            )
            raise
        if isinstance(error, KeyError):
            return Finding(UNDECIDED, f"its test reads {error}, which these runs do not have")
        return Finding(UNDECIDED, f"its test raises {in_a_line(error)}")
    if not isinstance(finding, Finding) or finding.verdict not in (HOLDS, FAILS, UNDECIDED):
        raise UserError(
            f"claim {claim.name!r}: its test must return a Finding whose verdict is {HOLDS}, "
            f"{FAILS} or {UNDECIDED}, got {short_repr(finding)}."
        )
    verdict, parts = finding.verdict, [finding.evidence]
    if claim.made_for and not (claim.covers and claim.covers(table)):
        # No number of seeds tests it there.
        verdict, parts = NOT_TESTED, [*parts, f"the claim is of {claim.made_for}"]
    elif finding.needed:
        parts.append(finding.needed)
    if diverged := int((table["status"] == "diverged").sum()):
        parts.append(f"{diverged} of {len(table)} runs diverged")
    return dataclasses.replace(finding, verdict=verdict, evidence="; ".join(parts))


def verdicts(
    claims: Iterable[Claim], table: pd.DataFrame, wanted: pd.DataFrame | None = None
) -> pd.DataFrame:
    """One row per claim, variant and number of steps, with the verdict and its evidence.

    `seeds` is the number of seeds, or of label tables, on which the finding rests; where it does
    not say, of the variant's wanted runs, or else in the table.
    `claimed` is the claim's own value of the statistic, and `least` to `most` the region in which
    it counts as true.
    `doubling` says what twice the steps change: `same verdict`, `becomes VERDICT`, `not run`;
    it is empty where the row itself has twice the steps of another, for claims across steps, and
    for optima, which are certified instead.
    """
    found = list(findings(claims, table, wanted))
    of_runs = table if wanted is None else wanted
    labels = variant(of_runs)
    all_seeds = of_runs["seed"].nunique()
    seeds = of_runs["seed"].groupby(labels).nunique()
    known = {(claim.name, label, steps): finding.verdict for claim, label, steps, finding in found}

    def doubling(claim: Claim, label: str, steps: int) -> str:
        doubled = known.get((claim.name, label, 2 * steps))
        if claim.across_steps or label == OPTIMUM:
            return ""
        if doubled is None:
            return "" if (claim.name, label, steps / 2) in known else "not run"
        same = doubled == known[claim.name, label, steps]
        return "same verdict" if same else f"becomes {doubled}"

    rows = [
        {
            "claim": claim.name,
            "variant": label,
            "steps": steps,
            "seeds": seeds.get(label, all_seeds) if finding.seeds is None else finding.seeds,
            "verdict": finding.verdict,
            "evidence": finding.evidence,
            "estimate": finding.estimate,
            "low": finding.low,
            "high": finding.high,
            "claimed": np.nan if claim.value is None else claim.value,
            **dict(zip(("least", "most"), finding.region or (np.nan, np.nan), strict=True)),
            "doubling": doubling(claim, label, steps),
        }
        for claim, label, steps, finding in found
    ]
    names = ("claim", "variant", "steps", "seeds", "verdict", "evidence", "estimate", "low", "high")
    return pd.DataFrame(rows, columns=[*names, "claimed", "least", "most", "doubling"])


def restrict(test: Test, **values: Any) -> Test:
    """The test on the rows with these values; a list, tuple or range allows several.

    >>> known = lambda table: Finding(HOLDS, f"{len(table)} runs")
    >>> table = pd.DataFrame({"d_model": [5, 6, 7], "architecture": "mlp"})
    >>> restrict(known, architecture="mlp", d_model=range(5, 7))(table).evidence
    '2 runs'
    """

    def test_selected(table: pd.DataFrame) -> Finding:
        for column, value in values.items():
            several = isinstance(value, (list, tuple, range))
            chosen = table[table[column].isin(value if several else [value])]
            if chosen.empty:
                there = pd.factorize(table[column], sort=True)[1].tolist()
                none = f"no run has {column}={short_repr(value)}; there are {short_repr(there)}"
                return Finding(UNDECIDED, none)
            table = chosen
        return test(table)

    return test_selected


def use_all_examples(claim: Claim) -> Claim:
    """The claim on accuracy over all examples, with the final weights.

    The published protocol's own counts draws of a sample as training ends: an example that is drawn
    three times counts three times, and one that is not drawn does not count. Other protocols have
    no other accuracy, so that the claim is of the published one alone. Figures show that protocol's
    own accuracy, and no fit to another.
    """

    def test(table: pd.DataFrame) -> Finding:
        found = claim.test(table.assign(accuracy_protocol=table["accuracy"]))
        return dataclasses.replace(found, fits=())

    return dataclasses.replace(
        claim,
        name=f"{claim.name}, over all examples",
        statement=f"{claim.statement} Each example counts once, at the final weights.",
        test=test,
        variants=tuple(label for (by, _), label in VARIANTS.items() if by == "published"),
    )


def variant(table: pd.DataFrame) -> pd.Series:
    """The label of every row: its method's or task's, else its protocol and its architecture's."""
    columns = table[[name for name in spec_columns() if name in table]]
    cells = columns.astype(object).where(columns.notna(), None)
    # Tables may lack columns.
    rows = (collections.defaultdict(lambda: None, row) for row in cells.to_dict("records"))
    return pd.Series([_label(row) for row in rows], index=table.index, dtype=object)


def _label(row: Mapping[Any, Any]) -> str:
    # Kinds that are not registered here are labelled by their protocol.
    task = Task.kinds().get(row["task"], Task)
    architecture = Architecture.kinds().get(row["architecture"], Architecture)
    method = Method.kinds().get(row["method"], Method)
    of_model = architecture.variant(row)
    named = ", ".join(filter(None, (row["protocol"], of_model)))
    plain = _LABELS.get((row["protocol"], of_model), named)
    return method.variant(row) or task.variant(row) or plain


def split_by_variant(table: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """The rows of each variant with its label, in the order of VARIANTS and then of names."""
    labels = variant(table)
    order = [*VARIANTS.values(), *sorted(set(labels) - set(VARIANTS.values()))]
    if (labels != OPTIMUM).any():  # Beside what is trained, the optimum is its floor, no variant.
        order = [label for label in order if label != OPTIMUM]
    return [(label, table[labels == label]) for label in order if (labels == label).any()]
