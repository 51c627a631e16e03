"""memobench status: the status of a results folder, by `runtime.status`."""

from memobench.cli.command import RESULTS, Command


def run(_: list[str]) -> None:
    """Shows what is being trained into --results just now."""
    from memobench.runtime import status

    print(status.text(RESULTS.value))


COMMAND = Command(run, flags=(RESULTS,))
