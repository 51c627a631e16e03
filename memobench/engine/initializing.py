"""Initial weights of runs, drawn from their seeds at true size."""

from __future__ import annotations

from typing import Any

import jax

from memobench.core import module as models
from memobench.core.run import Run


def init_key(run: Run) -> jax.Array:
    """The key of the run's initial weights, from its seed alone."""
    # Tasks of the same seed have this key too. Labels take other bits of it than weights do; a key
    # of another name would be another result under every id.
    return jax.random.fold_in(jax.random.key(run.seed), 0)


def init_run(run: Run) -> Any:
    """Initial variables of a run at its true size, on the host."""
    return models.init_on_host(run.module(), run.task.context_length, init_key(run))
