"""A run, and the contract of methods, which make its weights.

A `Run` is one task, architecture, method and seed. A `Pack` holds runs that train together. A
`Method` is a frozen spec with what planner, costs and workers ask of it. They name each other, so
they stand in one file.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from memobench.common import strict_json
from memobench.common.errors import UserError, agree, check_arguments, require, short_repr
from memobench.core.architecture import Architecture
from memobench.core.checkpoints import Checkpoints
from memobench.core.columns import NAME, Column, int_between
from memobench.core.module import Module
from memobench.core.spec import MOST_SEED, SPEC_VERSION, Spec
from memobench.core.task import Task

SEED = int_between(0, MOST_SEED)


@check_arguments
@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """One task, architecture, method and seed; `run_id` names it, so it is never done twice.

    >>> from memobench.models.transformer import MLP
    >>> from memobench.tasks.associations import Associations
    >>> run = Run(task=Associations(), architecture=MLP(d_model=4, d_head=4, d_mlp=8))
    >>> run.run_id == dataclasses.replace(run).run_id
    True
    """

    task: Task
    architecture: Architecture
    method: Method = dataclasses.field(default_factory=lambda: Method.get_kind("trained")())
    seed: int = 0

    def __post_init__(self) -> None:
        families: dict[str, Any] = {"task": Task, "architecture": Architecture, "method": Method}
        for name, family in families.items():
            value = getattr(self, name)
            if not isinstance(value, family):
                raise UserError(
                    f"{name} must be of class {family.__name__}, got {short_repr(value)}. Give one"
                )
        # The one place where a frozen value is written: the seed takes its one form.
        object.__setattr__(self, "seed", SEED.validate("seed", self.seed))
        self.method.check_run(self)

    def module(self) -> Module:
        """The model at its true size. Raises UserError for a task that it cannot serve."""
        return self.architecture.module_for(self.task)

    @property
    def specs(self) -> tuple[Spec, ...]:
        """The task, architecture and method."""
        return self.task, self.architecture, self.method

    def canonical(self) -> str:
        """The spec as JSON with sorted keys."""
        fields: dict[str, Any] = {
            "task": self.task.canonical(),
            "architecture": self.architecture.canonical(),
            "method": self.method.canonical(),
            "seed": self.seed,
            "spec_version": SPEC_VERSION,
        }
        return strict_json.canonical(fields)

    @functools.cached_property
    def run_id(self) -> str:
        """First 16 hexadecimal digits of the SHA-256 of the canonical form."""
        return hashlib.sha256(self.canonical().encode()).hexdigest()[:16]


@dataclasses.dataclass(frozen=True)
class Pack:
    """Runs trained together, the module they are padded to, and what that is predicted to cost.

    slots: how many lanes train at a time: one for each run, or fewer where runs wait for one.
    waste: share of the arithmetic spent on padding. n_devices: how many share the runs.
    memory_bytes: a prediction for each device. seconds: the planner's rough weight, without
    compilation; `costs.predict` knows better.
    """

    runs: tuple[Run, ...]
    module: Module
    slots: int
    waste: float
    memory_bytes: float
    seconds: float
    platform: str = "cpu"
    n_devices: int = 1


# Called with the number of model-steps done since its last call.
OnSteps = Callable[[int], None]


class Weights(NamedTuple):
    """Parameters of a model at its true size, and the examples that they are meant for.

    Attributes:
      params: a tree of float arrays.
      first: the number of the task's examples, from its first on; None for all.
      task: None for the run's.
    """

    params: Any
    first: int | None = None
    task: Any = None


@dataclasses.dataclass(frozen=True)
class PackResult:
    """The result of training a pack, in the order of its runs.

    Attributes:
      accuracy_R: over all examples at the final weights.
      loss_R: the same, a mean in nats.
      step_accuracy_RxL: of each step's batch before its update.
      step_loss_RxL: the same.
      compile_seconds: 0 where the program was compiled before.
      run_seconds: all others, which `runtime.worker` measures.
      earlier_devices: those that trained each run before, by `runtime.worker`.
      variables: final, padded, stacked.
      columns: further ones of each run's row, from methods that have any.
      weights: those that are kept of each run, None where none are; by default `variables`.
    """

    accuracy_R: np.ndarray
    loss_R: np.ndarray
    step_accuracy_RxL: np.ndarray
    step_loss_RxL: np.ndarray
    compile_seconds: float
    run_seconds: float = 0.0
    earlier_devices: tuple[tuple[str, ...], ...] = ()
    variables: Any = dataclasses.field(default=None, repr=False)
    columns: tuple[dict[str, Any], ...] = ()
    weights: tuple[Weights | None, ...] | None = dataclasses.field(default=None, repr=False)

    @classmethod
    def of_ends(cls, accuracy_R: np.ndarray, loss_R: np.ndarray, **more: Any) -> PackResult:
        """The result of a method that keeps no curves: each has the end as its only point.

        Of a run that could not be made accuracies are NaN, which a curve cannot hold.
        """
        return cls(
            accuracy_R=accuracy_R,
            loss_R=loss_R,
            step_accuracy_RxL=np.nan_to_num(accuracy_R)[:, None],
            step_loss_RxL=loss_R[:, None],
            **more,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Method(Spec):
    """Base of all methods: makes the weights of a run.

    A kind gives `protocol`, `steps`, `check_run` and `train`; all else has defaults.

    protocol: whose rules it follows. lanes: models that a run trains side by side. starts: initial
    weights of each. queues: whether runs may end early, so that others take their place in a pack.
    solves: whether weights are solved for one run after another instead of trained.
    """

    noun: ClassVar[str] = "method"
    package: ClassVar[str] = "memobench.methods"
    registry: ClassVar[dict[str, type[Spec]]] = {}
    order: ClassVar[tuple[str, ...]] = (
        "annealed",
        "capacity",
        "checked",
        "constructed",
        "optimised",
        "searched",
        "trained",
    )
    protocol: ClassVar[str]
    queues: ClassVar[bool] = False
    solves: ClassVar[bool] = False
    # Floating-point operations that the smallest run takes, where weights are solved for.
    least_work: ClassVar[float] = 0.0
    # Whether accuracy and loss are of the same weights.
    accuracy_of_final_weights: ClassVar[bool] = True
    # What one weight can hold.
    bits_per_weight: ClassVar[float] = 32.0
    # Whether a run's weights are kept, where they are finite.
    keeps_weights: ClassVar[bool] = False
    # Whether its time is spent on its steps.
    stepwise: ClassVar[bool] = True

    # Fields of some methods, and constants of others.
    if TYPE_CHECKING:

        @property
        def starts(self) -> int:
            """Initial weights of each model."""

        @property
        def batch_size(self) -> int | None:
            """Examples of a step; None for all."""

        @property
        def start(self) -> Any:
            """The construction that training starts from; None for random weights."""

        @property
        def steps(self) -> int:
            """Optimiser steps of one model."""

    else:
        starts, batch_size, start = 1, None, None

    @classmethod
    def check_kind(cls) -> None:
        own = {field.name for field in dataclasses.fields(cls)}
        for name in ("protocol", "steps", "check_run"):
            given = name in own or getattr(cls, name, None) is not getattr(Method, name, None)
            require(given, f"method {cls.name} has no {name}; define it")
        if isinstance(protocol := cls.protocol, str):
            NAME.validate("protocol", protocol)
        require(
            cls.train is not Method.train,
            f"method {cls.name} has no train; define it, or derive from "
            "memobench.methods.trained.TrainedMethod and define policy",
        )

    @property
    def row_name(self) -> str:
        """The method's name in a row."""
        return self.name

    @property
    def in_words(self) -> str:
        """The method in words."""
        n = self.batch_size
        examples = "all examples" if n is None else f"batches of {n:,}"
        return f"{self.row_name}, {self.protocol} protocol, {self.steps:,} steps of {examples}"

    @classmethod
    def variant(cls, row: Mapping[str, Any]) -> str:
        """The label under which a row of the method is judged; empty to go by its protocol."""
        del row
        return ""

    @property
    def lanes(self) -> int:
        """The number of models that a run trains side by side."""
        return 1

    def tasks(self, run: Run) -> Sequence[Any]:
        """The tasks that models of a run memorize, and of which its weights may be."""
        return [run.task]

    def check_run(self, run: Run) -> None:
        """Raises UserError for a task that the method does not serve."""
        raise NotImplementedError

    def check_model(self, run: Run) -> None:
        """Raises UserError for a model whose weights the method cannot make; computes nothing."""

    @classmethod
    def of_tables(cls, row: Mapping[str, Any], measure: str) -> np.ndarray | None:
        """value_T: what a row's models measured, a mean for each label table; None for one model.

        Where it is there, intervals are over tables, as those of other rows are over seeds.
        """
        del row, measure
        return None

    def predicted_steps(self, run: Run) -> int:
        """Optimiser steps that a run takes, over all its lanes."""
        del run
        return self.steps

    def steps_in_turn(self, run: Run) -> int:
        """Those of them that follow one another, however many lanes there are."""
        return self.predicted_steps(run) // self.lanes

    def signature(self, module: Module, task: Any) -> Hashable:
        """Everything that decides a compiled program of this method; all else is data.

        Args:
          module: padded; the planner sets its paddable sizes to 0.
          task: what all runs share of theirs, as `task_key` or `program_task` gives it.
        """
        return module, task, self

    def task_key(self, task: Any) -> Any:
        """The task without what may differ within a pack: equal for all runs of a pack."""
        return task.pack_key()

    def program_task(self, runs: Sequence[Run], module: Module) -> Any:
        """The task for which a pack is compiled: each run reads its first examples, or all."""
        del module
        return runs[0].task.signature()

    def n_instances(self, runs: Sequence[Run]) -> int:
        """The number of distinct instances of that task that the runs read."""
        return len({task for run in runs for task in self.tasks(run)})

    def pack_key(self, run: Run) -> Hashable:
        """A value that is equal for all runs of a pack, beside signature and task."""
        del run
        return None

    def rows_per_step(self, run: Run) -> int:
        """Examples that a step reads."""
        return self.batch_size or run.task.n_examples

    def work_per_step(self, module: Module, run: Run) -> float:
        """Predicted floating-point operations of a step, forward and backward."""
        n_rows = self.rows_per_step(run) * self.starts
        return 6.0 * module.work(n_rows, run.task.context_length)

    def train(
        self,
        pack: Pack,
        on_steps: OnSteps = lambda steps: None,
        checkpoints: Checkpoints | None = None,
    ) -> PackResult:
        """Makes the weights of a pack's runs, and measures them.

        Args:
          pack: the runs, the module they are padded to, and how many models train at a time.
          on_steps: called with the number of model-steps done since its last call; what it raises
            ends the training, once all is saved.
          checkpoints: where to resume from, and to save to from time to time.
        """
        raise NotImplementedError

    def programs(self, pack: Pack) -> set[Hashable]:
        """Keys of the programs that a pack needs; equal ones are compiled once."""
        signature = self.signature(pack.module, self.program_task(pack.runs, pack.module))
        return {(signature, pack.slots, self.n_instances(pack.runs))}

    def check_weights(self, run: Run, row: Mapping[str, Any], counted: Mapping[str, Any]) -> None:
        """Raises UserError where a run's row says other than was counted of its weights."""
        first = counted["first"]
        require(
            first is None,
            f"the weights that were kept are of the first {first} examples, and the row of all; "
            "delete them",
        )
        # An example may be on the edge: rows are measured in float32, weights in double precision.
        edge = max(1.5 / counted["n_examples"], within := 1e-3)
        n_answers, chance = run.task.n_predicted, run.task.chance
        zeros = {
            "accuracy": edge,
            "memorized": edge * n_answers / (1 - chance),
            "bits": within * n_answers * math.log2(run.task.n_choices or 2),
            "loss": 1e-5,
        }
        for name, zero in zeros.items():
            require(
                agree(row[name], counted[name], within, zero),
                f"{name}={short_repr(row[name])}, but the weights that were kept have "
                f"{short_repr(counted[name])}; delete the wrong one",
            )

    @classmethod
    def columns_of_rows(cls) -> dict[str, Column]:
        """The columns that rows of the method have beside those of all rows, by name."""
        return {}

    @classmethod
    def shared_columns(cls) -> dict[str, Column]:
        """The columns of the spec that rows of all methods have."""
        return {}
