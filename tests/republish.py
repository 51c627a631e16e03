"""Makes published pages, verdicts and figures anew from the published tables of runs.

For changes of statistics, pages and figures: the tables stay as they are, and shards are not
needed. All experiments, or those of the names given; NAME.png is kept where its figure is of lists,
which tables of runs do not have:

    python -m tests.republish [NAME ...]
"""

import dataclasses
import pathlib
import sys
from typing import Any

import pandas as pd

from memobench.analysis import seeds as analysis
from memobench.common import folders
from memobench.experiment import Experiment
from memobench.experiments import EXPERIMENTS
from memobench.experiments.mahdavi2024.figure import Picture
from memobench.report import experiment as page
from memobench.report import tables, verdicts
from memobench.report.drawing import save
from memobench.store import published


@dataclasses.dataclass(frozen=True)
class Published:
    """An experiment as it is published. seeds: how many of the preset's, None for all."""

    experiment: Experiment
    preset: str
    known: pd.DataFrame
    seeds: int | None
    base: pathlib.Path

    def page(self) -> tuple[str, pd.DataFrame]:
        """The text and the verdicts of its page."""
        return page.page(self.experiment, self.preset, self.known, self.seeds)

    @property
    def pictured(self) -> bool:
        """Whether its figure can be drawn from its table."""
        listed = isinstance(self.experiment.figure, Picture)
        return not listed and self.preset not in self.experiment.too_short

    def draw(self) -> Any:
        """Its figure."""
        return self.experiment.figure.draw(self.experiment, self.preset, self.known)


def paths() -> dict[str, pathlib.Path]:
    """The published tables of runs by their names below results/."""
    found = [path for of_presets in published.files().values() for path in of_presets.values()]
    folder = folders.published()
    return {str(x.relative_to(folder)).removesuffix(published.ENDING): x for x in sorted(found)}


def read(path: pathlib.Path) -> Published:
    """What belongs to a published table of runs."""
    *folder, paper, _ = path.relative_to(folders.published()).parts
    experiment = EXPERIMENTS[f"{paper}/{path.name.removesuffix(published.ENDING)}"]
    preset = {"": published.QUICK, "five-seeds": "full"}.get("/".join(folder), "/".join(folder))
    known = analysis.add_theory(published.read(path))
    n_seeds, declared = int(known["seed"].max()) + 1, {x.seed for x in experiment.runs(preset)}
    seeds = n_seeds if n_seeds < len(declared) else None
    base = path.with_name(path.name.removesuffix(published.ENDING))
    return Published(experiment, preset, known, seeds, base)


def main(names: list[str]) -> None:
    """Writes pages, verdicts, figures and VERDICTS.md."""
    found = {name: path for name, path in paths().items() if name in names or not names}
    for name, path in found.items():
        each = read(path)
        text, decided = each.page()
        each.base.with_suffix(".md").write_text(text)
        tables.write_csv(decided, pathlib.Path(f"{each.base}{verdicts.ENDING}"))
        if each.pictured:
            save(each.draw(), each.base.with_suffix(".png"))
        elif each.preset in each.experiment.too_short:
            each.base.with_suffix(".png").unlink(missing_ok=True)
        print(name, flush=True)
    verdicts.write(folders.published())


if __name__ == "__main__":
    main(sys.argv[1:])
