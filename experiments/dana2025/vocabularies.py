"""dana2025/vocabularies: the slope on heads over the bound's, for several vocabularies.

Source: Dana, Pydi & Chevaleyre (AISTATS 2025, arXiv 2411.10115), who let what is memorized per head
and head dimension differ from the bound's by a factor C(d, N), and measure it at N = 50 for many d
(experiment 1) and at N = 10 for d = 2 (experiment 6). Here d = d_h = 5 alone, and N = 20 .. 50, all
N^2 pairs.

Expected: more than one association per head and head dimension, and fewer the larger the
vocabulary, as each takes more bits.

    memobench run dana2025/vocabularies --preset=quick
    memobench report dana2025/vocabularies --preset=quick
"""

from memobench.claims import Claim
from memobench.core.run import Run
from memobench.experiment import Experiment
from memobench.experiments.dana2025.common import PUBLISHED, SEEDS, SOURCE, short, square, variants
from memobench.experiments.dana2025.growth_claims import equal_slopes_over_bound
from memobench.methods.training import Training
from memobench.report.figure import Figure
from memobench.tasks.associations import Associations

TASKS = [Associations(vocab_size=n) for n in (20, 30, 40, 50)]
ATTENTION = square([5], (1, 6, 11, 16, 21))


def _runs(method: Training, exact: Training | None = None, seeds: int = SEEDS) -> tuple[Run, ...]:
    return variants(TASKS, ATTENTION, method, seeds, exact)


EXPERIMENT = Experiment(
    name="dana2025/vocabularies",
    title="Accuracy against heads for several vocabularies, d = d_h = 5",
    presets={
        "quick": lambda: _runs(short(PUBLISHED, epochs=32), short(PUBLISHED, epochs=8), seeds=3),
        "full": lambda: _runs(PUBLISHED),
    },
    of_full="3 seeds of 5; 2,048 and 4,096 of 4,096 and 8,192 steps by the published protocol, "
    "512 and 1,024 by the exact gradient",
    figure=Figure(x="n_heads", hue="vocab_size"),
    claims=(
        Claim(
            name="C(d, N) is the same at every N",
            statement="What is known beyond guessing grows per head and head dimension by the same "
            "factor over Corollary 2 at N = 50 as at N = 20.",
            source=f"what {SOURCE} leave open",
            value=1,
            test=equal_slopes_over_bound("vocab_size", 2 / 3, 1.5),
        ),
    ),
)
