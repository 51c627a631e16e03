"""mahdavi2024/regression-context: scalars memorized against the context's length.

Source: Mahdavi, Liao & Thrampoulidis, Memorization Capacity of Multi-Head Attention in Transformers
(ICLR 2024, arXiv 2306.02010), section 6, regression against n at H = 20, d = d_h = 64.

Expected: monotone growth with n, which is not linear.

    memobench run mahdavi2024/regression-context --preset=quick
    memobench report mahdavi2024/regression-context --preset=quick
"""

from memobench.experiments.mahdavi2024.common import Sets, against_length

EXPERIMENT = against_length(
    "regression",
    quick=Sets(random=(600, 1_000), shared=(150, 300), classes=None),
    full=Sets(
        random=range(10_000, 90_001, 20_000),
        shared=range(10_000, 25_001, 5_000),
        classes=None,
    ),
)
