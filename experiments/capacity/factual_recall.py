"""capacity/factual-recall and -line: attention against MLP where facts are recalled from noise.

Source: Nichani, Lee & Bietti (ICLR 2025, arXiv 2412.06538), figure 4: one layer of attention and an
MLP, fixed random embeddings, d = 32, d_h = 8; S = R = 32 subjects and relations, D = 8 answers to
each relation, 32 tokens; batches of 1,024, 2^14 steps of Adam, the best of three learning rates.
About 0.15 facts per parameter of the memory (4 H d_h d + 2 m d), and along the line at which all
facts are just known four attention parameters do what one of the MLP does: 2 d m + (4 H d_h d)/4 =
4,600.

Expected: facts known, where not all are, grow four times as fast with MLP as with attention
parameters, from five heads on. The line alone, at their size and length, is an experiment of its
own.

Embeddings are standard normal; those of their code have a norm of about 1, as in
`capacity/recall-trade-off`. With directions of norm 1 (`embeddings="unit"`) fewer facts were known:
along the line, two seeds, 0.85 and 0.78 of them at learning rates 1e-2 and 3e-2 with 4 heads and 64
neurons, 0.96 and 0.97 with 16 heads and 8. A single head passes on only 8 of the 32 dimensions:
with either norm 0.3 of the facts are known, whatever the line promises there.

    memobench run capacity/factual-recall --preset=quick
    memobench report capacity/factual-recall --preset=quick
    memobench run capacity/factual-recall-line --preset=quick
"""

import itertools
from collections.abc import Iterable, Iterator

from memobench import claims
from memobench.claims import Claim
from memobench.core.run import Run
from memobench.core.task import Task
from memobench.experiment import Experiment
from memobench.experiments.capacity import scaling_claims
from memobench.experiments.capacity.linear_memory import SOURCE as _FIGURE_1
from memobench.experiments.capacity.own_models import RecallTransformer
from memobench.experiments.capacity.own_tasks import FactualRecall
from memobench.experiments.capacity.scaling_figure import Scaling
from memobench.methods.training import Training

SOURCE = _FIGURE_1.replace("figure 1", "figure 4")
WIDTH, D_HEAD = 32, 8
# The heads from which on the paper draws its line of exchange.
FEWEST = 5
RATES = (1e-3, 3e-3, 1e-2)
# Heads and neurons next to the line; the nearest below it and above it.
LINE = (
    *((1, 64), (1, 80), (4, 48), (4, 64), (8, 32), (8, 48)),
    *((12, 16), (12, 32), (16, 0), (16, 8), (16, 16)),
)
# Four, eight and sixteen heads, on both sides of it.
MIDDLE = (*LINE[2:6], *LINE[8:10])


def _task(n_each: int, context_length: int, seed: int) -> Task:
    return FactualRecall(
        n_subjects=n_each,
        n_relations=n_each,
        n_answers=8,
        n_noise=n_each,
        context_length=context_length,
        seed=seed,
    )


def _runs(
    n_each: int,
    context_length: int,
    sizes: Iterable[tuple[int, int]],
    steps: int,
    batch_size: int,
    rates: Iterable[float],
    seeds: int,
) -> Iterator[Run]:
    for (h, m), rate, seed in itertools.product(sizes, rates, range(seeds)):
        yield Run(
            task=_task(n_each, context_length, seed),
            architecture=RecallTransformer(
                d_model=WIDTH,
                d_head=D_HEAD,
                n_heads=h,
                d_mlp=m,
                embeddings="normal",
            ),
            method=Training(
                batch_size=batch_size,
                n_batches=64,
                epochs=steps // 64,
                learning_rate=rate,
                final_learning_rate=rate / 20,
                trained="memory",
            ),
            seed=seed,
        )


def _grid(n_heads: Iterable[int], widths: Iterable[int]) -> Iterator[tuple[int, int]]:
    return itertools.product(n_heads, widths)


_FIGURE = Scaling(
    x="n_params_memory",
    y="memorized",
    hue="n_heads",
    best_of=("learning_rate", "final_learning_rate"),
    guides=(("0.15 facts per parameter (found by Nichani et al.)", lambda x: 0.15 * x),),
)
_CLAIMS = (
    Claim(
        name="an MLP parameter holds four times an attention parameter's facts",
        statement="Where not all facts are known, a parameter of attention adds 0.15 to 0.4 of "
        "what a parameter of the MLP adds, from five heads on (the paper: a quarter, along a line "
        "of equal accuracy that begins there).",
        source=SOURCE,
        value=0.25,
        test=claims.restrict(scaling_claims.exchange((0.15, 0.4)), n_heads=range(FEWEST, 33)),
        across_steps=True,
    ),
)
_NOTES = (
    "Facts known are corrected for guessing among the answers of a relation. At every size "
    "the best learning rate counts. It falls to a twentieth, where they stop at 99% instead."
)

EXPERIMENTS = (
    Experiment(
        name="capacity/factual-recall",
        title="Facts recalled from noise",
        presets={
            "quick": tuple(
                _runs(
                    *(16, 8, _grid((1, 2, 4), (0, 8, 16, 32, 48)), 2**14, 128, RATES[1:]), seeds=3
                )
            ),
            "full": tuple(
                _runs(
                    *(32, 32, _grid((1, 2, 4, 8, 12, 16), (0, 8, 16, 32, 48, 64, 80))),
                    *(2**14, 1024, RATES),
                    seeds=5,
                )
            ),
        },
        of_full="S = R = 16 of 32, 8 tokens of 32, H up to 4 of 16, m up to 48 of 80, batches of "
        "128 for 1,024, two learning rates of three, 3 seeds of 5",
        figure=_FIGURE,
        claims=_CLAIMS,
        notes=_NOTES,
    ),
    Experiment(
        name="capacity/factual-recall-line",
        title="Facts recalled from noise, along the line of exchange",
        presets={
            "quick": tuple(_runs(32, 32, MIDDLE, 2**14, 1024, RATES[1:], seeds=3)),
            "full": tuple(_runs(32, 32, LINE, 2**14, 1024, RATES, seeds=3)),
        },
        of_full="six of eleven sizes, two of three learning rates",
        figure=_FIGURE,
        claims=_CLAIMS,
        notes=_NOTES,
    ),
)
