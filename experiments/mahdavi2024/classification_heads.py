"""mahdavi2024/classification-heads: examples memorized against the number of heads.

Source: Mahdavi, Liao & Thrampoulidis, Memorization Capacity of Multi-Head Attention in Transformers
(ICLR 2024, arXiv 2306.02010), section 6, classification against H at n = 32, d = d_h = 64.

Expected: linear growth with H until the whole set is memorized, with random and with shared
contexts.

    memobench run mahdavi2024/classification-heads --preset=quick
    memobench report mahdavi2024/classification-heads --preset=quick
"""

from memobench.experiments.mahdavi2024.common import Sets, against_heads

EXPERIMENT = against_heads(
    "classification",
    quick=Sets(random=(600, 1_000), shared=(300, 500), classes=20),
    full=Sets(
        random=range(30_000, 130_001, 20_000),
        shared=range(10_000, 40_001, 10_000),
        classes=100,
    ),
)
