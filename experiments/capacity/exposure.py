"""capacity/exposure, -passes: what attention and MLP hold by how often they saw each fact.

Sources of the claims: Dana, Pydi & Chevaleyre 2025, first version (attention equals MLP);
Allen-Zhu & Li 2024, arXiv 2404.05405 (about 2 bits per parameter after 1,000 exposures of each
fact, where removing the MLPs changes nothing, and 1 after 100, where it costs more than 1.5x; an
exposure there is a pass of minibatches, with many updates); studies of adapters (attention is about
half as good).

The overfull set of the board: 512 associations of N = 32 tokens at 512 parameters. An exposure is a
step of the exact gradient, which sees every association once, or, in `-passes`, a pass over them in
16 minibatches. Each number of exposures is trained separately, with a learning rate that falls from
epoch to epoch towards a twentieth; the best of five rates counts.

    memobench run capacity/exposure --preset=full
    memobench run capacity/exposure-passes --preset=quick
    memobench report capacity/exposure --preset=full
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

from memobench import claims
from memobench.board import families
from memobench.claims import Claim
from memobench.core.run import Run
from memobench.experiment import Experiment
from memobench.experiments.capacity.exposure_claims import attention_over_mlp
from memobench.experiments.capacity.exposure_figure import Exposure
from memobench.methods.training import Training
from memobench.models.transformer import MLP, AttentionOnly

BUDGET = 512
ARCHITECTURES = (
    AttentionOnly(d_model=4, d_head=4, n_heads=4, heads="full"),
    AttentionOnly(d_model=4, d_head=2, n_heads=15),
    MLP(d_model=4, d_head=4, d_mlp=20, heads="full"),
    # The best narrow heads of this budget on the board.
    AttentionOnly(d_model=4, d_head=1, n_heads=16, heads="full"),
    MLP(d_model=4, d_head=2, d_mlp=24, heads="full"),
)
RATES = (3e-3, 1e-2, 3e-2, 1e-1, 3e-1)
SEEN = (16, 64, 256, 1024, 4096, 16384)
STEPS = 16
EQUAL = (0.91, 1.1)


def _runs(exposures: Sequence[int], seeds: int, batch_size: int | None = None) -> Iterator[Run]:
    for architecture, seen, rate, seed in itertools.product(
        ARCHITECTURES, exposures, RATES, range(seeds)
    ):
        passes = 1 if batch_size else STEPS
        method = Training(
            protocol="passes" if batch_size else "exact",
            batch_size=batch_size,
            n_batches=STEPS,
            epochs=seen // passes,
            learning_rate=rate,
            final_learning_rate=rate / 20,
        )
        task = families.task(BUDGET, seed)
        yield Run(task=task, architecture=architecture, method=method, seed=seed)


def _claims(measure: str, variant: str) -> tuple[Claim, ...]:
    return tuple(
        Claim(
            name=f"{name} ({measure})",
            statement=f"{statement} ({measure} per parameter, all counted, of an overfull set).",
            source=source,
            value=value,
            test=attention_over_mlp(exposures, region, measure),
            across_steps=True,
            variants=(variant,),
            made_for=made_for,
        )
        for name, statement, source, exposures, region, value, made_for in (
            (
                "attention equals MLP at many exposures",
                "After 1,024 exposures attention holds as much as an MLP, within a tenth",
                "Dana et al. 2025, first version; after Allen-Zhu & Li 2024",
                1024,
                EQUAL,
                1,
                "",
            ),
            (
                "attention equals MLP after 16,384 exposures",
                "After 16,384 exposures attention holds as much as an MLP, within a tenth",
                "the same",
                16384,
                EQUAL,
                1,
                "",
            ),
            (
                "attention falls behind at few exposures",
                "After 64 exposures attention holds less than two thirds of what an MLP does",
                "after Allen-Zhu & Li 2024, whose exposures are passes of minibatches",
                64,
                (-math.inf, 2 / 3),
                None,
                "GPTs of millions of parameters, in passes of minibatches",
            ),
            (
                "attention is half as good",
                "After 1,024 exposures attention holds 0.4 to 0.6 of what an MLP does",
                "studies of adapters",
                1024,
                (0.4, 0.6),
                0.5,
                "adapters of large pretrained models",
            ),
        )
    )


def _experiment(name: str, title: str, variant: str, notes: str, **options: Any) -> Experiment:
    return Experiment(
        name=name,
        title=title,
        presets={
            "quick": lambda: tuple(_runs(SEEN[:4], seeds=3, **options)),
            "full": lambda: tuple(_runs(SEEN, seeds=20, **options)),
        },
        of_full="four of six numbers of exposures, the smallest; 3 seeds of 20",
        figure=Exposure(),
        claims=_claims("memorized", variant) + _claims("bits", variant),
        notes="Full heads, wide or narrow, where a claim compares families: the best of each "
        "counts. "
        "The figure has compressed heads too. The MLP has one head before it. " + notes,
    )


EXPERIMENTS = (
    _experiment(
        "capacity/exposure",
        "Attention alone and MLP by how often each fact was seen",
        claims.VARIANTS["exact", "full"],
        "An exposure is one step of the gradient over all facts: few exposures are few updates, "
        "and 16 are an epoch, within which the learning rate stays as it is.",
    ),
    _experiment(
        "capacity/exposure-passes",
        "Attention alone and MLP by how often each fact was seen, in minibatches",
        "passes, full",
        f"An exposure is a pass over all facts in {STEPS} batches of {BUDGET // STEPS}, shuffled "
        f"anew for every pass: {STEPS} updates.",
        batch_size=BUDGET // STEPS,
    ),
)
