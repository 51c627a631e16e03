"""All claims of several experiments on one page: what is capacity, and what is optimisation."""

import itertools
import pathlib
from collections.abc import Mapping
from typing import Any

import pandas as pd

from memobench import claims
from memobench.experiment import Experiment
from memobench.report import tables
from memobench.table import analysis

INTRODUCTION = """\
# Verdicts

Every claim under every variant, with the steps in brackets (the fewest, where they differ between
sizes); behind an arrow the verdict with twice the steps. Presets too short to decide anything are
left out. Evidence stands on each experiment's page.

Written by `memobench report`; never edited by hand.
"""
# What a reader must know of a paper's variants.
OF_PAPER = {
    "dana2025": "At equal steps, what (b) decides differently from (a) is a matter of "
    "optimisation, and what (c) decides differently from (b) is a matter of the released code's "
    "compressed heads (where d_h = d there is no compression, and (c) differs only in where "
    "positions are added). Quick presets take fewer steps under (b) and (c) than under (a).",
    "mahdavi2024": "Quick presets are the same sweeps on models of a quarter of the width and sets "
    "of hundreds of examples.",
}

_COLUMNS = (*claims.VARIANTS.values(), claims.OPTIMUM)


def write(
    experiments: Mapping[str, tuple[Experiment, pd.DataFrame, int | None]],
    preset: str,
    folder: pathlib.Path,
) -> str:
    """Writes VERDICTS.md into the folder and returns its text.

    Of each experiment, with its runs, as many seeds are declared as are named; all for None.
    """
    devices = {device for _, runs, _ in experiments.values() for device in runs["device"]}
    parts = [INTRODUCTION, f"Preset `{preset}`, measured on: {tables.listed(devices)}.\n"]
    by_paper = itertools.groupby(experiments.items(), key=lambda item: item[0].partition("/")[0])
    for paper, items in by_paper:
        rows = [
            {"experiment": name, **row}
            for name, (experiment, table, seeds) in items
            for row in _rows(experiment, preset, seeds, analysis.with_theory(table))
        ]
        if not rows:  # Its experiments decide no claim in this preset.
            continue
        table = pd.DataFrame(rows).fillna("")
        table = table[[column for column in table.columns if (table[column] != "").any()]]
        introduction = [OF_PAPER[paper], ""] if paper in OF_PAPER else []
        parts += [f"## {paper}", "", *introduction, tables.markdown(table, {}), ""]
    text = "\n".join(parts)
    (folder / "VERDICTS.md").write_text(text)
    return text


def _rows(
    experiment: Experiment, preset: str, seeds: int | None, table: pd.DataFrame
) -> list[dict[str, str]]:
    tested = experiment.claims_of(preset)
    verdicts = claims.verdicts(tested, table, experiment.wanted(preset, seeds))
    rows: dict[str, dict[str, str]] = {}
    by_steps = verdicts.sort_values("steps", kind="stable")
    groups: Any = by_steps.groupby(["claim", "variant"], sort=False)
    for (claim, variant), found in groups:
        decided = [f"{row.verdict} ({row.steps:,})" for row in found.itertuples()]
        row = rows.setdefault(claim, {"claim": claim, **dict.fromkeys(_COLUMNS, "")})
        row[variant] = " → ".join(decided)
    return [rows[claim.name] for claim in tested if claim.name in rows]
