"""The policy of a Capacity, or a Peak, over the engine's lanes, which the runs of a pack share.

Findings, such as those of `trial_schedule`, say which trainings a run makes next; here they are
trained.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from flax import traverse_util

from memobench.core import module as models
from memobench.core.checkpoints import Arrays, Checkpoints, resume
from memobench.core.run import Pack, PackResult, Run, Weights
from memobench.engine import initializing, lanes
from memobench.methods import thresholds
from memobench.methods.epochs import EpochJob
from memobench.methods.subset_methods import JobQueue
from memobench.methods.trial_schedule import Findings, Proposal, method_of
from memobench.numerics import metrics

# Rows list bits with so many digits.
LISTED_DIGITS = 3


@dataclasses.dataclass(eq=False)
class ModelJob(EpochJob):
    """One training.

    Attributes:
      owner: the place of its run in the pack.
      proposal: that it follows.
      most: the best accuracy of any step.
      seen: the best accuracy since the last evaluation.
      bits: of its examples, by the final weights.
      known: examples known by the final weights.
    """

    owner: int = 0
    proposal: Proposal = dataclasses.field(kw_only=True)
    most: float = 0.0
    seen: float = 0.0
    bits: float = 0.0
    known: int = 0

    @property
    def n_examples(self) -> int:
        return self.proposal.n_examples


class CapacityPolicy(JobQueue):
    """Every run of a pack has those trainings made that its findings propose.

    Args:
      pack: of runs of one method.
      checkpoints: of findings.
      findings: what a run's trainings have found, and which come next, a class like `Findings`.
    """

    def __init__(
        self, pack: Pack, checkpoints: Checkpoints | None = None, findings: Any = Findings
    ) -> None:
        super().__init__(pack, checkpoints)
        self._n_open = [0] * len(pack.runs)
        self._found = [_resume(checkpoints, run, findings) for run in pack.runs]
        for i in range(len(pack.runs)):
            self._propose(i)

    def task(self, job: Any) -> Any:
        return self._tasks_of[job.run][job.proposal.table]

    def variables(self, job: Any) -> Any:
        key = jax.random.fold_in(initializing.init_key(job.run), job.number)
        return models.init_on_host(job.run.module(), job.run.task.context_length, key)

    def record(self, jobs: Sequence[Any], step_R: np.ndarray, curve: Any) -> None:
        if self._exact:  # A batch's accuracy is no accuracy on all examples.
            for job, accuracy_C in zip(jobs, curve[1], strict=True):
                if job is not None and job.proposal.tries:
                    job.seen = max(job.seen, float(accuracy_C.max()))
                    job.most = max(job.most, job.seen)

    def is_due(self, job: Any) -> bool:
        n = job.n_examples
        known = thresholds.is_complete(round(job.seen * n), n)
        return job.step >= job.steps or known or self._should_give_up(job)

    def record_evaluation(self, job: Any, loss: float, accuracy: float) -> None:
        finite, n = math.isfinite(loss), job.n_examples
        job.known = round(accuracy * n) if finite else 0
        n_choices = job.run.task.n_choices
        bits = float(metrics.memorized_bits(loss, n, n_choices)) if finite else 0.0
        # As rows have them: means of rows are those of what they list, and none is beyond what
        # there is to know.
        job.bits = min(round(bits, LISTED_DIGITS), n * math.log2(n_choices))
        job.seen = 0.0
        ends = job.proposal.tries and thresholds.is_complete(job.known, n)
        job.done = job.step >= job.steps or ends or self._should_give_up(job)

    def _should_give_up(self, job: Any) -> bool:
        """True for a trial that ends though it neither knows all nor has taken all its steps."""
        watched = job.proposal.tries and self._exact and method_of(job.run).give_up is not None
        return watched and thresholds.should_give_up(job.step / job.steps, job.most)

    def receive_finished(self, jobs: Sequence[Any], take: Callable[[], Any]) -> None:
        taken = functools.cache(lambda: jax.device_get(take().variables))
        for i, job in enumerate(jobs):
            self._keep(job, functools.partial(self._weights, taken, i, job))
            self._n_open[job.owner] -= 1
        for owner in dict.fromkeys(job.owner for job in jobs):
            if self._checkpoints is not None:
                self._checkpoints.save(self.runs[owner].run_id, self._found[owner].to_arrays())
            if not self._n_open[owner]:
                self._propose(owner)

    def result(self, compile_seconds: float) -> PackResult:
        """The result, once all is done."""
        loss_R, accuracy_R = np.array([found.ends() for found in self._found]).T
        return PackResult.of_ends(
            accuracy_R=accuracy_R,
            loss_R=loss_R,
            compile_seconds=compile_seconds,
            columns=tuple(found.columns() for found in self._found),
            weights=tuple(
                # Where no model knows a bit there are none.
                Weights(params, task=self._tasks_of[run][table]) if params else None
                for run, (_, table, params) in zip(
                    self.runs, (found.best for found in self._found), strict=True
                )
            ),
        )

    def _weights(self, taken: Callable[[], Any], i: int, job: ModelJob) -> Any:
        """The variables of a job at their true size, on the host."""
        return lanes.crop(taken(), i, self.true_shapes(job).variables)

    def _keep(self, job: ModelJob, weights: Callable[[], Any]) -> None:
        """Writes down what a model came to know, and keeps its weights if none know more."""
        found = self._found[job.owner]
        found.keep(job.proposal, job.bits, job.known)
        is_whole = job.n_examples == job.run.task.n_examples and not job.proposal.tries
        if is_whole and job.bits > found.best[0]:
            params = traverse_util.flatten_dict(weights()["params"], sep="/")
            found.best = job.bits, job.proposal.table, params

    def _propose(self, i: int) -> None:
        """Queues what a run does next, if it is not done."""
        run, plain = self.runs[i], method_of(self.runs[i]).training
        jobs = [
            ModelJob(
                run=run,
                steps=proposal.steps,
                number=proposal.number,
                epochs=proposal.steps // plain.n_batches,
                rates=plain.rates.times(proposal.factor),
                owner=i,
                proposal=proposal,
            )
            for proposal in self._found[i].propose()
        ]
        self._waiting += jobs
        self._n_open[i] += len(jobs)


def _resume(checkpoints: Checkpoints | None, run: Run, findings: Any) -> Any:
    """The findings that a checkpoint holds of a run; none where they do not say what comes next."""

    def restore(arrays: Arrays) -> Any:
        findings.from_arrays(run, arrays).propose()
        return findings.from_arrays(run, arrays)

    return resume(checkpoints, run.run_id, restore, findings.to_arrays) or findings(run)
