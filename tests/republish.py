"""Writes published verdicts anew from published tables of runs, whose shards are not at hand.

For changes of statistics. Of pages the sections that hold verdicts change, since tables of runs
have fewer digits than shards. Figures of the names given are drawn anew:

    python -m tests.republish capacity/exposure_verdicts.csv
"""

import dataclasses
import pathlib
import re
import sys
import tempfile
from typing import Any

from memobench.report import experiment as page
from memobench.report import verdicts
from tests import test_published_tables as published

SECTIONS = ("Verdicts", "Attention over MLP")


def main(drawn: list[str]) -> None:
    """Writes verdicts, the sections about them and both VERDICTS.md."""
    for preset, folder in (("quick", published.PUBLISHED), ("full", published.PUBLISHED / "full")):
        found: dict[str, Any] = {}
        for name in published.VERDICTS:
            experiment, preset_of = published._experiment(name)
            if preset_of != preset:
                continue
            known = published._known(name)
            n_seeds = int(known["seed"].max()) + 1
            n_declared = len({run.seed for run in experiment.runs(preset)})
            seeds = n_seeds if n_seeds < n_declared else None
            found[experiment.name] = (experiment, known, seeds)
            is_drawn = name in drawn
            if not is_drawn:
                experiment = dataclasses.replace(experiment, figure=_Undrawn(experiment.figure))
            with tempfile.TemporaryDirectory() as temporary:
                text = page.write(experiment, preset, known, pathlib.Path(temporary), seeds)
                made, kept = (pathlib.Path(x) / experiment.name for x in (temporary, folder))
                for suffix in ("_verdicts.csv", ".png") if is_drawn else ("_verdicts.csv",):
                    path = kept.with_name(kept.name + suffix)
                    path.write_bytes(made.with_name(made.name + suffix).read_bytes())
            path = kept.with_name(kept.name + ".md")
            path.write_text(_spliced(path.read_text(), text))
            print(name, flush=True)
        # The page of the full presets has those of one paper.
        shown = {name: x for name, x in found.items() if preset == "quick" or "dana" in name}
        verdicts.write(shown, preset, folder)


def _spliced(page: str, new: str) -> str:
    """The page with its line on runs and its sections on verdicts from the new one."""
    first = r"^`.*?`, preset `.*$"
    line = re.search(first, new, re.MULTILINE)
    assert line
    page = re.sub(first, lambda _: line[0], page, count=1, flags=re.MULTILINE)
    for name in SECTIONS:
        section = rf"^## {name}\n.*?(?=^## |\Z)"
        if found := re.search(section, new, re.MULTILINE | re.DOTALL):
            text = found[0]
            page = re.sub(section, lambda _: text, page, flags=re.MULTILINE | re.DOTALL)  # noqa: B023
    return page


class _Undrawn:
    """A figure that is there already."""

    def __init__(self, figure: Any) -> None:
        self.sections = figure.sections

    def draw(self, *_: Any) -> None:
        pass


if __name__ == "__main__":
    main(sys.argv[1:])
