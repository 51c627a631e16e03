"""Points of papers that are published at their own size, their agreement, and their verdicts.

A point is a task, an architecture and a method of the preset `paper`, whatever its seed. A preset
is of the paper's own size if it is `paper`, `full`, or holds only runs of `paper`.
"""

import collections
import dataclasses
import functools
import itertools
import os
import pathlib
import unittest.mock
from collections.abc import Iterable, Mapping

import pandas as pd

from memobench.analysis import seeds as analysis
from memobench.claims import FAILS, HOLDS, MIN_SEEDS, MISSING, NOT_TESTED, UNDECIDED
from memobench.common import notation
from memobench.core.run import Run
from memobench.engine import resident
from memobench.experiment import Experiment
from memobench.experiments import EXPERIMENTS
from memobench.planner import costs, packing
from memobench.report import experiment as pages
from memobench.report import tables
from memobench.report.verdicts import ENDING, estimate_of
from memobench.store import published

# The folder of the experiments of each paper that has a page of its own in docs/.
PAPERS = {
    "dana2025": "dana2025",
    "mahdavi2024": "mahdavi2024",
    "nichani2025": "capacity",
    "hebbian2026": "hebbian2026",
}
_ENOUGH = f"with {MIN_SEEDS} seeds"
# What time is counted in, on each platform.
_HOURS = {"cpu": "core-hours", "gpu": "GPU-hours", "tpu": "TPU-hours"}
# Where planned costs hold: two CPU cores, which train two packs side by side, by XLA's programs.
_DEVICE, _WORKERS = "AMD EPYC, 2 cores", 2
_POINT_DIGITS = dict.fromkeys(_HOURS.values(), 2)
_NEAR = f"within {pages.AGREES}"
_OTHERS, _NOTHING = "the quick preset alone", "nothing yet"
# Of more claims only those are listed that variants decide differently.
_MOST_CLAIMS = 12
# Where the paper repeats an experiment, by the end of our experiment's name.
_REPEATED = {"larger": "in larger dimension", "deeper": "with three layers"}


def experiments(paper: str) -> list[Experiment]:
    """The experiments that repeat runs of the paper."""
    of_folder = (x for name, x in EXPERIMENTS.items() if name.startswith(f"{PAPERS[paper]}/"))
    return [x for x in of_folder if "paper" in x.presets]


def commands(paper: str) -> str:
    """The command of each figure of the paper, with its hours, as a table in Markdown.

    Measured ones stand beside the planned where every point is published.
    """
    rows = []
    known = published.rows_of({run.run_id for run in _runs(paper)})
    is_complete = known is not None and not _count_missing(coverage(paper, known))
    for experiment in experiments(paper):
        runs = experiment.runs("paper")
        with unittest.mock.patch.dict(os.environ, {resident.VARIABLE: "0"}):
            planned = costs.predict(packing.plan(runs, "cpu"), _DEVICE, _WORKERS)
        row = {
            "of the paper": _name_source(experiment),
            "figure": tables.text(experiment.title),
            "command": f"`memobench run {experiment.name} --preset=paper --report`",
            "runs": len(runs),
            "planned core-hours": sum(planned.seconds) / 3600,
        }
        if known is not None and is_complete:
            own = known[known["run_id"].isin({run.run_id for run in runs})]
            spent = _hours(own).groupby(own["platform"].map(_HOURS)).sum()
            row |= {"runs measured": len(own), **spent.add_prefix("measured ")}
        rows.append(row)
    digits = dict.fromkeys(["planned core-hours", *(f"measured {x}" for x in _HOURS.values())], 2)
    table = tables.markdown(pd.DataFrame(rows), digits)
    return table.replace("\\`", "`")  # Commands are code.


def _name_source(experiment: Experiment) -> str:
    """The part of the paper that the experiment repeats, empty where no claim says it."""
    sources = [claim.source for claim in experiment.claims if ", " in claim.source]
    name = sources[0].rpartition(", ")[2] if sources else ""
    where = _REPEATED.get(experiment.name.rpartition("-")[2], "")
    return name if where in name else f"{name} {where}"


def summarize(paper: str) -> str:
    """Points, published means and claims of a paper, in Markdown."""
    known = published.rows_of({run.run_id for run in _runs(paper)})
    if known is None:
        return "Nothing of it is published yet."
    points, near, decided = coverage(paper, known), agreement(paper, known), claims(paper)
    parts = [
        "### Points at the paper's own size",
        f"{share(paper)}.",
        *([tables.markdown(points, _POINT_DIGITS)] if _count_missing(points) else []),
        *_other_runs(paper),
    ]
    if len(near):
        n_near, n_means = near[_NEAR].sum(), near["published means"].sum()
        parts += [
            "### Published means and ours",
            f"{n_near} of {n_means} published means that we have are met within {pages.AGREES}.",
            tables.markdown(near, dict.fromkeys(("mean difference", "farthest"), 3)),
        ]
    return "\n\n".join([*parts, "### Claims at the paper's own size", *_claim_parts(decided)])


