"""memobench list: the experiments with their presets."""

from memobench.cli.command import PLUGIN, Command, choose


def run(names: list[str]) -> None:
    """Lists experiments with their presets and sizes."""
    from memobench.experiment import load_experiments

    chosen = choose(names or list(load_experiments()))
    width = max(len(experiment.name) for experiment in chosen)
    for experiment in chosen:
        sizes = ", ".join(f"{name} {len(runs)} runs" for name, runs in experiment.presets.items())
        print(f"{experiment.name:{width}s} {experiment.title} ({sizes})")


COMMAND = Command(run, "EXPERIMENT", (PLUGIN,))
