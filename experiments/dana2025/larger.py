"""dana2025/heads-larger, head-dimension-larger and attention-vs-mlp-larger: d = 40 .. 60, N = 200.

Source: Dana, Pydi & Chevaleyre (AISTATS 2025, arXiv 2411.10115), experiments 1, 2 and 5 in larger
dimension. All N^2 = 40,000 pairs of N = 200 tokens, one layer. Heads: d = d_h = 40, 50, 60, H = 1,
3, .., 11. Head dimension: d = 50, H = 11, d_h = 1, 5, 10, .., 50. MLP Transformers with one head
and w = 0, 4d, .., 20d stand beside the first. The training set is 65,536 draws, which miss about a
fifth of the pairs; the published protocol's accuracy is on the training set, where a pair counts
as often as it was drawn, so that its claims are repeated here over all pairs, each counted once.

Expected: linear in H, and linear in d_h, where the smaller dimension is quadratic. A step costs
some hundred times one of `dana2025/heads`.

    memobench run dana2025/heads-larger --preset=quick
    memobench report dana2025/heads-larger --preset=quick
"""

import dataclasses

from memobench import claims
from memobench.claims import Claim
from memobench.experiment import Experiment, grid
from memobench.experiments.dana2025 import attention_vs_mlp, growth_claims, head_dimension, heads
from memobench.experiments.dana2025.common import (
    PUBLISHED,
    SEEDS,
    SOURCE,
    attention_only,
    mlp,
    published_alone,
    square,
    variants,
)
from memobench.report.figure import Figure
from memobench.tasks.associations import Associations

TASK = Associations(vocab_size=200)
METHOD = dataclasses.replace(PUBLISHED, batch_size=1024)
BY_MLP = dataclasses.replace(METHOD, final_learning_rate=1e-4)
WIDTHS = (40, 50, 60)
ATTENTION = square(WIDTHS, (1, 3, 5, 7, 9, 11))
PAPER = grid([TASK], ATTENTION, [METHOD], SEEDS)
HEADS = variants([TASK], ATTENTION, METHOD)
D_HEADS = [attention_only(50, d_head, n_heads=11) for d_head in (1, *range(5, 51, 5))]
MLPS = [mlp(d, m * d) for d in WIDTHS for m in range(0, 21, 4)]

LINEAR = Claim(
    name="linear in d_h",
    statement="In the larger dimension accuracy grows linearly with the dimension of the heads.",
    source=f"{SOURCE}, experiment 2 in larger dimension",
    value=1,
    test=growth_claims.power_law(*growth_claims.LINEAR),
)
NARROW = Claim(
    name="linear in d_h < d",
    statement="So it does without the point at d_h = d, where accuracy jumps.",
    source="memobench",
    value=1,
    test=growth_claims.power_law(*growth_claims.LINEAR, narrow=True),
)


def _counted_twice(*of_draws: Claim) -> tuple[Claim, ...]:
    """Claims on the draws of the protocol, which miss a fifth of the pairs, and on all pairs."""
    return *of_draws, *map(claims.use_all_examples, of_draws)


BETTER = [x for x in attention_vs_mlp.CLAIMS if not x.across_steps]

EXPERIMENTS = (
    Experiment(
        name="dana2025/heads-larger",
        title="Accuracy against heads in larger dimension, d = d_h (N = 200)",
        presets={
            "quick": published_alone(TASK, square([40], (1, 3, 5, 7)), METHOD, epochs=2),
            "paper": PAPER,
            "full": HEADS,
        },
        of_full="no exact gradient; d = 40 alone of 40, 50, 60 and four of six H; 3 seeds of 5; "
        "128 and 256 of 4,096 and 8,192 steps, too few to memorize: quick shows that it runs, "
        "and decides nothing",
        figure=Figure(x="n_heads", hue="d_model"),
        too_short=("quick",),
        claims=(*_counted_twice(heads.LINEAR_IN_HEADS), heads.ABOVE_THE_BOUND),
    ),
    Experiment(
        name="dana2025/head-dimension-larger",
        title="Accuracy against head dimension, d = 50, H = 11 (N = 200)",
        presets={
            "quick": published_alone(TASK, D_HEADS[:5], METHOD, epochs=1),
            "paper": grid([TASK], D_HEADS, [METHOD], SEEDS),
            "full": variants([TASK], D_HEADS, METHOD),
        },
        of_full="no exact gradient; five of eleven d_h; 3 seeds of 5; 64 and 128 of 4,096 and "
        "8,192 steps, too few to memorize: quick shows that it runs, and decides nothing",
        figure=Figure(x="d_head", hue="n_heads"),
        too_short=("quick",),
        claims=_counted_twice(LINEAR, NARROW, head_dimension.JUMP),
    ),
    Experiment(
        name="dana2025/attention-vs-mlp-larger",
        title="Attention against MLP in larger dimension (N = 200)",
        presets={
            "quick": published_alone(TASK, [mlp(40, 40 * m) for m in (0, 4, 8)], BY_MLP, epochs=1)
            + published_alone(TASK, square([40], (1, 3, 5)), METHOD, epochs=1),
            "paper": grid([TASK], MLPS, [BY_MLP], SEEDS) + PAPER,
            "full": variants([TASK], MLPS, BY_MLP) + HEADS,
        },
        of_full="no exact gradient; d = 40 alone of 40, 50, 60 and three of six sizes; 3 seeds "
        "of 5; 64 and 128 of 4,096 and 8,192 steps, too few to memorize: quick shows that it runs, "
        "and decides nothing",
        figure=Figure(x="n_params", hue="architecture", row="d_model"),
        too_short=("quick",),
        claims=(*attention_vs_mlp.CLAIMS, *map(claims.use_all_examples, BETTER)),
    ),
)
