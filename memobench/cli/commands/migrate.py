"""memobench migrate: the shards of an earlier version as this version writes them."""

from memobench.cli.command import PLUGIN, RESULTS, Command
from memobench.common.errors import UserError


def run(names: list[str]) -> None:
    """Rewrites shards of earlier versions into new files: new ids and digests, same measures."""
    from memobench.table import migrate

    if len(names) > 1:
        raise UserError(f"migrate takes one folder, got {' '.join(names)}")
    folder = names[0] if names else RESULTS.value
    found = migrate.migrate_folder(folder)
    for line in found.errors:
        print(f"error: {line}")
    print(f"{found.runs:,} runs of {found.shards:,} shards were rewritten in {folder}")
    if found.errors:
        raise UserError(
            f"{len(found.errors):,} of {folder} were not rewritten; each is named above"
        )


COMMAND = Command(run, "FOLDER", (RESULTS, PLUGIN))
