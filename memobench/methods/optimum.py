"""Optimum: the least value of an objective that a thorough search in double precision finds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from memobench import columns as col
from memobench.columns import Column, by_name, integer, require
from memobench.consistency import REPEATED, check_derived
from memobench.methods.base import Method, OnSteps
from memobench.spec import kind

if TYPE_CHECKING:
    from memobench.checkpoints import Checkpoints
    from memobench.packing import Pack
    from memobench.runs import Run
    from memobench.training import PackResult


@kind("optimised")
class Optimum(Method):
    """The least value of the exact objective that a thorough search in double precision finds.

    `starts` initial weights are trained side by side by `adam_steps` of Adam; from the `polished`
    best of them L-BFGS goes on until the gradient vanishes to rounding or for `steps` iterations.
    Meant for small models.
    """

    protocol: ClassVar[str] = "optimal"
    # It is searched for by more than its counted iterations.
    stepwise: ClassVar[bool] = False

    starts: int = integer("initial weights", 1, default=64, most=2**20)
    adam_steps: int = integer("steps of Adam from each", 1, default=1000)
    polished: int = integer("best of them that L-BFGS polishes", 1, default=3)
    steps: int = integer("iterations of L-BFGS at most", 1, default=2000)

    def check(self) -> None:
        require(
            self.polished <= self.starts,
            f"polished={self.polished} exceeds starts={self.starts}; lower polished",
        )

    def check_run(self, run: Run) -> None:
        task = run.task
        require(
            task.of_tokens and not task.in_blocks,
            f"method: an Optimum does not serve the task {task.name!r}; use a Training",
        )

    def train(
        self, pack: Pack, on_steps: OnSteps, checkpoints: Checkpoints | None = None
    ) -> PackResult:
        from memobench import optimum

        return optimum.solve(pack, on_steps)

    def check_row(self, run: Run, row: Mapping[str, Any]) -> None:
        losses = row["start_losses"]
        if losses and row["loss"] is not None:
            check_derived(row, {"loss": losses[0]}, REPEATED)

    @classmethod
    def columns_of_rows(cls) -> dict[str, Column]:
        losses = col.list_of(col.real(-1e-5), 100_000)
        return by_name(
            Column("gradient_norm", "largest entry of the gradient in the end", col.real(0)),
            Column("iterations", "of L-BFGS from the best start", col.whole()),
            Column("start_losses", "at which polished starts ended, least first", losses, "nats"),
        )
