"""Trainings of the main families, with the bits per parameter that each came to know."""

from typing import Any

import numpy as np
import pandas as pd

from memobench.board import capacity_summary
from memobench.numerics import metrics
from memobench.store.rows import architecture_columns


def known_bits(table: pd.DataFrame) -> pd.DataFrame:
    """The exact trainings of a table whose architecture is on a side, with what they know.

    Args:
      table: of runs.

    Returns:
      Their rows and further columns: budget; shape, a number of each architecture; side and heads
      (`Architecture.side`), family and entry, its name and sizes; bits_per_parameter of all labels,
      weighted by how often each is asked, 0 of a training that diverged.
    """
    rows = table.query("method == 'trained' and protocol == 'exact'")
    if rows.empty:
        return rows.assign(budget=0)
    shapes = rows.groupby(architecture_columns(), dropna=False, sort=False).ngroup()
    examples: list[Any] = rows.loc[~shapes.duplicated()].to_dict("records")
    known_as = [capacity_summary.architecture(row) for row in examples]
    sides = [each.side if each else ("", "") for each in known_as]
    entries = [" ".join(each.shown_sizes) if each else "" for each in known_as]
    bits = metrics.memorized_bits(rows["loss"], rows["n_examples"], rows["vocab_size"])
    rows = rows.assign(
        budget=rows["n_params"].map(capacity_summary.budget),
        shape=shapes,
        side=[sides[shape][0] for shape in shapes],
        heads=[sides[shape][1] for shape in shapes],
        family=[each.family if each else "" for each in map(known_as.__getitem__, shapes)],
        entry=[entries[shape] for shape in shapes],
        bits_per_parameter=np.where(rows["status"] == "ok", bits, 0) / rows["n_params"],
    )
    return rows[rows["side"] != ""]
