"""memobench report: the pages of experiments from a results folder."""

import pathlib
import shlex
from typing import TYPE_CHECKING

from absl import flags, logging

from memobench.cli.command import (
    OUTPUT,
    PLUGIN,
    PRESET,
    RESULTS,
    SEEDS,
    Command,
    choose,
    format_command,
)
from memobench.common import folders
from memobench.common.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

    from memobench.experiment import Experiment


PUBLISH = flags.DEFINE_bool(
    "publish",
    False,
    "Write into results/ of this checkout instead, with the published rows that --results lacks.",
)


def run(names: list[str]) -> None:
    """Writes figure, verdicts and tables of experiments into --output."""
    experiments = choose(names, PRESET.value)
    from memobench.report import experiment as page
    from memobench.report import verdicts
    from memobench.store.results import check_writable, load_results

    table = load_results(RESULTS.value)
    whole = check_writable(_published_folder() if PUBLISH.value else OUTPUT.value, "output")
    output = folders.of_preset(whole, PRESET.value)
    files = [name for name in names if name.endswith(".py")]
    files += [f"--plugin={file}" for file in PLUGIN.value]
    found = {}
    for experiment in experiments:
        wanted = {run.run_id for run in experiment.runs(PRESET.value, SEEDS.value)}
        rows = table[table["run_id"].isin(wanted)].reset_index(drop=True)
        if not rows.empty:
            found[experiment.name] = (experiment, rows)
            continue
        missing = f"{RESULTS.value} holds no run of {experiment.name} --preset={PRESET.value}"
        words = f"run {shlex.join([experiment.name, *files])} --preset={PRESET.value}"
        first = f"first: {format_command(words)}"
        if len(experiments) == 1:
            raise UserError(f"{missing}; {first}")
        logging.warning("left out: %s; %s", missing, first)
    if PUBLISH.value:
        found = {name: (x, _add_published(x, rows)) for name, (x, rows) in found.items()}
    for experiment, rows in found.values():
        text = page.write(experiment, PRESET.value, rows, output, SEEDS.value)
        print(text if len(experiments) == 1 else f"Written to {output / experiment.name}.md")
    # Of all presets there is one page.
    verdicts.write(whole)
    print(f"Written to {whole / 'VERDICTS.md'}")


def _published_folder() -> pathlib.Path:
    """The folder of this checkout in which presets are published."""
    if OUTPUT.present:
        raise UserError(f"--publish writes into results/; leave out --output={OUTPUT.value}")
    folder = folders.CHECKOUT / "results"
    if folders.published() != folder or not folder.is_dir():
        raise UserError("--publish needs a checkout of memobench; leave it out")
    return folder


def _add_published(experiment: "Experiment", rows: "pd.DataFrame") -> "pd.DataFrame":
    """The rows with those of the preset's other runs that any experiment has published."""
    import pandas as pd

    from memobench.store import published

    declared = {run.run_id for run in experiment.runs(PRESET.value, SEEDS.value)}
    of_more_seeds = {run.run_id for run in experiment.runs(PRESET.value)} - declared
    if of_more_seeds & published.run_ids(experiment.name, PRESET.value):
        raise UserError(
            f"{experiment.name} --preset={PRESET.value} is published with more than --seeds="
            f"{SEEDS.value}; leave --seeds out, or give more"
        )
    kept = published.rows_of(declared - set(rows["run_id"]))
    if kept is None:
        return rows
    print(
        f"{experiment.name}: {len(rows)} runs of {RESULTS.value}, "
        f"{len(kept)} others as they are published"
    )
    return pd.concat([rows, kept.reindex(columns=list(rows))], ignore_index=True)


COMMAND = Command(run, "EXPERIMENT", (PRESET, SEEDS, RESULTS, OUTPUT, PUBLISH, PLUGIN))
