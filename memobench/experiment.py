"""An experiment: a named, immutable tuple of runs, and what was published about them."""

import dataclasses
from collections.abc import Mapping

import pandas as pd

from memobench.specs import Run


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experiment:
    """A sweep that answers one question.

    presets: `full` is the paper's whole grid; `quick` fits into minutes on two CPU cores.
    left_out: one line that says what `quick` leaves out of `full`.
    published: accuracies from the paper, each with the sizes (in our column names) it belongs to
    and with `published` and `published_steps`.
    """

    name: str
    title: str
    presets: Mapping[str, tuple[Run, ...]]
    left_out: str
    published: tuple[Mapping[str, object], ...] = ()

    def published_table(self) -> pd.DataFrame:
        """The published accuracies as a table."""
        if not self.published:
            return pd.DataFrame(columns=["architecture", "published", "published_steps"])
        return pd.DataFrame([dict(row) for row in self.published])
