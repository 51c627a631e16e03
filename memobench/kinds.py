"""All kinds of tasks, architectures, methods, constructions and optimisers that are registered."""

from memobench.methods.base import Method
from memobench.methods.construction import Construction
from memobench.models.base import Architecture
from memobench.optimizers import Optimizer
from memobench.spec import Spec
from memobench.tasks.base import Task

FAMILIES: tuple[type[Spec], ...] = (Task, Architecture, Method, Construction, Optimizer)


def by_class() -> dict[str, type[Spec]]:
    """Every kind by the name of its class."""
    return {kind.__name__: kind for family in FAMILIES for kind in family.kinds().values()}
