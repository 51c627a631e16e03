"""The policy of a Capacity over the engine's lanes: which trainings a run makes, and what it finds.

Nothing is trained before what decides it is known: a rung's models wait for its pilots, pilots for
those of the rung before, trials for pilots of their own and for earlier rounds. Runs of a pack
share its lanes.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from flax import traverse_util

from memobench import capacity, engine, metrics
from memobench.engine import initializing, lanes
from memobench.methods.base import OnSteps, PackResult, Weights
from memobench.methods.capacity import Capacity
from memobench.methods.epochs import EpochJob
from memobench.methods.parts import Queue
from memobench.models import base as models
from memobench.planner import packing
from memobench.runtime.checkpoints import Checkpoints

if TYPE_CHECKING:
    from memobench.runs import Run

# Rounds of trials, and of their pilots; each is chosen by what those before it found.
ROUNDS, PILOT_ROUNDS = 4, 2
# How often a grid of learning rates is extended where the best is at its edge.
EXTENSIONS = 2


def climb(
    pack: packing.Pack,
    on_steps: OnSteps = lambda steps: None,
    checkpoints: Checkpoints | None = None,
) -> PackResult:
    """Measures the capacity of every run of a pack.

    Args:
      pack: runs that share a program; `slots` of their models train at a time.
      on_steps: called with the number of model-steps done since its last call.
      checkpoints: where what models ended with is kept, so that a killed run goes on.

    Returns:
      A PackResult whose accuracies and losses are means over the models of the last rung; the rest
      is in its columns.
    """
    started = time.perf_counter()
    ladders = Ladders(pack, checkpoints)
    compile_seconds = engine.train(ladders, on_steps, checkpoints)
    return ladders.result(compile_seconds, time.perf_counter() - started - compile_seconds)


PILOT, RUNG, TRIAL, TRIAL_PILOT = "pilot", "rung", "trial", "trial pilot"


@dataclasses.dataclass(eq=False)
class _Model(EpochJob):
    """One training.

    stage: PILOT, RUNG, TRIAL or TRIAL_PILOT. owner: the place of its run in the pack. place: of its
    rung on the ladder, or in its round of trials. most, seen: the best accuracy of any step, and
    since the last look.
    bits, known: of its examples, by the final weights.
    """

    stage: str = PILOT
    owner: int = 0
    table: int = 0
    factor: float = 1.0
    place: int = 0
    n_examples: int = 0
    most: float = 0.0
    seen: float = 0.0
    bits: float = 0.0
    known: int = 0

    @property
    def tries(self) -> bool:
        """Whether it is a trial, which ends when it knows all."""
        return self.stage in (TRIAL, TRIAL_PILOT)


@dataclasses.dataclass
class _Found:
    """What the models of a run have found so far.

    pilot_bits: by rung, factor of the learning rate and pilot. rungs: bits and examples known, by
    rung and model. trials: in the order in which they were chosen. pilot_trials: those that choose
    their learning rate, with its factor. round: trials of either kind that ended since, by place.
    best: of the weights that know most bits of the whole: bits, label table, parameters by path.
    """

    run: Run
    pilot_bits: dict[tuple[int, float, int], float] = dataclasses.field(default_factory=dict)
    rungs: dict[tuple[int, int], tuple[float, int]] = dataclasses.field(default_factory=dict)
    trials: list[capacity.Trial] = dataclasses.field(default_factory=list)
    pilot_trials: list[tuple[float, capacity.Trial]] = dataclasses.field(default_factory=list)
    round: dict[int, _Model] = dataclasses.field(default_factory=dict)
    best: tuple[float, int, dict[str, np.ndarray]] = (0.0, 0, {})

    @property
    def method(self) -> Capacity:
        return method_of(self.run)

    def factors(self, rung: int) -> dict[float, float]:
        """The factors that a rung's pilots have all tried, rising, and their mean bits."""
        made = collections.defaultdict(list)
        for (of_rung, factor, _), bits in sorted(self.pilot_bits.items()):
            if of_rung == rung:
                made[factor].append(bits)
        return {
            factor: sum(bits) / len(bits)
            for factor, bits in made.items()
            if len(bits) == self.method.pilots
        }

    def wanted(self, rung: int) -> list[float]:
        """The factors that a rung's pilots are to try; the best is among them once all did."""
        if rung == 0:
            return self._grid(sorted(self.method.rate_factors), self.factors(rung))
        return self._around(self.factor(rung - 1), self.factors(rung))

    def _around(self, factor: float, known: Mapping[float, float]) -> list[float]:
        return self._grid(capacity.neighbours(factor, self.step), known)

    def _grid(self, first: list[float], known: Mapping[float, float]) -> list[float]:
        most = len(first) + EXTENSIONS if self.step > 1 else 1
        return capacity.extended(first, known, self.step, most)

    @property
    def step(self) -> float:
        """The ratio of neighbours on the grid of learning rates; 1 where there is one."""
        tried = sorted(self.method.rate_factors)
        return tried[1] / tried[0] if len(tried) > 1 else 1.0

    def factor(self, rung: int) -> float:
        """The factor of the learning rate that a rung's pilots prefer."""
        return capacity.preferred(self.factors(rung))

    @property
    def decided(self) -> int:
        """How many rungs have a learning rate."""
        for rung in range(self.method.rungs):
            tried = self.factors(rung)
            if not set(self.wanted(rung)) <= tried.keys():
                return rung
        return self.method.rungs

    @property
    def possible(self) -> tuple[float, float]:
        """The range of the set that half of the trials know, once all rungs are done."""
        task: Any = self.run.task
        return capacity.around(self.of_models(1)[-1].mean(), task.n_examples, task.chance)

    @property
    def thresholds(self) -> dict[float, float]:
        """That set by the pilots of trials, for the factors that all of them have tried."""
        made = {f: self.tried(f) for f in dict.fromkeys(f for f, _ in self.pilot_trials)}
        whole = {f: of for f, of in made.items() if len(of) == self.method.trial_pilots}
        return capacity.thresholds(whole, self.possible)

    def tried(self, factor: float) -> list[capacity.Trial]:
        """The pilots of trials that had this factor."""
        return [trial for of, trial in self.pilot_trials if of == factor]

    @property
    def wanted_of_trials(self) -> list[float]:
        """The factors that pilots of trials are to try; the best is among them once all did."""
        if not self.method.trial_pilots:
            return []
        return self._around(self.factor(self.method.rungs - 1), self.thresholds)

    @property
    def factor_of_trials(self) -> float:
        """The factor of the learning rate that trials have, once their pilots are done."""
        if not self.method.trial_pilots:
            return self.factor(self.method.rungs - 1)
        return capacity.preferred(self.thresholds)

    def end_round(self) -> None:
        """Writes down what a round of trials has found, in the order in which it was chosen."""
        for job in (self.round[place] for place in sorted(self.round)):
            trial = capacity.Trial(job.n_examples, capacity.complete(job.known, job.n_examples))
            if job.stage == TRIAL:
                self.trials.append(trial)
            else:
                self.pilot_trials.append((job.factor, trial))
        self.round = {}

    def of_models(self, value: int) -> np.ndarray:
        """Bits (0) or examples known (1) of all models, for each rung."""
        each = itertools.product(range(self.method.rungs), range(self.method.lanes))
        flat = np.array([self.rungs[key][value] for key in each])
        return flat.reshape(self.method.rungs, self.method.lanes)

    def to_arrays(self) -> dict[str, np.ndarray]:
        """What a checkpoint holds of it."""
        pilots = [(*key, bits) for key, bits in self.pilot_bits.items()]
        rungs = [(*key, *values) for key, values in self.rungs.items()]
        trials = [(factor, *trial) for factor, trial in self.pilot_trials]
        tables = {"pilots": (pilots, 4), "rungs": (rungs, 4), "trials": (self.trials, 2)}
        tables |= {"pilot_trials": (trials, 3)}
        arrays = {name: np.array(x, np.float64).reshape(-1, n) for name, (x, n) in tables.items()}
        bits, table, params = self.best
        return (
            arrays | {"best": np.array([bits, table])} | {f"best/{x}": y for x, y in params.items()}
        )

    def restore(self, arrays: Mapping[str, np.ndarray] | None) -> None:
        """Takes what `to_arrays` gave."""
        if arrays is None:
            return
        self.pilot_bits = {(int(k), f, int(p)): bits for k, f, p, bits in arrays["pilots"].tolist()}
        self.rungs = {
            (int(k), int(i)): (bits, int(known)) for k, i, bits, known in arrays["rungs"].tolist()
        }
        self.trials = [capacity.Trial(int(n), bool(x)) for n, x in arrays["trials"]]
        self.pilot_trials = [
            (factor, capacity.Trial(int(n), bool(known)))
            for factor, n, known in arrays["pilot_trials"].tolist()
        ]
        bits, table = arrays["best"]
        params = {x.removeprefix("best/"): y for x, y in arrays.items() if x.startswith("best/")}
        self.best = float(bits), int(table), params


