"""Policies: the decisions of a method about its jobs, which the loop asks for."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np

from memobench.core.checkpoints import Arrays, Checkpoints, resume
from memobench.core.run import Run
from memobench.engine import initializing, lanes
from memobench.engine.lanes import Lane, State
from memobench.engine.program import Program
from memobench.engine.signature import Signature


@dataclasses.dataclass(eq=False)
class Job:
    """A training that a lane does until it is done, as the host knows it.

    Attributes:
      run: the run that it is part of.
      steps: how many it takes.
      step: how many it has taken.
      done: whether it leaves its lane.
      state: at true size on the host, of a job that resumes or has ended; None for a job in a lane,
        or one that starts from initial weights.
      saved: whether a checkpoint holds it as ended.
    """

    run: Run
    steps: int
    step: int = 0
    done: bool = False
    state: State | None = None
    saved: bool = False


class Policy:
    """The decisions of a method about its jobs.

    Attributes:
      signature: decides the program of the lanes, with `n_instances`.
      n_instances: the number of task instances that lanes read.
      data: the instances.
      width: the most jobs that train at a time.
      seconds: predicted for the pack; only long ones are worth compiling a smaller program.
      resumes: whether checkpoints hold the state of jobs in training.
    """

    signature: Signature
    n_instances: int
    data: Any
    width: int
    seconds: float = 0.0
    resumes: bool = True

    def next(self) -> Job | None:
        """The next job for a free lane; None where none waits now."""
        raise NotImplementedError

    def variables(self, job: Job) -> Any:
        """The weights with which a job begins, on the host and at most as large as padded ones."""
        return initializing.init_run(job.run)

    def program_inputs(self, jobs: Sequence[Job]) -> tuple[Signature, Any]:
        """The signature and the data of the program for lanes with these jobs."""
        del jobs
        return self.signature, self.data

    def lane_inputs(self, jobs: Sequence[Job]) -> Lane:
        """The Lane of each job, stacked; called with one job per lane whenever that changes."""
        raise NotImplementedError

    def feed(self, program: Program, step_R: np.ndarray) -> tuple[Any, Any]:
        """rate_RxC and order_RxCxB of the chunk that begins after so many steps."""
        raise NotImplementedError

    def record(self, jobs: Sequence[Job | None], step_R: np.ndarray, curve: Any) -> None:
        """Receives loss_RxC and accuracy_RxC of a chunk's steps, where the signature keeps them."""

    def is_due(self, job: Job) -> bool:
        """True where a job is evaluated now."""
        return self.signature.keeps_best or job.step >= job.steps

    def record_evaluation(self, job: Job, loss: float, accuracy: float) -> None:
        """Receives a job's loss and accuracy on all its examples; sets `job.done`."""
        raise NotImplementedError

    def receive_finished(self, jobs: Sequence[Job], take: Callable[[], State]) -> None:
        """Receives jobs that leave their lanes.

        Args:
          jobs: in the order of their states.
          take: returns their states, stacked; further rows count for nothing.
        """

    def columns(self, job: Job) -> Arrays:
        """Arrays that a checkpoint holds of a job beside its state and step."""
        return {}

    def restore(self, job: Job, arrays: Arrays) -> None:
        """Takes from a checkpoint the arrays that `columns` gave it."""

    def save_finished(self, checkpoints: Checkpoints) -> None:
        """Saves jobs that have ended and whose rows still take long to make."""

    def result(self, compile_seconds: float) -> Any:
        """The PackResult, once all jobs are done."""
        raise NotImplementedError

    # --- Checkpoints ---------------------------------------------------------------------------

    def true_shapes(self, job: Job) -> Any:
        """The state of a job at its true size, as shapes and dtypes."""
        return self.signature.shapes(job.run.module())

    def save(self, checkpoints: Checkpoints, job: Job, state: State) -> None:
        """Saves a job with its state at its true size."""
        checkpoints.save(job.run.run_id, self._arrays(job, state))

    def load(self, checkpoints: Checkpoints | None, job: Job) -> Job:
        """The job where its checkpoint left it, if there is one of this version."""

        def restore(arrays: Arrays) -> Job:
            found = copy.copy(job)
            found.state = lanes.from_arrays(arrays, self.true_shapes(job))
            found.step, found.done = int(arrays["step"]), bool(arrays["done"])
            found.saved = found.done
            chunk_steps = self.signature.chunk_steps
            if found.step not in range(0, job.steps + chunk_steps, chunk_steps):
                raise ValueError(f"step {found.step} ends no chunk of {chunk_steps}")
            self.restore(found, arrays)
            return found

        def saved_arrays(found: Job) -> Arrays:
            return self._arrays(found, found.state)

        return resume(checkpoints, job.run.run_id, restore, saved_arrays) or job

    def _arrays(self, job: Job, state: State | None) -> Arrays:
        """Arrays that a checkpoint holds of a job."""
        progress = {"step": np.array(job.step), "done": np.array(job.done)}
        return progress | self.columns(job) | lanes.to_arrays(state)


class OneJobPerRun(Policy):
    """A policy by which every run trains once. Those that have ended are kept, and saved.

    Attributes:
      all: the jobs, in the order of the runs.
    """

    all: list[Any]

    def set_jobs(self, jobs: Iterable[Job]) -> None:
        """Trains these jobs, but for those that a checkpoint holds as ended."""
        self.all = list(jobs)
        self._waiting = iter([job for job in self.all if not job.done])

    def next(self) -> Job | None:
        return next(self._waiting, None)

    def receive_finished(self, jobs: Sequence[Job], take: Callable[[], State]) -> None:
        on_host = jax.device_get(take())
        for i, job in enumerate(jobs):
            job.state = lanes.crop(on_host, i, self.true_shapes(job))

    def save_finished(self, checkpoints: Checkpoints) -> None:
        for job in self.all:
            if job.done and not job.saved and job.state is not None:
                self.save(checkpoints, job, job.state)
                job.saved = True
