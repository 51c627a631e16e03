"""dana2025/head-dimension-larger: experiment 2 at d = 50, H = 11 and N = 200.

Source: Dana, Pydi & Chevaleyre (AISTATS 2025, arXiv 2411.10115), experiment 2 in larger dimension.
All N^2 = 40,000 pairs of N = 200 tokens, one layer, d_h = 1, 5, 10, .., 50.

Expected: linear in d_h, where the smaller dimension is quadratic.

    memobench run dana2025/head-dimension-larger --preset=quick
    memobench report dana2025/head-dimension-larger --preset=quick
"""

from memobench import claims
from memobench.claims import Claim
from memobench.experiment import Experiment
from memobench.experiments.dana2025.common import LARGER, SOURCE, attention_only, short, variants
from memobench.experiments.dana2025.head_dimension import JUMP
from memobench.report.figure import Figure
from memobench.tasks.associations import Associations

TASK = Associations(vocab_size=200)
N_HEADS = 11
D_HEADS = (1, *range(5, 51, 5))
QUICK = variants(
    [TASK],
    [attention_only(50, d_head, N_HEADS) for d_head in (1, 5, 10, 15, 20)],
    short(LARGER, epochs=1),
    seeds=3,
)

LINEAR = Claim(
    name="linear in d_h",
    statement="In the larger dimension accuracy grows linearly with the dimension of the heads.",
    source=f"{SOURCE}, experiment 2 in larger dimension",
    test=claims.power_law(*claims.LINEAR),
)

EXPERIMENT = Experiment(
    name="dana2025/head-dimension-larger",
    title="Accuracy against head dimension in larger dimension, d = 50, H = 11 (N = 200)",
    presets={
        "quick": tuple(run for run in QUICK if run.method.protocol == "published"),
        "full": variants(
            [TASK], [attention_only(50, d_head, N_HEADS) for d_head in D_HEADS], LARGER
        ),
    },
    left_out="the exact gradient; five of eleven d_h; 3 seeds of 5; 64 and 128 of 4,096 and 8,192 "
    "steps, too few to memorize: quick shows that it runs, and decides nothing",
    figure=Figure(x="d_head", hue="n_heads"),
    decides=("full",),
    claims=(LINEAR, JUMP),
)
