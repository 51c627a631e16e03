"""Searches for capacities: a policy over lanes, whose jobs are trials of all runs of a pack.

`capacity` says which trials come next; here they are trained. A trial's number of examples is data
(examples beyond it have no weight), as are its learning rate, its steps and its instance, so that
trials of any run and any budget train side by side. A run proposes further trials as soon as its
own are made; what waits enters whichever lane is free.
"""

import collections
import dataclasses
import functools
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from memobench import capacity, engine, packing, training
from memobench.capacity import Proposal, Trial
from memobench.checkpoints import Checkpoints
from memobench.methods.search import Search
from memobench.runs import Run

# Steps between two looks at what is known, as Nichani et al. (2025) look. The published protocol
# sees batches, so that only its final weights are looked at.
CHECK_EVERY = 32


def search(
    pack: packing.Pack,
    on_steps: Callable[[int], None] = lambda _: None,
    checkpoints: Checkpoints | None = None,
) -> training.PackResult:
    """Searches the capacity of every run of a pack.

    Args:
      pack: searches that share a program; `slots` of their trials train at a time.
      on_steps: called with the number of model-steps done since its last call.
      checkpoints: where trials are kept, so that a killed search goes on where it was.

    Returns:
      A PackResult whose accuracies and losses are those on all examples, each by its best learning
      rate; what was found stands in its certificates.
    """
    started = time.perf_counter()
    searches = Searches(pack, checkpoints)
    compile_seconds = engine.train(searches, on_steps, checkpoints)
    return _result(
        pack.runs, searches.trials, compile_seconds, time.perf_counter() - started - compile_seconds
    )


def _method(run: Run) -> Search:
    method: Any = run.method
    return method


@dataclasses.dataclass(eq=False)
class _TrialJob(training.EpochJob):
    """A trial, and the best accuracy at its checks so far."""

    search: int = 0
    proposal: Proposal = dataclasses.field(kw_only=True)
    best: float = 0.0


class Searches(training.Epochs):
    """Every run of a pack proposes trials, and more of them once these are made.

    trials: of each run, those of its finished rounds, in the order in which they were proposed.
    """

    resumes = False  # Trials are kept, not the weights of one that is in training.

    def __init__(self, pack: packing.Pack, checkpoints: Checkpoints | None = None) -> None:
        super().__init__(pack)
        self._checkpoints = checkpoints
        self._exact = self.signature.protocol == "exact"
        self._waiting: collections.deque[_TrialJob] = collections.deque()
        self._round: list[dict[Proposal, Trial | None]] = [{} for _ in pack.runs]
        self.trials = [_saved(run, checkpoints) for run in pack.runs]
        self._variables = functools.cache(packing.initial)
        for i in range(len(pack.runs)):
            self._propose(i)
        self.width = max(1, min(pack.slots, len(self._waiting)))

    def draws(self, task: Any) -> jax.Array:
        """uniform_M in [0, 1): times a number of examples they are a trial's training set.

        Drawn from the task's seed alone, as the plain protocol's are.
        """
        key = jax.random.fold_in(jax.random.key(task.seed), 1)
        return jax.random.uniform(key, (self.signature.epoch_steps * self.signature.batch_size,))

    def n_examples(self, job: Any) -> int:
        return job.proposal.n_examples

    def next(self) -> Any:
        return self._waiting.popleft() if self._waiting else None

    def variables(self, job: Any) -> Any:
        return self._variables(job.run)

    def record(self, jobs: Sequence[Any], step_R: np.ndarray, curve: Any) -> None:
        _, accuracy_RxC = curve
        if self._exact:  # A batch's accuracy is no accuracy on all examples.
            for i, job in enumerate(jobs):
                checked = accuracy_RxC[i, -step_R[i] % CHECK_EVERY :: CHECK_EVERY]
                if job is not None and checked.size:
                    job.best = max(job.best, float(checked.max()))

    def evaluated(self, job: Any, loss: float, accuracy: float) -> None:
        job.done, n = True, job.proposal.n_examples
        last = round(accuracy * n) if math.isfinite(loss) else 0
        made = self._round[job.search]
        known = max(round(job.best * n), last)
        made[job.proposal] = Trial(*job.proposal, known, last, loss)  # type: ignore[call-arg]
        if None not in made.values():
            self.trials[job.search] += made.values()  # type: ignore[arg-type]
            if self._checkpoints is not None:
                table = np.array(self.trials[job.search], np.float64)
                self._checkpoints.save(job.run.run_id, {"trials": table})
            self._propose(job.search)

    def _propose(self, i: int) -> None:
        """Queues the next trials of a run, each once."""
        run = self.runs[i]
        method = _method(run)
        proposals = capacity.next_trials(method, run.task.n_examples, self.trials[i])
        self._round[i] = dict.fromkeys(proposals)
        self._waiting += [
            _TrialJob(
                run=run,
                steps=proposal.steps,
                epochs=proposal.steps // method.training.n_batches,
                first_rate=proposal.factor * method.training.learning_rate,
                last_rate=proposal.factor * method.training.final_learning_rate,
                search=i,
                proposal=proposal,
            )
            for proposal in self._round[i]
        ]


def _saved(run: Run, checkpoints: Checkpoints | None) -> list[Trial]:
    saved = checkpoints.load(run.run_id) if checkpoints is not None else None
    if saved is None:
        return []
    return [
        Trial(int(steps), int(n), float(factor), int(known), int(last), float(loss))
        for steps, n, factor, known, last, loss in saved["trials"]
    ]


def _result(
    runs: Sequence[Run], trials: list[list[Trial]], compile_seconds: float, seconds: float
) -> training.PackResult:
    found = [
        capacity.best_of_whole(trial, run.task.n_examples)
        for trial, run in zip(trials, runs, strict=True)
    ]
    accuracy_R, loss_R = np.array(found).T
    return training.PackResult(
        accuracy_R=accuracy_R,
        loss_R=loss_R,
        step_accuracy_RxL=accuracy_R[:, None],
        step_loss_RxL=loss_R[:, None],
        compile_seconds=compile_seconds,
        run_seconds=seconds,
        variables=None,
        certificates=tuple(
            capacity.columns(run.task.n_examples, made, run.task.n_choices)
            for run, made in zip(runs, trials, strict=True)
        ),
    )
