"""Weights that a sweep has kept."""

from typing import Any

from memobench import certificates
from memobench.common.errors import require, short_repr
from memobench.common.folders import SHARDS
from memobench.core.columns import NAME
from memobench.core.run import Run
from memobench.store import results as store


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
      UserError: the run is not done, keeps no weights, or they were deleted.
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
    found = certificates.load(path)
    if isinstance(run, Run):
        known = found.task in run.method.tasks(run)
        same = known and found.architecture == run.architecture and found.seed == run.seed
        require(same, f"{path} is of another run; delete it and its shard, and run it again")
    return found.variables()
