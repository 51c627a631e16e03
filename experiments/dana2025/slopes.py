"""dana2025/slopes: how the slope in the number of heads grows with the width.

Source: Dana, Pydi & Chevaleyre (AISTATS 2025, arXiv 2411.10115), experiment 4: a line through each
width's curve of experiment 1, up to and including the first point above 0.95, then a d^2 + b and a
d^3 + b through the slopes. The full preset is that of `dana2025/heads`, run by run, so that the
results of one serve the other.

    memobench run dana2025/slopes --preset=quick
    memobench report dana2025/slopes --preset=quick
"""

from memobench import claims
from memobench.claims import Claim
from memobench.experiment import Experiment
from memobench.experiments.dana2025 import heads
from memobench.experiments.dana2025.common import PUBLISHED, SOURCE, short, square, variants
from memobench.experiments.dana2025.growth_claims import exponent_of_slopes
from memobench.report.figure import Figure

BY_THE_PAPER = Claim(
    name="between quadratic and cubic",
    statement="Memorization grows between quadratically and cubically with d = d_h.",
    source=f"{SOURCE}, experiment 4",
    test=exponent_of_slopes(2, 3),
)
UNSATURATED = Claim(
    name="the same without saturated points",
    statement="The slopes grow so too where no line goes through a point above 0.95, at which "
    "curves of large d have bent.",
    source=f"{SOURCE}, experiment 4",
    test=exponent_of_slopes(2, 3, bent=False),
)

EXPERIMENT = Experiment(
    name="dana2025/slopes",
    title="Slope of accuracy on heads against d = d_h (N = 50)",
    presets={
        "quick": lambda: variants(
            [heads.TASK],
            square((3, 5, 7, 9, 11), (1, 11)),
            short(PUBLISHED, epochs=16),
            seeds=3,
            exact=short(PUBLISHED, epochs=2),
        ),
        "paper": lambda: heads.EXPERIMENT.presets["paper"],
        "full": lambda: heads.EXPERIMENT.presets["full"],
    },
    of_full="five of eleven widths and two of seven H; 3 seeds of 5; 1,024 and 2,048 of 4,096 "
    "and 8,192 steps by the published protocol, 128 and 256 by the exact gradient",
    figure=Figure(x="d_model", hue="architecture", y="slope", bounds=False),
    claims=(BY_THE_PAPER, UNSATURATED, claims.use_all_examples(BY_THE_PAPER)),
)
