"""dana2025/contexts: associations of longer contexts, S = 2..8.

Source: Dana, Pydi & Chevaleyre (AISTATS 2025, arXiv 2411.10115): Corollary 2 promises H d_h + d
associations for every context length S; the paper's experiments have S = 2 only. Here T_0 = 500
sequences are drawn from all 50^S and d = d_h = 4; models and protocols are the same.

    memobench run dana2025/contexts --preset=quick
    memobench report dana2025/contexts --preset=quick
"""

from memobench import claims
from memobench.claims import Claim
from memobench.experiment import Experiment
from memobench.experiments.dana2025.common import PUBLISHED, SOURCE, short, square, variants
from memobench.experiments.dana2025.growth_claims import equal_slopes
from memobench.experiments.dana2025.heads import ABOVE_THE_BOUND, N_HEADS
from memobench.report.figure import Figure
from memobench.tasks.associations import Associations

TASKS = {s: Associations(vocab_size=50, context_length=s, n_sequences=500) for s in range(2, 9)}

EXPERIMENT = Experiment(
    name="dana2025/contexts",
    title="Accuracy against heads for longer contexts, d = d_h = 4 (N = 50, 500 sequences)",
    presets={
        "quick": variants(
            [TASKS[2], TASKS[8]],
            square([4], N_HEADS[::2]),
            short(PUBLISHED, epochs=4),
            seeds=3,
        ),
        "full": variants(TASKS.values(), square([4], N_HEADS), PUBLISHED),
    },
    of_full="S = 2, 8 of 2..8 and four of seven H; 3 seeds of 5; 256 and 512 of 4,096 and "
    "8,192 steps",
    figure=Figure(x="n_heads", hue="context_length"),
    claims=(
        ABOVE_THE_BOUND,
        Claim(
            name="linear in H at every S",
            statement="Accuracy grows linearly with the number of heads at every context length.",
            source=f"{SOURCE}, experiment 1, carried over to longer contexts",
            value=1,
            made_for="contexts of two tokens",
            test=claims.linear_in_heads("context_length"),
        ),
        Claim(
            name="no price for length",
            statement="What a head adds does not depend on S, as in H·d_h + d.",
            source=f"{SOURCE}, Corollary 2",
            value=1,
            made_for="weights that exist, which training need not find",
            test=equal_slopes("context_length"),
        ),
    ),
)
