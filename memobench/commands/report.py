"""memobench report: the pages of experiments from a results folder."""

from absl import logging

from memobench.command import OUTPUT, PLUGIN, PRESET, RESULTS, SEEDS, Command, choose
from memobench.errors import UserError


def run(names: list[str]) -> None:
    """Writes figure, verdicts and tables of experiments into --output."""
    experiments = choose(names, PRESET.value)
    from memobench.report import experiment as page
    from memobench.report import verdicts
    from memobench.table.results import check_writable, load_results

    table = load_results(RESULTS.value)
    output = check_writable(OUTPUT.value, "output")
    found = {}
    for experiment in experiments:
        wanted = {run.run_id for run in experiment.runs(PRESET.value, SEEDS.value)}
        rows = table[table["run_id"].isin(wanted)].reset_index(drop=True)
        if not rows.empty:
            found[experiment.name] = (experiment, rows, SEEDS.value)
            continue
        missing = f"{RESULTS.value} holds no run of {experiment.name} --preset={PRESET.value}"
        first = f"first: memobench run {experiment.name} --preset={PRESET.value}"
        if len(experiments) == 1:
            raise UserError(f"{missing}; {first}")
        logging.warning("left out: %s; %s", missing, first)
    for experiment, rows, seeds in found.values():
        text = page.write(experiment, PRESET.value, rows, output, seeds)
        print(text if len(experiments) == 1 else f"Written to {output / experiment.name}.md")
    if len(found) > 1:
        print(verdicts.write(found, PRESET.value, output))
        print(f"Written to {output / 'VERDICTS.md'}")


COMMAND = Command(run, "EXPERIMENT", (PRESET, SEEDS, RESULTS, OUTPUT, PLUGIN))
