"""All claims of several experiments on one page, which tells capacity from optimisation."""

import collections
import itertools
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from memobench import claims
from memobench.analysis.statistics import holm
from memobench.claims.evidence import POSITIVE, region_text
from memobench.common import atomic
from memobench.report import tables
from memobench.store.published import QUICK, list_tables

ENDING = "_verdicts.csv"

INTRODUCTION = """\
# Verdicts

Every claim under every variant: the verdict, the statistic that decides it with its 95% interval,
and the steps in round brackets (the fewest, where they differ between sizes); behind an arrow the
same with twice the steps. Of a claim and a variant that a larger preset has, too, those of the
quick preset are left out, which takes fewer steps or smaller sizes, and those without a statistic
where another larger preset has one. The page of each experiment says what the statistic is and in
which range the claim is true, has the evidence, names the device that measured it, and says how
many seeds would decide what is undecided.

Behind the interval is the region in which the claim counts as true, and the distance of the
statistic from the nearest end of that region that is not zero. Where a claim gives a value, it
stands before the region, and the distance is from this value, *excluded* where the interval leaves
it out: a claim with a margin may hold where its own value is excluded. What is undecided for
another reason than its interval gives that reason.

Every interval is one of 95% by itself: of a hundred statistics at the edge of their regions two or
three look decided by chance. {standing}
Claims on every run have no interval: they hold where every run that did not diverge keeps them,
even if there is only one. A claim that was made for another design than that of the runs, such as
larger models, is *not tested there*: it has a statistic, and no verdict.

Written by `memobench report`; never edited by hand.
"""
# What a reader must know of a paper's variants.
OF_PAPER = {
    "blocks": "Where a page names no paper these are expectations of ours, at its sizes.",
    "dana2025": "At equal steps, what (b) decides differently from (a) is a matter of "
    "optimisation, and what (c) decides differently from (b) is a matter of the released code's "
    "compressed heads (where d_h = d there is no compression, and (c) differs only in where "
    "positions are added). Quick presets take fewer steps under (b) and (c) than under (a).",
    "mahdavi2024": "Quick presets are the same sweeps on models of a quarter of the width and sets "
    "of hundreds of examples.",
}

_NUMBERS = ("estimate", "low", "high", "least", "most", "seeds")
_TINY = 1e-300
_COLUMNS = (*claims.VARIANTS.values(), claims.OPTIMUM)


def write(folder: pathlib.Path) -> str:
    """Writes VERDICTS.md from the NAME_verdicts.csv below a folder, and returns its text."""
    text = page(read(folder))
    atomic.replace_text(folder / "VERDICTS.md", text)
    return text


def read(folder: pathlib.Path) -> dict[tuple[str, str], pd.DataFrame]:
    """The tables NAME_verdicts.csv below a folder, by experiment and preset."""
    return {
        (name, preset): pd.read_csv(path, keep_default_na=False)
        for name, presets in list_tables(folder, ENDING).items()
        for preset, path in presets.items()
    }


def page(verdicts: Mapping[tuple[str, str], pd.DataFrame]) -> str:
    """The text of VERDICTS.md, from tables of verdicts by experiment and preset."""
    verdicts = _without_superseded(verdicts)
    parts = [INTRODUCTION.format(standing=count_standing(verdicts))]
    several = len({preset for _, preset in verdicts}) > 1
    # The quick preset is the first of an experiment's.
    order = sorted(verdicts, key=lambda key: (key[0], key[1] != QUICK, key[1]))
    for paper, keys in itertools.groupby(order, key=lambda key: key[0].partition("/")[0]):
        rows = [
            {"experiment": key[0], **({"preset": key[1]} if several else {}), **row}
            for key in keys
            for row in _rows(verdicts[key])
        ]
        if not rows:  # Its experiments decide no claim.
            continue
        table = pd.DataFrame(rows).fillna("")
        table = table[[column for column in table.columns if (table[column] != "").any()]]
        introduction = [OF_PAPER[paper], ""] if paper in OF_PAPER else []
        parts += [f"## {paper}", "", *introduction, tables.markdown(table, {}), ""]
    return "\n".join(parts)


def count_standing(verdicts: Mapping[tuple[str, str], pd.DataFrame]) -> str:
    """The number of decided verdicts that stand after correction for their number, in words.

    Every claim counts once under each variant, by its larger preset, most steps and most seeds. The
    correction is for all statistics that have an interval, also those that it leaves undecided.
    """
    tables_of = [
        found.assign(experiment=experiment)
        for (experiment, _), found in _without_superseded(verdicts).items()
        if len(found)
    ]
    if not tables_of:
        return ""
    rows = pd.concat(tables_of, ignore_index=True)
    numbers = rows[[*_NUMBERS]].apply(pd.to_numeric, errors="coerce")
    rows = rows.assign(**numbers).dropna(subset=["low", "high"])
    most_first = rows.sort_values(["steps", "seeds"], ascending=False, kind="stable")
    one_each = most_first.drop_duplicates(["experiment", "claim", "variant"])
    one_each = one_each[one_each["verdict"] != claims.NOT_TESTED]
    decided: list[Any] = one_each[one_each["verdict"] != claims.UNDECIDED].to_dict("records")
    p_values = [
        claims.p_value(
            row["estimate"], row["low"], row["high"], (row["least"], row["most"]), row["seeds"]
        )
        for row in decided
    ]
    if not p_values:
        return ""
    standing = holm([*p_values, *[1.0] * (len(one_each) - len(decided))])
    return (
        f"With every claim counted once under each variant, at the most steps, {len(standing):,} "
        f"verdicts have intervals; {len(p_values):,} are decided by them, and {sum(standing):,} "
        f"stand after Holm's correction for all {len(standing):,}."
    )


