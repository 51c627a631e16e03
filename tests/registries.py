"""Registries of kinds, measures and experiments, and how they come to be as they were."""

import contextlib
import sys

from memobench.analysis.kinds import FAMILIES
from memobench.core import plugins
from memobench.core.spec import REGISTERED
from memobench.experiments import EXPERIMENTS
from memobench.store import measures


@contextlib.contextmanager
def restore():
    """What is registered inside is gone after it, as in a process that never loaded it."""
    for family in FAMILIES:
        family.kinds()
    tables = [EXPERIMENTS, measures._MEASURES, *(family.registry for family in FAMILIES)]
    before = [dict(table) for table in tables]
    registered, loaded, modules = len(REGISTERED), len(plugins._names), set(sys.modules)
    path = [*sys.path]
    try:
        yield
    finally:
        sys.path[:] = path
        for table, known in zip(tables, before, strict=True):
            table.clear()
            table.update(known)
        if len(REGISTERED) > registered:
            # One more name, so that what is derived from kinds is derived again.
            REGISTERED.append("restored")
        del plugins._names[loaded:]
        for name in set(sys.modules) - modules:
            if name.startswith("memobench.core.plugins."):
                del sys.modules[name]
