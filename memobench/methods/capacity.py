"""Capacity: many trainings of one architecture, over label tables, initial weights and steps.

The spec, and its policy over the engine's lanes. Of every run pilots choose the learning rate; then
lanes over label tables and initial weights climb a ladder of budgets, and trials on growing sets
find the largest that is known completely. Where the rate is constant for most of the steps, one
trunk serves all rungs: the state at which each decay begins is kept, and only the decays are run
for every rung (Hu et al. 2024, MiniCPM; Hägele et al. 2024).
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import math
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import numpy as np

from memobench import capacity, engine, metrics
from memobench import columns as col
from memobench.columns import Column, by_name, declared, integer, number, require
from memobench.engine import Job, initializing, lanes, reading
from memobench.methods import training
from memobench.methods.base import Method, OnSteps, PackResult
from memobench.methods.training import Training
from memobench.models import base as models
from memobench.models.base import Module
from memobench.planner import packing
from memobench.runtime.checkpoints import Checkpoints
from memobench.spec import MOST_SEED, kind, nested
from memobench.table.consistency import REPEATED, check_derived
from memobench.tasks.labelled_contexts import rounded

if TYPE_CHECKING:
    from memobench.planner.packing import Pack
    from memobench.runs import Run

# Raised whenever a run would make other trainings: ids then differ, and results never mix.
RULES = 1
# Rounds of trials; each is chosen by what those before it found.
ROUNDS = 4
# How often the grid of learning rates is extended where the best is at its edge.
EXTENSIONS = 2


@kind("capacity")
class Capacity(Method):
    """The capacity of an architecture: means over label `tables` and `inits` of each.

    Every lane is one `training`, of all examples of the task with the labels of one table, from
    initial weights of its own. The rate is constant until the last `decay` of the steps, and falls
    linearly to the training's final share. `rungs` budgets are measured, each twice the one before,
    the last of `training.steps`. The learning rate is the one of `rate_factors` times the
    training's with which `pilots`, whose initial weights no lane has, know most with half of these
    steps; the grid is extended where that is at its edge. Then `threshold_trials` trainings on
    the first so many examples find the largest set of which half of them know 99%. See
    `memobench.capacity`.
    """

    accuracy_of_final_weights: ClassVar[bool] = False

    training: Training = nested(Training, "of every lane")
    rate_factors: tuple[float, ...] = declared(
        col.numbers(16), "factors of the learning rate that are tried", default=(0.3, 1.0, 3.0)
    )
    tables: int = integer("label tables", 1, default=8, most=2**16)
    inits: int = integer("initial weights of each label table", 1, default=2, most=2**16)
    pilots: int = integer("trainings that choose the learning rate", 1, default=2, most=2**16)
    rungs: int = integer("numbers of steps, each twice the one before", 1, default=4, most=32)
    decay: float = number(
        "share of the steps in which the rate falls", default=0.25, above=0, most=1
    )
    threshold_trials: int = integer(
        "trainings that find the largest set known completely", 0, default=0, most=2**16
    )
    rules: int = integer("version of the rules by which trials are chosen", 1, default=RULES)

    def check(self) -> None:
        plain = self.training
        require(
            plain.protocol != "passes" and plain.start is None,
            "training must be of protocol='exact' or 'published' and without start: every lane "
            "begins anew",
        )
        require(
            self.rules == RULES,
            f"rules={self.rules!r} are not those of this version, {RULES}; leave rules out",
        )
        wrong = [n for n in self.ladder if n % plain.n_batches or self.hold(n) % plain.chunk_steps]
        require(
            not wrong and self.ladder[0] > 0,
            f"training.epochs={plain.epochs} of n_batches={plain.n_batches} cannot be halved "
            f"rungs={self.rungs} times with a decay={self.decay:g} of whole chunks of "
            f"{plain.chunk_steps} steps; raise epochs, or lower rungs",
        )

    @property
    def ladder(self) -> list[int]:
        """The numbers of steps of the rungs, rising."""
        return [self.steps >> k for k in range(self.rungs)][::-1]

    def hold(self, steps: int) -> int:
        """Steps before the rate of a rung of so many begins to fall."""
        return steps - round(self.decay * steps)

    @property
    def protocol(self) -> str:  # type: ignore[override]
        """The protocol of every lane."""
        return self.training.protocol

    @property
    def steps(self) -> int:
        """Optimiser steps of the last rung."""
        return self.training.steps

    @property
    def batch_size(self) -> int | None:
        """Examples of a step of a lane."""
        return self.training.batch_size

    @property
    def lanes(self) -> int:
        """How many models climb the ladder."""
        return self.tables * self.inits

    def tasks(self, run: Run) -> list[Any]:
        """The run's task with each of its label tables, of consecutive seeds."""
        return [run.task.replace(seed=run.task.seed + k) for k in range(self.tables)]

    def check_run(self, run: Run) -> None:
        task: Any = run.task
        require(
            task.has_parts and task.parts,
            "method: a Capacity needs tokens of even frequency in random order; set "
            f"zipf_exponent=None and n_sequences, to {task.n_examples} for all",
        )
        require(
            task.seed + self.tables <= MOST_SEED,
            f"seed={task.seed} of the task leaves no room for tables={self.tables}; lower it",
        )
        self.training.check_run(run)

    def check_module(self, module: Module) -> None:
        self.training.check_module(module)

    def predicted_steps(self, run: Run) -> int:
        """Of pilots, ladders and trials; those that know all before the end are not foreseen."""
        climbed = self.hold(self.steps) + sum(n - self.hold(n) for n in self.ladder)
        tried = len(self.rate_factors) * self.pilots * self.pilot_steps
        return self.lanes * climbed + tried + self.threshold_trials * self.steps

    @property
    def pilot_steps(self) -> int:
        """Steps of a pilot: those of the last rung but one."""
        return self.ladder[-2:][0]

    def signature(self, module: Module, task: Any) -> Hashable:
        return self.training.signature(module, task, subsets=True)

    def task_key(self, task: Any) -> Any:
        return task.without_count()

    def program_task(self, runs: Sequence[Run], module: Module) -> Any:
        """The largest task; every lane is on a part of its examples."""
        largest: Any = max((run.task for run in runs), key=lambda task: task.n_examples)
        return largest.padded(module)

    def n_instances(self, runs: Sequence[Run]) -> int:
        return len(dict.fromkeys(task for run in runs for task in self.tasks(run)))

    def pack_key(self, run: Run) -> Hashable:
        # Of sets of about one size the smaller are padded to the largest.
        return rounded(run.task.n_examples), self.tables

    def train(
        self, pack: Pack, on_steps: OnSteps, checkpoints: Checkpoints | None = None
    ) -> PackResult:
        started = time.perf_counter()
        ladders = Ladders(pack, checkpoints)
        compile_seconds = engine.train(ladders, on_steps, checkpoints)
        return ladders.result(compile_seconds, time.perf_counter() - started - compile_seconds)

    def check_row(self, run: Run, row: Mapping[str, Any]) -> None:
        bits_KxL, known_KxL = (np.array(row[name]) for name in ("rung_bits", "rung_known"))
        require(
            row["rung_steps"] == self.ladder
            and bits_KxL.shape == known_KxL.shape == (self.rungs, self.lanes),
            f"rung_steps, rung_bits, rung_known are not of {self.rungs} rungs and {self.lanes} "
            "lanes; fix them",
        )
        require(
            len(row["complete_trials"]) == self.threshold_trials,
            f"complete_trials are not {self.threshold_trials}; fix them",
        )
        task = run.task
        accuracy = known_KxL[-1].mean() / task.n_examples
        derived = {"accuracy": float(accuracy), "bits": float(bits_KxL[-1].mean())}
        check_derived(row, derived, REPEATED)

    @classmethod
    def columns_of_rows(cls) -> dict[str, Column]:
        bits, whole = col.real(0), col.whole(0, 2**40)

        def lists(domain: col.Domain) -> col.Domain:
            return col.list_of(col.list_of(domain, 2**16), 64)

        return by_name(
            Column("learning_rate_used", "learning rate of lanes and trials", col.real(above=0)),
            Column("edge_of_rates", "whether pilots preferred the edge of the grid", col.truth()),
            Column(
                "pilot_factors",
                "factors of the learning rate that pilots tried",
                col.list_of(col.real(above=0), 64),
                in_csv=False,
            ),
            Column("pilot_bits", "bits of each pilot, for each factor", lists(bits), in_csv=False),
            Column("rung_steps", "optimiser steps of each rung", col.list_of(whole, 64)),
            Column("rung_bits", "bits of each lane, for each rung", lists(bits), in_csv=False),
            Column(
                "rung_known",
                "examples known of each lane, for each rung",
                lists(whole),
                in_csv=False,
            ),
            Column(
                "complete_trials",
                "examples, and whether 99% came to be known, of each trial",
                col.list_of(col.list_of(whole, 2), 2**16),
                in_csv=False,
            ),
            Column("best_bits", "bits of the best weights found", bits, "bits"),
            Column("best_complete", "largest set known completely by any weights found", whole),
        )


