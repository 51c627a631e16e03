"""mahdavi2024/regression-context: scalars memorized against the context's length.

Source: Mahdavi, Liao & Thrampoulidis, Memorization Capacity of Multi-Head Attention in Transformers
(ICLR 2024, arXiv 2306.02010), section 6, regression against n at H = 20, d = d_h = 64.

Expected: monotone growth with n, which is not linear.

    memobench run mahdavi2024/regression-context --preset=quick
    memobench report mahdavi2024/regression-context --preset=quick
"""

from memobench.experiment import Experiment, Figure
from memobench.experiments.mahdavi2024 import (
    ABOVE_THE_THEOREM,
    LENGTHS,
    MONOTONE_IN_CONTEXT,
    QUICK_LENGTHS,
    REGRESSION_NOTES,
    full_runs,
    paper_model,
    paper_task,
    quick_runs,
    small_model,
    small_task,
)

RANDOM = range(10_000, 90_001, 20_000)
SHARED = range(10_000, 25_001, 5_000)

EXPERIMENT = Experiment(
    name="mahdavi2024/regression-context",
    title="Regression: memorized examples against the context's length",
    presets={
        "quick": quick_runs(
            [small_task("random", t, n, classes=None) for t in (600, 1_000) for n in QUICK_LENGTHS]
            + [small_task("shared", t, n, classes=None) for t in (150, 300) for n in QUICK_LENGTHS],
            [small_model(4)],
        ),
        "full": full_runs(
            [paper_task("random", t, n, classes=None) for t in RANDOM for n in LENGTHS]
            + [paper_task("shared", t, n, classes=None) for t in SHARED for n in LENGTHS],
            [paper_model(20)],
        ),
    },
    left_out="d = 16, H = 4 and hundreds of examples in place of d = 64, H = 20 and thousands; "
    "n to 12 of 60; 4,000 steps of 64 examples; 5 seeds of 6",
    figure=Figure(x="context_length", hue="n_examples", y="known"),
    claims=(MONOTONE_IN_CONTEXT, ABOVE_THE_THEOREM),
    notes=REGRESSION_NOTES,
)
