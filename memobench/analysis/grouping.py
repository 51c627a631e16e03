"""Groups of a table's rows by many columns at once."""

import functools
from collections.abc import Iterable

import numpy as np
import pandas as pd


def group_rows(table: pd.DataFrame, names: Iterable[str]) -> np.ndarray:
    """The number of every row's group, group_R: from 0, as groups of equal values first appear.

    What `groupby` would say, but fast for the hundred columns of a configuration, most of which
    have one value.
    """
    columns = (table[name] for name in names)
    return functools.reduce(split_groups, columns, np.zeros(len(table), dtype=np.int64))


def find_varying(table: pd.DataFrame, group_R: np.ndarray, names: Iterable[str]) -> list[str]:
    """The columns in which rows of one group differ."""
    n_groups = group_R.max(initial=0)
    return [name for name in names if split_groups(group_R, table[name]).max(initial=0) > n_groups]


def split_groups(group_R: np.ndarray, values: pd.Series) -> np.ndarray:
    """The groups of rows, split further by values; missing values are equal."""
    code_R, distinct = pd.factorize(values, use_na_sentinel=False)
    if len(distinct) < 2:
        return group_R
    return pd.factorize(group_R * len(distinct) + code_R)[0]


def add_keys(of_groups: pd.DataFrame) -> pd.DataFrame:
    """Groups of rows with the columns that group them, of which there may be hundreds.

    `reset_index` inserts one after the other, and pandas warns of tables in so many pieces.
    """
    keys = of_groups.index.to_frame(index=False)
    return pd.concat([keys, of_groups.reset_index(drop=True)], axis=1).copy()
