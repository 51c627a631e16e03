"""Weights that a sweep has kept."""

import functools
import os
from typing import Any

from memobench import certificates
from memobench.common.errors import require, short_repr
from memobench.common.folders import SHARDS
from memobench.core.columns import NAME
from memobench.core.run import Run
from memobench.store import results as store

# Weights are asked for one after another, of folders with many shards.
_reader = functools.lru_cache(maxsize=8)(store.Reader)


def weights(run: Run | str, results: store.Path = SHARDS) -> dict[str, Any]:
    """The variables of a finished run: `run.module().apply(weights(run), tokens_S)` are its logits.

    Of a Capacity those of its best model; `certificates.load` of their file says of which of the
    label tables. Searches and checked trainings keep no weights.

    Args:
      run: the run or its id.
      results: the folder that it was made in.

    Returns:
      {"params": .., "constants": ..}, float32 arrays at the model's true size.

    Raises:
      UserError: the run is not done, keeps no weights, or they were deleted or changed.
    """
    require(
        isinstance(run, Run | str),
        f"run={short_repr(run)} is neither a run nor an id; give one",
    )
    store.require_folder(results, store.first_step(results), "results=")
    run_id = run if isinstance(run, str) else run.run_id
    require(
        isinstance(run, str) or not run.method.cost(run).closed_form,
        f"run {run_id} is a construction, which keeps no weights: "
        "making.judged_variables(run) makes them again",
    )
    path = store.weights_path(results, NAME.validate("run", run_id))
    require(
        path.exists(),
        f"{results} holds no weights of run {run_id}: it is not done, its method keeps none, or "
        f"they were deleted; {store.first_step(results)}",
    )
    found, digest = certificates.read(path)
    row = _find_row(results, run_id)
    if row.get("weights_digest") != digest:  # The folder may have been made anew.
        _reader.cache_clear()
        row = _find_row(results, run_id)
    require(row, f"{results} has no row of run {run_id}; {store.first_step(results)}")
    require(
        row.get("weights_digest") in (None, digest),
        f"{path} is not what was kept: the row of its run names another digest; delete it and its "
        "shard, and run it again",
    )
    if isinstance(run, Run):
        known = found.task in run.method.tasks(run)
        same = known and found.architecture == run.architecture and found.seed == run.seed
        require(same, f"{path} is of another run; delete it and its shard, and run it again")
    return found.variables()


def _find_row(results: store.Path, run_id: str) -> dict[str, Any]:
    """The row of a run, empty without one."""
    return _reader(os.path.abspath(results)).rows().get(run_id, {})
