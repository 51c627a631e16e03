"""dana2025/head-dimension: accuracy against the dimension of the heads.

Source: Dana, Pydi & Chevaleyre (AISTATS 2025, arXiv 2411.10115), experiment 2. All N^2 = 2,500
pairs of N = 50 tokens, one layer, d = 10, H = 20, d_h = 1..10.

Expected: 0.29 at d_h = 5 and 0.64 at d_h = 9 by the published protocol. The released code puts one
shared map before all heads and one behind them where d_h < d, and none at d_h = d; full heads,
which have no such maps, show whether these cause the jump.

    memobench run dana2025/head-dimension --preset=quick
    memobench report dana2025/head-dimension --preset=quick
"""

from memobench.claims import Claim
from memobench.experiment import Experiment
from memobench.experiments.dana2025 import growth_claims
from memobench.experiments.dana2025.common import SOURCE, attention_only, presets, published
from memobench.report.figure import Figure
from memobench.tasks.associations import Associations

SIZES = [attention_only(10, d_head, n_heads=20) for d_head in range(1, 11)]

# Mean accuracy of five seeds, from the data published with the paper.
ACCURACY = (0.0815, 0.1096, 0.1554, 0.2094, 0.2879, 0.3567, 0.4534, 0.5457, 0.6391, 0.8044)

QUADRATIC = Claim(
    name="quadratic in d_h",
    statement="Accuracy grows quadratically with the dimension of the heads.",
    source=f"{SOURCE}, experiment 2",
    value=2,
    test=growth_claims.power_law(*growth_claims.QUADRATIC),
)
QUADRATIC_BELOW = Claim(
    name="quadratic in d_h < d",
    statement="The same without d_h = d, where the released code drops the compression.",
    source="memobench",
    value=2,
    test=growth_claims.power_law(*growth_claims.QUADRATIC, narrow=True),
)
JUMP = Claim(
    name="jump at d_h = d",
    statement="At d_h = d accuracy lies above what narrower heads predict, by 0.03 or more.",
    source="memobench, on the published data",
    test=growth_claims.jump_at_full_width(),
)

EXPERIMENT = Experiment(
    name="dana2025/head-dimension",
    title="Accuracy against head dimension, d = 10, H = 20 (N = 50)",
    presets=presets(
        Associations(vocab_size=50),
        quick=[size for size in SIZES if size.d_head in (1, 4, 7, 9, 10)],
        full=SIZES,
        epochs=32,
        exact_epochs=4,
    ),
    of_full="five of ten d_h; 3 seeds of 5; 2,048 and 4,096 of 4,096 and 8,192 steps by the "
    "published protocol, 256 and 512 by the exact gradient",
    figure=Figure(x="d_head", hue="n_heads"),
    published=published(SIZES, ACCURACY),
    claims=(QUADRATIC, QUADRATIC_BELOW, JUMP),
)
