"""All registered kinds of tasks, architectures, methods, constructions, optimisers, schedules."""

from memobench.constructions.base import Construction
from memobench.core.architecture import Architecture
from memobench.core.run import Method
from memobench.core.spec import Spec
from memobench.core.task import Task
from memobench.optimizers import Optimizer
from memobench.schedules import Schedule

FAMILIES: tuple[type[Spec], ...] = (Task, Architecture, Method, Construction, Optimizer, Schedule)


def kinds_by_class() -> dict[str, type[Spec]]:
    """Every kind by the name of its class."""
    return {kind.__name__: kind for family in FAMILIES for kind in family.kinds().values()}
