"""Experiments, a folder for each paper or theme; `EXPERIMENTS` holds all of them by name.

A module declares one `EXPERIMENT`, several as `EXPERIMENTS`, or both, and needs no other mention to
be found; `common.py` holds what the experiments of its folder share. A folder's `ORDER` says in
which order lists and pages show its modules; those that it does not name follow by name. Folders of
programs, without `__init__.py`, are neither searched nor installed.
"""

import importlib
import pkgutil
import sys
from collections.abc import Iterable
from types import ModuleType

from memobench.columns import shown
from memobench.errors import UserError
from memobench.experiment import Experiment, listed

ORDER = ("dana2025", "mahdavi2024", "hebbian2026", "constructions", "board", "capacity", "blocks")


def _modules(package: ModuleType) -> list[ModuleType]:
    """The modules and packages directly within a package, in its order."""
    order = vars(package).get("ORDER", ())
    names = sorted(module.name for module in pkgutil.iter_modules(package.__path__))
    names.sort(key=lambda name: order.index(name) if name in order else len(order))
    return [importlib.import_module(f"{package.__name__}.{name}") for name in names]


def declared(module: ModuleType) -> tuple[Experiment, ...]:
    """The experiments that a module declares; none for what others share.

    Raises UserError for what is no experiment.
    """
    constants = vars(module)
    one = [constants["EXPERIMENT"]] if "EXPERIMENT" in constants else []
    for found in one:
        if not isinstance(found, Experiment):
            raise UserError(
                f"EXPERIMENT={shown(found)} is no Experiment; give one, or several as EXPERIMENTS"
            )
    several = constants.get("EXPERIMENTS", ())
    # A file may import ours.
    several = () if several is EXPERIMENTS else listed("EXPERIMENTS", several, Experiment)
    return *one, *(found for found in several if found not in one)


def add(experiments: Iterable[Experiment]) -> None:
    """Registers experiments. Raises UserError for a name that another has."""
    for experiment in experiments:
        if EXPERIMENTS.setdefault(experiment.name, experiment) is not experiment:
            raise UserError(f"an experiment of name={experiment.name!r} is there; choose another")


EXPERIMENTS: dict[str, Experiment] = {}
for _folder in _modules(sys.modules[__name__]):
    for _module in _modules(_folder):
        add(declared(_module))