def _claim_parts(decided: pd.DataFrame) -> list[str]:
    """The number of claims in words, and a table of them, or of the most telling of many."""
    counted = _count_claims(decided)
    listed = decided[decided["rests on"] != _NOTHING].drop(columns="rests on")
    if len(listed) > _MOST_CLAIMS:
        words = listed[listed.columns[2:]].map(lambda cell: cell.partition(",")[0].split(" ")[0])
        differ = [len({*row} - {""}) > 1 for row in words.itertuples(index=False)]
        listed = listed[differ]
        counted += f" The variants decide {len(listed)} differently:"
    return [counted, tables.markdown(listed, {})]


def _count_missing(points: pd.DataFrame) -> int:
    """The number of points in the table of coverage that are not published."""
    return int((points["points"] - points["published"]).sum())


def share(paper: str) -> str:
    """The share of the paper's points that are published, in a sentence without its end."""
    runs = _runs(paper)
    known = published.rows_of({run.run_id for run in runs})
    if known is None:
        return (
            f"none of {len(set(map(point, runs)))} points has been measured at the paper's own size"
        )
    points = coverage(paper, known)
    spent = _format_hours({x: points[x].sum() for x in _HOURS.values() if x in points})
    return (
        f"{points['published'].sum()} of {points['points'].sum()} points have been measured at the "
        f"paper's own size, {points[_ENOUGH].sum()} with three seeds, in {spent}"
    )


def _format_hours(hours: Mapping[str, float]) -> str:
    return " and ".join(f"{of:.1f} {x}" if of >= 1 else f"{of:.2g} {x}" for x, of in hours.items())


def _hours(known: pd.DataFrame) -> pd.Series:
    """The hours of each run; packs that ran side by side count each in full."""
    return (known["compile_seconds"] + known["run_seconds"]) / known["pack_size"] / 3600


def _other_runs(paper: str) -> list[str]:
    """The hours of runs of the presets `full` that the paper did not make, in a sentence."""
    presets = [x.presets.get("full", ()) for x in experiments(paper)]
    others = set(itertools.chain.from_iterable(presets)) - set(_runs(paper))
    known = published.rows_of({run.run_id for run in others})
    if known is None:
        return []
    spent = _hours(known).groupby(known["platform"].map(_HOURS)).sum()
    return [
        "Runs of the same sizes by other protocols, with other heads or with twice the steps took "
        f"{_format_hours({str(x): of for x, of in spent.items()})} more."
    ]


def _runs(paper: str) -> list[Run]:
    """The runs of the paper, each once."""
    runs = itertools.chain.from_iterable(x.runs("paper") for x in experiments(paper))
    return list(dict.fromkeys(runs))


def coverage(paper: str, known: pd.DataFrame) -> pd.DataFrame:
    """A row for each experiment, with its points, those with published rows, and their hours.

    A point of several experiments counts for the first of them.
    """
    seen, rows = set[Run](), []
    spent_of = dict(
        zip(known["run_id"], zip(known["platform"], _hours(known), strict=True), strict=True)
    )
    for experiment in experiments(paper):
        seeds, spent = collections.Counter[Run](), collections.Counter[str]()
        points = {point(run): None for run in experiment.runs("paper")}
        for run in experiment.runs("paper"):
            if run.run_id in spent_of and point(run) not in seen:
                seeds[point(run)] += 1
                platform, hours = spent_of[run.run_id]
                spent[platform] += hours
        rows.append(
            {
                "experiment": experiment.name,
                "points": len(points.keys() - seen),
                "published": len(seeds),
                _ENOUGH: sum(count >= MIN_SEEDS for count in seeds.values()),
                "most seeds": max(seeds.values(), default=0),
                **{name: spent[platform] for platform, name in _HOURS.items()},
            }
        )
        seen |= points.keys()
    table = pd.DataFrame(rows)
    unused = [x for x in _HOURS.values() if x != _HOURS["cpu"] and not table[x].any()]
    return table[table["points"] > 0].drop(columns=unused).reset_index(drop=True)


@functools.cache
def point(run: Run) -> Run:
    """The run with seed 0, also of its task, which all runs of a point have in common."""
    return dataclasses.replace(run, seed=0, task=dataclasses.replace(run.task, seed=0))