@dataclasses.dataclass(eq=False)
class _Lane(Job):
    """Steps `begin` to `begin + steps` of one model that trains for `total` steps in all.

    stage: PILOT, TRUNK, RUNG or TRIAL. search: the place of its run in the pack. number: of the
    model among those of its run, from which its initial weights follow. place: on the ladder, or in
    its round of trials. seen: the best accuracy of any step since the last look.
    """

    stage: str = ""
    search: int = 0
    number: int = 0
    table: int = 0
    factor: float = 1.0
    place: int = 0
    n_examples: int = 0
    begin: int = 0
    total: int = 0
    seen: float = 0.0
    bits: float = 0.0
    known: int = 0


PILOT, TRUNK, RUNG, TRIAL = "pilot", "trunk", "rung", "trial"


@dataclasses.dataclass
class _Found:
    """What the lanes of a run have found so far.

    pilot_bits: by factor and pilot. rungs: bits and examples known, by rung and lane. trials: in
    the order in which they were chosen. best, complete: the weights that know most bits of the
    whole, and the largest part completely.
    """

    method: Capacity
    factors: list[float]
    pilot_bits: dict[tuple[float, int], float] = dataclasses.field(default_factory=dict)
    rungs: dict[tuple[int, int], tuple[float, int]] = dataclasses.field(default_factory=dict)
    trials: list[capacity.Trial] = dataclasses.field(default_factory=list)
    round: dict[int, capacity.Trial] = dataclasses.field(default_factory=dict)
    best: tuple[float, Any] = (0.0, None)
    complete: tuple[int, Any] = (0, None)

    @property
    def pilots_FxP(self) -> np.ndarray:
        """Bits of each pilot, for every factor."""
        pilots = range(self.method.pilots)
        return np.array([[self.pilot_bits[factor, p] for p in pilots] for factor in self.factors])

    @property
    def factor(self) -> float:
        """The factor of the learning rate that pilots prefer."""
        return self.factors[capacity.best_rate(self.pilots_FxP)]

    @property
    def at_edge(self) -> bool:
        """Whether that is the least or the largest of several."""
        return len(self.factors) > 1 and self.factor in (self.factors[0], self.factors[-1])

    def lanes(self, values: int) -> np.ndarray:
        """Bits (0) or examples known (1) of all lanes, for each rung."""
        method = self.method
        return np.array(
            [
                [self.rungs[rung, lane][values] for lane in range(method.lanes)]
                for rung in range(method.rungs)
            ]
        )

    def extend(self) -> None:
        """Adds the factor beyond the edge of the grid that pilots prefer."""
        first, second, before, last = *self.factors[:2], *self.factors[-2:]
        low = self.factor == first
        self.factors = sorted([*self.factors, first**2 / second if low else last**2 / before])

    def to_arrays(self) -> dict[str, np.ndarray]:
        """What a checkpoint holds of it."""
        pilots = [(*key, bits) for key, bits in self.pilot_bits.items()]
        rungs = [(*key, *values) for key, values in self.rungs.items()]
        arrays = {"factors": self.factors, "pilots": pilots, "rungs": rungs, "trials": self.trials}
        return {name: np.array(x, np.float64) for name, x in arrays.items()}

    def restore(self, arrays: Mapping[str, np.ndarray] | None) -> None:
        """Takes what `to_arrays` gave; the weights of what was found before are lost."""
        if arrays is None:
            return
        self.factors = arrays["factors"].tolist()
        self.pilot_bits = {(f, int(p)): bits for f, p, bits in arrays["pilots"]}
        self.rungs = {(int(k), int(i)): (bits, int(known)) for k, i, bits, known in arrays["rungs"]}
        self.trials = [capacity.Trial(int(n), bool(x)) for n, x in arrays["trials"]]


