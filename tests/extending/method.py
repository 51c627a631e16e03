"""A method: the best of several models that are not trained at all, beside one.

memobench run tests/extending/method.py
"""

import dataclasses
from typing import Any, ClassVar

import jax
import numpy as np

import memobench as mb
from memobench.planner import packing

STILL = mb.Training(n_batches=1, epochs=1, learning_rate=0, final_learning_rate=0).exact()


@mb.kind("lottery")
class Lottery(mb.Method):
    """Of several initial weights those of least loss."""

    protocol: ClassVar[str] = "lottery"
    steps: ClassVar[int] = 1

    draws: int = mb.integer("initial weights", 1, default=8)

    def check_run(self, run: mb.Run) -> None:
        STILL.check_run(run)

    def train(self, pack: Any, on_steps: Any, checkpoints: Any = None) -> mb.PackResult:
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
        return mb.PackResult.of_ends(
            accuracy_R=made.accuracy_R[best_R],
            loss_R=made.loss_R[best_R],
            compile_seconds=made.compile_seconds,
            variables=jax.tree.map(lambda x: x[best_R], made.variables),
        )


MODELS = [mb.AttentionOnly(d_model=4, d_head=4, n_heads=n) for n in (1, 2)]
RUNS = mb.grid([mb.Associations(vocab_size=5)], MODELS, [Lottery(), STILL], seeds=2)
FIGURE = mb.Figure(x="n_params", hue="method", y="bits", bounds=False)
EXPERIMENT = mb.Experiment(name="mine/luck", title="Luck", presets={"quick": RUNS}, figure=FIGURE)
