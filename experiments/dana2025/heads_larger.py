"""dana2025/heads-larger: experiment 1 at d = d_h = 40, 50, 60 and N = 200.

Source: Dana, Pydi & Chevaleyre (AISTATS 2025, arXiv 2411.10115), experiment 1 in larger dimension.
All N^2 = 40,000 pairs of N = 200 tokens, one layer, H = 1, 3, .., 11. The training set is 65,536
draws, which miss about a fifth of the pairs; the published protocol's accuracy is on the training
set.

Expected: linear in H. A step costs some hundred times one of `dana2025/heads`.

    memobench run dana2025/heads-larger --preset=quick
    memobench report dana2025/heads-larger --preset=quick
"""

from memobench.experiment import Experiment
from memobench.experiments.dana2025.common import LARGER, attention_only, short, variants
from memobench.experiments.dana2025.heads import ABOVE_THE_BOUND, LINEAR_IN_HEADS
from memobench.report.figure import Figure
from memobench.tasks.associations import Associations

TASK = Associations(vocab_size=200)
WIDTHS = (40, 50, 60)
N_HEADS = (1, 3, 5, 7, 9, 11)
ARCHITECTURES = [attention_only(d, d, h) for d in WIDTHS for h in N_HEADS]
QUICK = variants(
    [TASK],
    [attention_only(40, 40, h) for h in (1, 3, 5, 7)],
    short(LARGER, epochs=2),
    seeds=3,
)

EXPERIMENT = Experiment(
    name="dana2025/heads-larger",
    title="Accuracy against heads in larger dimension, d = d_h (N = 200)",
    presets={
        # Exact steps over 40,000 pairs are too slow for CPUs.
        "quick": tuple(run for run in QUICK if run.method.protocol == "published"),
        "full": variants([TASK], ARCHITECTURES, LARGER),
    },
    left_out="the exact gradient; d = 40 alone of 40, 50, 60 and four of six H; 3 seeds of 5; 128 "
    "and 256 of 4,096 and 8,192 steps, too few to memorize: quick shows that it runs, "
    "and decides nothing",
    figure=Figure(x="n_heads", hue="d_model"),
    decides=("full",),
    claims=(LINEAR_IN_HEADS, ABOVE_THE_BOUND),
)
