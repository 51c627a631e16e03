"""Annealing: a rate that warms up and falls to zero, the best weights kept, an early stop.

The protocol of Mahdavi et al. (2024): the spec, and its policy over the engine's lanes, one job a
run. Every chunk is `evaluate_every` steps and ends in an evaluation of all examples; a classifier
that knows every label leaves its lane to the next run. All runs of a seed read one set of examples,
of which each takes its prefix. The host's cores shuffle batches while the device trains.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any, ClassVar, Self

import jax
import numpy as np

from memobench import engine
from memobench.common.errors import require
from memobench.core import columns as col
from memobench.core import module as models
from memobench.core.checkpoints import Checkpoints
from memobench.core.columns import Column, by_name, flag, integer, number
from memobench.core.module import Module
from memobench.core.run import Cost, Pack, PackResult, Run
from memobench.core.spec import kind, nested
from memobench.engine import Job, Lane, Program, Signature, devices, lanes
from memobench.experiments.mahdavi2024 import ranks, saturated_heads
from memobench.methods.trained import TrainedMethod
from memobench.optimizers import Adam, Optimizer
from memobench.tasks import labelled_contexts
from memobench.tasks.labelled_contexts import LabelledContexts
from memobench.tasks.tokens import TokenTask


@kind("annealed")
class Annealing(TrainedMethod):
    """Training by an optimiser whose rate warms up and falls to zero by a cosine.

    As Mahdavi et al. (2024) train: the rate grows linearly from `first_share` of `learning_rate`
    over the first `warmup` of the `steps`; batches run through reshuffled epochs; every
    `evaluate_every` steps all examples are evaluated, and the weights of the least loss are kept.
    With `stop_early` a classifier that knows every label then stops.
    """

    protocol: ClassVar[str] = "annealed"
    keeps_weights: ClassVar[bool] = True

    batch_size: int = integer("examples of a step", 1, default=256, most=2**24)
    steps: int = integer("optimiser steps at most", 1, default=50_000)
    learning_rate: float = number("at its highest", default=1e-3, above=0)
    first_share: float = number(
        "share of the learning rate at the first step", default=0.01, above=0, most=1
    )
    warmup: float = number("share of the steps in which the rate grows", default=0.05, least=0)
    evaluate_every: int = integer("steps between evaluations of all examples", 1, default=500)
    stop_early: bool = flag("whether a classifier that knows all stops", default=True)
    optimizer: Optimizer = nested(Optimizer, "what turns gradients into steps", default=Adam())

    def check(self) -> None:
        require(
            self.warmup < 1,
            f"warmup={self.warmup!r} is not a share in [0, 1); give warmup such a value",
        )
        require(
            self.steps % self.evaluate_every == 0,
            f"steps={self.steps} is not a multiple of evaluate_every={self.evaluate_every}; fix it",
        )
        require(
            not self.optimizer.holds_rate,
            f"optimizer: {self.optimizer.name} averages weights in place of a falling rate, and an "
            "Annealing's falls; use another optimizer",
        )

    def for_examples(self, n_examples: int, epochs: int = 500) -> Self:
        """The same with as many epochs of n_examples if they are more steps, rounded up.

        >>> Annealing().for_examples(130_000).steps, Annealing().for_examples(10_000).steps
        (254000, 50000)
        """
        steps = max(self.steps, -(-epochs * n_examples // self.batch_size))
        whole = -(-steps // self.evaluate_every) * self.evaluate_every
        return self.replace(steps=whole)

    def check_run(self, run: Run) -> None:
        require(
            isinstance(run.task, LabelledContexts),
            f"method: an Annealing does not train the task {run.task.name!r}; it trains labelled "
            "contexts alone, so use "
            + ("a Training" if isinstance(run.task, TokenTask) else "a method of your own"),
        )

    def target(self, run: Run) -> float:
        """The accuracy at which a run stops; infinite where none stops it."""
        return 1.0 if self.stop_early and run.task.one_answer else math.inf

    def pack_key(self, run: Run) -> Hashable:
        return self._signature(models.structure(run.module()), run.task.pack_key())

    def program(self, pack: Pack) -> Signature:
        """That of a task which has those of all runs as prefixes."""
        tasks: list[Any] = [run.task for run in pack.runs]
        length = max(task.context_length for task in tasks)
        return self._signature(
            pack.module,
            tasks[0].replace(
                # Rounded up, so that more packs share a compilation.
                n_examples=labelled_contexts.round_up(max(task.n_examples for task in tasks)),
                context_length=models.paddable_sizes(pack.module).get("context_length", length),
                seed=0,
            ),
        )

    def _signature(self, module: Module, task: Any) -> Signature:
        return Signature(
            module=module,
            task=task,
            protocol=self.protocol,
            optimizer=self.optimizer,
            chunk_steps=self.evaluate_every,
            batch_size=self.batch_size,
            curve=False,
            keeps_best=True,
        )

    def cost(self, run: Run, module: Module | None = None) -> Cost:
        module = module or run.module()
        of_steps = super().cost(run, module)
        evaluation = module.work(run.task.n_examples, run.task.context_length)
        flops = of_steps.flops_per_step + 2.0 * evaluation / self.evaluate_every
        return dataclasses.replace(of_steps, flops_per_step=flops, queues=True)

    def policy(self, pack: Pack, checkpoints: Checkpoints | None) -> engine.Policy:
        return AnnealingPolicy(pack, checkpoints)

    @classmethod
    def columns_of_rows(cls) -> dict[str, Column]:
        share, counts = col.float_between(0, 1), col.list_of(col.int_between(), 2**20)
        picture: Any = col.list_of(col.list_of(share, 2**20), 2**20)
        return by_name(
            Column("stopped_at", "step at which the run stopped", col.int_between()),
            Column(
                "best_step", "step of the least loss, whose weights are kept", col.int_between()
            ),
            Column("attention_rank", "rank of the examples' attention weights", col.int_between()),
            Column(
                "stream_ranks",
                "rank of the queries' vectors before each layer",
                col.list_of(col.int_between(), 256),
            ),
            Column("saturated", "share of pairs of a head and an example saturated", share),
            Column("saturated_by_head", "the same for each head", col.list_of(share, 2**20)),
            Column(
                "examples_by_serving_heads",
                "examples that 0, 1, .. heads are not saturated on",
                counts,
            ),
            Column(
                "largest_attention",
                "largest attention weight, per head and example",
                picture,
                in_csv=False,
            ),
        )


# Pictures of which heads serve which examples are kept up to so many pairs.
MAX_PAIRS = 16_384

_POOL = concurrent.futures.ThreadPoolExecutor(thread_name_prefix="shuffle")


@dataclasses.dataclass(eq=False)
class AnnealingJob(Job):
    """A run, and (step, loss, accuracy) of its evaluations."""

    curve: list[tuple[int, float, float]] = dataclasses.field(default_factory=list)


class AnnealingPolicy(engine.OneJobPerRun):
    """Every run of a pack trains once, those of most steps first."""

    def __init__(self, pack: Pack, checkpoints: Checkpoints | None = None) -> None:
        self.signature: Signature = pack.signature
        self.seconds = pack.weight
        self.width = pack.slots
        self.seeds = sorted({run.task.seed for run in pack.runs})
        self.n_instances = len(self.seeds)
        self.data = devices.replicate(_sets(self.signature.task, self.seeds))
        self.shuffler = _Shuffler()
        self._jobs: Sequence[Job] = ()
        self.set_jobs(
            self.load(checkpoints, AnnealingJob(run, _annealing(run).steps)) for run in pack.runs
        )

    def lane_inputs(self, jobs: Sequence[Job]) -> Lane:
        self._jobs = jobs
        return Lane(
            instance=np.array([self.seeds.index(job.run.task.seed) for job in jobs], np.int32),
            n_examples=np.array([job.run.task.n_examples for job in jobs], np.int32),
            target=np.array([_annealing(job.run).target(job.run) for job in jobs], np.float32),
            step=np.zeros(len(jobs), np.int32),
        )

    def feed(self, program: Program, step_R: np.ndarray) -> tuple[Any, Any]:
        steps_C = np.arange(self.signature.chunk_steps)
        rate_RxC = [
            rates(_annealing(job.run), step + steps_C)
            for job, step in zip(self._jobs, step_R, strict=True)
        ]
        # Idle lanes repeat a job, whose batches are shuffled once.
        rows = {job: self.shuffler(job) for job in dict.fromkeys(self._jobs)}
        for job in rows:
            self.shuffler.prefetch(job)
        rows_RxCxB = np.stack([rows[job] for job in self._jobs])
        return devices.split(np.stack(rate_RxC).astype(np.float32)), devices.split(rows_RxCxB)

    def record_evaluation(self, job: Any, loss: float, accuracy: float) -> None:
        n_examples = job.run.task.n_examples
        known = round(accuracy * n_examples)
        job.curve.append((job.step, loss, known / n_examples))
        ended = known / n_examples >= _annealing(job.run).target(job.run) or job.step >= job.steps
        # A loss that is not finite stays so: only earlier weights count.
        job.done = ended or not math.isfinite(loss)

    def receive_finished(self, jobs: Sequence[Job], take: Callable[[], Any]) -> None:
        super().receive_finished(jobs, take)
        for job in jobs:
            self.shuffler.forget(job)

    def columns(self, job: Any) -> dict[str, np.ndarray]:
        return {"curve": np.array(job.curve)}

    def restore(self, job: Any, arrays: dict[str, np.ndarray]) -> None:
        job.curve = [(int(step), loss, known) for step, loss, known in arrays["curve"].tolist()]
        every, best = self.signature.chunk_steps, job.state.best
        require(
            [step for step, *_ in job.curve] == list(range(every, job.step + 1, every))
            and all(0 <= known <= 1 for *_, known in job.curve)
            and (best.loss >= 0 and 0 <= best.accuracy <= 1 and 0 <= best.step <= job.step),
            "evaluations must be of every chunk, with losses and accuracies that there can be",
        )

    def result(self, compile_seconds: float) -> PackResult:
        """The result, once all runs are done."""
        best = [_best_of(job) for job in self.all]
        n_examples = np.array([job.run.task.n_examples for job in self.all])
        loss_R = np.array([float(each.loss) for each in best])
        accuracy_R = np.rint([float(each.accuracy) for each in best] * n_examples) / n_examples
        return PackResult.of_ends(
            accuracy_R=accuracy_R,
            loss_R=loss_R,
            compile_seconds=compile_seconds,
            variables=models.stack(self._best_variables(job) for job in self.all),
            columns=tuple(self._certificate(job) for job in self.all),
        )

    def _best_variables(self, job: Job) -> Any:
        """The best variables of a run, padded."""
        assert job.state is not None
        variables = {**job.state.variables, "params": _best_of(job).params}
        return models.pad_to(variables, models.shapes(self.signature.module, 0))

    def _certificate(self, job: Any) -> dict[str, Any]:
        run, best, module = job.run, self._best_variables(job), self.signature.module
        n_examples = run.task.n_examples
        mine = self.seeds.index(run.task.seed)
        data = jax.tree.map(lambda x: x.addressable_data(0)[mine], self.data)
        points = np.unique(np.geomspace(1, len(job.curve), 24).round().astype(int)) - 1
        steps, losses, accuracies = zip(*(job.curve[i] for i in points), strict=True)
        return {
            "curve_steps": [int(step) for step in steps],
            "curve_accuracy": list(accuracies),
            "curve_loss": [loss if math.isfinite(loss) else None for loss in losses],
            "stopped_at": job.step,
            "best_step": int(_best_of(job).step),
            **(self._attention(run, best, data) if models.has_attention(module) else {}),
            **(ranks.columns(module, best, data, n_examples) if hasattr(module, "streams") else {}),
        }

    def _attention(self, run: Run, best: Any, data: Any) -> dict[str, Any]:
        """The columns of heads and examples."""
        n_heads = run.architecture.shared_cells()["n_heads"]
        largest_TxH = saturated_heads.largest_of_module(
            self.signature.module, best, labelled_contexts.inputs, data, run.task.n_examples
        )[:, :n_heads]
        small = largest_TxH.size <= MAX_PAIRS
        largest = {"largest_attention": np.round(largest_TxH.T, 3).tolist() if small else None}
        return saturated_heads.columns(largest_TxH) | largest


def _best_of(job: Job) -> lanes.Best:
    """The best weights of a run that has ended."""
    assert job.state is not None
    assert job.state.best is not None
    return job.state.best


class _Shuffler:
    """Batches that the host's cores shuffle while the device trains."""

    def __init__(self) -> None:
        self.ready: dict[str, concurrent.futures.Future] = {}

    def prefetch(self, job: Job) -> None:
        """Starts to shuffle the batches of a run's next chunk, if it may have one."""
        step = job.step + _annealing(job.run).evaluate_every
        if step < job.steps:
            self.ready[job.run.run_id] = _POOL.submit(batches, job.run, step)

    def __call__(self, job: Job) -> np.ndarray:
        """`batches` of a run's chunk, at once if they were shuffled ahead."""
        begun = self.ready.pop(job.run.run_id, None)
        return begun.result() if begun else batches(job.run, job.step)

    def forget(self, job: Job) -> None:
        """Drops what was shuffled ahead for a run that ended early."""
        self.ready.pop(job.run.run_id, None)


