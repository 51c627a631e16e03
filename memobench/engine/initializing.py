"""Initial weights of runs: drawn from their seeds at true size, then padded and stacked."""

from __future__ import annotations

from typing import Any

import jax

from memobench.core import module as models
from memobench.core.run import Pack, Run


def init_key(run: Run) -> jax.Array:
    """The key of the run's initial weights, from its seed alone."""
    # Tasks of the same seed have this key too. Labels take other bits of it than weights do; a key
    # of another name would be another result under every id.
    return jax.random.fold_in(jax.random.key(run.seed), 0)


def init_run(run: Run) -> Any:
    """Initial variables of a run at its true size, on the host."""
    return models.init_on_host(run.module(), run.task.context_length, init_key(run))


def init_pack(pack: Pack) -> Any:
    """Initial variables of every run of a pack, padded and stacked: axis R."""
    target = models.shapes(pack.module, pack.runs[0].task.context_length)
    return models.stack(models.pad_to(init_run(run), target) for run in pack.runs)
