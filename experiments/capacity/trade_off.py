"""capacity/recall-trade-off: heads against neurons where facts are recalled, as the authors run it.

Source: Nichani, Lee & Bietti (ICLR 2025, arXiv 2412.06538), figure 4, and their released code: one
layer of attention and an MLP, fixed random embeddings of norm about 1, d = 32, d_h = 8; S = R = 32
subjects and relations, D = 8 answers to each relation, 64 noise tokens, sequences of 32; batches of
1,024, at most 2^14 steps of Adam at a constant rate of 1e-2; every 128 steps a check, the largest
of which counts, and one that finds all known ends the training. The line that they draw: with
a = d d_h H, all facts are known from d m + a/2 = 2,300 on, for 5 heads and more. Four attention
parameters do what one of the MLP does.

One thing differs: a check asks every fact once, where theirs asks 1,024 facts drawn with
repetitions, about 63% of them.

`quick` are two sizes on the line and one below it, at 0.78 of what it asks for; `paper` their grid
of 169 sizes (one seed: --seeds=1). By --dry_run on two cores, from rates of other runs, `quick`
takes 60 minutes and `paper` 55 hours.

    memobench run capacity/recall-trade-off --preset=quick
    memobench report capacity/recall-trade-off --preset=quick
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator

import pandas as pd

from memobench import claims
from memobench.claims import Claim, Finding
from memobench.core.run import Run
from memobench.experiment import Experiment
from memobench.experiments.capacity import scaling_claims
from memobench.experiments.capacity.factual_recall import D_HEAD, FEWEST, SOURCE, WIDTH
from memobench.experiments.capacity.heat_figure import Heat
from memobench.experiments.capacity.own_models import RELEASED, RecallTransformer
from memobench.experiments.capacity.own_tasks import FactualRecall
from memobench.methods.checked import Checked
from memobench.methods.training import Training

# d m + d d_h H / 2 on the line.
NEEDED = 2300
HEADS = (1, 2, 4, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32)
NEURONS = (1, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128)
# Heads and neurons: two sizes with 2,304 of the 2,300 that the line asks for, one with 1,792.
QUICK = ((12, 24), (16, 8), (12, 8))
METHOD = Checked(
    training=Training(
        batch_size=1024,
        n_batches=128,
        epochs=128,
        learning_rate=1e-2,
        final_learning_rate=1e-2,
        trained="memory",
    ),
)


def _runs(sizes: Iterable[tuple[int, int]]) -> Iterator[Run]:
    for (n_heads, d_mlp), seed in itertools.product(sizes, range(3)):
        yield Run(
            task=FactualRecall(
                n_subjects=32, n_relations=32, n_answers=8, n_noise=64, context_length=32, seed=seed
            ),
            architecture=RecallTransformer(
                d_model=WIDTH, d_head=D_HEAD, n_heads=n_heads, d_mlp=d_mlp, **RELEASED
            ),
            method=METHOD,
            seed=seed,
        )


def _share(table: pd.DataFrame) -> pd.Series:
    """The share that a size has of the parameters that the line needs."""
    attention = table["d_model"] * table["d_head"] * table["n_heads"] / 2
    return (table["d_model"] * table["d_mlp"] + attention) / NEEDED


def _share_known(low: float, high: float, region: tuple[float, float]) -> Callable[..., Finding]:
    """A test that sizes of such shares of the line know a mean share of facts in the region."""
    others = ["d_mlp", "n_params", "n_params_memory", "n_params_distinct"]
    test = scaling_claims.constant(
        "facts known", lambda x: x["accuracy"], region, "n_heads", others, (0, 1)
    )

    def of_line(table: pd.DataFrame) -> Finding:
        near = _share(table).between(low, high) & (table["n_heads"] >= FEWEST)
        return test(table[near])

    return of_line


def _heads_of_line(n_heads: float) -> float:
    """The neurons that the line asks for beside so many heads."""
    return (NEEDED - WIDTH * D_HEAD * n_heads / 2) / WIDTH


EXPERIMENT = Experiment(
    name="capacity/recall-trade-off",
    title="Share of 1,024 facts known, by heads and neurons",
    presets={
        "quick": tuple(_runs(QUICK)),
        "paper": tuple(_runs(itertools.product(HEADS, NEURONS))),
    },
    of_full="three sizes of 169",
    figure=Heat(
        x="n_heads",
        y="d_mlp",
        value="accuracy",
        line=("d w + d d_h H / 2 = 2,300 (Nichani et al.)", _heads_of_line, FEWEST),
    ),
    claims=(
        Claim(
            name="facts known on the line",
            statement="On the line, d w + d d_h H / 2 = 2,300, at least 99% of the facts are known "
            "(mean over sizes of 6 heads or more, within a tenth above it).",
            source=SOURCE,
            test=_share_known(1, 1.1, (0.99, math.inf)),
        ),
        Claim(
            name="facts not known below the line",
            statement="At 0.7 to 0.85 of what the line asks for, fewer than 99% are known.",
            source=SOURCE,
            test=_share_known(0.7, 0.85, (-math.inf, 0.99)),
        ),
        Claim(
            name="an MLP parameter holds four times an attention parameter's facts",
            statement="Where not all facts are known, a parameter of attention adds 0.15 to 0.4 of "
            "what a parameter of the MLP adds, from 6 heads on (the line: a quarter).",
            source=SOURCE,
            value=0.25,
            test=claims.restrict(scaling_claims.exchange((0.15, 0.4)), n_heads=HEADS[3:]),
        ),
    ),
    notes="The protocol is that of the authors' code. The largest of 128 checks counts, each of "
    "which asks every fact once; theirs asks 1,024 facts drawn with repetitions.",
)