def agreement(paper: str, known: pd.DataFrame) -> pd.DataFrame:
    """The distance of our means from the paper's, a row for each experiment with such means."""
    rows = []
    for experiment in experiments(paper):
        ids = {run.run_id for run in experiment.runs("paper")}
        ours = analysis.mean_over_seeds(known[known["run_id"].isin(ids)])
        compared = analysis.compare_published(ours, experiment.published_table())
        differences = compared["difference"].dropna()
        if differences.empty:
            continue
        rows.append(
            {
                "experiment": experiment.name,
                "published means": len(differences),
                _NEAR: int((differences.abs() <= pages.AGREES).sum()),
                "mean difference": differences.abs().mean(),
                "farthest": max(differences, key=abs),
                "seeds": int(compared["seeds"].max()),
            }
        )
    return pd.DataFrame(rows)


def claims(paper: str) -> pd.DataFrame:
    """A row for each claim, with what it rests on and the verdict of every variant.

    A verdict at the paper's own size comes before one of the quick preset, the one of most seeds,
    then of most runs, before others. An arrow leads to that of twice the steps. Where runs are
    missing there is no verdict.
    """
    rows = []
    for experiment in experiments(paper):
        found = {preset: read_verdicts(experiment, preset) for preset in _presets(experiment)}
        for claim in experiment.claims:
            cells: dict[str, str] = {}
            decided = set()
            for preset, own in _presets(experiment).items():
                table = found[preset]
                mine = table[table["claim"] == claim.name].sort_values("steps", kind="stable")
                mine = mine[~mine["evidence"].str.contains(MISSING, regex=False)]
                for variant, of_steps in mine.groupby("variant", sort=False):
                    if variant not in cells:
                        cells[str(variant)] = _cell(of_steps, own)
                        decided.add((own, of_steps["verdict"].iloc[0]))
            rows.append(
                {
                    "experiment": experiment.name,
                    "claim": claim.name,
                    "rests on": _basis(decided),
                    **cells,
                }
            )
    table = pd.DataFrame(rows).fillna("")
    return table[["experiment", "claim", "rests on", *sorted(table.columns[3:])]]


def _basis(decided: Iterable[tuple[bool, str]]) -> str:
    own = {verdict for of_own, verdict in decided if of_own}
    if own & {HOLDS, FAILS}:
        return "decided"
    if NOT_TESTED in own:
        return NOT_TESTED
    return UNDECIDED if own else _OTHERS if set(decided) else _NOTHING


def _count_claims(decided: pd.DataFrame) -> str:
    """The numbers of claims by what they rest on, in words; those without a full size are named."""
    n = decided["rests on"].value_counts()
    if n.get(_OTHERS, 0) == len(decided):
        return f"All {len(decided)} claims rest on {_OTHERS}."
    undecided, elsewhere = n.get(UNDECIDED, 0), n.get(NOT_TESTED, 0)
    words = [
        f"Of {len(decided)} claims {n.get('decided', 0)} are decided at this size under one "
        f"variant or more, {undecided} {'is' if undecided == 1 else 'are'} undecided there"
        + (f", {elsewhere} of another design." if elsewhere else ".")
    ]
    for kind in (_OTHERS, _NOTHING):
        rows = decided[decided["rests on"] == kind]
        if len(rows):
            names = "; ".join(f"{x.claim} ({x.experiment})" for x in rows.itertuples())
            words.append(f"On {kind} rest {len(rows)}: {tables.text(names)}.")
    return " ".join(words)


def _cell(of_steps: pd.DataFrame, own: bool) -> str:
    first, *others = of_steps.to_dict("records")
    seeds = notation.pluralize(int(first["seeds"]), "seed")
    rests_on = seeds if own else f"{seeds}, quick"
    after = f" → {others[0]['verdict']}" if others else ""
    return f"{first['verdict']}{estimate_of(first)} ({rests_on}){after}"


def _presets(experiment: Experiment) -> dict[str, bool]:
    """The published presets, with True for those of the paper's own size; the best come first."""
    there = published.files().get(experiment.name, {})
    paper = set(experiment.runs("paper"))
    own = {
        preset: preset in ("paper", "full") or set(experiment.runs(preset)) <= paper
        for preset in there
        if preset in experiment.presets and preset not in experiment.too_short
    }
    seeds = {preset: int(read_verdicts(experiment, preset)["seeds"].max()) for preset in own}
    runs = {preset: len(experiment.runs(preset)) for preset in own}
    return dict(sorted(own.items(), key=lambda x: (not x[1], -seeds[x[0]], -runs[x[0]])))


def read_verdicts(experiment: Experiment, preset: str) -> pd.DataFrame:
    """The published verdicts of a preset."""
    runs = published.files()[experiment.name][preset]
    name = runs.name.removesuffix(published.ENDING)
    return _read(runs.with_name(f"{name}{ENDING}"))


@functools.cache
def _read(path: pathlib.Path) -> pd.DataFrame:
    return pd.read_csv(path, keep_default_na=False)
