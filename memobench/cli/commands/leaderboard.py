"""memobench leaderboard: the board of published rows and those of a results folder."""

import pathlib

from memobench.cli.command import OUTPUT, PLUGIN, RESULTS, Command


def run(_: list[str]) -> None:
    """Writes LEADERBOARD.md, leaderboard.html, .csv and .tex into --output."""
    from memobench.common import folders
    from memobench.report import leaderboard
    from memobench.store.results import check_writable, load_results, to_table

    runs, certified = leaderboard.load_published()
    # A folder that was named must be there; without one there are published rows.
    named = RESULTS.present or pathlib.Path(RESULTS.value).exists()
    own = load_results(RESULTS.value) if named else to_table([])
    output = check_writable(OUTPUT.value, "output")
    certified += leaderboard.certify_kept(own, RESULTS.value)
    if output.resolve() != folders.published().resolve():
        certified += leaderboard.load_submitted(output)
    leaderboard.write(runs, own, output, certified)
    if mine := leaderboard.own_entries(output):
        print(f"Yours on the board:\n\n{mine}\n")
    if off := leaderboard.explain_off_board(own):
        print(off)
    print(f"Written to {output / 'LEADERBOARD.md'} and {output / 'leaderboard.html'}")


COMMAND = Command(run, flags=(RESULTS, OUTPUT, PLUGIN))
