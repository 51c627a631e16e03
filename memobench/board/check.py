"""Checks of an architecture for the board, before anything trains."""

from memobench.board import families
from memobench.checks import architectures
from memobench.core import module as models
from memobench.core.architecture import Architecture
from memobench.core.columns import int_between
from memobench.core.task import Task


def check(
    architecture: Architecture, task: Task | None = None, budget: int | None = None
) -> tuple[str, ...]:
    """Lines that say what is wrong with an architecture; empty where nothing is.

    Args:
      architecture: of small sizes, as its model is run.
      task: on which it is checked; by default the first of some small ones that it serves.
      budget: parameters that it should have, within 5%, on the task; by default on the board's.

    Raises:
      UserError: it does not serve the task, or none, or the board has no such budget.
    """
    wrong = architectures.check(architecture, task)
    if budget is None:
        return wrong
    budget = int_between(1).validate("budget", budget)
    task = task or families.task(budget)
    n_params, _ = models.count_parameters(architecture.module_for(task), task.context_length)
    off = n_params / budget - 1
    if abs(off) <= families.TOLERANCE:
        return wrong
    side = "above" if off > 0 else "below"
    fit = " or ".join(families.sizes_that_fit(architecture, budget, task))
    line = f"it has {n_params:,} parameters, {abs(off):.0%} {side} the budget {budget:,}"
    return *wrong, line + f"; set {fit}" * bool(fit)
