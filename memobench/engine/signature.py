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
    """All about runs that decides a compilation; those of equal ones share a program.

    Attributes:
      module: padded; in keys of packs its paddable sizes are 0.
      task: without its seed and, where runs take subsets, without their sizes.
      protocol: the rule by which batches are drawn.
      optimizer: with its options.
      chunk_steps: steps that the device takes without the host.
      batch_size: examples of a step; 0 where every step reads all.
      epoch_steps: between two shuffles on the device; 0 where the host gives batches.
      trained: the name of the parameters that are trained; None for all.
      subsets: whether jobs take the first so many examples of an instance.
      curve: whether every step's loss and accuracy are kept.
      keeps_best: whether every chunk ends in an evaluation and the best weights are kept.
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
        """Numbers that the optimiser derives from one model's shapes, by default padded ones."""
        module = module or self.module
        params = models.shapes(module, self.task.context_length)["params"]
        is_trainable = trains(module, self.trained)
        return self.optimizer.of_shapes(
            {name: x for name, x in params.items() if is_trainable(name)}
        )
