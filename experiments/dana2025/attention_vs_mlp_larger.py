"""dana2025/attention-vs-mlp-larger: experiment 5 at d = 40, 50, 60 and N = 200.

Source: Dana, Pydi & Chevaleyre (AISTATS 2025, arXiv 2411.10115), experiment 5 in larger dimension.
All N^2 = 40,000 pairs of N = 200 tokens, one layer; MLP Transformers with one head and w = 0, 4d,
.., 20d beside the attention-only Transformers of `dana2025/heads-larger`.

    memobench run dana2025/attention-vs-mlp-larger --preset=quick
    memobench report dana2025/attention-vs-mlp-larger --preset=quick
"""

import dataclasses

from memobench.experiment import Experiment
from memobench.experiments.dana2025 import heads_larger
from memobench.experiments.dana2025.attention_vs_mlp import CLAIMS
from memobench.experiments.dana2025.common import LARGER, attention_only, mlp, short, variants
from memobench.report.figure import Figure

TASK = heads_larger.TASK
MLP = dataclasses.replace(LARGER, final_learning_rate=1e-4)
MULTIPLES = (0, 4, 8, 12, 16, 20)
QUICK = [
    *variants([TASK], [mlp(40, 40 * m) for m in (0, 4, 8)], short(MLP, epochs=1), seeds=3),
    *variants([TASK], [attention_only(40, 40, h) for h in (1, 3, 5)], short(LARGER, 1), seeds=3),
]

EXPERIMENT = Experiment(
    name="dana2025/attention-vs-mlp-larger",
    title="Attention against MLP in larger dimension (N = 200)",
    presets={
        "quick": tuple(run for run in QUICK if run.method.protocol == "published"),
        "full": variants(
            [TASK], [mlp(d, m * d) for d in heads_larger.WIDTHS for m in MULTIPLES], MLP
        )
        + heads_larger.EXPERIMENT.presets["full"],
    },
    left_out="the exact gradient; d = 40 alone of 40, 50, 60 and three of six sizes; 3 seeds of 5; "
    "64 and 128 of 4,096 and 8,192 steps, too few to memorize: quick shows that it runs, and "
    "decides nothing",
    figure=Figure(x="n_params", hue="architecture", row="d_model"),
    decides=("full",),
    claims=CLAIMS,
)
