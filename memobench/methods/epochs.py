"""Training by epochs: a policy over the engine's lanes, for all methods that train so.

The learning rate of every epoch is data. The device shuffles, an epoch at a time, from keys that
are data.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from memobench import engine
from memobench.core import module as models
from memobench.core.run import Pack, Run
from memobench.core.schedule import Schedule
from memobench.engine import Job, Lane, Program, Signature, batches, devices


class Rates(NamedTuple):
    """The learning rate over the epochs of a training.

    Attributes:
      first: rate of the first epoch.
      last: rate reached after the last.
      warmup: share of the epochs in which it comes to the first rate.
      schedule: how it goes from the first to the last.
    """

    first: float
    last: float
    warmup: float
    schedule: Schedule

    def times(self, factor: float) -> Rates:
        """The same with all rates times a factor."""
        return self._replace(first=factor * self.first, last=factor * self.last)


class RatesOfLanes:
    """The learning rates of the trainings in all lanes."""

    def __init__(self, rates: Sequence[Rates], epochs: Sequence[int]) -> None:
        self._epochs_R = np.array(epochs)
        numbers = [rate[:3] for rate in rates]
        self._first_R, self._last_R, self._warmup_R = np.array(numbers, float).reshape(-1, 3).T
        # Lanes of one schedule are computed at once.
        schedules = [rate.schedule for rate in rates]
        self._lanes = {
            schedule: np.array([schedule == other for other in schedules])
            for schedule in dict.fromkeys(schedules)
        }

    def compute(self, epoch_R: Any) -> Any:
        """rate_R of an epoch, constant within it; the last is reached after the last of them."""
        time_R, warmup_R = epoch_R / self._epochs_R, self._warmup_R
        fraction_R, factor_R = np.zeros((2, len(time_R)))
        for schedule, own in self._lanes.items():
            fraction_R[own] = schedule.fraction(time_R[own], warmup_R[own])
            factor_R[own] = schedule.warm_up(epoch_R[own], self._epochs_R[own], warmup_R[own])
        return factor_R * (self._first_R + (self._last_R - self._first_R) * fraction_R)


@dataclasses.dataclass(eq=False)
class EpochJob(Job):
    """A model trained for whole epochs by a schedule of learning rates.

    Attributes:
      number: of the model among those of its run that do not share initial weights and batches.
      epochs: how many it takes.
      rates: its learning rates.
    """

    number: int = 0
    epochs: int = 1
    rates: Rates = dataclasses.field(kw_only=True)


def _model(job: EpochJob) -> tuple[Run, int]:
    return job.run, job.number


class EpochPolicy(engine.Policy):
    """A policy that trains by the protocols of a Training; subclasses say which jobs there are."""

    def __init__(self, pack: Pack) -> None:
        self.signature: Signature = pack.signature
        self.seconds, self.runs = pack.weight, pack.runs
        # Of the jobs in the lanes, set by `lane_inputs`.
        self._rates = RatesOfLanes([], [])
        self._jobs: Sequence[Any] = ()
        self._key_R: Any = None
        # The batches of the epoch that the lanes are in.
        self._order_RxLxB: Any = None
        self._tasks_of = {run: self.tasks(run) for run in pack.runs}
        self.instances = list(dict.fromkeys(itertools.chain(*self._tasks_of.values())))
        self._places = {task: place for place, task in enumerate(self.instances)}
        self.n_instances = len(self.instances)
        target = self.signature.task.shapes()
        padded = (models.pad_to(task.sample(), target) for task in self.instances)
        self.data = devices.replicate(
            {
                "instances": models.stack(padded),
                "draws": np.stack([self.draws(task) for task in self.instances]),
            }
        )

    def draws(self, task: Any) -> jax.Array:
        """draws_M: the training set of an instance, which `passes` does not leave to chance."""
        n_draws = self.signature.n_draws
        if self.signature.subsets:
            # Times a number of examples they are the training set of a part.
            return jax.random.uniform(jax.random.fold_in(jax.random.key(task.seed), 1), (n_draws,))
        if self.signature.protocol == "passes":
            return np.arange(n_draws, dtype=np.int32) % task.n_examples
        return task.sample_draws(n_draws)

    def tasks(self, run: Run) -> Sequence[Any]:
        """The tasks whose instances the jobs of a run read."""
        return run.method.tasks(run)

    def task(self, job: Any) -> Any:
        """The task whose instance a job reads."""
        return job.run.task

    def n_examples(self, job: Any) -> int:
        """The number of its instance's examples that a job memorizes."""
        return job.run.task.n_examples

    def shuffle_key(self, run: Run, number: int) -> jax.Array:
        """The key of the shuffles of a model's batches."""
        key = batches.shuffle_key(run)
        return jax.random.fold_in(key, number) if number else key

    def lane_inputs(self, jobs: Sequence[Any]) -> Lane:
        self._rates = RatesOfLanes([job.rates for job in jobs], [job.epochs for job in jobs])
        self._jobs, self._key_R, self._order_RxLxB = jobs, None, None
        n_lanes = len(jobs)
        return Lane(
            instance=np.array([self._places[self.task(job)] for job in jobs], np.int32),
            n_examples=np.array([self.n_examples(job) for job in jobs], np.int32),
            target=np.full(n_lanes, np.inf, np.float32),
            step=np.zeros(n_lanes, np.int32),
        )

    def feed(self, program: Program, step_R: np.ndarray) -> tuple[Any, Any]:
        n_steps, chunk_steps = self.signature.epoch_steps, self.signature.chunk_steps
        epoch_R, start_R = np.divmod(step_R, n_steps)
        rate_R = self._rates.compute(epoch_R)
        rate_RxC = np.repeat(rate_R.astype(np.float32)[:, None], chunk_steps, axis=1)
        return devices.split(rate_RxC), self._order(program, epoch_R, start_R)

    def _keys(self) -> Any:
        """key_R of the shuffles of the jobs in the lanes."""
        keys = {each: self.shuffle_key(*each) for each in dict.fromkeys(map(_model, self._jobs))}
        return devices.split(jnp.stack([keys[_model(job)] for job in self._jobs]))

    def _order(self, program: Program, epoch_R: np.ndarray, start_R: np.ndarray) -> Any:
        n_steps, chunk_steps = self.signature.epoch_steps, self.signature.chunk_steps
        if program.shuffle is None:
            if self._order_RxLxB is None:
                empty = np.zeros((len(epoch_R), chunk_steps, 0), np.int32)
                self._order_RxLxB = devices.split(empty)
            return self._order_RxLxB
        # Lanes within an epoch get the same order again.
        if self._order_RxLxB is None or not start_R.all():
            epoch_R = devices.split(epoch_R.astype(np.int32))
            self._key_R = self._keys() if self._key_R is None else self._key_R
            self._order_RxLxB = program.shuffle(self._key_R, epoch_R)
        if chunk_steps == n_steps:
            return self._order_RxLxB
        return program.slice_epoch(self._order_RxLxB, devices.split(start_R.astype(np.int32)))
