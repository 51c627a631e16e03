"""The rows that memobench has published, which come with the package.

Below `results/` the quick preset of an experiment is `NAME_runs.csv`, another one
`PRESET/NAME_runs.csv`. Numbers have six digits, but specs have all; lists that a spreadsheet cannot
use, curves say, are missing.
"""

import ast
import contextlib
import csv
import itertools
import json
import pathlib
from collections.abc import Iterable, Set
from typing import Any

import pandas as pd

from memobench.common import folders
from memobench.common.errors import UserError, require, short_repr, suggest
from memobench.common.folders import QUICK
from memobench.common.notation import match_names
from memobench.store.results import to_table
from memobench.store.rows import all_columns

ENDING = "_runs.csv"


def published(name: str | None = None, preset: str | None = None) -> pd.DataFrame:
    """The published rows of experiments, with the columns of `load_results`, or what there is.

    Args:
      name: of an experiment, such as "board/typical", a paper, such as "dana2025", or a pattern,
        such as "*/heads"; "*" has all rows. Without one the table names what is published.
      preset: "quick", "full" or another that is published; by default the rows of all of them. Of a
        run that was measured several times the latest counts.

    Raises:
      UserError: it is not published; the line lists what is.

    >>> table = published("board/typical")
    >>> bool(table["run_id"].is_unique)
    True
    >>> list(published())
    ['experiment', 'preset', 'runs']
    """
    if name is None:
        return _list_files(preset)
    require(
        isinstance(name, str), f"name={short_repr(name)} is not a name; give that of an experiment"
    )
    known = files()
    matching = match_names(known, name)
    require(matching, f"no rows of {name!r} are published{suggest(name, known, 0.6)}")
    of_presets = [(each, path) for x in matching for each, path in known[x].items()]
    paths = [path for each, path in of_presets if preset in (None, each)]
    presets = ", ".join(dict.fromkeys(each for each, _ in of_presets))
    require(paths, f"preset={preset!r} of {name} is not published; choose one of {presets}")
    return _keep_latest(paths)


def _list_files(preset: str | None) -> pd.DataFrame:
    """A row for every published table: experiment, preset and the number of runs."""
    known = files()
    presets = dict.fromkeys(each for of_name in known.values() for each in of_name)
    require(
        preset is None or preset in presets,
        f"no preset {short_repr(preset)} is published{suggest(str(preset), presets, 0.6)}",
    )
    found = [
        {"experiment": name, "preset": each, "runs": len(_ids(path))}
        for name, presets in known.items()
        for each, path in presets.items()
        if preset in (None, each)
    ]
    return pd.DataFrame(found, columns=["experiment", "preset", "runs"])


def files() -> dict[str, dict[str, pathlib.Path]]:
    """The published tables of runs: the file of each preset of each experiment."""
    folder = folders.published()
    if not folder.is_dir():
        raise UserError(f"{folder} with the published tables is missing; install memobench again")
    return list_tables(folder, ENDING)


def list_tables(folder: pathlib.Path, ending: str) -> dict[str, dict[str, pathlib.Path]]:
    """The tables below a folder whose names end so: the file of each preset of each experiment.

    Those of a preset that has a folder of its own are in it, the others are of the quick one.
    """
    found = dict[str, dict[str, pathlib.Path]]()
    for path in sorted(folder.glob(f"**/*{ending}")):
        if path.parent == folder:  # No experiment's.
            continue
        *preset, paper, file = path.relative_to(folder).parts
        name = f"{paper}/{file.removesuffix(ending)}"
        found.setdefault(name, {})["/".join(preset) or QUICK] = path
    return found


def run_ids(name: str | None = None, preset: str | None = None) -> set[str]:
    """The ids of all runs that have a published row, or one of an experiment's preset."""
    if name is None:
        return set().union(*map(_ids, _paths()))
    path = files().get(name, {}).get(preset or QUICK)
    return _ids(path) if path else set()


def rows_of(ids: Set[str]) -> pd.DataFrame | None:
    """The published rows of these runs, of all experiments and presets; None without any."""
    paths = [path for path in _paths() if not ids.isdisjoint(_ids(path))]
    if not paths:
        return None
    table = _keep_latest(paths)
    return table[table["run_id"].isin(ids)].reset_index(drop=True)


def _paths() -> Iterable[pathlib.Path]:
    return itertools.chain.from_iterable(presets.values() for presets in files().values())


def _ids(path: pathlib.Path) -> set[str]:
    return set(pd.read_csv(path, usecols=["run_id"], dtype=str)["run_id"])


def _keep_latest(paths: Iterable[pathlib.Path]) -> pd.DataFrame:
    """The rows of tables of runs, of each run the latest."""
    table = pd.concat(map(read, paths), ignore_index=True)
    latest = table.sort_values("date", kind="stable").drop_duplicates("run_id", keep="last")
    # Copied, for pandas warns where columns are added to what is made of many tables.
    return latest.sort_index().reset_index(drop=True).copy()


def read(path: pathlib.Path) -> pd.DataFrame:
    """A table of runs as `report` wrote it, with values of the types that shards have."""
    # Much faster than pandas where most of many columns are empty.
    with path.open(encoding="utf-8", newline="") as file:
        names, *rows = csv.reader(file)
    known = all_columns()
    columns: dict[str, list[Any]] = {}
    for name, *text_R in zip(names, *rows, strict=True):
        holds = known[name].domain.holds if name in known else lambda _: False
        values = {text: text if holds(text) else _value(text) for text in dict.fromkeys(text_R)}
        columns[name] = [values[text] for text in text_R]
    return to_table(columns)


def _value(text: str) -> Any:
    """A cell that is not a text in its column: a number, True, a list; None where it is empty."""
    if text[-1:].isdigit():  # Numbers, most of all cells, are read much faster.
        with contextlib.suppress(ValueError):
            return json.loads(text)
    try:
        return ast.literal_eval(text) if text else None
    except (SyntaxError, ValueError):
        return text
