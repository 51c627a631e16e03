"""memobench check-submission: whether files of submitted runs are valid."""

from memobench.command import PLUGIN, Command
from memobench.errors import UserError


def run(names: list[str]) -> None:
    """Checks files of submissions; retrains nothing."""
    if not names:
        raise UserError("name a file: memobench check-submission FILE...")
    from memobench import submissions

    wrong = []
    for name in names:
        try:
            found = submissions.read(name)
            submissions.require_new(name, found)
        except UserError as error:
            wrong.append(str(error))
        else:
            print(f"ok: {name}: {len(found.rows)} runs by {found.submitter}")
    if wrong:
        raise UserError("\n".join(wrong))


COMMAND = Command(run, "FILE", (PLUGIN,))
