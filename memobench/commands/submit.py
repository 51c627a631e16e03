"""memobench submit: one file of your runs for a pull request."""

import itertools

from absl import flags

from memobench.command import OUTPUT, PLUGIN, PRESET, RESULTS, Command, choose
from memobench.errors import UserError

SUBMITTER = flags.DEFINE_string("submitter", None, "Your name.")
URL = flags.DEFINE_string("url", None, "A link to you or to your work.")
NOTE = flags.DEFINE_string("note", None, "A sentence about your runs.")


def run(names: list[str]) -> None:
    """Writes your runs into one file, for a pull request."""
    if not SUBMITTER.value:
        raise UserError("submit needs a name: --submitter='Your Name'")
    experiments = choose(names) if names else []
    from memobench import submissions
    from memobench.table.results import check_writable, load_rows

    rows = load_rows(RESULTS.value)
    of_which, first = "", "memobench run EXPERIMENT"
    if experiments:
        of_which, first = f" of {' '.join(names)} --preset={PRESET.value}", "memobench run them"
        presets = (experiment.runs(PRESET.value) for experiment in experiments)
        wanted = {run.run_id for run in itertools.chain.from_iterable(presets)}
        rows = {run_id: row for run_id, row in rows.items() if run_id in wanted}
    if not rows:
        raise UserError(f"{RESULTS.value} holds no run{of_which}; first: {first}")
    folder = check_writable(OUTPUT.value, "output") / "submissions"
    path = submissions.write(rows.values(), SUBMITTER.value, folder, URL.value, NOTE.value)
    print(
        f"{len(rows)} runs are in {path}. Now add that file, unchanged, to results/submissions/ of "
        "a fork of memobench and open a pull request."
    )


COMMAND = Command(run, "EXPERIMENT", (SUBMITTER, URL, NOTE, PRESET, RESULTS, OUTPUT, PLUGIN))
