"""Training by epochs, published, in whole passes and exact: Adam, or another optimiser.

The spec, and its policy over the engine's lanes: one job a run.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, ClassVar, Self

import jax
import numpy as np

from memobench import engine
from memobench.common.errors import require
from memobench.constructions import making
from memobench.constructions.base import Construction
from memobench.core.checkpoints import Checkpoints
from memobench.core.columns import choice, integer, number
from memobench.core.module import Module, structure, trains
from memobench.core.run import Pack, PackResult, Run
from memobench.core.spec import as_text, kind, nested
from memobench.engine import Signature, devices
from memobench.methods.epochs import EpochJob, EpochPolicy, Rates
from memobench.methods.trained import TrainedMethod
from memobench.numerics.precision import COARSE
from memobench.optimizers import Adam, Optimizer
from memobench.optimizers.rounded import Rounded
from memobench.planner import packing
from memobench.schedules import LinearSchedule, Schedule
from memobench.tasks.labelled_contexts import LabelledContexts
from memobench.tasks.tokens import TokenTask

# As many as a column holds.
MOST_STEPS = 2**40
# Steps that the device takes, about, before the host hears of them.
STEPS_PER_CHUNK = 64


# The labels of rows whose weights are not all trained from random ones.
READ_OUT, FIXED_ATTENTION = "random features, trained read-out", "fixed queries and keys"
FINE_TUNED = "construction, fine-tuned"
PARTLY_TRAINED = {
    "read_out": READ_OUT,
    "all_but_attention": FIXED_ATTENTION,
    "memory": "fixed embeddings",
}


@kind("trained")
class Training(TrainedMethod):
    """Training by `epochs` epochs of `n_batches` optimiser steps each.

    `published` follows Dana et al. (2025) step for step: a fixed multiset of `batch_size *
    n_batches` examples, reshuffled every epoch; of whole sequences it holds each equally often, and
    facts are drawn anew at every step, with their noise. `passes` differs in the training set: it
    holds every example equally often, so that an epoch is a whole number of passes over them all.
    `exact` takes the gradient of the true objective over all examples at every step and has no
    batches: `batch_size` is None. The learning rate is constant within an epoch and falls over
    epochs from `learning_rate` to `final_learning_rate`, reached after the last, as `schedule`
    says. With equal rates it is constant, and so it is in a single epoch, which never leaves
    `learning_rate`. `warmup` comes first.
    Weights start out random, or as the construction `start` makes them. All of them are trained, or
    those that `trained` names: `read_out`, by which the logits are linear in what attention and MLP
    offer, all but the queries and keys of attention, or the `memory`: all but token embeddings and
    unembedding. With a `precision` steps move float32 weights, and the model has them rounded to
    it, in blocks that share a scale as those of a certificate: see `memobench.optimizers.rounded`.
    """

    keeps_weights: ClassVar[bool] = True

    protocol: str = choice(  # type: ignore[misc]
        "whose rules the method follows", "published", "passes", "exact", default="published"
    )
    batch_size: int | None = integer(
        "examples of a step; none for all", 1, default=256, most=2**24, optional=True
    )
    n_batches: int = integer("steps of an epoch", 1, default=64)
    epochs: int = integer("epochs", 1, default=64)
    learning_rate: float = number("of the first epoch", default=1e-2, least=0)
    final_learning_rate: float = number(
        "reached after the last epoch; a single one stays at the first rate", default=5e-4, least=0
    )
    schedule: Schedule = nested(
        Schedule,
        "how the rate goes from the first to the final one; none linearly",
        default=LinearSchedule(),
        omit=LinearSchedule(),
    )
    warmup: float | None = number(
        "share of the epochs in which the rate rises to the first one",
        default=None,
        above=0,
        most=0.5,
        omit=None,
    )
    optimizer: Optimizer = nested(Optimizer, "what turns gradients into steps", default=Adam())
    precision: str | None = choice(
        "precision of the weights that are evaluated and kept; none for float32",
        *COARSE,
        default=None,
        omit=None,
    )
    rounded: str | None = choice(
        "when weights are rounded to the precision: after training, which knows nothing of it; "
        "none at every step, whose gradients go straight through",
        "after",
        default=None,
        omit=None,
    )
    start: Construction | None = as_text(
        Construction, "construction that training starts from", Construction.parse, default=None
    )
    trained: str | None = choice(
        "parameters that are trained; none for all",
        *("read_out", "all_but_attention", "memory"),
        default=None,
    )

    def check(self) -> None:
        exact = self.protocol == "exact"
        require(
            not exact or self.batch_size is None, "batch_size must be None with protocol='exact'"
        )
        require(
            exact or self.batch_size is not None,
            f"batch_size=None is not an integer >= 1, which protocol={self.protocol!r} needs; "
            "give batch_size such a value",
        )
        require(
            self.steps <= MOST_STEPS,
            f"epochs={self.epochs} of n_batches={self.n_batches} are more than 2^40 steps; lower "
            "epochs",
        )
        require(
            self.rounded is None or self.precision is not None,
            f"rounded={self.rounded!r} means nothing without precision; leave rounded out",
        )
        require(
            self.precision is None or self.trained is None,
            f"precision={self.precision!r} is that of all weights, of which trained="
            f"{self.trained!r} leaves some as they are; leave trained out",
        )
        self._check_rates()
        self.schedule.check_epochs(self.epochs)

    def _check_rates(self) -> None:
        require(
            self.epochs == 1 or self.learning_rate >= self.final_learning_rate,
            f"learning_rate={self.learning_rate:g} is below final_learning_rate="
            f"{self.final_learning_rate:g}; lower final_learning_rate too",
        )
        still = self.learning_rate == self.final_learning_rate
        require(
            self.schedule == LinearSchedule() or not still,
            f"schedule={self.schedule!r} means nothing where learning_rate and "
            "final_learning_rate are equal; leave schedule out",
        )
        require(
            still or not self.optimizer.holds_rate,
            f"optimizer: {self.optimizer.name} averages weights in place of a falling rate; set "
            f"final_learning_rate to {self.learning_rate:g}, the learning_rate",
        )

    @property
    def rates(self) -> Rates:
        """The learning rate over epochs."""
        first, last = self.learning_rate, self.final_learning_rate
        return Rates(first, last, self.warmup or 0.0, self.schedule)

    @property
    def steps(self) -> int:
        """Number of optimiser steps."""
        return self.n_batches * self.epochs

    def exact(self) -> Self:
        """The exact protocol with the same number of steps and the same learning rates."""
        return self.replace(protocol="exact", batch_size=None)

    def check_run(self, run: Run) -> None:
        task: Any = run.task
        require(
            isinstance(task, TokenTask),
            f"method: a Training does not train the task {task.name!r}, which is not of tokens; "
            + (
                "use an Annealing"
                if isinstance(task, LabelledContexts)
                else "write a method of your own"
            ),
        )
        require(
            not task.is_fresh or self.protocol == "published",
            f"protocol={self.protocol!r}: the noise around facts is drawn anew at every step; "
            "use protocol='published'",
        )
        require(
            self.start is None or task.constructible,
            f"start: nothing constructs weights for the task {task.name!r}; leave start out",
        )
        if self.start is not None:
            self.start.check_run(run)
        if self.protocol == "passes":
            self._check_passes(run)

    def _check_passes(self, run: Run) -> None:
        require(
            run.task.is_even,
            "protocol='passes' is of examples of even frequency; use protocol='published'",
        )
        drawn = self.n_batches * (self.batch_size or 0)
        require(
            drawn % run.task.n_examples == 0,
            f"n_batches * batch_size = {drawn} is not a multiple of the {run.task.n_examples} "
            "examples, which protocol='passes' shows equally often in an epoch; change n_batches",
        )

    def check_model(self, run: Run) -> None:
        """Raises UserError for a model without the parameters that `trained` names."""
        self.trains(run.module())
        if self.start is not None:
            self.start.check_model(dataclasses.replace(run, method=self.start))

    def trains(self, module: Module) -> Any:
        """A function from a parameter's name to True where it is trained."""
        return trains(module, self.trained)

    @property
    def chunk_steps(self) -> int:
        """The steps of a chunk, which divides an epoch; no result depends on it."""
        return _chunk_steps(self.n_batches)

    @classmethod
    def variant(cls, row: Mapping[str, Any]) -> str:
        if row["trained"]:
            return PARTLY_TRAINED[row["trained"]]
        return FINE_TUNED if row["start"] else ""

    def signature(self, module: Module, task: Any, subsets: bool = False) -> Signature:
        """All that decides a program: not seeds, learning rates, numbers of epochs or starts.

        Args:
          module: the padded one, or its structure alone.
          task: without what may differ.
          subsets: whether jobs take the first so many examples of an instance.
        """
        optimizer: Any = self.optimizer
        if self.precision is not None:
            optimizer = Rounded(optimizer, self.precision, self.rounded is None)
        return Signature(
            module=module,
            task=task,
            protocol=self.protocol,
            optimizer=optimizer,
            chunk_steps=self.chunk_steps,
            batch_size=self.batch_size or 0,
            epoch_steps=self.n_batches,
            trained=self.trained,
            subsets=subsets,
        )

    def pack_key(self, run: Run) -> Hashable:
        own = self.signature(structure(run.module()), run.task.pack_key())
        return own, self.start

    def program(self, pack: Pack) -> Signature:
        return self.signature(pack.module, pack.runs[0].task.signature())

    def policy(self, pack: Pack, checkpoints: Checkpoints | None) -> engine.Policy:
        return TrainingPolicy(pack, checkpoints=checkpoints)


