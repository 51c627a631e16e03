"""What every method is: a frozen spec, and what planner, costs and workers ask of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from memobench.columns import NAME, Column, require, shown
from memobench.spec import Spec
from memobench.table.consistency import agree

if TYPE_CHECKING:
    from memobench.engine import Policy
    from memobench.methods.training import Training
    from memobench.models.base import Module
    from memobench.planner.packing import Pack
    from memobench.runs import Run
    from memobench.runtime.checkpoints import Checkpoints

# Called with the number of model-steps done since its last call.
OnSteps = Callable[[int], None]


class Weights(NamedTuple):
    """Parameters of a model at its true size, and of which examples they know most.

    params: a tree of float arrays. first: how many of the task's examples; None for all. task: None
    for the run's.
    """

    params: Any
    first: int | None = None
    task: Any = None


@dataclasses.dataclass(frozen=True)
class PackResult:
    """What training a pack gave, in the order of its runs.

    accuracy_R, loss_R (mean, nats): over all examples at the final weights.
    step_accuracy_RxL, step_loss_RxL: of each step's batch before its update.
    compile_seconds: 0 where the program was compiled before. run_seconds: all others, which
    `runtime.worker` measures. earlier_devices: of each run, those that trained it before; by
    `runtime.worker`, too. variables: final, padded, stacked. columns: further ones of each run's
    row, from methods that have any. weights: what is kept of each run, None for one of which
    nothing is; by default what is in `variables`.
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
class Cost:
    """Numbers by which runs are packed, and by which their seconds are predicted.

    Attributes:
      steps: optimiser steps of a run, over all its lanes.
      sequential_steps: those of them that follow one another, however many lanes there are.
      rows_per_step: examples that a step reads, for all its starts.
      flops_per_step: floating-point operations of a step, forward and backward.
      lanes: models that a run trains side by side.
      starts: initial weights of each.
      queues: whether runs may end early, so that others take their place in a pack.
      closed_form: whether weights are solved for one run after another instead of trained.
    """

    steps: int
    sequential_steps: int
    rows_per_step: int
    flops_per_step: float
    lanes: int = 1
    starts: int = 1
    queues: bool = False
    closed_form: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Method(Spec):
    """How the weights of a run come about.

    A kind gives `protocol`, `steps`, `check_run`, and `train` or `policy`; all else has defaults.

    protocol: whose rules it follows.
    """

    noun: ClassVar[str] = "method"
    package: ClassVar[str] = "memobench.methods"
    registry: ClassVar[dict[str, type[Spec]]] = {}
    protocol: ClassVar[str]
    # Whether accuracy and loss are of the same weights: then one bounds the other.
    accuracy_of_final_weights: ClassVar[bool] = True
    # What one weight can hold.
    bits_per_weight: ClassVar[float] = 32.0
    # Whether a run's weights are kept, where they are finite.
    keeps_weights: ClassVar[bool] = False
    # Whether its time is spent on its steps.
    stepwise: ClassVar[bool] = True
    # Whether it records accuracy and loss of every step.
    has_curve: ClassVar[bool] = False

    # Fields of some methods, and constants of others.
    if TYPE_CHECKING:

        @property
        def batch_size(self) -> int | None:
            """Examples of a step; None for all."""

        @property
        def steps(self) -> int:
            """Optimiser steps of one model."""

    else:
        batch_size = None

    @classmethod
    def check_kind(cls) -> None:
        own = {field.name for field in dataclasses.fields(cls)}
        for name in ("protocol", "steps", "check_run"):
            given = name in own or getattr(cls, name, None) is not getattr(Method, name, None)
            require(given, f"method {cls.name} has no {name}; define it")
        if isinstance(protocol := cls.protocol, str):
            NAME.checked("protocol", protocol)
        trains = cls.train is not Method.train or cls.policy is not Method.policy
        require(trains, f"method {cls.name} has no train; define it")

    @property
    def row_name(self) -> str:
        """The method's name in a row."""
        return self.name

    @property
    def in_words(self) -> str:
        """How the weights come about."""
        n = self.batch_size
        examples = "all examples" if n is None else f"batches of {n:,}"
        return f"{self.row_name}, {self.protocol} protocol, {self.steps:,} steps of {examples}"

    @classmethod
    def variant(cls, row: Mapping[str, Any]) -> str:
        """The label under which a row of the method is judged; empty to go by its protocol."""
        del row
        return ""

    def tasks(self, run: Run) -> Sequence[Any]:
        """The tasks that models of a run memorize, and of which its weights may be."""
        return [run.task]

    @property
    def averaged(self) -> int:
        """How many models a run's accuracy and loss average over."""
        return 1

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

    def pack_key(self, run: Run) -> Hashable:
        """What else runs of a pack must agree in, beside signature and task."""
        del run
        return None

    def cost(self, run: Run, module: Module | None = None) -> Cost:
        """What a run takes.

        Args:
          run: of this method.
          module: to which it is padded; by default its own.
        """
        n_rows, module = self.batch_size or run.task.n_examples, module or run.module()
        return Cost(
            steps=self.steps,
            sequential_steps=self.steps,
            rows_per_step=n_rows,
            flops_per_step=6.0 * module.work(n_rows, run.task.context_length),
        )

    def policy(self, pack: Pack, checkpoints: Checkpoints | None) -> Policy:
        """What the engine's loop asks while it trains a pack, which may resume."""
        raise NotImplementedError

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
        from memobench import engine

        return engine.train(self.policy(pack, checkpoints), on_steps, checkpoints)

    def check_weights(self, run: Run, row: Mapping[str, Any], counted: Mapping[str, Any]) -> None:
        """Raises UserError where a run's row says other than was counted of its weights."""
        del run
        first = counted["first"]
        require(
            first is None,
            f"the weights that were kept are of the first {first} examples, and the row of all; "
            "delete them",
        )
        # An example may be on the edge: rows are measured in float32, weights in double precision.
        edge = 1.5 / counted["n_examples"]
        for name, within in (("accuracy", {"zero": edge}), ("loss", {"zero": 1e-5})):
            require(
                agree(row[name], counted[name], **{"within": 1e-3, **within}),
                f"{name}={shown(row[name])}, but the weights that were kept have "
                f"{shown(counted[name])}; delete the wrong one",
            )

    def check_row(self, run: Run, row: Mapping[str, Any]) -> None:
        """Raises UserError where the method's own columns of a run's row cannot be."""

    @classmethod
    def columns_of_rows(cls) -> dict[str, Column]:
        """The columns that rows of the method have beside those of all rows, by name."""
        return {}

    @classmethod
    def shared_columns(cls) -> dict[str, Column]:
        """The columns of the spec that rows of all methods have."""
        return {}


class ByTraining(Method):
    """A method whose models are each made by its field `training`."""

    accuracy_of_final_weights: ClassVar[bool] = False

    if TYPE_CHECKING:

        @property
        def training(self) -> Training:
            """Of every model."""

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
        from memobench.methods.training import Training

        return Training.variant(row)

    def check_run(self, run: Run) -> None:
        self.training.check_run(run)

    def check_model(self, run: Run) -> None:
        self.training.check_model(run)
