"""mahdavi2024/classification-heads, -context and -head-dimension: examples memorized against sizes.

Source: Mahdavi, Liao & Thrampoulidis, Memorization Capacity of Multi-Head Attention in Transformers
(ICLR 2024, arXiv 2306.02010), section 6, classification: against H at n = 32, d = d_h = 64; against
n at H = 20, d = d_h = 64; against d_h at H = 30, n = 32, d = 64, 300,000 steps.

Expected: linear growth with H until the whole set is memorized, with random and with shared
contexts; monotone growth with n, which is not linear; growth with d_h while d_h < n, and no gain
beyond.

    memobench run mahdavi2024/classification-heads --preset=quick
    memobench report mahdavi2024/classification-heads --preset=quick
"""

from memobench.claims import Claim
from memobench.experiment import Experiment
from memobench.experiments.mahdavi2024 import common
from memobench.experiments.mahdavi2024.claims import levels_off, never_falls
from memobench.experiments.mahdavi2024.common import Sets
from memobench.experiments.mahdavi2024.figure import Ranked

QUICK = Sets(random=(600, 1_000), shared=(300, 500), classes=20)
WIDTHS = (*range(10, 61, 5), 64)
TREND_WIDTHS = (10, 20, 30, 35, 64)

GROWS_WITH_HEAD_DIMENSION = Claim(
    name="grows with d_h < n",
    statement="For every set, memorization grows with the dimension of the heads up to n.",
    source=f"{common.SOURCE}, section 6",
    test=lambda table: never_falls("d_head")(table[table["d_head"] <= table["context_length"]]),
    across_steps=True,
)
LEVELS_OFF = Claim(
    name="no gain beyond d_h = n",
    statement="From d_h = n on, wider heads add at most a tenth of what was gained before.",
    source=f"{common.SOURCE}, section 6",
    test=levels_off("d_head", at="context_length"),
    across_steps=True,
)

EXPERIMENTS = (
    common.against_heads(
        "classification",
        QUICK,
        Sets(random=range(30_000, 130_001, 20_000), shared=range(10_000, 40_001, 10_000)),
        trend={"random": (50_000, common.FEW_SEEDS), "shared": (20_000, common.SEEDS)},
    ),
    common.against_length(
        "classification",
        QUICK,
        Sets(random=range(20_000, 60_001, 10_000), shared=range(6_000, 18_001, 4_000)),
        trend={"random": (20_000, common.SEEDS), "shared": (6_000, common.SEEDS)},
    ),
    Experiment(
        name="mahdavi2024/classification-head-dimension",
        title="Classification: memorized examples against the heads' dimension",
        presets={
            "quick": common.quick_runs(
                [common.small_task("shared", t) for t in (500, 700)],
                [common.small_model(8, k) for k in (1, 2, 4, 6, 8, 12, 16)],
            ),
        }
        | common.at_full_size(
            common.full_runs(
                [common.paper_task("shared", t) for t in (10_000, 15_000, 20_000)],
                [common.paper_model(30, k) for k in WIDTHS],
                common.LONG,
            ),
            lambda run: run.architecture.d_head,
            {"shared": TREND_WIDTHS},
            {"shared": (15_000, common.SEEDS)},
        ),
        of_full="d = 16, n = 8, H = 8 and hundreds of examples in place of d = 64, n = 32, H = 30 "
        "and thousands; 4,000 steps of 64 examples; 5 seeds of 6",
        figure=Ranked(x="d_head", hue="n_examples", y="known"),
        claims=(GROWS_WITH_HEAD_DIMENSION, LEVELS_OFF, common.ABOVE_THE_THEOREM),
        notes=common.NOTES,
    ),
)
