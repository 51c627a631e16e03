"""dana2025/heads-deeper, head-dimension-deeper and attention-vs-mlp-deeper: three layers.

Source: Dana, Pydi & Chevaleyre (AISTATS 2025, arXiv 2411.10115), experiments 1, 2 and 5, deeper.
All N^2 = 4,900 pairs of N = 70 tokens, three layers, constant learning rate; the sizes below are
those of every layer. Heads: d = d_h, H = 1, 5, .., 21. Head dimension: d = 10, H = 21, d_h = 1..10;
the maps into and out of the heads' dimension are shared by the layers. MLP Transformers with one
head and w = 0, 8d, .., 40d stand beside the first.

Expected: accuracy 0.11 at d = 7, H = 5. The bound holds for one layer only and is not drawn.

    memobench run dana2025/heads-deeper --preset=quick
    memobench report dana2025/heads-deeper --preset=quick
"""

from memobench.experiment import Experiment, grid
from memobench.experiments.dana2025 import attention_vs_mlp, head_dimension, heads
from memobench.experiments.dana2025.common import (
    SEEDS,
    attention_only,
    mlp,
    published,
    published_alone,
    square,
    variants,
)
from memobench.methods.training import Training
from memobench.report.figure import Figure
from memobench.tasks.associations import Associations

TASK = Associations(vocab_size=70)
METHOD = Training(
    batch_size=512, n_batches=128, epochs=64, learning_rate=2.5e-3, final_learning_rate=2.5e-3
)
WIDTHS = (7, 10, 13)
ATTENTION = square(WIDTHS, (1, 5, 9, 13, 17, 21), n_layers=3)
PAPER = grid([TASK], ATTENTION, [METHOD], SEEDS)
HEADS = variants([TASK], ATTENTION, METHOD)
D_HEADS = [attention_only(10, d_head, n_heads=21, n_layers=3) for d_head in range(1, 11)]
MLPS = [mlp(d, m * d, n_layers=3) for d in WIDTHS for m in range(0, 41, 8)]

EXPERIMENTS = (
    Experiment(
        name="dana2025/heads-deeper",
        title="Accuracy against heads with three layers, d = d_h (N = 70)",
        presets={
            "quick": published_alone(TASK, square([7], (1, 5, 9, 13), 3), METHOD, epochs=2),
            "paper": PAPER,
            "full": HEADS,
        },
        of_full="no exact gradient; d = 7 alone of 7, 10, 13 and four of six H; 3 seeds of 5; "
        "128 and 256 of 8,192 and 16,384 steps, too few to memorize: quick shows that it runs, "
        "and decides nothing",
        figure=Figure(x="n_heads", hue="d_model", bounds=False),
        # The only published mean that we have.
        published=published([attention_only(7, 7, 5, n_layers=3)], [0.114], METHOD.steps),
        too_short=("quick",),
        claims=(heads.LINEAR_IN_HEADS,),
    ),
    Experiment(
        name="dana2025/head-dimension-deeper",
        title="Accuracy against head dimension with three layers, d = 10, H = 21 (N = 70)",
        presets={
            "quick": published_alone(
                TASK, [x for x in D_HEADS if x.d_head in (1, 3, 5, 7, 10)], METHOD, epochs=1
            ),
            "paper": grid([TASK], D_HEADS, [METHOD], SEEDS),
            "full": variants([TASK], D_HEADS, METHOD),
        },
        of_full="no exact gradient; five of ten d_h; 3 seeds of 5; 64 and 128 of 8,192 and "
        "16,384 steps, too few to memorize: quick shows that it runs, and decides nothing",
        figure=Figure(x="d_head", hue="n_heads", bounds=False),
        too_short=("quick",),
        claims=head_dimension.EXPERIMENT.claims,
    ),
    Experiment(
        name="dana2025/attention-vs-mlp-deeper",
        title="Attention against MLP with three layers (N = 70)",
        presets={
            "quick": published_alone(TASK, MLPS[:3], METHOD, epochs=1)
            + published_alone(TASK, square([7], (1, 5, 9), n_layers=3), METHOD, epochs=1),
            "paper": grid([TASK], MLPS, [METHOD], SEEDS) + PAPER,
            "full": variants([TASK], MLPS, METHOD) + HEADS,
        },
        of_full="no exact gradient; d = 7 alone of 7, 10, 13 and three of six sizes; 3 seeds of "
        "5; 64 and 128 of 8,192 and 16,384 steps, too few to memorize: quick shows that it runs, "
        "and decides nothing",
        figure=Figure(x="n_params", hue="architecture", row="d_model", bounds=False),
        too_short=("quick",),
        claims=attention_vs_mlp.CLAIMS,
    ),
)
