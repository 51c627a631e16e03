"""memobench leaderboard: the board of published rows and those of a results folder."""

import pathlib

from memobench.cli.command import OUTPUT, PLUGIN, RESULTS, Command, format_command


def run(_: list[str]) -> None:
    """Writes LEADERBOARD.md, leaderboard.html and leaderboard.csv into --output."""
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
    mine = leaderboard.own_entries(output)
    if mine:
        print(f"Yours on the board:\n\n{mine}\n")
    if off := leaderboard.explain_off_board(own):
        print(f"{off}\n")
    if not mine:
        print(f"{_explain_entry()}\n")
    print(f"Written to {output / 'LEADERBOARD.md'} and {output / 'leaderboard.html'}")


def _explain_entry() -> str:
    """The command of a run that the board ranks, and how long it takes here."""
    from memobench.experiment import load_experiments
    from memobench.runtime import sweep
    from memobench.store.results import load_rows

    rows = load_rows(RESULTS.value)
    runs = load_experiments()["board/peak"].runs("entry")
    packs = sweep.plan(runs, done=rows)
    seconds = sweep.predict(packs, rows.values()).wall_seconds
    return (
        f"A run that is ranked, in about {seconds:.0f} s here:\n"
        f"    {format_command('run board/peak --preset=entry')}\n"
        f"    {format_command('leaderboard')}\n"
        "One of your own architecture, which may take minutes: give an Experiment of your file\n"
        '    presets={"quick": [memobench.board_run(architecture, budget=256)]}\n'
        f"    {format_command('run FILE')}\n"
        f"    {format_command('leaderboard --plugin=FILE')}"
    )


COMMAND = Command(run, flags=(RESULTS, OUTPUT, PLUGIN))
