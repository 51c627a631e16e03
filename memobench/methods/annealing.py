"""Annealing: a rate that warms up and falls to zero, the best weights kept, an early stop."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

from memobench import columns as col
from memobench.columns import Column, by_name, flag, integer, number, require
from memobench.consistency import MEASURED, REPEATED, agree
from memobench.methods.base import Method, OnSteps
from memobench.models.base import Module
from memobench.optimizers import Adam, Optimizer
from memobench.spec import kind, nested

if TYPE_CHECKING:
    from memobench.checkpoints import Checkpoints
    from memobench.engine.program import Signature
    from memobench.packing import Pack
    from memobench.runs import Run
    from memobench.training import PackResult


@kind("annealed")
class Annealing(Method):
    """How the weights come about: an optimiser whose rate warms up and falls to zero by a cosine.

    As Mahdavi et al. (2024) train: the rate grows linearly from `first_share` of `learning_rate`
    over the first `warmup` of the `steps`; batches run through reshuffled epochs; every
    `evaluate_every` steps all examples are evaluated, and the weights of the least loss are kept.
    With `stop_early` a classifier that knows every label then stops.
    """

    protocol: ClassVar[str] = "annealed"
    queues: ClassVar[bool] = True

    batch_size: int = integer("examples of a step", 1, default=256, most=2**24)
    steps: int = integer("optimiser steps at most", 1, default=50_000)
    learning_rate: float = number("at its highest", default=1e-3, above=0)
    first_share: float = number(
        "share of the learning rate at the first step", default=0.01, above=0
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
            f"steps={self.steps} is no multiple of evaluate_every={self.evaluate_every}; round it",
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
            not run.task.of_tokens,
            f"method: an Annealing does not train the task {run.task.name!r}; use a Training",
        )

    def target(self, run: Run) -> float:
        """The accuracy that ends a run, beyond reach where none does."""
        return 1.0 if self.stop_early and run.task.one_answer else math.inf

    def signature(self, module: Module, task: Any) -> Signature:
        from memobench.engine.program import Signature

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

    def whole(self, runs: Sequence[Run], module: Module) -> Any:
        tasks = [run.task for run in runs]
        sizes: Any = module
        return tasks[0].largest(tasks).replace(context_length=sizes.context_length)

    def n_instances(self, runs: Sequence[Run]) -> int:
        return len({run.task.seed for run in runs})

    def work_per_step(self, module: Module, run: Run) -> float:
        evaluation = module.work(run.task.n_examples, run.task.context_length)
        return super().work_per_step(module, run) + 2.0 * evaluation / self.evaluate_every

    def train(
        self, pack: Pack, on_steps: OnSteps, checkpoints: Checkpoints | None = None
    ) -> PackResult:
        from memobench import annealing

        return annealing.anneal(pack, on_steps, checkpoints)

    def check_row(self, run: Run, row: Mapping[str, Any]) -> None:
        stopped, best, heads = row["stopped_at"], row["best_step"], row["n_heads"]
        if stopped is not None:
            require(
                stopped <= self.steps and (best is None or best <= stopped),
                f"stopped_at={stopped}, best_step={best}: not within {self.steps} steps; "
                "fix the one that is wrong",
            )
        by_head, serving = row["saturated_by_head"], row["examples_by_serving_heads"]
        if by_head is None or serving is None or row["saturated"] is None:
            return
        n_examples = run.task.n_examples
        idle = 1 - sum(k * n for k, n in enumerate(serving)) / (n_examples * heads)
        require(
            len(by_head) == heads
            and len(serving) == heads + 1
            and sum(serving) == n_examples
            and agree(row["saturated"], sum(by_head) / heads, MEASURED, REPEATED)
            and agree(row["saturated"], idle, MEASURED, REPEATED),
            "saturated, saturated_by_head and examples_by_serving_heads do not agree; "
            "fix the one that is wrong",
        )

    @classmethod
    def columns_of_rows(cls) -> dict[str, Column]:
        share, counts = col.real(0, 1), col.list_of(col.whole(), 2**20)
        picture: Any = col.list_of(col.list_of(share, 2**20), 2**20)
        return by_name(
            Column("stopped_at", "step at which the run stopped", col.whole()),
            Column("best_step", "step of the least loss, whose weights are kept", col.whole()),
            Column("attention_rank", "rank of the examples' attention weights", col.whole()),
            Column(
                "stream_ranks",
                "rank of the queries' vectors before each layer",
                col.list_of(col.whole(), 256),
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