class Ladders(training.Epochs):
    """Every run of a pack sends pilots, then its lanes up the ladder, then trials."""

    resumes = False  # What lanes ended with is kept, not the weights of one in training.

    def __init__(self, pack: packing.Pack, checkpoints: Checkpoints | None = None) -> None:
        super().__init__(pack)
        self._checkpoints = checkpoints
        self._exact = self.signature.protocol == "exact"
        self._waiting: collections.deque[_Lane] = collections.deque()
        self._n_open = [0] * len(pack.runs)
        self._found = [_Found(_method(run), sorted(_method(run).rate_factors)) for run in pack.runs]
        for i, run in enumerate(pack.runs):
            self._found[i].restore(checkpoints.load(run.run_id) if checkpoints else None)
            self._propose(i)
        self.width = max(1, min(pack.slots, len(self._waiting)))

    def tasks(self, run: Run) -> Sequence[Any]:
        return _method(run).tasks(run)

    def task(self, job: Any) -> Any:
        return self.tasks(job.run)[job.table]

    def n_examples(self, job: Any) -> int:
        return job.n_examples

    def shuffle_key(self, job: Any) -> jax.Array:
        return jax.random.fold_in(reading.shuffle_key(job.run), job.number)

    def next(self) -> Any:
        return self._waiting.popleft() if self._waiting else None

    def variables(self, job: Any) -> Any:
        key = jax.random.fold_in(initializing.init_key(job.run), job.number)
        return models.init_on_host(job.run.module(), job.run.task.context_length, key)

    def rates(self, first_R: np.ndarray) -> np.ndarray:
        step_RxC = first_R[:, None] + np.arange(self.signature.chunk_steps)
        if not self._exact:  # As published, the rate is constant within an epoch.
            step_RxC = step_RxC // self.signature.epoch_steps * self.signature.epoch_steps
        return np.stack([rates(*of) for of in zip(self._seated, step_RxC, strict=True)])

    def record(self, jobs: Sequence[Any], step_R: np.ndarray, curve: Any) -> None:
        if self._exact:  # A batch's accuracy is no accuracy on all examples.
            for job, accuracy_C in zip(jobs, curve[1], strict=True):
                if job is not None and job.stage == TRIAL:
                    job.seen = max(job.seen, float(accuracy_C.max()))

    def due(self, job: Any) -> bool:
        return job.step >= job.steps or capacity.complete(
            round(job.seen * job.n_examples), job.n_examples
        )

    def evaluated(self, job: Any, loss: float, accuracy: float) -> None:
        finite, n = math.isfinite(loss), job.n_examples
        job.known = round(accuracy * n) if finite else 0
        job.bits = float(metrics.memorized_bits(loss, n, job.run.task.n_choices)) if finite else 0.0
        job.seen = 0.0
        job.done = job.step >= job.steps or capacity.complete(job.known, n)

    def finished(self, jobs: Sequence[Any], take: Callable[[], Any]) -> None:
        taken = functools.cache(lambda: jax.device_get(take()))
        for i, job in enumerate(jobs):
            state = functools.partial(self._state, taken, i, job)
            if job.stage == TRUNK:
                self._branch(job, state())
            else:
                self._keep(job, state)
            self._n_open[job.search] -= 1
        for search in dict.fromkeys(job.search for job in jobs):
            if not self._n_open[search]:
                self._propose(search)

    def result(self, compile_seconds: float, seconds: float) -> PackResult:
        """The result, once all is done."""
        loss_R, accuracy_R, certificates = zip(
            *(_measured(run, found) for run, found in zip(self.runs, self._found, strict=True)),
            strict=True,
        )
        return PackResult(
            accuracy_R=np.array(accuracy_R),
            loss_R=np.array(loss_R),
            step_accuracy_RxL=np.array(accuracy_R)[:, None],
            step_loss_RxL=np.array(loss_R)[:, None],
            compile_seconds=compile_seconds,
            run_seconds=seconds,
            variables=None,
            certificates=certificates,
        )

    def _state(self, taken: Callable[[], Any], i: int, job: _Lane) -> Any:
        return lanes.crop(taken(), i, self.true_shapes(job))

    def _branch(self, job: _Lane, state: Any) -> None:
        """Goes on from where a rung's decay begins: down to it, and up the trunk."""
        method = _method(job.run)
        rung = dataclasses.replace(
            job,
            stage=RUNG,
            begin=job.begin + job.steps,
            steps=method.ladder[job.place] - job.begin - job.steps,
            step=0,
            done=False,
            state=state,
        )
        self._queue([rung, self._climb(job, job.place + 1, rung.begin, state)])

    def _climb(self, job: _Lane, place: int, begin: int, state: Any) -> _Lane:
        """The trunk up to a rung, of the last with its decay."""
        method = _method(job.run)
        last, total = place == method.rungs - 1, method.ladder[place]
        return dataclasses.replace(
            job,
            stage=RUNG if last else TRUNK,
            place=place,
            begin=begin,
            total=total,
            steps=(total if last else method.hold(total)) - begin,
            step=0,
            done=False,
            state=state,
        )

    def _keep(self, job: _Lane, state: Callable[[], Any]) -> None:
        """Writes down what a model came to know, and keeps its weights if none know more."""
        found = self._found[job.search]
        if job.stage == PILOT:
            found.pilot_bits[job.factor, job.number] = job.bits
        elif job.stage == RUNG:
            found.rungs[job.place, job.number - found.method.pilots] = job.bits, job.known
        else:
            complete = capacity.complete(job.known, job.n_examples)
            found.round[job.place] = capacity.Trial(job.n_examples, complete)
            if complete and job.n_examples > found.complete[0]:
                found.complete = job.n_examples, state().variables
        if job.stage != TRIAL and job.bits > found.best[0]:
            found.best = job.bits, state().variables
        if self._checkpoints is not None:
            self._checkpoints.save(job.run.run_id, found.to_arrays())

    def _propose(self, i: int) -> None:
        """Queues what a run does next, if it is not done."""
        found = self._found[i]
        for stage in (self._pilots, self._ladder, self._trials):
            if jobs := stage(i, found):
                self._queue(jobs)
                return

    def _queue(self, jobs: Sequence[_Lane]) -> None:
        self._waiting += jobs
        for job in jobs:
            self._n_open[job.search] += 1

    def _pilots(self, i: int, found: _Found) -> list[_Lane]:
        """Those not made yet, of a grid that is extended where the best is at its edge."""
        method = found.method
        most = len(method.rate_factors) + EXTENSIONS

        def missing() -> list[tuple[float, int]]:
            every = itertools.product(found.factors, range(method.pilots))
            return [key for key in every if key not in found.pilot_bits]

        if not missing() and found.at_edge and len(found.factors) < most:
            found.extend()
        return [
            self._lane(i, PILOT, p, p, method.pilot_steps, factor=factor) for factor, p in missing()
        ]

    def _ladder(self, i: int, found: _Found) -> list[_Lane]:
        """The lanes that have not reached every rung."""
        method, climbing = found.method, []
        for lane in range(method.lanes):
            if any((rung, lane) not in found.rungs for rung in range(method.rungs)):
                first = self._lane(
                    i, TRUNK, method.pilots + lane, lane // method.inits, 0, factor=found.factor
                )
                climbing.append(self._climb(first, 0, 0, None))
        return climbing

    def _trials(self, i: int, found: _Found) -> list[_Lane]:
        """The next round."""
        method = found.method
        found.trials += [found.round[place] for place in sorted(found.round)]
        found.round = {}
        n_left = method.threshold_trials - len(found.trials)
        n_more = min(n_left, math.ceil(method.threshold_trials / ROUNDS))
        if n_more <= 0:
            return []
        task, known = self.runs[i].task, found.lanes(1)[-1].mean()
        memorized = metrics.chance_corrected(known / task.n_examples, task.n_examples, task.chance)
        sizes = capacity.next_sizes(
            found.trials, capacity.around(memorized, task.n_examples), n_more
        )
        first = len(found.trials)
        return [
            self._lane(
                i,
                TRIAL,
                method.pilots + method.lanes + first + place,
                (first + place) % method.tables,
                method.steps,
                factor=found.factor,
                place=place,
                n_examples=n,
            )
            for place, n in enumerate(sizes)
        ]

    def _lane(self, i: int, stage: str, number: int, table: int, total: int, **more: Any) -> _Lane:
        run = self.runs[i]
        about = {"n_examples": run.task.n_examples, **more}
        return _Lane(
            run=run,
            steps=total,
            total=total,
            stage=stage,
            search=i,
            number=number,
            table=table % _method(run).tables,
            **about,
        )


