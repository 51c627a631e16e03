"""A method: the best of several models that are not trained at all, beside one.

memobench run tests/extending/method.py
"""

import dataclasses
from typing import Any, ClassVar

import jax
import numpy as np

from memobench.core.columns import integer
from memobench.core.run import Method, PackResult, Run
from memobench.core.spec import kind
from memobench.experiment import Experiment, grid
from memobench.methods.training import Training
from memobench.models.transformer import AttentionOnly
from memobench.planner import packing
from memobench.report.figure import Figure
from memobench.tasks.associations import Associations

STILL = Training(n_batches=1, epochs=1, learning_rate=0, final_learning_rate=0).exact()


@kind("lottery")
class Lottery(Method):
    """Of several initial weights those of least loss."""

    protocol: ClassVar[str] = "lottery"
    steps: ClassVar[int] = 1

    draws: int = integer("initial weights", 1, default=8)

    def check_run(self, run: Run) -> None:
        STILL.check_run(run)

    def train(self, pack: Any, on_steps: Any, checkpoints: Any = None) -> PackResult:
        """All draws of all runs in one pack; of each run the best."""
        seeds = np.random.default_rng(0).permutation(2**16)[: self.draws].tolist()
        drawn = [
            dataclasses.replace(run, method=STILL, seed=(run.seed + seed) % 2**31)
            for run in pack.runs
            for seed in seeds
        ]
        made = STILL.train(packing.make_pack(drawn, pack.module), on_steps)
        loss_RxS = made.loss_R.reshape(-1, self.draws)
        best_R = loss_RxS.argmin(axis=1) + self.draws * np.arange(len(pack.runs))
        return PackResult.of_ends(
            accuracy_R=made.accuracy_R[best_R],
            loss_R=made.loss_R[best_R],
            compile_seconds=made.compile_seconds,
            variables=jax.tree.map(lambda x: x[best_R], made.variables),
        )


MODELS = [AttentionOnly(d_model=4, d_head=4, n_heads=n) for n in (1, 2)]
RUNS = grid([Associations(vocab_size=5)], MODELS, [Lottery(), STILL], seeds=2)
FIGURE = Figure(x="n_params", hue="method", y="bits", bounds=False)
EXPERIMENT = Experiment(name="mine/lottery", title="Luck", presets={"quick": RUNS}, figure=FIGURE)
