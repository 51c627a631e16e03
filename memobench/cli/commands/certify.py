"""memobench certify: counts what the weights in certificates know."""

import json

from absl import flags

from memobench.cli.command import PLUGIN, Command
from memobench.common.errors import UserError
from memobench.numerics.precision import COARSE

JSON = flags.DEFINE_bool("json", False, "Print every number of each file, a line of JSON each.")
_SHOWN = ("architecture", "n_params", "n_examples", "known", "bits", "bits_per_parameter")
_PER_BYTE = ("bits_per_byte", *(f"bits_per_byte_{x}" for x in COARSE))


def run(names: list[str]) -> None:
    """Runs the weights of certificates and counts what they know; believes nothing else."""
    if not names:
        raise UserError("name a file: memobench certify FILE...")
    import pandas as pd

    from memobench.certificates import counting

    counted, wrong = [], []
    for name in names:
        try:
            counted.append(counting.certify(name))
        except UserError as error:
            wrong.append(str(error))
    if JSON.value:
        for row in counted:
            print(json.dumps(row))
    elif counted:
        shown = pd.DataFrame(counted)[["file", *_SHOWN, *_PER_BYTE]]
        print(shown.to_string(index=False, float_format="{:.3f}".format, na_rep=""))
    if wrong:
        raise UserError("\n".join(wrong))


COMMAND = Command(run, "FILE", (JSON, PLUGIN))
