"""mahdavi2024/classification-heads: examples memorized against the number of heads.

Source: Mahdavi, Liao & Thrampoulidis, Memorization Capacity of Multi-Head Attention in Transformers
(ICLR 2024, arXiv 2306.02010), section 6, classification against H at n = 32, d = d_h = 64.

Expected: linear growth with H until a set is known, with random and with shared contexts.

    memobench run mahdavi2024/classification-heads --preset=quick
    memobench report mahdavi2024/classification-heads --preset=quick
"""

from memobench.experiment import Experiment, Figure
from memobench.experiments.mahdavi2024 import (
    ABOVE_THE_THEOREM,
    LINEAR_IN_HEADS,
    N_HEADS,
    NOTES,
    QUICK_HEADS,
    full_runs,
    paper_model,
    paper_task,
    quick_runs,
    small_model,
    small_task,
)

RANDOM = range(30_000, 130_001, 20_000)
SHARED = range(10_000, 40_001, 10_000)

EXPERIMENT = Experiment(
    name="mahdavi2024/classification-heads",
    title="Classification: memorized examples against heads",
    presets={
        "quick": quick_runs(
            [small_task("random", n) for n in (600, 1_000)]
            + [small_task("shared", n) for n in (300, 500)],
            [small_model(h) for h in QUICK_HEADS],
        ),
        "full": full_runs(
            [paper_task("random", n) for n in RANDOM] + [paper_task("shared", n) for n in SHARED],
            [paper_model(h) for h in N_HEADS],
        ),
    },
    left_out="d = 16, n = 8 and hundreds of examples in place of d = 64, n = 32 and thousands; "
    "H to 8 of 60; 4,000 steps of 64 examples; 5 seeds of 6",
    figure=Figure(x="n_heads", hue="n_examples", y="known"),
    claims=(LINEAR_IN_HEADS, ABOVE_THE_THEOREM),
    notes=NOTES,
)
