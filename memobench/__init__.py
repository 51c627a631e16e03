"""memobench: how much does a transformer memorize, per parameter, and who memorizes better?

>>> import memobench
>>> runs = [
...     memobench.Run(
...         task=memobench.Task(vocab_size=5),
...         architecture=memobench.Architecture(name="attention_only", d_model=4, d_head=4),
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
from typing import TYPE_CHECKING, Any

from memobench.errors import UserError
from memobench.results import load_results
from memobench.specs import (
    Annealing,
    Architecture,
    Construction,
    LabelledContexts,
    Optimum,
    Run,
    Search,
    Task,
    Training,
)
from memobench.version import __version__

if TYPE_CHECKING:
    from memobench.sweep import plan, run

__all__ = [
    "Annealing",
    "Architecture",
    "Construction",
    "LabelledContexts",
    "Optimum",
    "Run",
    "Search",
    "Task",
    "Training",
    "UserError",
    "__version__",
    "load_results",
    "plan",
    "run",
]


def __getattr__(name: str) -> Any:
    # Only what trains needs JAX, which takes seconds to import.
    if name in ("plan", "run"):
        return getattr(importlib.import_module("memobench.sweep"), name)
    raise AttributeError(f"module 'memobench' has no attribute {name!r}")