class ByTraining(TrainedMethod):
    """A method whose models are each made by its field `training`."""

    training: Training

    @property
    def protocol(self) -> str:  # type: ignore[override]
        """The protocol of a training."""
        return self.training.protocol

    @property
    def steps(self) -> int:
        """Optimiser steps of a training, at most."""
        return self.training.steps

    @property
    def batch_size(self) -> int | None:
        """Examples of a step of a training."""
        return self.training.batch_size

    @classmethod
    def variant(cls, row: Mapping[str, Any]) -> str:
        return Training.variant(row)

    def check_run(self, run: Run) -> None:
        self.training.check_run(run)

    def check_model(self, run: Run) -> None:
        self.training.check_model(run)


@functools.cache
def _chunk_steps(n_batches: int) -> int:
    """The divisor of an epoch's steps that is nearest to STEPS_PER_CHUNK, as a ratio.

    An epoch without divisors is one chunk; beyond STEPS_PER_CHUNK**2 steps every step is one, and
    the host's work between them then slows small models.

    >>> [_chunk_steps(n) for n in (10, 64, 100, 67, 1009, 4099)]
    [10, 64, 50, 67, 1009, 1]
    """
    divisors = (c for c in range(1, STEPS_PER_CHUNK**2 + 1) if n_batches % c == 0)
    return min(divisors, key=lambda c: abs(math.log(c / STEPS_PER_CHUNK)))


