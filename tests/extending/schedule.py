"""A schedule: the rate falls in a few steps, beside one that falls linearly.

memobench run tests/extending/schedule.py
"""

import numpy as np

import memobench as mb


@mb.kind("stairs")
class StairsSchedule(mb.Schedule):
    """After the warm-up the rate stays for an equal time on each of `n_stairs` levels."""

    n_stairs: int = mb.integer("levels of the rate", least=2, default=3)

    def fraction(self, time_R, warmup_R):
        done_R = np.maximum(time_R - warmup_R, 0) / (1 - warmup_R)
        return np.floor(done_R * self.n_stairs) / (self.n_stairs - 1)


LINEAR = mb.Training(batch_size=16, n_batches=4, epochs=6)
RUNS = mb.grid(
    [mb.Associations(vocab_size=5)],
    [mb.AttentionOnly(d_model=4, d_head=4, n_heads=n) for n in (1, 2)],
    [LINEAR, LINEAR.replace(schedule=StairsSchedule())],
    seeds=2,
)

EXPERIMENT = mb.Experiment(
    name="mine/schedules",
    title="Stairs beside a line",
    presets={"quick": RUNS},
    figure=mb.Figure(x="n_params", hue="schedule", bounds=False),
)
