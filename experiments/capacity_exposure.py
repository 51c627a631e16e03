"""capacity/exposure: what attention and MLP hold per parameter, by how often they saw each fact.

Sources of the claims: Dana, Pydi & Chevaleyre 2025, first version (attention equals MLP);
Allen-Zhu & Li 2024, arXiv 2404.05405 (about 2 bits per parameter after 1,000 exposures of each
fact, where removing the MLPs changes nothing, and 1 after 100, where it costs more than 1.5x; an
exposure there is a pass of minibatches, with many updates); studies of adapters (attention is about
half as good).

The overfull set of the board: 512 associations of N = 32 tokens at 512 parameters. Every step of
the exact gradient sees every association once, so that exposures are steps; each number of them is
a training of its own, whose learning rate falls to a twentieth; the best of five rates counts.

    memobench run capacity/exposure --preset=full
    memobench report capacity/exposure --preset=full
"""

import itertools
import math
from collections.abc import Iterator, Sequence

from memobench import board, claims
from memobench.claims import Claim
from memobench.experiment import Experiment, Exposure
from memobench.specs import Run, Training

VOCAB_SIZE = 32
RATES = (3e-3, 1e-2, 3e-2, 1e-1, 3e-1)
SEEN = (16, 64, 256, 1024, 4096, 16384)
STEPS = 16
EQUAL = (0.91, 1.1)


def _runs(budget: int, exposures: Sequence[int], seeds: int) -> Iterator[Run]:
    entries = [x for x, _ in board.standard(VOCAB_SIZE, budget)][:3]
    for architecture, seen, rate, seed in itertools.product(
        entries, exposures, RATES, range(seeds)
    ):
        method = Training(
            protocol="exact",
            batch_size=None,
            n_batches=STEPS,
            epochs=seen // STEPS,
            learning_rate=rate,
            final_learning_rate=rate / 20,
        )
        task = board.task(VOCAB_SIZE, budget, seed)
        yield Run(task=task, architecture=architecture, method=method, seed=seed)


def _claims(measure: str) -> tuple[Claim, ...]:
    return tuple(
        Claim(
            name=f"{name} ({measure})",
            statement=f"{statement} ({measure} per parameter, all counted, of an overfull set).",
            source=source,
            test=claims.attention_over_mlp(exposures, region, measure),
            across_steps=True,
            variants=(claims.VARIANTS["exact", "full"],),
        )
        for name, statement, source, exposures, region in (
            (
                "attention equals MLP at many exposures",
                "After 1,024 exposures attention holds as much as an MLP, within a tenth",
                "Dana et al. 2025, first version; after Allen-Zhu & Li 2024",
                1024,
                EQUAL,
            ),
            (
                "attention equals MLP in the limit",
                "After 16,384 exposures attention holds as much as an MLP, within a tenth",
                "the same",
                16384,
                EQUAL,
            ),
            (
                "attention falls behind at few exposures",
                "After 64 exposures attention holds less than two thirds of what an MLP does",
                "after Allen-Zhu & Li 2024, whose exposures are passes of minibatches",
                64,
                (-math.inf, 2 / 3),
            ),
            (
                "attention is half as good",
                "After 1,024 exposures attention holds 0.4 to 0.6 of what an MLP does",
                "studies of adapters",
                1024,
                (0.4, 0.6),
            ),
        )
    )


EXPERIMENT = Experiment(
    name="capacity/exposure",
    title="Attention and MLP by how often each fact was seen",
    presets={
        "quick": tuple(_runs(512, SEEN[:4], seeds=3)),
        "full": tuple(_runs(512, SEEN, seeds=5)),
    },
    left_out="4,096 and 16,384 exposures; 3 seeds of 5",
    figure=Exposure(),
    claims=_claims("memorized") + _claims("bits"),
    notes="Full heads, where a claim compares families; the figure has compressed heads too. The "
    "MLP has one head before it. An exposure is one step of the gradient over all facts: few "
    "exposures are few updates.",
)
