"""Search: the capacity of a model, by training it on better and better chosen subsets.

The spec, and its policy over the engine's lanes, whose jobs are trials of all runs of a pack.
`bisection` says which trials come next; here they are trained, of any run and any budget side by
side. A run proposes further trials as soon as its own are made.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from memobench import engine
from memobench.common.errors import require
from memobench.core import columns as col
from memobench.core.checkpoints import Arrays, Checkpoints, resume
from memobench.core.columns import Column, by_name, declare, integer, number
from memobench.core.module import Module
from memobench.core.run import Cost, Pack, PackResult, Run
from memobench.core.spec import kind, nested
from memobench.engine import initializing
from memobench.methods import bisection
from memobench.methods.bisection import Proposal, Trial
from memobench.methods.epochs import EpochJob
from memobench.methods.subset_methods import JobQueue, SubsetMethod
from memobench.methods.training import Training

# Raised whenever a search would make other trials: run ids then differ, and results never mix.
RULES = 1


@kind("searched")
class Search(SubsetMethod):
    """A model's capacity, by `training` it anew on better and better chosen subsets.

    First on all examples of the task, then on the first so many: a bisection, `sizes` of them at a
    time and each with the learning rates times every one of `rate_factors`, until the largest set
    memorized completely is known within `resolution` of itself (or one example). The steps are
    then doubled, up to `doublings` times, until that gains less than `bisection.GAIN`. See
    `memobench.methods.bisection`, whose version of proposing trials `rules` is.
    """

    training: Training = nested(Training, "of every trial")
    rate_factors: tuple[float, ...] = declare(
        col.numbers(16), "factors of the learning rate that are tried", default=(1.0,)
    )
    sizes: int = integer("sizes of sets tried side by side", 1, default=2, most=64)
    resolution: float = number("of the largest set, as a share of it", default=0.02, above=0)
    doublings: int = integer("doublings of the steps at most", 0, default=2, most=32)
    rules: int = integer("version of the rules by which trials are proposed", 1, default=RULES)

    def check(self) -> None:
        super().check()
        require(
            self.resolution < 1, f"resolution={self.resolution} is not a share; give one below 1"
        )
        require(
            self.rules == RULES,
            f"rules={self.rules!r} are not those of this version, {RULES}; leave rules out",
        )

    @property
    def lanes(self) -> int:
        """The number of trials that a round makes side by side."""
        return self.sizes * len(self.rate_factors)

    def cost(self, run: Run, module: Module | None = None) -> Cost:
        """An estimate: the first rounds narrow a wide bracket, which later ones hardly widen."""
        rounds = 4 + sum(2 * 2**i for i in range(1, self.doublings + 1))
        in_turn = rounds * self.steps
        return dataclasses.replace(
            super().cost(run, module),
            steps=self.lanes * in_turn,
            sequential_steps=in_turn,
            lanes=self.lanes,
        )

    def policy(self, pack: Pack, checkpoints: Checkpoints | None) -> engine.Policy:
        return SearchPolicy(pack, checkpoints)

    @classmethod
    def columns_of_rows(cls) -> dict[str, Column]:
        known, gain = col.int_between(0, 2**25), "before the last doubling of the steps"
        return by_name(
            Column("complete_99", "largest set of which 99% is memorized", known),
            Column("complete_100", "largest set of which all is memorized", known),
            Column("incomplete_99", "least set above it that was not memorized to 99%", known),
            Column("incomplete_100", "least set above it that was not memorized", known),
            Column("best_accuracy", "on all examples, of the best trial", col.float_between(0, 1)),
            Column(
                "rate_factor", "factor of the learning rate of complete_99", col.float_between(0)
            ),
            Column("final_steps", "optimiser steps of the last trials", col.int_between(1)),
            Column("previous_99", f"complete_99 {gain}", known),
            Column("previous_known", f"examples known of all {gain}", known),
            Column("previous_bits", f"bits of all examples {gain}", col.float_between(0), "bits"),
            Column("gain", "by the last doubling, as a share", col.float_between(-1)),
            Column("converged", "whether the last doubling gained little", col.boolean()),
            Column("lower_bound", "whether the whole task was memorized", col.boolean()),
            Column(
                "trials",
                "every trial: steps, examples, factor, known, known in the end, loss",
                col.value_where(
                    "a list of at most 10000 trials",
                    lambda x: isinstance(x, list) and len(x) <= 10_000,
                ),
                in_csv=False,
            ),
        )


# Steps between two looks at what is known, as Nichani et al. (2025) look. The published protocol
# sees batches, so that only its final weights are looked at.
CHECK_EVERY = 32


@dataclasses.dataclass(eq=False)
class TrialJob(EpochJob):
    """A trial, and the best accuracy at its checks so far."""

    search: int = 0
    proposal: Proposal = dataclasses.field(kw_only=True)
    best: float = 0.0

    @property
    def n_examples(self) -> int:
        return self.proposal.n_examples


class SearchPolicy(JobQueue):
    """Every run of a pack proposes trials, and more of them once these are made.

    A killed search keeps those of its open rounds too.

    Attributes:
      trials: of each run, those of its finished rounds, in the order in which they were proposed.
    """

    def __init__(self, pack: Pack, checkpoints: Checkpoints | None = None) -> None:
        super().__init__(pack, checkpoints)
        self._round: list[dict[Proposal, Trial | None]] = [{} for _ in pack.runs]
        saved = [_resume(checkpoints, run) for run in pack.runs]
        self.trials = [trials for trials, _ in saved]
        self._variables = functools.cache(initializing.init_run)
        for i, (_, open_) in enumerate(saved):
            self._propose(i, open_)

    def variables(self, job: Any) -> Any:
        return self._variables(job.run)

    def record(self, jobs: Sequence[Any], step_R: np.ndarray, curve: Any) -> None:
        _, accuracy_RxC = curve
        if self._exact:  # A batch's accuracy is no accuracy on all examples.
            for i, job in enumerate(jobs):
                checked = accuracy_RxC[i, -step_R[i] % CHECK_EVERY :: CHECK_EVERY]
                if job is not None and checked.size:
                    job.best = max(job.best, float(checked.max()))

    def record_evaluation(self, job: Any, loss: float, accuracy: float) -> None:
        job.done, n = True, job.proposal.n_examples
        last = round(accuracy * n) if math.isfinite(loss) else 0
        made = self._round[job.search]
        known = max(round(job.best * n), last)
        made[job.proposal] = Trial(*job.proposal, known, last, loss)  # type: ignore[call-arg]
        ended = None not in made.values()
        if ended:
            self.trials[job.search] += made.values()  # type: ignore[arg-type]
        if self._checkpoints is not None:
            open_ = [trial for trial in made.values() if trial is not None and not ended]
            arrays = _to_arrays(self.trials[job.search], open_)
            self._checkpoints.save(job.run.run_id, arrays)
        if ended:
            self._propose(job.search)

    def result(self, compile_seconds: float) -> PackResult:
        """Accuracies and losses are those on all examples, each by its best learning rate."""
        each: list[Any] = list(zip(self.trials, self.runs, strict=True))
        found = [bisection.best_of_whole(made, run.task.n_examples) for made, run in each]
        accuracy_R, loss_R = np.array(found).T
        return PackResult.of_ends(
            accuracy_R=accuracy_R,
            loss_R=loss_R,
            compile_seconds=compile_seconds,
            columns=tuple(
                bisection.columns(run.task.n_examples, made, run.task.n_choices)
                for made, run in each
            ),
        )

    def _propose(self, i: int, made: Sequence[Trial] = ()) -> None:
        """Queues the next trials of a run, each once, but for those that are made."""
        run = self.runs[i]
        method: Any = run.method
        proposals = bisection.next_trials(method, run.task.n_examples, self.trials[i])
        known = {Proposal(*trial[:3]): trial for trial in made}
        self._round[i] = {proposal: known.get(proposal) for proposal in proposals}
        self._waiting += [
            TrialJob(
                run=run,
                steps=proposal.steps,
                epochs=proposal.steps // method.training.n_batches,
                rates=method.training.rates.times(proposal.factor),
                search=i,
                proposal=proposal,
            )
            for proposal, trial in self._round[i].items()
            if trial is None
        ]


def _to_arrays(trials: Sequence[Trial], open_: Sequence[Trial]) -> Arrays:
    """Arrays of a checkpoint: trials of finished rounds, and those of the open one that ended."""
    tables = {"trials": trials, "round": open_}
    return {name: np.array(x, np.float64).reshape(-1, 6) for name, x in tables.items()}


def _resume(checkpoints: Checkpoints | None, run: Run) -> tuple[list[Trial], list[Trial]]:
    """The same trials of a checkpoint; none where the search would have made others."""

    def restore(arrays: Arrays) -> tuple[list[Trial], list[Trial]]:
        trials, open_ = (
            [
                Trial(int(steps), int(n), float(factor), int(known), int(last), float(loss))
                for steps, n, factor, known, last, loss in arrays[name]
            ]
            for name in ("trials", "round")
        )
        method: Any = run.method
        made: list[Trial] = []
        while len(made) < len(trials):
            proposed = bisection.next_trials(method, run.task.n_examples, made)
            of_round = trials[len(made) :][: len(set(proposed))]
            if not proposed or [x[:3] for x in of_round] != list(dict.fromkeys(proposed)):
                raise ValueError("these are not the trials of this search")
            made += of_round
        return trials, open_

    found = resume(checkpoints, run.run_id, restore, lambda found: _to_arrays(*found))
    return found or ([], [])
