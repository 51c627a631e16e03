"""memobench: how much does a transformer memorize, per parameter, and who memorizes better?

Every kind of task, architecture, optimiser, method and construction is here by the name of its
class, also those that a user's file defines, and so is what such a file needs: `kind`, fields such
as `integer`, and the classes that kinds derive from.

>>> import memobench
>>> runs = [
...     memobench.Run(
...         task=memobench.Associations(vocab_size=5),
...         architecture=memobench.AttentionOnly(d_model=4, d_head=4),
...         method=memobench.Training(batch_size=16, n_batches=4, epochs=2),
...         seed=seed,
...     )
...     for seed in range(2)
... ]
>>> table = memobench.run(runs, progress=False)
>>> len(table)
2
"""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from typing import TYPE_CHECKING, Any

if not os.path.isfile(__file__):
    raise ImportError(
        f"memobench must be a folder of files, got {__file__}, which is within an archive; "
        "install it, or unpack it",
        name=__name__,
    )

from memobench.common import forks as forks  # It must know of every fork.
from memobench.common.errors import UserError, require_system
from memobench.version import __version__

if TYPE_CHECKING:
    from memobench.board.check import check
    from memobench.board.table import run as board_run
    from memobench.certificates.counting import certify
    from memobench.certificates.kept import weights
    from memobench.constructions.base import Construction, Solved
    from memobench.constructions.problem import Constructed, Problem
    from memobench.core.architecture import Architecture, WithHeads
    from memobench.core.columns import Column, choice, flag, integer, number
    from memobench.core.module import Module, TabledModule
    from memobench.core.optimizer import Optimizer
    from memobench.core.run import Method, PackResult, Run
    from memobench.core.schedule import Schedule
    from memobench.core.spec import kind, nested
    from memobench.core.task import Task
    from memobench.experiment import Drawing, Experiment, grid
    from memobench.methods.trained import TrainedMethod
    from memobench.report.figure import Figure
    from memobench.report.plotting import plot, summarize
    from memobench.runtime.sweep import plan, run
    from memobench.store.measures import measure
    from memobench.store.published import published
    from memobench.store.results import load_results
    from memobench.tasks.tokens import TokenTask

# What takes a second to import is imported when it is first asked for.
_NAMES = {
    "board.check": ("check",),
    "certificates.counting": ("certify",),
    "certificates.kept": ("weights",),
    "constructions.base": ("Construction", "Solved"),
    "constructions.problem": ("Constructed", "Problem"),
    "core.architecture": ("Architecture", "WithHeads"),
    "core.columns": ("Column", "choice", "flag", "integer", "number"),
    "core.module": ("Module", "TabledModule"),
    "core.optimizer": ("Optimizer",),
    "core.run": ("Method", "PackResult", "Run"),
    "core.schedule": ("Schedule",),
    "core.spec": ("kind", "nested"),
    "core.task": ("Task",),
    "experiment": ("Drawing", "Experiment", "grid"),
    "methods.trained": ("TrainedMethod",),
    "report.figure": ("Figure",),
    "report.plotting": ("plot", "summarize"),
    "runtime.sweep": ("plan", "run"),
    "store.measures": ("measure",),
    "store.published": ("published",),
    "store.results": ("load_results",),
    "tasks.tokens": ("TokenTask",),
}
_HOMES = {name: (module, name) for module, names in _NAMES.items() for name in names}
_HOMES["board_run"] = ("board.table", "run")
__all__ = sorted([*_HOMES, "UserError", "__version__"])


class _Finder(importlib.abc.MetaPathFinder):
    """Finds `memobench.experiments` within this package, or beside it as in a checkout.

    It does not look elsewhere: experiments of another checkout are of another memobench.
    """

    def find_spec(
        self, fullname: str, path: Any = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        """See `importlib`."""
        if fullname != f"{__name__}.experiments":
            return None
        package = os.path.dirname(os.path.abspath(__file__))
        folders = [package, os.path.dirname(package)]
        if found := importlib.machinery.PathFinder.find_spec(fullname, folders):
            return found
        raise ModuleNotFoundError(
            f"{fullname} must be in one of {', '.join(folders)}, got none; install memobench again",
            name=fullname,
        )


# Before that of an editable installation.
sys.meta_path.insert(0, _Finder())


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        require_system()
        home, its_name = _HOMES[name]
        return getattr(importlib.import_module(f"memobench.{home}"), its_name)
    if name[:1].isupper():
        kinds = importlib.import_module("memobench.analysis.kinds").kinds_by_class()
        if name in kinds:
            return kinds[name]
    elif not name.startswith("_") and importlib.util.find_spec(f"{__name__}.{name}"):
        return importlib.import_module(f"{__name__}.{name}")
    # With both of these Python says which attribute may be meant.
    module = sys.modules[__name__]
    raise AttributeError(f"module 'memobench' has no attribute {name!r}", name=name, obj=module)


def __dir__() -> list[str]:
    """Names for completion: all that is public, and every kind by its class."""
    return sorted({*__all__, *importlib.import_module("memobench.analysis.kinds").kinds_by_class()})
