"""mahdavi2024/regression-heads and -context: scalars memorized against heads and length.

Source: Mahdavi, Liao & Thrampoulidis, Memorization Capacity of Multi-Head Attention in Transformers
(ICLR 2024, arXiv 2306.02010), section 6, regression: against H at n = 32, d = d_h = 64; against n
at H = 20, d = d_h = 64.

Expected: linear growth with H until the whole set is memorized, with random and with shared
contexts; monotone growth with n, which is not linear.

    memobench run mahdavi2024/regression-heads --preset=quick
    memobench report mahdavi2024/regression-heads --preset=quick
"""

from memobench.experiments.mahdavi2024.common import (
    FEW_SEEDS,
    SEEDS,
    Sets,
    against_heads,
    against_length,
)

QUICK = Sets(random=(600, 1_000), shared=(150, 300), classes=None)
RANDOM = range(10_000, 90_001, 20_000)

EXPERIMENTS = (
    against_heads(
        "regression",
        QUICK,
        Sets(random=RANDOM, shared=range(10_000, 30_001, 5_000), classes=None),
        trend={"random": (30_000, FEW_SEEDS), "shared": (30_000, SEEDS)},
    ),
    against_length(
        "regression",
        QUICK,
        Sets(random=RANDOM, shared=range(10_000, 25_001, 5_000), classes=None),
        trend={"random": (10_000, FEW_SEEDS), "shared": (10_000, SEEDS)},
    ),
)