class Ladders(Queue):
    """Every run of a pack has its pilots trained, then its models for every rung, then trials."""

    def __init__(self, pack: packing.Pack, checkpoints: Checkpoints | None = None) -> None:
        super().__init__(pack, checkpoints)
        self._n_open = [0] * len(pack.runs)
        self._found = [_Found(run) for run in pack.runs]
        for i, run in enumerate(pack.runs):
            self._found[i].restore(checkpoints.load(run.run_id) if checkpoints else None)
            self._propose(i)
        self.fill(pack.slots)

    def task(self, job: Any) -> Any:
        return self.tasks(job.run)[job.table]

    def variables(self, job: Any) -> Any:
        key = jax.random.fold_in(initializing.init_key(job.run), job.number)
        return models.init_on_host(job.run.module(), job.run.task.context_length, key)

    def record(self, jobs: Sequence[Any], step_R: np.ndarray, curve: Any) -> None:
        if self._exact:  # A batch's accuracy is no accuracy on all examples.
            for job, accuracy_C in zip(jobs, curve[1], strict=True):
                if job is not None and job.tries:
                    job.seen = max(job.seen, float(accuracy_C.max()))
                    job.most = max(job.most, job.seen)

    def due(self, job: Any) -> bool:
        n = job.n_examples
        known = capacity.complete(round(job.seen * n), n)
        return job.step >= job.steps or known or self._hopeless(job)

    def evaluated(self, job: Any, loss: float, accuracy: float) -> None:
        finite, n = math.isfinite(loss), job.n_examples
        job.known = round(accuracy * n) if finite else 0
        bits = float(metrics.memorized_bits(loss, n, job.run.task.n_choices)) if finite else 0.0
        # As rows have them: means of rows are those of what they list.
        job.bits = round(bits, 3)
        job.seen = 0.0
        ends = job.tries and capacity.complete(job.known, n)
        job.done = job.step >= job.steps or ends or self._hopeless(job)

    def _hopeless(self, job: Any) -> bool:
        """Whether a trial ends though it neither knows all nor has taken all its steps."""
        watched = job.tries and self._exact and method_of(job.run).give_up is not None
        return watched and capacity.hopeless(job.step / job.steps, job.most)

    def finished(self, jobs: Sequence[Any], take: Callable[[], Any]) -> None:
        taken = functools.cache(lambda: jax.device_get(take()))
        for i, job in enumerate(jobs):
            self._keep(job, functools.partial(self._weights, taken, i, job))
            self._n_open[job.owner] -= 1
        for owner in dict.fromkeys(job.owner for job in jobs):
            if not self._n_open[owner]:
                self._propose(owner)

    def result(self, compile_seconds: float, seconds: float) -> PackResult:
        """The result, once all is done."""
        measured = [_measured(*of) for of in zip(self.runs, self._found, strict=True)]
        loss_R, accuracy_R = (np.array([each[i] for each in measured]) for i in range(2))
        return PackResult.of_ends(
            accuracy_R=accuracy_R,
            loss_R=loss_R,
            compile_seconds=compile_seconds,
            run_seconds=seconds,
            columns=tuple(columns for _, _, columns in measured),
            weights=tuple(
                Weights(found.best[2], task=self.tasks(run)[found.best[1]])
                for run, found in zip(self.runs, self._found, strict=True)
            ),
        )

    def _weights(self, taken: Callable[[], Any], i: int, job: _Model) -> Any:
        """The variables of a job at their true size, on the host."""
        return lanes.crop(taken(), i, self.true_shapes(job)).variables

    def _keep(self, job: _Model, weights: Callable[[], Any]) -> None:
        """Writes down what a model came to know, and keeps its weights if none know more."""
        found = self._found[job.owner]
        if job.stage == PILOT:
            found.pilot_bits[job.place, job.factor, job.number] = job.bits
        elif job.stage == RUNG:
            found.rungs[job.place, job.number - found.method.pilots] = job.bits, job.known
        else:
            found.round[job.place] = job
        if not job.tries and job.bits > found.best[0]:
            params = traverse_util.flatten_dict(weights()["params"], sep="/")
            found.best = job.bits, job.table, params
        if self._checkpoints is not None:
            self._checkpoints.save(job.run.run_id, found.to_arrays())

    def _propose(self, i: int) -> None:
        """Queues what a run does next, if it is not done."""
        found = self._found[i]
        jobs = self._rungs(i, found) or self._trials(i, found)
        self._waiting += jobs
        self._n_open[i] += len(jobs)

    def _rungs(self, i: int, found: _Found) -> list[_Model]:
        """The models of rungs whose learning rate is known, and the pilots of the next."""
        method, decided = found.method, found.decided
        jobs = [
            self._job(
                i,
                RUNG,
                method.pilots + model,
                model // method.inits,
                method.ladder[rung],
                found.factor(rung),
                place=rung,
            )
            for rung in reversed(range(decided))
            for model in range(method.lanes)
            if (rung, model) not in found.rungs
        ]
        if decided < method.rungs:
            steps = method.ladder[decided]
            jobs += [
                self._job(i, PILOT, p, p, steps, factor, place=decided)
                for factor, p in itertools.product(found.wanted(decided), range(method.pilots))
                if (decided, factor, p) not in found.pilot_bits
            ]
        return jobs

    def _trials(self, i: int, found: _Found) -> list[_Model]:
        """The next round: of pilots for each learning rate, then of trials with the best."""
        found.end_round()
        method, n_trials = found.method, found.method.threshold_trials
        if len(found.trials) == n_trials:
            return []
        range_, of_set = found.possible, found.run.task.n_examples

        def sizes(known: list[capacity.Trial], made: int, n: int, rounds: int) -> list[int]:
            n_more = min(n - made, math.ceil(n / rounds))
            return capacity.next_sizes(known, range_, n_more, of_set)

        pilots = [
            (factor, n)
            for factor in found.wanted_of_trials
            for known in [found.tried(factor)]
            for n in sizes(known, len(known), method.trial_pilots or 0, PILOT_ROUNDS)
        ]
        if pilots:
            return self._round(i, TRIAL_PILOT, n_trials + len(found.pilot_trials), pilots)
        # Pilots say where to look, but only trials count.
        factor, made = found.factor_of_trials, len(found.trials)
        known = found.tried(factor) + found.trials
        trials = [(factor, n) for n in sizes(known, made, n_trials, ROUNDS)]
        return self._round(i, TRIAL, made, trials)

    def _round(
        self, i: int, stage: str, first: int, sizes: Sequence[tuple[float, int]]
    ) -> list[_Model]:
        """Trials with these factors and numbers of examples, numbered from `first` on."""
        method = self._found[i].method
        return [
            self._job(
                i,
                stage,
                method.pilots + method.lanes + first + place,
                first + place,
                method.steps,
                factor,
                place=place,
                n_examples=n,
            )
            for place, (factor, n) in enumerate(sizes)
        ]

    def _job(
        self, i: int, stage: str, number: int, table: int, steps: int, factor: float, **more: Any
    ) -> _Model:
        run = self.runs[i]
        plain = method_of(run).training
        of_all = {"n_examples": run.task.n_examples}
        return _Model(
            run=run,
            steps=steps,
            number=number,
            epochs=steps // plain.n_batches,
            schedule=plain.rates.times(factor),
            stage=stage,
            owner=i,
            table=table % method_of(run).tables,
            factor=factor,
            **(of_all | more),
        )


