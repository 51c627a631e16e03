"""mahdavi2024/classification-context: examples memorized against the context's length.

Source: Mahdavi, Liao & Thrampoulidis, Memorization Capacity of Multi-Head Attention in Transformers
(ICLR 2024, arXiv 2306.02010), section 6, classification against n at H = 20, d = d_h = 64.

Expected: monotone growth with n, which is not linear.

    memobench run mahdavi2024/classification-context --preset=quick
    memobench report mahdavi2024/classification-context --preset=quick
"""

from memobench.experiment import Experiment, Figure
from memobench.experiments.mahdavi2024 import (
    ABOVE_THE_THEOREM,
    LENGTHS,
    MONOTONE_IN_CONTEXT,
    NOTES,
    QUICK_LENGTHS,
    full_runs,
    paper_model,
    paper_task,
    quick_runs,
    small_model,
    small_task,
)

RANDOM = range(20_000, 60_001, 10_000)
SHARED = range(6_000, 18_001, 4_000)

EXPERIMENT = Experiment(
    name="mahdavi2024/classification-context",
    title="Classification: memorized examples against the context's length",
    presets={
        "quick": quick_runs(
            [small_task("random", t, n) for t in (600, 1_000) for n in QUICK_LENGTHS]
            + [small_task("shared", t, n) for t in (300, 500) for n in QUICK_LENGTHS],
            [small_model(4)],
        ),
        "full": full_runs(
            [paper_task("random", t, n) for t in RANDOM for n in LENGTHS]
            + [paper_task("shared", t, n) for t in SHARED for n in LENGTHS],
            [paper_model(20)],
        ),
    },
    left_out="d = 16, H = 4 and hundreds of examples in place of d = 64, H = 20 and thousands; "
    "n to 12 of 60; 4,000 steps of 64 examples; 5 seeds of 6",
    figure=Figure(x="context_length", hue="n_examples", y="known"),
    claims=(MONOTONE_IN_CONTEXT, ABOVE_THE_THEOREM),
    notes=NOTES,
)
