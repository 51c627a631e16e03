"""Methods of many trainings, each on the first so many examples of a run's task.

What such methods are to planner and engine, and a policy for them: trainings of all runs of a pack
wait in one queue and enter whichever lane is free. A training's number of examples is data
(examples beyond it have no weight), as are its learning rate, its steps and its instance.
"""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Hashable, Sequence
from typing import Any, ClassVar

import jax

from memobench.common.errors import require
from memobench.core.checkpoints import Checkpoints
from memobench.core.columns import Column
from memobench.core.module import structure
from memobench.core.run import Pack, Run
from memobench.core.spec import MOST_SEED
from memobench.engine import Signature
from memobench.methods.epochs import EpochPolicy
from memobench.methods.training import ByTraining
from memobench.tasks.labelled_contexts import round_up

# Programs of fewer examples have at least a quarter of them: there are few to compile.
MOST_HALVINGS = 2


class SubsetMethod(ByTraining):
    """A method of many trainings of a run's model."""

    # The measures of a task that its numbers rest on.
    needs: ClassVar[tuple[str, ...]] = ("accuracy",)

    def check(self) -> None:
        require(
            self.training.protocol != "passes" and self.training.start is None,
            "training must be of protocol='exact' or 'published' and without start: every model "
            "begins anew, and batches would not fit every number of examples",
        )

    def check_run(self, run: Run) -> None:
        task: Any = run.task
        kind = type(self).__name__
        require(
            set(self.needs) <= set(task.measures),
            f"method: a {kind} does not serve the task {task.name!r}; use another method",
        )
        require(
            not task.slicing_error,
            f"method: a {kind} does not serve the task {task.name!r}: {task.slicing_error}",
        )
        super().check_run(run)

    def pack_key(self, run: Run) -> Hashable:
        # Of sets of about one size the smaller are padded to the largest.
        return self.pack_key_of_accelerators(run), round_up(run.task.n_examples)

    def pack_key_of_accelerators(self, run: Run) -> Hashable:
        """Sets of all sizes may share a program."""
        task: Any = run.task
        own = self.training.signature(structure(run.module()), task.without_count(), subsets=True)
        return type(self), own

    def program(self, pack: Pack) -> Signature:
        """That of the largest task; every training is on a part of its examples."""
        largest: Any = max((run.task for run in pack.runs), key=lambda task: task.n_examples)
        return self.training.signature(pack.module, largest.pad_to(pack.module), subsets=True)


class TablesMethod(SubsetMethod):
    """A method of trainings on several label tables, which keeps the best weights of the whole set.

    Its field `tables` is their number.
    """

    needs: ClassVar[tuple[str, ...]] = ("accuracy", "bits")
    keeps_weights: ClassVar[bool] = True

    tables: int

    def tasks(self, run: Run) -> list[Any]:
        """The run's task with each of its label tables, of consecutive seeds."""
        return [run.task.replace(seed=run.task.seed + k) for k in range(self.tables)]

    def check_run(self, run: Run) -> None:
        super().check_run(run)
        require(
            run.task.seed + self.tables - 1 <= MOST_SEED,
            f"seed={run.task.seed} of the task leaves no room for tables={self.tables}; lower it",
        )

    def row_columns(self) -> dict[str, Column]:
        """The columns that a row of this method has, of those that such rows may have."""
        return dict(self.columns_of_rows())


class JobQueue(EpochPolicy):
    """Jobs that wait for a lane, `_waiting`; subclasses add to them as they learn what to train.

    Jobs have a field `n_examples`. What ended is kept, not the weights of one in training.
    """

    resumes = False

    def __init__(self, pack: Pack, checkpoints: Checkpoints | None = None) -> None:
        super().__init__(pack)
        self.width = pack.slots
        self._checkpoints = checkpoints
        self._exact = self.signature.protocol == "exact"
        self._waiting: collections.deque[Any] = collections.deque()
        # What programs of fewer examples read, by their task.
        self._data_of: dict[Any, Any] = {}

    def n_examples(self, job: Any) -> int:
        return job.n_examples

    def program_inputs(self, jobs: Sequence[Any]) -> tuple[Signature, Any]:
        """The first half or quarter of the examples alone, where all jobs are on them."""
        whole = self.signature.task.n_examples
        most = max(job.n_examples for job in jobs)
        n_halvings = min(math.floor(math.log2(whole / most)), MOST_HALVINGS)
        task = self.signature.task.first_examples(math.ceil(whole / 2**n_halvings))
        if not (self._exact and n_halvings and task):
            return self.signature, self.data
        if task not in self._data_of:
            instances = jax.tree.map(
                lambda x, part: x[:, *map(slice, part.shape)],
                self.data["instances"],
                task.shapes(),
            )
            self._data_of[task] = {**self.data, "instances": instances}
        return dataclasses.replace(self.signature, task=task), self._data_of[task]

    def next(self) -> Any:
        return self._waiting.popleft() if self._waiting else None
