"""Experiments, a folder for each paper or theme; `EXPERIMENTS` holds all of them by name.

A module declares one `EXPERIMENT`, or several as `EXPERIMENTS`, and needs no other mention to be
found; `common.py` holds what the experiments of its folder share. A folder's `ORDER` says in which
order lists and pages show its modules; those that it does not name follow by name. Folders of
programs, without `__init__.py`, are neither searched nor installed.
"""

import importlib
import pkgutil
import sys
from types import ModuleType

from memobench.experiment import Experiment

ORDER = ("dana2025", "mahdavi2024", "constructions", "board", "capacity")


def _modules(package: ModuleType) -> list[ModuleType]:
    """The modules and packages directly within a package, in its order."""
    order = getattr(package, "ORDER", ())
    names = sorted(module.name for module in pkgutil.iter_modules(package.__path__))
    names.sort(key=lambda name: order.index(name) if name in order else len(order))
    return [importlib.import_module(f"{package.__name__}.{name}") for name in names]


def _declared(module: ModuleType) -> tuple[Experiment, ...]:
    """The experiments that a module declares; none for what others share."""
    if "EXPERIMENT" in vars(module):
        return (module.EXPERIMENT,)
    return getattr(module, "EXPERIMENTS", ())


EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for folder in _modules(sys.modules[__name__])
    for module in _modules(folder)
    for experiment in _declared(module)
}
