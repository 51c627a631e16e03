"""memobench verify: checks the shards of a results folder."""

import pathlib

from absl import flags

from memobench.cli.command import PLUGIN, RESULTS, Command
from memobench.common.errors import UserError

RECOMPUTE = flags.DEFINE_bool(
    "recompute", False, "Run kept weights, make constructed ones again, and compare what they know."
)


def run(names: list[str]) -> None:
    """Checks the shards of --results, or of a folder: digests, ids, parameters, theory."""
    from memobench.certificates import SUFFIX
    from memobench.runtime import verify

    if len(names) > 1:
        raise UserError(f"verify takes one folder, got {' '.join(names)}")
    folder = names[0] if names else RESULTS.value
    names = [path.name for path in pathlib.Path(folder).glob("*")]
    if names and all(name.endswith(SUFFIX) for name in names):
        raise UserError(
            f"{folder} holds certificates, not shards. Count what they know with: "
            f"memobench certify {folder}/*{SUFFIX}"
        )
    found = verify.verify(folder, RECOMPUTE.value)
    for kind, lines in (("error", found.errors), ("note", found.notes)):
        for line in lines:
            print(f"{kind}: {line}")
    print(found.summary)
    if found.errors:
        raise UserError(f"{folder} is not sound; every error is named above")


COMMAND = Command(run, "FOLDER", (RESULTS, RECOMPUTE, PLUGIN))
