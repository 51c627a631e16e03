"""mahdavi2024/classification-context: examples memorized against the context's length.

Source: Mahdavi, Liao & Thrampoulidis, Memorization Capacity of Multi-Head Attention in Transformers
(ICLR 2024, arXiv 2306.02010), section 6, classification against n at H = 20, d = d_h = 64.

Expected: monotone growth with n, which is not linear.

    memobench run mahdavi2024/classification-context --preset=quick
    memobench report mahdavi2024/classification-context --preset=quick
"""

from memobench.experiments.mahdavi2024.common import Sets, against_length

EXPERIMENT = against_length(
    "classification",
    quick=Sets(random=(600, 1_000), shared=(300, 500), classes=20),
    full=Sets(
        random=range(20_000, 60_001, 10_000),
        shared=range(6_000, 18_001, 4_000),
        classes=100,
    ),
)