def _without_superseded(
    verdicts: Mapping[tuple[str, str], pd.DataFrame],
) -> dict[tuple[str, str], pd.DataFrame]:
    """The verdicts but for those that another preset's on the same claim and variant replace.

    Those of quick presets are, where a larger one has any, and those without a statistic, where
    another larger one has one.
    """
    of_pair = collections.defaultdict[Any, set[str]](set)
    with_interval = collections.defaultdict[Any, set[str]](set)
    for (experiment, preset), found in verdicts.items():
        for row in found.to_dict("records"):
            pair = experiment, row["claim"], row["variant"]
            of_pair[pair].add(preset)
            if _has_interval(row) and preset != QUICK:
                with_interval[pair].add(preset)

    def is_kept(experiment: str, preset: str, row: Mapping[Any, Any]) -> bool:
        pair = experiment, row["claim"], row["variant"]
        if preset == QUICK and of_pair[pair] != {QUICK}:
            return False
        lacks = row["verdict"] == claims.UNDECIDED and not _has_interval(row)
        return not (lacks and with_interval[pair] - {preset})

    return {
        (experiment, preset): found.loc[
            [is_kept(experiment, preset, row) for row in found.to_dict("records")]
        ]
        for (experiment, preset), found in verdicts.items()
    }


def _show_beside(value: float, ends: Sequence[float]) -> str:
    """The number with the fewest digits, three or more, that tell it from each of the ends."""
    for digits in range(3, 7):
        shown = f"{value:.{digits}g}"
        near = float(shown)
        if all((near > end, near < end) == (value > end, value < end) for end in ends):
            break
    return shown


def _has_interval(row: Mapping[Any, Any]) -> bool:
    return not pd.isna(pd.to_numeric(row["low"], errors="coerce"))


def _rows(verdicts: pd.DataFrame) -> list[dict[str, str]]:
    rows: dict[str, dict[str, str]] = {
        claim: {"claim": claim, **dict.fromkeys(_COLUMNS, "")} for claim in verdicts["claim"]
    }
    by_steps = verdicts.sort_values("steps", kind="stable")
    groups: Any = by_steps.groupby(["claim", "variant"], sort=False)
    for (claim, variant), found in groups:
        decided = [
            f"{row['verdict']}{estimate_of(row)}{_reason(row)} ({row['steps']:,})"
            for row in found.to_dict("records")
        ]
        rows[claim][variant] = " → ".join(decided)
    return list(rows.values())


def _reason(row: Mapping[Any, Any]) -> str:
    """The reason of an undecided claim behind a colon; "" where its interval is the reason."""
    if row["verdict"] != claims.UNDECIDED:
        return ""
    if claims.MISSING in row["evidence"]:
        return ": runs missing"
    low, high, least, most = (
        pd.to_numeric(row[name], errors="coerce") for name in ("low", "high", "least", "most")
    )
    if low <= least <= high or low <= most <= high:
        return ""
    return f": {row['evidence'].partition('; ')[0]}"


def estimate_of(row: Mapping[Any, Any]) -> str:
    """A verdict's statistic and interval behind a comma; empty where it has none.

    Behind them the region in which the claim counts as true, and the distance from its nearest end
    that is not zero; of a claim that gives a value that value and the distance from it, which is
    excluded if it lies outside the interval.

    >>> row = dict(estimate=1.5, low=1.4, high=1.6, claimed=1, least=2 / 3, most=1.5)
    >>> estimate_of(row)
    ', 1.5 [1.4, 1.6] against 1 (0.667 to 1.5): +0.5, excluded'
    >>> estimate_of(row | {"low": 0.9}), estimate_of(row | {"claimed": ""})
    (', 1.5 [0.9, 1.6] against 1 (0.667 to 1.5): +0.5', ', 1.5 [1.4, 1.6] against 0.667 to 1.5: +0')
    >>> estimate_of(row | {"claimed": "", "least": 2.22507e-308, "most": math.inf})
    ', 1.5 [1.4, 1.6] against above 0'

    The ends have as many digits as tell them from those of the region.

    >>> estimate_of(row | {"claimed": "", "high": 1.5001, "low": 0.66662})
    ', 1.5 [0.6666, 1.5001] against 0.667 to 1.5: +0'
    """
    names = ("estimate", "low", "high", "claimed", "least", "most")
    numbers = [float(pd.to_numeric(row[name], errors="coerce")) for name in names]
    _, low, high, _, *ends_of_region = numbers
    if math.isnan(low) or math.isnan(high):
        return ""
    shown = ", ".join(_show_beside(end, ends_of_region) for end in (low, high))
    estimate, _, _, claimed, least, most = (float(f"{number:.3g}") for number in numbers)
    found = f", {estimate:.3g} [{shown}]"
    # Of the least positive number a table has a few digits.
    region = region_text(POSITIVE if 0 < least < _TINY else (least, most))
    if math.isnan(claimed):
        ends = [end for end in (least, most) if math.isfinite(end) and abs(end) > _TINY]
        if not ends:
            return f"{found} against {region}"
        distance = min((estimate - end for end in ends), key=abs)
        return f"{found} against {region}: {distance:+.3g}"
    excluded = "" if low <= claimed <= high else ", excluded"
    return f"{found} against {claimed:g} ({region}): {estimate - claimed:+.3g}{excluded}"
