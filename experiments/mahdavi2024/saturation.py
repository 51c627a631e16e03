"""mahdavi2024/saturation: the largest attention weight of every head on every example.

Source: Mahdavi, Liao & Thrampoulidis, Memorization Capacity of Multi-Head Attention in Transformers
(ICLR 2024, arXiv 2306.02010), figure 3: H = 4, T = 550 and H = 8, T = 1,300 in shared contexts,
300,000 steps.

Expected: most pairs of a head and an example saturated, each example served by few heads.

    memobench run mahdavi2024/saturation --preset=quick
    memobench report mahdavi2024/saturation --preset=quick
"""

import dataclasses
import math

from memobench.claims import Claim
from memobench.experiment import Experiment
from memobench.experiments.mahdavi2024 import common
from memobench.experiments.mahdavi2024.claims import on_average
from memobench.experiments.mahdavi2024.figure import Picture

# Saturation goes on after everything is known.
ON = dataclasses.replace(common.LONG, stop_early=False)
QUICK_ON = dataclasses.replace(common.QUICK, steps=12_000, stop_early=False)

SPECIALISE = Claim(
    name="heads saturate",
    statement="Heads are saturated on most examples: more than half of all pairs of an example and "
    "a head have an attention weight above 0.99.",
    source=f"{common.SOURCE}, figure 3",
    test=on_average(
        "least mean share of saturated pairs",
        lambda table: table["saturated"].astype(float),
        (0.5, math.inf),
        ["n_heads", "n_examples"],
        possible=(0, 1),
    ),
    across_steps=True,
)

PAPER = tuple(
    run
    for n_heads, n_examples in ((4, 550), (8, 1_300))
    for run in common.full_runs(
        [common.paper_task("shared", n_examples)], [common.paper_model(n_heads)], ON
    )
)

EXPERIMENT = Experiment(
    name="mahdavi2024/saturation",
    title="Which heads serve which examples",
    presets={
        "quick": tuple(
            run
            for n_heads, n_examples in ((4, 100), (8, 200))
            for run in common.quick_runs(
                [common.small_task("shared", n_examples)], [common.small_model(n_heads)], QUICK_ON
            )
        ),
        "paper": PAPER,
        "full": PAPER,
    },
    of_full="d = 16, n = 8 and 100 or 200 examples in place of d = 64, n = 32 and 550 or 1,300; "
    "12,000 steps of 64 examples; 5 seeds of 6",
    figure=Picture(),
    claims=(SPECIALISE,),
    notes=common.NOTES,
)
