"""dana2025/embedding-dimension: accuracy against the width of the residual stream.

Source: Dana, Pydi & Chevaleyre (AISTATS 2025, arXiv 2411.10115), experiment 3. All N^2 = 2,500
pairs of N = 50 tokens, one layer, d_h = 10, H = 20, d = 5..15.

Expected: a line that breaks at d = d_h, 0.26 at d = 5 and 0.81 at d = 15 by the published protocol.
With full heads d_h is min(10, d): wider heads add nothing to those of the equations.

    memobench run dana2025/embedding-dimension --preset=quick
    memobench report dana2025/embedding-dimension --preset=quick
"""

from memobench.claims import Claim
from memobench.experiment import Experiment
from memobench.experiments.dana2025.common import SOURCE, attention_only, presets, published
from memobench.experiments.dana2025.growth_claims import broken_line
from memobench.report.figure import Figure
from memobench.tasks.associations import Associations

D_HEAD = 10
SIZES = [attention_only(d_model, D_HEAD, n_heads=20) for d_model in range(5, 16)]

# Mean accuracy of five seeds, from the data published with the paper.
ACCURACY = (
    *(0.2639, 0.3621, 0.46, 0.5782, 0.6972, 0.8087),
    *(0.7769, 0.789, 0.7855, 0.8118, 0.8136),
)

EXPERIMENT = Experiment(
    name="dana2025/embedding-dimension",
    title="Accuracy against embedding dimension, d_h = 10, H = 20 (N = 50)",
    presets=presets(
        Associations(vocab_size=50),
        quick=[size for size in SIZES if size.d_model in (5, 7, 9, 10, 11, 12)],
        full=SIZES,
        epochs=32,
        exact_epochs=4,
    ),
    of_full="six of eleven d; 3 seeds of 5; 2,048 and 4,096 of 4,096 and 8,192 steps by the "
    "published protocol, 256 and 512 by the exact gradient",
    figure=Figure(x="d_model", hue="n_heads"),
    published=published(SIZES, ACCURACY),
    claims=(
        Claim(
            name="breaks at d = d_h",
            statement="Linear by parts: growth in d slows to at most half at d = d_h.",
            source=f"{SOURCE}, experiment 3",
            value=D_HEAD,
            test=broken_line("d_model", at=D_HEAD),
        ),
    ),
    notes="With full heads d_h = min(10, d), so that parameters grow quadratically up to d = 10.",
)
