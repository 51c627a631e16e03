"""Experiments, a folder for each paper or theme; `EXPERIMENTS` holds all of them by name.

A module declares one `EXPERIMENT`, or several as `EXPERIMENTS`, and needs no other mention to be
found; `common.py` holds what the experiments of its folder share. A folder's `ORDER` says in which
order lists and pages show its modules; those that it does not name follow by name. Folders of
programs, without `__init__.py`, are neither searched nor installed.
"""

import importlib
import pkgutil
import sys
from collections.abc import Iterable
from types import ModuleType

from memobench.errors import UserError
from memobench.experiment import Experiment

ORDER = ("dana2025", "mahdavi2024", "hebbian2026", "constructions", "board", "capacity", "blocks")


def _modules(package: ModuleType) -> list[ModuleType]:
    """The modules and packages directly within a package, in its order."""
    order = vars(package).get("ORDER", ())
    names = sorted(module.name for module in pkgutil.iter_modules(package.__path__))
    names.sort(key=lambda name: order.index(name) if name in order else len(order))
    return [importlib.import_module(f"{package.__name__}.{name}") for name in names]


def declared(module: ModuleType) -> tuple[Experiment, ...]:
    """The experiments that a module declares; none for what others share."""
    constants = vars(module)
    if "EXPERIMENT" in constants:
        return (constants["EXPERIMENT"],)
    return constants.get("EXPERIMENTS", ())


def add(experiments: Iterable[Experiment]) -> None:
    """Registers experiments. Raises UserError for a name that another has."""
    for experiment in experiments:
        if EXPERIMENTS.setdefault(experiment.name, experiment) is not experiment:
            raise UserError(f"an experiment of name={experiment.name!r} is there; choose another")


EXPERIMENTS: dict[str, Experiment] = {}
for _folder in _modules(sys.modules[__name__]):
    for _module in _modules(_folder):
        add(declared(_module))