def _sets(task: LabelledContexts, seeds: Sequence[int]) -> Any:
    """The sets of all seeds, stacked as they are drawn: they may take gigabytes."""
    sets = jax.tree.map(lambda x: np.empty((len(seeds), *x.shape), x.dtype), task.shapes())
    for k, seed in enumerate(seeds):
        drawn = task.replace(seed=seed).sample()
        for into, x in zip(sets, drawn, strict=True):
            into[k] = x
    return sets


def batches(run: Run, step: int) -> np.ndarray:
    """rows_CxB, int32: the batches of the chunk that begins at `step`.

    Epoch after epoch runs through all examples in an order drawn from the run's seed and the
    epoch's number; a batch may reach from one epoch into the next.
    """
    method, n_examples = _annealing(run), run.task.n_examples
    start = step * method.batch_size
    stop = start + method.evaluate_every * method.batch_size
    epochs = range(start // n_examples, -(-stop // n_examples))
    orders = [np.random.default_rng([run.seed, epoch]).permutation(n_examples) for epoch in epochs]
    skipped = start - epochs[0] * n_examples
    rows = np.concatenate(orders)[skipped : skipped + stop - start]
    return rows.astype(np.int32).reshape(method.evaluate_every, method.batch_size)


def rates(method: Annealing, step_C: np.ndarray) -> np.ndarray:
    """rate_C: learning rates of steps, counted from 0: a linear warm-up, then a cosine to zero."""
    warm = round(method.warmup * method.steps)
    share_C = method.first_share + (1 - method.first_share) * step_C / max(warm, 1)
    falling_C = (1 + np.cos(math.pi * (step_C - warm) / max(method.steps - warm, 1))) / 2
    return method.learning_rate * np.where(step_C < warm, share_C, falling_C)


def _annealing(run: Run) -> Annealing:
    method: Any = run.method
    return method
