"""memobench list: the experiments with their presets."""

from memobench.command import PLUGIN, Command, choose


def run(names: list[str]) -> None:
    """Lists experiments with their presets and sizes."""
    from memobench.experiments import EXPERIMENTS

    chosen = choose(names or list(EXPERIMENTS))
    width = max(len(experiment.name) for experiment in chosen)
    for experiment in chosen:
        sizes = ", ".join(f"{name} {len(runs)} runs" for name, runs in experiment.presets.items())
        print(f"{experiment.name:{width}s} {experiment.title} ({sizes})")


COMMAND = Command(run, "EXPERIMENT", (PLUGIN,))