def rates(job: _Lane, step_C: np.ndarray) -> np.ndarray:
    """rate_C of steps: constant, then falling linearly to the training's final share."""
    method = _method(job.run)
    first, last = method.training.learning_rate, method.training.final_learning_rate
    hold = method.hold(job.total)
    fallen_C = np.maximum(step_C - hold, 0) / max(job.total - hold, 1)
    return job.factor * (first + (last - first) * fallen_C)


def _measured(run: Run, found: _Found) -> tuple[float, float, dict[str, Any]]:
    """Loss and accuracy, means over lanes of the last rung, and the columns of the row.

    A lane that diverged knows nothing, as one that guesses.
    """
    task: Any = run.task
    bits_KxL, known_KxL = found.lanes(0), found.lanes(1)
    loss = math.log(task.n_choices) - bits_KxL[-1].mean() * math.log(2) / task.n_examples
    columns = {
        "learning_rate_used": found.factor * found.method.training.learning_rate,
        "edge_of_rates": found.at_edge,
        "pilot_factors": found.factors,
        "pilot_bits": found.pilots_FxP.tolist(),
        "rung_steps": found.method.ladder,
        "rung_bits": bits_KxL.tolist(),
        "rung_known": known_KxL.astype(int).tolist(),
        "complete_trials": [[n, int(complete)] for n, complete in found.trials],
        "best_bits": max(found.best[0], bits_KxL.max()),
        "best_complete": max((n for n, complete in found.trials if complete), default=0),
    }
    return loss, known_KxL[-1].mean() / task.n_examples, columns


def _method(run: Run) -> Capacity:
    method: Any = run.method
    return method
