"""memobench certify: counts what the weights in certificates know."""

import json

from absl import flags

from memobench.cli.command import PLUGIN, Command
from memobench.common import strict_json
from memobench.common.errors import UserError

JSON = flags.DEFINE_bool("json", False, "Print every number of each file, a line of JSON each.")
# Columns of the board, as it would show one file alone.
_SHOWN = ("n_params", "certified_bits_per_parameter", "certified_set", "bits_per_byte")


def run(names: list[str]) -> None:
    """Runs the weights of certificates and counts what they know; believes nothing else."""
    if not names:
        raise UserError("name a file: memobench certify FILE...")
    import pandas as pd

    from memobench.board import table as standard
    from memobench.certificates import counting

    counted, wrong = [], []
    for name in names:
        try:
            counted.append(counting.certify(name))
        except UserError as error:
            wrong.append(str(error))
    if JSON.value:
        for row in counted:
            print(json.dumps({name: strict_json.or_null(x) for name, x in row.items()}))
    elif counted:
        columns = [standard.COLUMNS[name] for name in _SHOWN]
        rows = [row | standard.summarize_weights([row]) for row in counted]
        shown = pd.DataFrame(counted)[["file", "n_examples", "known"]]
        shown = shown.assign(**{x.label: [x.text(row) for row in rows] for x in columns})
        print(shown.to_string(index=False))
    if wrong:
        raise UserError("\n".join(wrong))


COMMAND = Command(run, "FILE", (JSON, PLUGIN))
