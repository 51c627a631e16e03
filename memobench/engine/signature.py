"""Everything that decides a compiled program; all else is data."""

import dataclasses
from typing import Any

from memobench.core import module as models
from memobench.core.module import Module, trains
from memobench.engine import lanes
from memobench.optimizers import Optimizer
from memobench.optimizers.rounded import Rounded


@dataclasses.dataclass(frozen=True)
class Signature:
    """Everything about runs that decides a compilation; those of equal ones share a program.

    module: padded; the planner sets its paddable sizes to 0. task: without its seed and, where runs
    take subsets, without their sizes. protocol: what a batch is. trained: which of the
    parameters are. batch_size: 0 where every step reads all examples. chunk_steps: that the device
    takes without the host. epoch_steps: between two shuffles on the device; 0 where the host gives
    batches. subsets: whether jobs take the first so many examples of an instance. curve: whether
    every step's loss and accuracy are kept. keeps_best: whether every chunk ends in an evaluation
    and the best weights are kept.
    """

    module: Module
    task: Any
    protocol: str
    optimizer: Optimizer | Rounded
    chunk_steps: int
    batch_size: int = 0
    epoch_steps: int = 0
    trained: str | None = None
    subsets: bool = False
    curve: bool = True
    keeps_best: bool = False

    @property
    def n_draws(self) -> int:
        """The examples of an instance's training set, as many as an epoch reads."""
        return 0 if self.task.is_fresh else self.epoch_steps * self.batch_size

    def shapes(self, module: Module | None = None) -> Any:
        """The State of one model, of the padded module or another, as shapes and dtypes."""
        return lanes.shapes(
            module or self.module,
            self.task.context_length,
            self.optimizer,
            self.trained,
            self.keeps_best,
        )

    def of_shapes(self, module: Module | None = None) -> Any:
        """What the optimiser needs of the shapes of one model, of the padded module or another."""
        module = module or self.module
        params = models.shapes(module, self.task.context_length)["params"]
        moving = trains(module, self.trained)
        return self.optimizer.of_shapes({name: x for name, x in params.items() if moving(name)})
