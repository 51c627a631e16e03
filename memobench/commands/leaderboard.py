"""memobench leaderboard: the table of who memorizes how much, from a results folder."""

from memobench.command import OUTPUT, PLUGIN, RESULTS, Command
from memobench.errors import UserError


def run(_: list[str]) -> None:
    """Writes LEADERBOARD.md, leaderboard.html, .csv and .tex into --output."""
    from memobench import submissions
    from memobench.report import leaderboard
    from memobench.table.results import check_writable, load_results

    table = load_results(RESULTS.value)
    if table.empty:
        raise UserError(f"{RESULTS.value} holds no run; first: memobench run EXPERIMENT")
    output = check_writable(OUTPUT.value, "output")
    submitted = submissions.table(submissions.load_folder(output / "submissions"))
    print(leaderboard.write(table, output, submitted))
    print(f"Written to {output / 'LEADERBOARD.md'} and {output / 'leaderboard.html'}")


COMMAND = Command(run, flags=(RESULTS, OUTPUT, PLUGIN))
