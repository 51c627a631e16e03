"""dana2025/heads: accuracy of attention-only Transformers against the number of heads.

Source: Dana, Pydi & Chevaleyre, Memorization in Attention-only Transformers (AISTATS 2025,
arXiv 2411.10115), experiment 1. All N^2 = 2,500 pairs of N = 50 tokens, one layer, d = d_h.

Expected: accuracy grows linearly with H until it saturates; at d = 10, H = 21 the published
protocol gives 0.861 and the exact gradient over the same number of steps gives over 0.99.

    memobench run dana2025/heads --preset=quick
    memobench report dana2025/heads --preset=quick
"""

import itertools

from memobench import claims
from memobench.claims import Claim
from memobench.experiment import Experiment, grid
from memobench.experiments.dana2025.common import (
    PUBLISHED,
    SOURCE,
    presets,
    published,
    square,
)
from memobench.report.figure import Figure
from memobench.tasks.associations import Associations
from memobench.theory import COROLLARY_2

TASK = Associations(vocab_size=50)
N_HEADS = (1, 6, 11, 16, 21, 26, 31)

# Mean accuracy of five seeds, from the data published with the paper.
ACCURACY = {
    5: (0.0738, 0.1193, 0.1582, 0.1922, 0.2248, 0.2572, 0.2936),
    10: (0.1298, 0.3243, 0.5062, 0.6852, 0.8608, 0.9634, 0.9974),
    13: (0.1626, 0.482, 0.7745, 0.9882, 0.9998, 1.0, 0.9999),
}

LINEAR_IN_HEADS = Claim(
    name="linear in H",
    statement="Accuracy grows linearly with the number of heads until it saturates.",
    source=f"{SOURCE}, experiment 1",
    value=1,
    test=claims.linear_in_heads(),
)
AT_ONE_WIDTH = Claim(
    name="linear in H at d = 10",
    statement="At d = d_h = 10 accuracy grows linearly with the number of heads until it "
    "saturates.",
    source=f"{SOURCE}, experiment 1",
    value=1,
    test=claims.restrict(claims.linear_in_heads(), d_model=10),
)
ABOVE_THE_BOUND = Claim(
    name="above H·d_h + d",
    statement="Training memorizes at least the H·d_h + d associations that theory promises.",
    source=f"{SOURCE}, Corollary 2",
    test=claims.above_bound(COROLLARY_2.value, "H·d_h + d"),
)

EXPERIMENT = Experiment(
    name="dana2025/heads",
    title="Accuracy against heads, d = d_h (N = 50)",
    presets=presets(
        TASK,
        quick=square([10], N_HEADS[:5]),
        full=square(range(3, 14), N_HEADS),
        epochs=32,
        exact_epochs=4,
    )
    # Half a minute of `make bench`.
    | {"bench": lambda: grid([TASK], square([10], N_HEADS[:4]), [PUBLISHED], seeds=3)},
    of_full="d = 10 alone of d = 3..13 and five of seven H; 3 seeds of 5; 2,048 and 4,096 of "
    "4,096 and 8,192 steps by the published protocol, 256 and 512 by the exact gradient",
    figure=Figure(x="n_heads", hue="d_model"),
    published=published(square(ACCURACY, N_HEADS), itertools.chain(*ACCURACY.values())),
    claims=(LINEAR_IN_HEADS, AT_ONE_WIDTH, ABOVE_THE_BOUND),
)