def train_one(run: Run) -> PackResult:
    """Trains one run alone at its true size, as its method says: a pack of one."""
    return run.method.train(packing.make_pack([run]))


@dataclasses.dataclass(eq=False)
class TrainingJob(EpochJob):
    """A whole run: its loss and accuracy, at every step and in the end."""

    curve_2xL: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros((2, 0), np.float32))
    loss: float = math.nan
    accuracy: float = math.nan


class TrainingPolicy(engine.OneJobPerRun, EpochPolicy):
    """Every run of a pack trains once, and its weights stay padded and on the device.

    They begin as `initial` has them, padded and stacked, as constructions make them, or at random.
    """

    def __init__(
        self, pack: Pack, initial: Any = None, checkpoints: Checkpoints | None = None
    ) -> None:
        methods: list[Any] = [run.method for run in pack.runs]
        if initial is None and methods[0].start:
            initial = making.initial_variables(pack)
        super().__init__(pack)
        self.width = len(pack.runs)
        self._initial = None if initial is None else jax.tree.map(np.asarray, initial)
        self.set_jobs(
            self.load(checkpoints, _make_job(run, method))
            for run, method in zip(pack.runs, methods, strict=True)
        )
        self._taken: list[tuple[Sequence[Any], Any]] = []

    def variables(self, job: Any) -> Any:
        if self._initial is None:
            return super().variables(job)
        i = self.all.index(job)
        return jax.tree.map(lambda x: x[i], self._initial)

    def record(self, jobs: Sequence[Any], step_R: np.ndarray, curve: Any) -> None:
        loss_RxC, accuracy_RxC = curve
        for i, job in enumerate(jobs):
            if job is not None:
                stop = step_R[i] + self.signature.chunk_steps
                job.curve_2xL[0, step_R[i] : stop] = loss_RxC[i]
                job.curve_2xL[1, step_R[i] : stop] = accuracy_RxC[i]

    def record_evaluation(self, job: Any, loss: float, accuracy: float) -> None:
        job.loss, job.accuracy, job.done = loss, accuracy, True

    def receive_finished(self, jobs: Sequence[Any], take: Callable[[], Any]) -> None:
        self._taken.append((jobs, devices.without_fill(len(jobs), take().variables)))

    def result(self, compile_seconds: float) -> PackResult:
        """A run that diverged has a loss that is not finite."""
        jobs: list[Any] = self.all
        return PackResult(
            accuracy_R=np.array([job.accuracy for job in jobs]),
            loss_R=np.array([job.loss for job in jobs]),
            step_accuracy_RxL=np.stack([job.curve_2xL[1] for job in jobs]),
            step_loss_RxL=np.stack([job.curve_2xL[0] for job in jobs]),
            compile_seconds=compile_seconds,
            variables=self._variables_of_all(),
        )

    def _variables_of_all(self) -> Any:
        """The final weights, padded and stacked in the order of the runs."""
        (jobs, variables), *others = self._taken
        if not others and list(jobs) == self.all:
            return variables
        order = {job: i for i, job in enumerate(job for jobs, _ in self._taken for job in jobs)}
        places = np.array([order[job] for job in self.all])
        trees = [variables for _, variables in self._taken]
        return jax.tree.map(lambda *xs: np.concatenate(xs)[places], *trees)

    def columns(self, job: Any) -> dict[str, np.ndarray]:
        return {"curve": job.curve_2xL[:, : job.step]}

    def restore(self, job: Any, arrays: dict[str, np.ndarray]) -> None:
        job.done = False  # What has ended is not saved.
        job.curve_2xL = np.zeros((2, job.steps), np.float32)
        job.curve_2xL[:, : job.step] = arrays["curve"]
        accuracy_L = job.curve_2xL[1]
        require(((accuracy_L >= 0) & (accuracy_L <= 1)).all(), "accuracies must be from 0 to 1")


def _make_job(run: Run, method: Training) -> TrainingJob:
    return TrainingJob(
        run=run,
        steps=method.steps,
        epochs=method.epochs,
        rates=method.rates,
        curve_2xL=np.zeros((2, method.steps), np.float32),
    )
