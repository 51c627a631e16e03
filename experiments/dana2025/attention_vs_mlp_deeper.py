"""dana2025/attention-vs-mlp-deeper: experiment 5 with three layers.

Source: Dana, Pydi & Chevaleyre (AISTATS 2025, arXiv 2411.10115), experiment 5, deeper. All N^2 =
4,900 pairs of N = 70 tokens, three layers; MLP Transformers with one head and w = 0, 8d, .., 40d in
every layer beside the attention-only Transformers of `dana2025/heads-deeper`.

    memobench run dana2025/attention-vs-mlp-deeper --preset=quick
    memobench report dana2025/attention-vs-mlp-deeper --preset=quick
"""

from memobench.experiment import Experiment
from memobench.experiments.dana2025 import heads_deeper
from memobench.experiments.dana2025.attention_vs_mlp import CLAIMS
from memobench.experiments.dana2025.common import DEEPER, attention_only, mlp, short, variants
from memobench.report.figure import Figure

TASK = heads_deeper.TASK
MULTIPLES = (0, 8, 16, 24, 32, 40)
SHORT = short(DEEPER, epochs=1, n_batches=64)
QUICK = [
    *variants([TASK], [mlp(7, 7 * m, n_layers=3) for m in (0, 8, 16)], SHORT, seeds=3),
    *variants([TASK], [attention_only(7, 7, h, n_layers=3) for h in (1, 5, 9)], SHORT, seeds=3),
]

EXPERIMENT = Experiment(
    name="dana2025/attention-vs-mlp-deeper",
    title="Attention against MLP with three layers (N = 70)",
    presets={
        "quick": tuple(run for run in QUICK if run.method.protocol == "published"),
        "full": variants(
            [TASK],
            [mlp(d, m * d, n_layers=3) for d in heads_deeper.WIDTHS for m in MULTIPLES],
            DEEPER,
        )
        + heads_deeper.EXPERIMENT.presets["full"],
    },
    left_out="the exact gradient; d = 7 alone of 7, 10, 13 and three of six sizes; 3 seeds of 5; "
    "64 and 128 of 8,192 and 16,384 steps, too few to memorize: quick shows that it runs, and "
    "decides nothing",
    figure=Figure(x="n_params", hue="architecture", row="d_model", bounds=False),
    decides=("full",),
    claims=CLAIMS,
)
