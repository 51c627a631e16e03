"""dana2025/head-dimension-deeper: experiment 2 with three layers.

Source: Dana, Pydi & Chevaleyre (AISTATS 2025, arXiv 2411.10115), experiment 2, deeper. All N^2 =
4,900 pairs of N = 70 tokens, three layers of attention, d = 10, H = 21 in every layer, d_h = 1..10,
constant learning rate. The maps into and out of the heads' dimension are shared by the layers.

    memobench run dana2025/head-dimension-deeper --preset=quick
    memobench report dana2025/head-dimension-deeper --preset=quick
"""

from memobench.experiment import Experiment
from memobench.experiments.dana2025.common import DEEPER, attention_only, short, variants
from memobench.experiments.dana2025.head_dimension import JUMP, QUADRATIC, QUADRATIC_BELOW
from memobench.report.figure import Figure
from memobench.tasks.associations import Associations

TASK = Associations(vocab_size=70)
N_HEADS = 21
D_HEADS = range(1, 11)
QUICK = variants(
    [TASK],
    [attention_only(10, d_head, N_HEADS, n_layers=3) for d_head in (1, 3, 5, 7, 10)],
    short(DEEPER, epochs=1, n_batches=64),
    seeds=3,
)

EXPERIMENT = Experiment(
    name="dana2025/head-dimension-deeper",
    title="Accuracy against head dimension with three layers, d = 10, H = 21 (N = 70)",
    presets={
        "quick": tuple(run for run in QUICK if run.method.protocol == "published"),
        "full": variants(
            [TASK], [attention_only(10, d_head, N_HEADS, n_layers=3) for d_head in D_HEADS], DEEPER
        ),
    },
    left_out="the exact gradient; five of ten d_h; 3 seeds of 5; 64 and 128 of 8,192 and 16,384 "
    "steps, too few to memorize: quick shows that it runs, and decides nothing",
    figure=Figure(x="d_head", hue="n_heads", bounds=False),
    decides=("full",),
    claims=(QUADRATIC, QUADRATIC_BELOW, JUMP),
)
