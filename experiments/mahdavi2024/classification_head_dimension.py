"""mahdavi2024/classification-head-dimension: examples memorized against the heads' dimension.

Source: Mahdavi, Liao & Thrampoulidis, Memorization Capacity of Multi-Head Attention in Transformers
(ICLR 2024, arXiv 2306.02010), section 6, classification against d_h at H = 30, n = 32, d = 64,
300,000 steps.

Expected: growth with d_h while d_h < n, and no gain beyond.

    memobench run mahdavi2024/classification-head-dimension --preset=quick
    memobench report mahdavi2024/classification-head-dimension --preset=quick
"""

from memobench.experiment import Experiment
from memobench.experiments.mahdavi2024.common import (
    ABOVE_THE_THEOREM,
    GROWS_WITH_HEAD_DIMENSION,
    LEVELS_OFF,
    LONG,
    NOTES,
    full_runs,
    paper_model,
    paper_task,
    quick_runs,
    small_model,
    small_task,
)
from memobench.report.figure import Figure

WIDTHS = (*range(10, 61, 5), 64)

EXPERIMENT = Experiment(
    name="mahdavi2024/classification-head-dimension",
    title="Classification: memorized examples against the heads' dimension",
    presets={
        "quick": quick_runs(
            [small_task("shared", t) for t in (500, 700)],
            [small_model(8, k) for k in (1, 2, 4, 6, 8, 12, 16)],
        ),
        "full": full_runs(
            [paper_task("shared", t) for t in (10_000, 15_000, 20_000)],
            [paper_model(30, k) for k in WIDTHS],
            LONG,
        ),
    },
    left_out="d = 16, n = 8, H = 8 and hundreds of examples in place of d = 64, n = 32, H = 30 and "
    "thousands; 4,000 steps of 64 examples; 5 seeds of 6",
    figure=Figure(x="d_head", hue="n_examples", y="known"),
    claims=(GROWS_WITH_HEAD_DIMENSION, LEVELS_OFF, ABOVE_THE_THEOREM),
    notes=NOTES,
)
