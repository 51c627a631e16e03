"""capacity/mlp-memory: how many facts the neurons of an MLP hold.

Source: Nichani, Lee & Bietti (ICLR 2025, arXiv 2412.06538), figure 1, right: an MLP d -> m -> d
(relu, bias in) holds a number of facts about linear in m d. Their protocol: a bijection, fixed
unit-norm Gaussian keys and values, AdamW without decay at a learning rate of 3e-2, 2^15 steps.

Expected: an exponent of N in m d near 1.

    memobench run capacity/mlp-memory --preset=quick
    memobench report capacity/mlp-memory --preset=quick
"""

import dataclasses
from collections.abc import Iterable, Iterator

import pandas as pd

from memobench import claims
from memobench.claims import Claim
from memobench.experiment import Experiment
from memobench.experiments.capacity.linear_memory import METHOD, SOURCE
from memobench.methods.search import Search
from memobench.models.mlp_memory import MLPMemory
from memobench.report.scaling import Scaling
from memobench.runs import Run
from memobench.tasks.bijection import Bijection


def _method(epochs: int) -> Search:
    training = dataclasses.replace(
        METHOD.training, epochs=epochs, learning_rate=3e-2, final_learning_rate=3e-2
    )
    return dataclasses.replace(METHOD, training=training, resolution=0.02)


def _runs(sizes: Iterable[tuple[int, int]], method: Search, seeds: int) -> Iterator[Run]:
    for d_model, d_mlp in sizes:
        for seed in range(seeds):
            yield Run(
                task=Bijection(vocab_size=d_model * d_mlp, seed=seed),
                architecture=MLPMemory(d_model=d_model, d_mlp=d_mlp),
                method=method,
                seed=seed,
            )


def _weights(table: pd.DataFrame) -> pd.Series:
    return table["d_model"].astype(float) * table["d_mlp"].astype(float)


EXPERIMENT = Experiment(
    name="capacity/mlp-memory",
    title="Facts in the neurons of an MLP",
    presets={
        "quick": tuple(
            _runs([(d, m * d) for d in (8, 11, 16) for m in (1, 2)] + [(8, 32)], _method(64), 5)
        ),
        "full": tuple(
            _runs(
                [(d, factor * d) for d in (8, 11, 16, 23, 32, 45) for factor in (1, 2, 4)],
                _method(512),
                seeds=5,
            )
        ),
    },
    left_out="7 sizes of 18, d up to 16 of 45; 4,096 steps of 2^15",
    figure=Scaling(
        x="n_params_memory",
        y="complete_99",
        hue="d_model",
        guides=(("0.3 facts per parameter: linear", lambda x: 0.3 * x),),
    ),
    claims=(
        Claim(
            name="linear in m d",
            statement="The number of facts is linear in m d: its exponent is 0.9 to 1.1.",
            source=SOURCE,
            test=claims.exponent(
                "exponent of N in m d",
                _weights,
                lambda table: table["complete_99"].astype(float),
                (0.9, 1.1),
                [
                    *("d_model", "d_head", "d_mlp", "vocab_size", "n_examples"),
                    *("n_params", "n_params_memory"),
                ],
            ),
        ),
    ),
    notes="The steps are not doubled: no row can say `converged`.",
)
