"""Search: the capacity of a model, by trainings on ever better chosen subsets of a task."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from memobench import columns as col
from memobench.columns import Column, by_name, declared, integer, number, require
from memobench.methods.base import Method, OnSteps
from memobench.methods.training import Training
from memobench.models.base import Module
from memobench.spec import kind, nested
from memobench.tasks.labelled_contexts import rounded

if TYPE_CHECKING:
    from memobench.checkpoints import Checkpoints
    from memobench.packing import Pack
    from memobench.runs import Run
    from memobench.training import PackResult

# Raised whenever a search would make other trials: run ids then differ, and results never mix.
RULES = 1


@kind("searched")
class Search(Method):
    """How a capacity comes about: `training`, from the start, on ever better chosen subsets.

    First on all examples of the task, then on the first so many: a bisection, `sizes` of them at a
    time and each with the learning rates times every one of `rate_factors`, until the largest set
    memorized completely is known within `resolution` of itself (or one example). The steps are
    then doubled, up to `doublings` times, until that gains less than `capacity.GAIN`. See
    `memobench.capacity`, whose version of proposing trials `rules` is.
    """

    accuracy_of_final_weights: ClassVar[bool] = False

    training: Training = nested(Training, "of every trial")
    rate_factors: tuple[float, ...] = declared(
        col.numbers(16), "factors of the learning rate that are tried", default=(1.0,)
    )
    sizes: int = integer("sizes of sets tried side by side", 1, default=2, most=64)
    resolution: float = number("of the largest set, as a share of it", default=0.02, above=0)
    doublings: int = integer("doublings of the steps at most", 0, default=2, most=32)
    rules: int = integer("version of the rules by which trials are proposed", 1, default=RULES)

    def check(self) -> None:
        require(
            self.training.protocol != "passes",
            "training must not be of protocol='passes': batches would not fit every trial's "
            "examples; use protocol='published' or the exact one",
        )
        require(self.resolution < 1, f"resolution={self.resolution} is no share; give one below 1")
        require(
            self.rules == RULES,
            f"rules={self.rules!r} are not those of this version, {RULES}; leave rules out",
        )
        require(
            self.training.start is None,
            "training must be a Training without start: every trial begins anew",
        )

    @property
    def protocol(self) -> str:  # type: ignore[override]
        """The protocol of every trial."""
        return self.training.protocol

    @property
    def lanes(self) -> int:
        """How many trials a round makes side by side."""
        return self.sizes * len(self.rate_factors)

    @property
    def steps(self) -> int:
        """Optimiser steps of a trial of the first budget."""
        return self.training.steps

    @property
    def batch_size(self) -> int | None:
        """Examples of a step of a trial."""
        return self.training.batch_size

    def check_run(self, run: Run) -> None:
        task: Any = run.task
        require(
            task.has_parts,
            f"method: a Search does not serve the task {task.name!r}; use another method",
        )
        require(
            task.parts,
            "a Search needs tokens of even frequency in random order; set zipf_exponent=None and "
            f"n_sequences, to {task.n_examples} for all",
        )
        self.training.check_run(run)

    def check_module(self, module: Module) -> None:
        self.training.check_module(module)

    def predicted_steps(self, run: Run) -> int:
        """About as many: rounds of trials narrow a wide bracket, then later ones open it little."""
        rounds = 4 + sum(2 * 2**i for i in range(1, self.doublings + 1))
        return self.lanes * rounds * self.steps

    def signature(self, module: Module, task: Any) -> Hashable:
        return self.training.signature(module, task, subsets=True)

    def common(self, task: Any) -> Any:
        return task.without_count()

    def whole(self, runs: Sequence[Run], module: Module) -> Any:
        """The largest task; every trial is on a part of its examples."""
        largest: Any = max((run.task for run in runs), key=lambda task: task.n_examples)
        return largest.padded(module)

    def alike(self, run: Run) -> Hashable:
        # Of sets of about one size the smaller are padded to the largest.
        return rounded(run.task.n_examples)

    def train(
        self, pack: Pack, on_steps: OnSteps, checkpoints: Checkpoints | None = None
    ) -> PackResult:
        from memobench import search

        return search.search(pack, on_steps, checkpoints)

    def check_row(self, run: Run, row: Mapping[str, Any]) -> None:
        from memobench import replay

        replay.check(self, run.task, row)

    @classmethod
    def columns_of_rows(cls) -> dict[str, Column]:
        known, gain = col.whole(0, 2**25), "before the last doubling of the steps"
        return by_name(
            Column("complete_99", "largest set of which 99% is memorized", known),
            Column("complete_100", "largest set of which all is memorized", known),
            Column("incomplete_99", "least set above it that was not memorized to 99%", known),
            Column("incomplete_100", "least set above it that was not memorized", known),
            Column("best_accuracy", "on all examples, of the best trial", col.real(0, 1)),
            Column("rate_factor", "factor of the learning rate of complete_99", col.real(0)),
            Column("final_steps", "optimiser steps of the last trials", col.whole(1)),
            Column("previous_99", f"complete_99 {gain}", known),
            Column("previous_known", f"examples known of all {gain}", known),
            Column("previous_bits", f"bits of all examples {gain}", col.real(0), "bits"),
            Column("gain", "by the last doubling, as a share", col.real(-1)),
            Column("converged", "whether the last doubling gained little", col.truth()),
            Column("lower_bound", "whether the whole task was memorized", col.truth()),
            Column(
                "trials",
                "every trial: steps, examples, factor, known, known in the end, loss",
                # Each is checked by replaying the search.
                _list_of_trials(10_000),
                in_csv=False,
            ),
        )


def _list_of_trials(most: int) -> col.Kind:
    """A list that is not too long."""
    return col.Kind(
        f"a list of at most {most} trials",
        lambda value: value if isinstance(value, list) and len(value) <= most else None,
    )
