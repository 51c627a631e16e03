"""memobench status: what is going on in a results folder, as `runtime.status` puts it."""

from memobench.cli.command import RESULTS, Command


def run(_: list[str]) -> None:
    """Shows what is being trained into --results just now."""
    from memobench.runtime import status

    print(status.text(RESULTS.value))


COMMAND = Command(run, flags=(RESULTS,))
