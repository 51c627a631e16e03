"""dana2025/heads-deeper: experiment 1 with three layers.

Source: Dana, Pydi & Chevaleyre (AISTATS 2025, arXiv 2411.10115), experiment 1, deeper. All N^2 =
4,900 pairs of N = 70 tokens, three layers of attention, d = d_h, H = 1, 5, .., 21 in every layer,
constant learning rate.

Expected: accuracy 0.11 at d = 7, H = 5. The bound holds for one layer only and is not drawn.

    memobench run dana2025/heads-deeper --preset=quick
    memobench report dana2025/heads-deeper --preset=quick
"""

from memobench.experiment import Experiment
from memobench.experiments.dana2025.common import DEEPER, attention_only, published, short, variants
from memobench.experiments.dana2025.heads import LINEAR_IN_HEADS
from memobench.report.figure import Figure
from memobench.tasks.associations import Associations

TASK = Associations(vocab_size=70)
WIDTHS = (7, 10, 13)
N_HEADS = (1, 5, 9, 13, 17, 21)
ARCHITECTURES = [attention_only(d, d, h, n_layers=3) for d in WIDTHS for h in N_HEADS]
QUICK = variants(
    [TASK],
    [attention_only(7, 7, h, n_layers=3) for h in (1, 5, 9, 13)],
    short(DEEPER, epochs=2, n_batches=64),
    seeds=3,
)

EXPERIMENT = Experiment(
    name="dana2025/heads-deeper",
    title="Accuracy against heads with three layers, d = d_h (N = 70)",
    presets={
        "quick": tuple(run for run in QUICK if run.method.protocol == "published"),
        "full": variants([TASK], ARCHITECTURES, DEEPER),
    },
    left_out="the exact gradient; d = 7 alone of 7, 10, 13 and four of six H; 3 seeds of 5; 128 "
    "and 256 of 8,192 and 16,384 steps, too few to memorize: quick shows that it runs, "
    "and decides nothing",
    figure=Figure(x="n_heads", hue="d_model", bounds=False),
    # The only published mean that we have.
    published=published([attention_only(7, 7, 5, n_layers=3)], [0.114], DEEPER.steps),
    decides=("full",),
    claims=(LINEAR_IN_HEADS,),
)
