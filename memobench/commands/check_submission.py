"""memobench check-submission: whether folders of submitted weights are valid."""

from memobench.command import PLUGIN, Command
from memobench.errors import UserError


def run(names: list[str]) -> None:
    """Checks submissions by running their weights."""
    if not names:
        raise UserError("name a folder: memobench check-submission FOLDER...")
    from memobench import board, submissions
    from memobench.notation import plural

    wrong = []
    for name in names:
        try:
            found = submissions.read(name)
        except UserError as error:
            wrong.append(str(error))
            continue
        off = {row["file"]: board.off_board(*board.task_and_size(row)) for row in found.rows}
        if any(off.values()):
            wrong += [f"{name}: {file}: {reason}" for file, reason in off.items() if reason]
            continue
        print(f"ok: {name}: {plural(len(found.rows), 'certificate')} by {found.submitter}")
        for file in found.code:
            print(f"{name}: review {file}, which defines what memobench does not")
    if wrong:
        raise UserError("\n".join(wrong))


COMMAND = Command(run, "FOLDER", (PLUGIN,))
