"""The trainings of a Capacity that come next, from those that have ended. Trains nothing.

Nothing is proposed before what decides it is known: a rung's models wait for its pilots, pilots for
those of the rung before, trials for pilots of their own and for earlier rounds.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from memobench import certificates
from memobench.core.run import Run
from memobench.methods import thresholds

# Rounds of trials, and of their pilots; each is chosen by what those before it found.
ROUNDS, PILOT_ROUNDS = 4, 2
# How often a grid of learning rates is extended where the best is at its edge.
EXTENSIONS = 2

PILOT, RUNG, TRIAL, TRIAL_PILOT = "pilot", "rung", "trial", "trial pilot"

# Of the weights that know most bits of the whole: bits, label table, parameters by path.
Best = tuple[float, int, dict[str, np.ndarray]]


class Proposal(NamedTuple):
    """One training to make.

    Attributes:
      stage: PILOT, RUNG, TRIAL or TRIAL_PILOT.
      place: of its rung on the ladder, or in its round of trials.
      number: of its initial weights and batches.
      table: of its labels.
      steps: how many it takes.
      factor: of the learning rate.
      n_examples: the first so many are memorized.
    """

    stage: str
    place: int
    number: int
    table: int
    steps: int
    factor: float
    n_examples: int

    @property
    def tries(self) -> bool:
        """True for a trial, which ends when it knows all."""
        return self.stage in (TRIAL, TRIAL_PILOT)


@dataclasses.dataclass
class Findings:
    """The results so far of a run's trainings.

    Attributes:
      run: of a Capacity.
      pilot_bits: by rung, factor of the learning rate and pilot.
      rungs: bits and examples known, by rung and model.
      trials: in the order in which they were chosen.
      pilot_trials: those that choose their learning rate, with its factor.
      round: trials of the open round that have ended, by place, with the examples they know.
      best: of the weights that know most bits of the whole.
    """

    run: Run
    pilot_bits: dict[tuple[int, float, int], float] = dataclasses.field(default_factory=dict)
    rungs: dict[tuple[int, int], tuple[float, int]] = dataclasses.field(default_factory=dict)
    trials: list[thresholds.Trial] = dataclasses.field(default_factory=list)
    pilot_trials: list[tuple[float, thresholds.Trial]] = dataclasses.field(default_factory=list)
    round: dict[int, tuple[Proposal, int]] = dataclasses.field(default_factory=dict)
    best: Best = (0.0, 0, {})

    @property
    def method(self) -> Any:
        return method_of(self.run)

    @property
    def _task(self) -> Any:
        return self.run.task

    def keep(self, made: Proposal, bits: float, known: int) -> None:
        """Writes down what the final weights of a training know."""
        if made.stage == PILOT:
            self.pilot_bits[made.place, made.factor, made.number] = bits
        elif made.stage == RUNG:
            self.rungs[made.place, made.number - self.method.pilots] = bits, known
        else:
            self.round[made.place] = made, known

    def propose(self) -> list[Proposal]:
        """The run's next trainings, without those that have ended; none if it is done.

        Asked once all that was proposed has ended, or of what a checkpoint has.
        """
        return self._rungs() or self._trials()

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

    def factor(self, rung: int) -> float:
        """The factor of the learning rate that a rung's pilots prefer."""
        return thresholds.best_factor(self.factors(rung))

    @property
    def factor_of_trials(self) -> float:
        """The factor of the learning rate that trials have, once their pilots are done."""
        if not self.method.trial_pilots:
            return self.factor(self.method.rungs - 1)
        return thresholds.best_factor(self._thresholds)

    def of_models(self, value: int) -> np.ndarray:
        """value_KxM: bits (0) or examples known (1) of all models, for each rung."""
        each = itertools.product(range(self.method.rungs), range(self.method.lanes))
        flat = np.array([self.rungs[key][value] for key in each])
        return flat.reshape(self.method.rungs, self.method.lanes)

    def ends(self) -> tuple[float, float]:
        """Loss and accuracy, means over models of the last rung.

        A model that diverged knows none, and no bits.
        """
        task = self._task
        bits, known = (self.of_models(value)[-1].mean() for value in range(2))
        loss = math.log(task.n_choices) - bits * math.log(2) / task.n_examples
        return max(loss, 0.0), known / task.n_examples

    def columns(self) -> dict[str, Any]:
        """The columns of the row, once all is done."""
        method, rungs = self.method, range(self.method.rungs)
        last = list(self.factors(rungs[-1]))
        columns = {
            "rung_rates": [self.factor(k) * method.training.learning_rate for k in rungs],
            "edge_of_rates": len(last) > 1 and self.factor(rungs[-1]) in (last[0], last[-1]),
            "pilot_bits": [
                [
                    [f, *(self.pilot_bits[k, f, p] for p in range(method.pilots))]
                    for f in self.factors(k)
                ]
                for k in rungs
            ],
            "rung_steps": method.ladder,
            "rung_bits": self.of_models(0).tolist(),
            "rung_known": self.of_models(1).astype(int).tolist(),
            "complete_trials": [[n, int(complete)] for n, complete in self.trials],
            "best_bits": self.best[0],
        }
        if method.trial_pilots:
            columns["trial_rate"] = self.factor_of_trials * method.training.learning_rate
            columns["pilot_trials"] = [[f, n, int(known)] for f, (n, known) in self.pilot_trials]
        complete = [n for _, n, is_known in method.all_trials(columns) if is_known]
        if thresholds.is_complete(self.of_models(1).max(), self._task.n_examples):
            complete.append(self._task.n_examples)
        columns["best_complete"] = max(complete, default=0)
        return columns

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Arrays that a checkpoint holds of it."""
        pilots = [(*key, bits) for key, bits in self.pilot_bits.items()]
        rungs = [(*key, *values) for key, values in self.rungs.items()]
        trials = [(factor, *trial) for factor, trial in self.pilot_trials]
        tables = {"pilots": (pilots, 4), "rungs": (rungs, 4), "trials": (self.trials, 2)}
        made = [(of.stage == TRIAL, *of[1:], known) for of, known in self.round.values()]
        tables |= {"pilot_trials": (trials, 3), "round": (made, 8)}
        arrays = {name: np.array(x, np.float64).reshape(-1, n) for name, (x, n) in tables.items()}
        return arrays | arrays_of_best(self.best)

    @classmethod
    def from_arrays(cls, run: Run, arrays: Mapping[str, np.ndarray]) -> Findings:
        """The inverse of `to_arrays`."""
        found = cls(run)
        found.pilot_bits = {
            (int(k), f, int(p)): bits for k, f, p, bits in arrays["pilots"].tolist()
        }
        found.rungs = {
            (int(k), int(i)): (bits, int(known)) for k, i, bits, known in arrays["rungs"].tolist()
        }
        found.trials = [thresholds.Trial(int(n), bool(x)) for n, x in arrays["trials"]]
        found.pilot_trials = [
            (factor, thresholds.Trial(int(n), bool(known)))
            for factor, n, known in arrays["pilot_trials"].tolist()
        ]
        for is_trial, place, number, of, steps, factor, n, known in arrays["round"].tolist():
            place, number, of, steps, n = map(int, (place, number, of, steps, n))
            stage = TRIAL if is_trial else TRIAL_PILOT
            found.round[place] = Proposal(stage, place, number, of, steps, factor, n), int(known)
        found.best = best_of_arrays(run, arrays)
        return found

    def _rungs(self) -> list[Proposal]:
        """The models of rungs whose learning rate is known, and the pilots of the next."""
        method, decided, n_examples = self.method, self._n_decided, self._task.n_examples
        proposals = [
            Proposal(
                stage=RUNG,
                place=rung,
                number=method.pilots + model,
                table=model // method.inits,
                steps=method.ladder[rung],
                factor=self.factor(rung),
                n_examples=n_examples,
            )
            for rung in reversed(range(decided))
            for model in range(method.lanes)
            if (rung, model) not in self.rungs
        ]
        if decided < method.rungs:
            steps = method.ladder[decided]
            proposals += [
                Proposal(PILOT, decided, p, p % method.tables, steps, factor, n_examples)
                for factor, p in itertools.product(
                    self._factors_to_try(decided), range(method.pilots)
                )
                if (decided, factor, p) not in self.pilot_bits
            ]
        return proposals

    @property
    def _n_decided(self) -> int:
        """The number of rungs that have a learning rate."""
        for rung in range(self.method.rungs):
            tried = self.factors(rung)
            if not set(self._factors_to_try(rung)) <= tried.keys():
                return rung
        return self.method.rungs

    def _factors_to_try(self, rung: int) -> list[float]:
        """Learning-rate factors to try on this rung; the best is among them once all are tried."""
        if rung == 0:
            return self._grid(sorted(self.method.rate_factors), self.factors(rung))
        return self._grid_around(self.factor(rung - 1), self.factors(rung))

    def _grid_around(self, factor: float, known: Mapping[float, float]) -> list[float]:
        """A grid that begins with a factor and one to each side, if there are several."""
        around = sorted({factor / self._ratio, factor, factor * self._ratio})
        return self._grid(around, known)

    def _grid(self, first: list[float], known: Mapping[float, float]) -> list[float]:
        most = len(first) + EXTENSIONS if self._ratio > 1 else 1
        return thresholds.extend_grid(first, known, self._ratio, most)

    @property
    def _ratio(self) -> float:
        """The ratio of neighbours on the grid of learning rates; 1 where there is one."""
        tried = sorted(self.method.rate_factors)
        return tried[1] / tried[0] if len(tried) > 1 else 1.0

    def _trials(self) -> list[Proposal]:
        """The rest of the open round, or else the next one."""
        while wanted := self._round_of_trials():
            left = [each for each in wanted if self.round.get(each.place, (None,))[0] != each]
            if left:
                return left
            self._end_round(wanted)
        return []

    def _round_of_trials(self) -> list[Proposal]:
        """A round: of pilots for each learning rate, then of trials with the best."""
        method, n_trials = self.method, self.method.threshold_trials
        if len(self.trials) == n_trials:
            return []
        pilots = [
            (factor, n)
            for factor in self._factors_of_pilots
            for known in [self._pilots_with(factor)]
            for n in self._sizes(known, len(known), method.trial_pilots or 0, PILOT_ROUNDS)
        ]
        if pilots:
            return self._round(TRIAL_PILOT, n_trials + len(self.pilot_trials), pilots)
        # Pilots say where to look, but only trials count.
        factor, made = self.factor_of_trials, len(self.trials)
        known = self._pilots_with(factor) + self.trials
        trials = [(factor, n) for n in self._sizes(known, made, n_trials, ROUNDS)]
        return self._round(TRIAL, made, trials)

    def _end_round(self, wanted: Sequence[Proposal]) -> None:
        """Writes down what a round of trials has found, in the order in which it was chosen."""
        for made in wanted:
            _, known = self.round[made.place]
            trial = thresholds.Trial(
                made.n_examples, thresholds.is_complete(known, made.n_examples)
            )
            if made.stage == TRIAL:
                self.trials.append(trial)
            else:
                self.pilot_trials.append((made.factor, trial))
        self.round = {}

    def _sizes(self, known: list[thresholds.Trial], made: int, n: int, rounds: int) -> list[int]:
        """Sizes of the next of `n` trials, of which some are made, in so many rounds."""
        n_more = min(n - made, math.ceil(n / rounds))
        return thresholds.next_sizes(known, self._threshold_range, n_more, self._task.n_examples)

    @property
    def _threshold_range(self) -> tuple[float, float]:
        """The range of the set that half of the trials know, once all rungs are done."""
        task = self._task
        return thresholds.threshold_range(
            self.of_models(1)[-1].mean(), task.n_examples, task.chance
        )

    @property
    def _thresholds(self) -> dict[float, float]:
        """That set by the pilots of trials, for the factors that all of them have tried."""
        made = {f: self._pilots_with(f) for f in dict.fromkeys(f for f, _ in self.pilot_trials)}
        whole = {f: of for f, of in made.items() if len(of) == self.method.trial_pilots}
        between = self._threshold_range
        return {f: thresholds.fit_half_known(of, between).value for f, of in sorted(whole.items())}

    def _pilots_with(self, factor: float) -> list[thresholds.Trial]:
        """The pilots of trials that had this factor."""
        return [trial for of, trial in self.pilot_trials if of == factor]

    @property
    def _factors_of_pilots(self) -> list[float]:
        """Learning-rate factors for pilots of trials; the best is among them once all are tried."""
        if not self.method.trial_pilots:
            return []
        return self._grid_around(self.factor(self.method.rungs - 1), self._thresholds)

    def _round(self, stage: str, first: int, sizes: Sequence[tuple[float, int]]) -> list[Proposal]:
        """Trials with these factors and numbers of examples, numbered from `first` on."""
        method = self.method
        return [
            Proposal(
                stage=stage,
                place=place,
                number=method.pilots + method.lanes + first + place,
                table=(first + place) % method.tables,
                steps=method.steps,
                factor=factor,
                n_examples=n_examples,
            )
            for place, (factor, n_examples) in enumerate(sizes)
        ]


def method_of(run: Run) -> Any:
    """The method of a run, with the fields of its own kind."""
    method: Any = run.method
    return method


def arrays_of_best(best: Best) -> dict[str, np.ndarray]:
    """Arrays that a checkpoint holds of the best weights."""
    bits, table, params = best
    return {"best": np.array([bits, table])} | {f"best/{x}": y for x, y in params.items()}


def best_of_arrays(run: Run, arrays: Mapping[str, np.ndarray]) -> Best:
    """The inverse of `arrays_of_best`."""
    bits, table = arrays["best"]
    params = {
        x.removeprefix("best/"): y.astype(np.float32)
        for x, y in arrays.items()
        if x.startswith("best/")
    }
    if params:
        shapes = certificates.shapes(run.module(), run.task.context_length)
        certificates.require_shapes(params, shapes)
    return float(bits), int(table), params
