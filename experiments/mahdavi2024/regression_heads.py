"""mahdavi2024/regression-heads: scalars memorized against the number of heads.

Source: Mahdavi, Liao & Thrampoulidis, Memorization Capacity of Multi-Head Attention in Transformers
(ICLR 2024, arXiv 2306.02010), section 6, regression against H at n = 32, d = d_h = 64.

Expected: linear growth with H until the whole set is memorized, with random and with shared
contexts.

    memobench run mahdavi2024/regression-heads --preset=quick
    memobench report mahdavi2024/regression-heads --preset=quick
"""

from memobench.experiments.mahdavi2024.common import Sets, against_heads

EXPERIMENT = against_heads(
    "regression",
    quick=Sets(random=(600, 1_000), shared=(150, 300), classes=None),
    full=Sets(
        random=range(10_000, 90_001, 20_000),
        shared=range(10_000, 30_001, 5_000),
        classes=None,
    ),
)
