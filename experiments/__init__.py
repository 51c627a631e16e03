"""Experiments, a folder for each paper or theme; `EXPERIMENTS` holds all of them by name.

A module declares one `EXPERIMENT`, several as `EXPERIMENTS`, or both, and needs no other mention to
be found; others hold what the experiments of a folder share, such as tests of claims and kinds of
figures. Kinds that one paper alone uses are found by the name of their family's folder: those in
`PAPER/own_constructions.py` as the files of `memobench/constructions` are. A folder's `ORDER` says
in which order lists and pages show its modules; those that it does not name follow by name. Folders
of programs, without `__init__.py`, are neither searched nor installed.
"""

import importlib
from typing import Any

ORDER = ("dana2025", "mahdavi2024", "hebbian2026", "constructions", "board", "capacity", "blocks")


def __getattr__(name: str) -> Any:
    # Imported when they are first asked for: who looks for kinds of papers imports this package.
    if name == "EXPERIMENTS":
        return importlib.import_module("memobench.experiment").load_experiments()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
