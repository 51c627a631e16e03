"""A run, and the contract of methods, which make its weights.

A `Run` is one task, architecture, method and seed. A `Pack` holds runs that train together. A
`Method` is a frozen spec that also serves planner, costs and workers. They name each other, so
they stand in one file.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from memobench.common import strict_json
from memobench.common.errors import (
    UserError,
    check_arguments,
    in_a_line,
    require,
    short_repr,
)
from memobench.common.notation import pluralize
from memobench.core.architecture import Architecture
from memobench.core.checkpoints import Checkpoints
from memobench.core.columns import NAME, Column, int_between
from memobench.core.module import Module, paddable_sizes, structure
from memobench.core.spec import MOST_SEED, SPEC_VERSION, Spec
from memobench.core.task import Task

SEED = int_between(0, MOST_SEED)


@check_arguments
@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """One task, architecture, method and seed; `run_id` names it, so it is never done twice.

    Attributes:
      task: the task to memorize.
      architecture: of the model.
      method: makes the weights.
      seed: of initial weights and the order of examples; labels follow from the task's own seed.

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
        """The spec as JSON with sorted keys. Raises UserError for a field that JSON cannot hold."""
        fields: dict[str, Any] = {
            "task": self.task.canonical(),
            "architecture": self.architecture.canonical(),
            "method": self.method.canonical(),
            "seed": self.seed,
            "spec_version": SPEC_VERSION,
        }
        try:
            return strict_json.canonical(fields)
        except (ValueError, TypeError) as error:
            raise UserError(
                f"a field of {self.architecture.name}, {self.task.name} or {self.method.name} "
                f"holds what no id can ({in_a_line(error)}); give it numbers, texts or tuples"
            ) from error

    @functools.cached_property
    def run_id(self) -> str:
        """First 16 hexadecimal digits of the SHA-256 of the canonical form."""
        return hashlib.sha256(self.canonical().encode()).hexdigest()[:16]


@dataclasses.dataclass(frozen=True)
class Pack:
    """Runs trained together, the module they are padded to, and their predicted cost.

    Attributes:
      runs: of one program.
      module: to which all are padded.
      slots: how many lanes train at a time: one for each run, or fewer where runs wait for one.
      waste: share of the arithmetic spent on padding.
      memory_bytes: predicted for each device.
      weight: rough seconds, without compilation, by which packs are chosen and put in order.
      platform: of the devices.
      n_devices: how many share the runs.
      seconds: predicted, with the compilations that it is the first to need, by `memobench.plan`.
    """

    runs: tuple[Run, ...]
    module: Module
    slots: int
    waste: float
    memory_bytes: float
    weight: float
    platform: str = "cpu"
    n_devices: int = 1
    seconds: float | None = None

    def __repr__(self) -> str:
        kinds = dict.fromkeys(run.architecture.name for run in self.runs)
        sizes = "".join(f", {name}={size}" for name, size in paddable_sizes(self.module).items())
        shown = [f"{pluralize(len(self.runs), 'run')} of {' and '.join(kinds)}{sizes}"]
        shown += [f"slots={self.slots}", f"{self.memory_bytes / 1e6:.3g} MB"]
        shown += [f"waste={self.waste:.0%}"]
        shown += [f"{self.seconds:.3g} s"] if self.seconds is not None else []
        return f"Pack({', '.join(shown)})"

    @property
    def signature(self) -> Any:
        """A value that decides the pack's program, but for its number of lanes."""
        return self.runs[0].method.program(self)


# Called with the number of model-steps done since its last call.
OnSteps = Callable[[int], None]


class Weights(NamedTuple):
    """Parameters of a model at its true size, and the examples that they are meant for.

    Attributes:
      params: a tree of float arrays.
      task: the task that they memorize; None for the run's.
    """

    params: Any
    task: Any = None


@dataclasses.dataclass(frozen=True)
class PackResult:
    """Measures and weights of a trained pack, in the order of its runs.

    Attributes:
      accuracy_R: over all examples, of the final weights.
      loss_R: over all examples, of the final weights, a mean in nats.
      step_accuracy_RxL: of each step's batch before its update.
      step_loss_RxL: of each step's batch before its update.
      compile_seconds: 0 where the program was compiled before.
      run_seconds: all other seconds, which `runtime.worker` measures.
      earlier_devices: devices that trained each run before, from `runtime.worker`.
      variables: of the final weights, padded and stacked.
      columns: further cells of each run's row, of the method's `columns_of_rows` or of its curve.
      weights: to be kept of each run, or None; by default `variables`.
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

        The accuracy of a run that could not be made is NaN, which a curve cannot hold.

        Args:
          accuracy_R: of the final weights.
          loss_R: of the final weights.
          **more: other attributes.
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
      sequential_steps: the longest chain of steps, which more lanes cannot shorten.
      rows_per_step: examples that a step reads, for all its starts.
      flops_per_step: floating-point operations of a step, forward and backward.
      lanes: models that a run trains side by side.
      starts: initial weights of each model.
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

    def __post_init__(self) -> None:
        steps = min(self.steps, self.sequential_steps)
        require(
            steps >= 1,
            f"the steps of a method must be at least 1, got {steps}; what is made without any "
            "counts as one",
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Method(
    Spec,
    noun="method",
    package="memobench.methods",
    order=(
        "annealed",
        "capacity",
        "checked",
        "constructed",
        "optimised",
        "searched",
        "trained",
        "peak",
    ),
):
    """A way to make the weights of a run.

    A kind gives `protocol`, `steps`, `check_run` and `train`; all else has defaults.

    Attributes:
      protocol: the name of the rules it follows.
      keeps_weights: whether a run's weights are kept, where they are finite.
    """

    protocol: ClassVar[str]
    keeps_weights: ClassVar[bool] = False

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
            NAME.validate("protocol", protocol)
        require(
            cls.train is not Method.train,
            f"method {cls.name} has no train; define it, or derive from "
            "memobench.methods.trained.TrainedMethod and define policy",
        )

    @classmethod
    def variant(cls, row: Mapping[str, Any]) -> str:
        """The label under which a row of the method is judged; empty to go by its protocol."""
        del row
        return ""

    def tasks(self, run: Run) -> Sequence[Any]:
        """The tasks that models of a run memorize, and that its weights may be for."""
        return [run.task]

    def check_run(self, run: Run) -> None:
        """Raises UserError for a task that the method does not serve."""
        raise NotImplementedError

    def check_model(self, run: Run) -> None:
        """Raises UserError for a model of which the method cannot make weights, at once."""

    def pack_key(self, run: Run) -> Hashable:
        """A value that is equal for runs that may share a pack, whatever their sizes and seeds."""
        return structure(run.module()), run.task.pack_key(), self

    def pack_key_of_accelerators(self, run: Run) -> Hashable:
        """The same where a step costs much however few examples and models are in it."""
        return self.pack_key(run)

    def program(self, pack: Pack) -> Hashable:
        """A value that decides the compiled program of a pack, but for its number of lanes."""
        return pack.module, pack.runs[0].task.signature(), self

    def cost(self, run: Run, module: Module | None = None) -> Cost:
        """The Cost of a run.

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

    @classmethod
    def columns_of_rows(cls) -> dict[str, Column]:
        """The columns that rows of the method have beside those of all rows, by name."""
        return {}
