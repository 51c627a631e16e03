"""memobench check-submission: checks folders of submitted weights."""

import pathlib

from memobench.cli.command import PLUGIN, Command
from memobench.common.errors import UserError


def run(names: list[str]) -> None:
    """Checks submissions by running their weights."""
    if not names:
        raise UserError("name a folder: memobench check-submission FOLDER...")
    from memobench.board import copies, submissions
    from memobench.common.notation import pluralize

    wrong = []
    for name in names:
        try:
            found = submissions.read(name)
        except UserError as error:
            wrong.append(str(error))
            continue
        folder = pathlib.Path(name).resolve()
        known = copies.load_published({x.task for x in found.certificates}, submitted=True)
        others = [(path, other) for path, other in known if path.resolve().parent != folder]
        copied = [
            f"{name}: {row['file']} must compute what no other weights do, got the function of "
            f"{path}, up to scale. Leave it out."
            for row, certificate in zip(found.rows, found.certificates, strict=True)
            if (path := copies.find_original(certificate, others))
        ]
        wrong += copied
        if copied:
            continue
        print(f"ok: {name}: {pluralize(len(found.rows), 'certificate')} by {found.submitter}")
        if found.note:
            print(f"{name}: note: {found.note}")
        for file in found.code:
            print(f"{name}: review {file}, which defines what memobench does not")
    if wrong:
        raise UserError("\n".join(wrong))


COMMAND = Command(run, "FOLDER", (PLUGIN,))
