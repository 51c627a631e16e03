"""Policies: what methods do with their jobs; the loop asks them what depends on the method."""

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
    """What a lane trains until it is done, as the host knows it.

    steps: how many it takes. step: how many it has taken. state: at true size on the host, of a job
    that resumes or has ended; None for a job in a lane, or one that starts from initial weights.
    saved: whether a checkpoint holds it as ended.
    """

    run: Run
    steps: int
    step: int = 0
    done: bool = False
    state: State | None = None
    saved: bool = False


class Policy:
    """What a method does with its jobs.

    signature, n_instances: what the lanes' program is compiled for. data: what all lanes read.
    width: the most jobs that train at a time. seconds: predicted for the pack; only long packs are
    worth the compilation of a smaller program. resumes: whether checkpoints hold the state of jobs
    in training.
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

    def reads(self, jobs: Sequence[Job]) -> tuple[Signature, Any]:
        """What the program of lanes with these jobs is compiled for, and the data that it reads."""
        del jobs
        return self.signature, self.data

    def seat(self, jobs: Sequence[Job]) -> Lane:
        """The Lane of each job, stacked; called with one job per lane whenever that changes."""
        raise NotImplementedError

    def feed(self, program: Program, step_R: np.ndarray) -> tuple[Any, Any]:
        """rate_RxC and order_RxCxB of the chunk that begins after so many steps."""
        raise NotImplementedError

    def record(self, jobs: Sequence[Job | None], step_R: np.ndarray, curve: Any) -> None:
        """Receives loss_RxC and accuracy_RxC of a chunk's steps, where the signature keeps them."""

    def due(self, job: Job) -> bool:
        """Whether a job is evaluated now."""
        return self.signature.keeps_best or job.step >= job.steps

    def evaluated(self, job: Job, loss: float, accuracy: float) -> None:
        """Receives a job's loss and accuracy on all its examples; sets `job.done`."""
        raise NotImplementedError

    def finished(self, jobs: Sequence[Job], take: Callable[[], State]) -> None:
        """Receives jobs that leave their lanes; `take` returns their states, stacked."""

    def columns(self, job: Job) -> Arrays:
        """What a checkpoint holds of a job beside its state and step."""
        return {}

    def restore(self, job: Job, arrays: Arrays) -> None:
        """Takes from a checkpoint what `columns` gave it."""

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

        def saved(found: Job) -> Arrays:
            return self._arrays(found, found.state)

        return resume(checkpoints, job.run.run_id, restore, saved) or job

    def _arrays(self, job: Job, state: State | None) -> Arrays:
        """What a checkpoint holds of a job."""
        progress = {"step": np.array(job.step), "done": np.array(job.done)}
        return progress | self.columns(job) | lanes.to_arrays(state)


class EachOnce(Policy):
    """A policy by which every run trains once. Those that have ended are kept, and saved.

    all: the jobs, in the order of the runs.
    """

    all: list[Any]

    def take_up(self, jobs: Iterable[Job]) -> None:
        """Trains these jobs, but for those that a checkpoint holds as ended."""
        self.all = list(jobs)
        self._waiting = iter([job for job in self.all if not job.done])

    def next(self) -> Job | None:
        return next(self._waiting, None)

    def finished(self, jobs: Sequence[Job], take: Callable[[], State]) -> None:
        on_host = jax.device_get(take())
        for i, job in enumerate(jobs):
            job.state = lanes.crop(on_host, i, self.true_shapes(job))

    def save_finished(self, checkpoints: Checkpoints) -> None:
        for job in self.all:
            if job.done and not job.saved and job.state is not None:
                self.save(checkpoints, job, job.state)
                job.saved = True
