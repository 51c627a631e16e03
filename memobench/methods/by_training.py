"""The base of methods whose models are each made by a `Training`."""

from collections.abc import Mapping
from typing import Any

from memobench.core.run import Run
from memobench.methods.trained import TrainedMethod
from memobench.methods.training import Training


class ByTraining(TrainedMethod):
    """A method whose models are each made by its field `training`."""

    training: Training

    @property
    def protocol(self) -> str:  # type: ignore[override]
        """The protocol of a training."""
        return self.training.protocol

    @property
    def steps(self) -> int:
        """Optimiser steps of a training, at most."""
        return self.training.steps

    @property
    def batch_size(self) -> int | None:
        """Examples of a step of a training."""
        return self.training.batch_size

    @classmethod
    def variant(cls, row: Mapping[str, Any]) -> str:
        return Training.variant(row)

    def check_run(self, run: Run) -> None:
        self.training.check_run(run)

    def check_model(self, run: Run) -> None:
        self.training.check_model(run)