def _measured(run: Run, found: _Found) -> tuple[float, float, dict[str, Any]]:
    """Loss and accuracy, means over models of the last rung, and the columns of the row.

    A model that diverged knows nothing, as one that guesses.
    """
    task: Any = run.task
    method, rungs = found.method, range(found.method.rungs)
    bits_KxM, known_KxM = found.of_models(0), found.of_models(1)
    loss = math.log(task.n_choices) - bits_KxM[-1].mean() * math.log(2) / task.n_examples
    last = list(found.factors(rungs[-1]))
    columns = {
        "rung_rates": [found.factor(k) * method.training.learning_rate for k in rungs],
        "edge_of_rates": len(last) > 1 and found.factor(rungs[-1]) in (last[0], last[-1]),
        "pilot_bits": [
            [
                [f, *(found.pilot_bits[k, f, p] for p in range(method.pilots))]
                for f in found.factors(k)
            ]
            for k in rungs
        ],
        "rung_steps": method.ladder,
        "rung_bits": bits_KxM.tolist(),
        "rung_known": known_KxM.astype(int).tolist(),
        "complete_trials": [[n, int(complete)] for n, complete in found.trials],
        "best_bits": found.best[0],
    }
    if method.trial_pilots:
        columns["trial_rate"] = found.factor_of_trials * method.training.learning_rate
        columns["pilot_trials"] = [[f, n, int(known)] for f, (n, known) in found.pilot_trials]
    columns["best_complete"] = max(
        (n for _, n, complete in method.all_trials(columns) if complete), default=0
    )
    return loss, known_KxM[-1].mean() / task.n_examples, columns


def method_of(run: Run) -> Capacity:
    method: Any = run.method
    return method
