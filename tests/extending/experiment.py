"""An experiment: is attention with two heads better than with one? With a claim and a figure.

memobench run tests/extending/experiment.py
memobench report tests/extending/experiment.py
"""

import pandas as pd

from memobench.claims import FAILS, HOLDS, UNDECIDED, Claim, Finding
from memobench.experiment import Experiment, Figure, grid
from memobench.methods.training import Training
from memobench.models.transformer import AttentionOnly
from memobench.tasks.associations import Associations


def two_beat_one(table: pd.DataFrame) -> Finding:
    """Compares the seeds pair by pair: a sign test that needs all of them to agree."""
    one, two = (table[table["n_heads"] == n].set_index("seed")["loss"] for n in (1, 2))
    better, n = int((two < one).sum()), len(one)
    verdict = {n: HOLDS, 0: FAILS}.get(better, UNDECIDED) if n >= 3 else UNDECIDED
    return Finding(verdict, f"{better} of {n} seeds have the smaller loss with two heads")


RUNS = grid(
    [Associations(vocab_size=5)],
    [AttentionOnly(d_model=4, d_head=4, n_heads=n) for n in (1, 2)],
    [Training(n_batches=8, epochs=4).exact()],
    seeds=3,
)

EXPERIMENT = Experiment(
    name="mine/two-heads",
    title="Two heads against one",
    presets={"quick": RUNS, "full": RUNS},
    left_out="nothing",
    figure=Figure(x="n_heads", hue="d_model"),
    claims=(
        Claim(
            name="two beat one",
            statement="A second head lowers the loss.",
            source="a question of mine",
            test=two_beat_one,
        ),
    ),
)
