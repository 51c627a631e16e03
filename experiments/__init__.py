"""Experiments, a folder for each paper or theme; `EXPERIMENTS` holds all of them by name.

A module declares one `EXPERIMENT`, several as `EXPERIMENTS`, or both, and needs no other mention to
be found; `common.py` holds what the experiments of its folder share. A folder's `ORDER` says in
which order lists and pages show its modules; those that it does not name follow by name. Folders of
programs, without `__init__.py`, are neither searched nor installed.
"""

import importlib
import pkgutil
import sys
from types import ModuleType

from memobench.experiment import EXPERIMENTS as EXPERIMENTS
from memobench.experiment import find_experiments, register

ORDER = ("dana2025", "mahdavi2024", "hebbian2026", "constructions", "board", "capacity", "blocks")


def _modules(package: ModuleType) -> list[ModuleType]:
    """The modules and packages directly within a package, in its order."""
    order = vars(package).get("ORDER", ())
    names = sorted(module.name for module in pkgutil.iter_modules(package.__path__))
    names.sort(key=lambda name: order.index(name) if name in order else len(order))
    return [importlib.import_module(f"{package.__name__}.{name}") for name in names]


for _folder in _modules(sys.modules[__name__]):
    for _module in _modules(_folder):
        register(find_experiments(_module))
