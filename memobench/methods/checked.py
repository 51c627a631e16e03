"""Checked training: the most that a model knew at any of its checks, as Nichani et al. (2025).

The spec, and its policy over the engine's lanes, one job a run.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Hashable
from typing import Any

import numpy as np

from memobench import engine
from memobench.common.errors import require
from memobench.core import columns as col
from memobench.core.checkpoints import Checkpoints
from memobench.core.columns import Column, by_name, integer, number
from memobench.core.module import Module
from memobench.core.run import Cost, Pack, PackResult, Run
from memobench.core.spec import kind, nested
from memobench.engine import Signature
from memobench.methods.epochs import EpochJob, EpochPolicy
from memobench.methods.training import ByTraining, Training


@kind("checked")
class Checked(ByTraining):
    """A `training` that is checked every `evaluate_every` steps, on all examples.

    The accuracy of a run is the largest of its checks; one of `enough` ends the training. The loss
    is that of the last.
    """

    training: Training = nested(Training, "of the model", default=Training())
    evaluate_every: int = integer("steps between evaluations of all examples", 1, default=128)
    enough: float = number("accuracy that ends a training", default=1.0, above=0, most=1)

    def check(self) -> None:
        require(self.training.start is None, "training must be without start; leave start out")
        require(
            self.evaluate_every % self.training.n_batches == 0,
            f"evaluate_every={self.evaluate_every} is not a multiple of "
            f"n_batches={self.training.n_batches}; fix one of them",
        )

    def pack_key(self, run: Run) -> Hashable:
        return type(self), self.training.pack_key(run)

    def program(self, pack: Pack) -> Signature:
        return dataclasses.replace(self.training.program(pack), curve=False)

    def cost(self, run: Run, module: Module | None = None) -> Cost:
        return dataclasses.replace(super().cost(run, module), queues=True)

    def policy(self, pack: Pack, checkpoints: Checkpoints | None) -> engine.Policy:
        return CheckedPolicy(pack, checkpoints)

    @classmethod
    def columns_of_rows(cls) -> dict[str, Column]:
        return by_name(
            Column("ended_at", "step at which the training ended", col.int_between()),
            Column("best_check", "step of the check at which most was known", col.int_between()),
        )


@dataclasses.dataclass(eq=False)
class CheckedJob(EpochJob):
    """A run, the best of its checks, and the loss at the last."""

    best: float = 0.0
    best_step: int = 0
    loss: float = math.nan


class CheckedPolicy(engine.OneJobPerRun, EpochPolicy):
    """Every run of a pack trains once, and is looked at from time to time."""

    def __init__(self, pack: Pack, checkpoints: Checkpoints | None = None) -> None:
        super().__init__(pack)
        self.width = pack.slots
        self.set_jobs(self.load(checkpoints, _make_job(run)) for run in pack.runs)

    def is_due(self, job: Any) -> bool:
        return job.step >= job.steps or job.step % job.run.method.evaluate_every == 0

    def record_evaluation(self, job: Any, loss: float, accuracy: float) -> None:
        task = job.run.task
        if task.is_even:  # A mean of float32 may miss the share that it counts.
            accuracy = round(accuracy * task.n_predicted) / task.n_predicted
        job.loss = loss
        if accuracy > job.best:
            job.best, job.best_step = accuracy, job.step
        enough = accuracy >= job.run.method.enough
        job.done = enough or job.step >= job.steps or not math.isfinite(loss)

    def result(self, compile_seconds: float) -> PackResult:
        return PackResult.of_ends(
            accuracy_R=np.array([job.best for job in self.all]),
            loss_R=np.array([job.loss for job in self.all]),
            compile_seconds=compile_seconds,
            columns=tuple({"ended_at": job.step, "best_check": job.best_step} for job in self.all),
        )

    def columns(self, job: Any) -> dict[str, np.ndarray]:
        return {"checks": np.array([job.best, job.best_step, job.loss])}

    def restore(self, job: Any, arrays: dict[str, np.ndarray]) -> None:
        job.best, best_step, job.loss = arrays["checks"].tolist()
        job.best_step = int(best_step)
        require(
            0 <= job.best <= 1 and 0 <= job.best_step <= job.step,
            "the best check must be of a step that was taken, its accuracy from 0 to 1",
        )


def _make_job(run: Run) -> CheckedJob:
    method: Any = run.method
    training = method.training
    return CheckedJob(
        run=run,
        steps=training.steps,
        epochs=training.epochs,
        rates=training.rates,
    )
