"""constructions/load: constructed weights beyond the promised number, and in fewer bits.

The constructions of constructions/promised on sets from a quarter to four times the promised
number. Up to that number the linear system is solved exactly; beyond it by least squares, where the
right answer only has to be the largest. Their weights are stored in float64, float32, bfloat16, and
in blocks of 8-bit and 4-bit integers: random ones are rounded first, and the others, solved for in
float64, last.

Expected: the closer a set is to the promised number, the worse the linear system is conditioned and
the more bits the weights need; with few bits, more survives of a set well below that number.

    memobench run constructions/load --preset=quick
    memobench report constructions/load --preset=quick
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from memobench import claims
from memobench.claims import Claim
from memobench.constructions.base import WEIGHTS, Construction
from memobench.core.run import Run
from memobench.experiment import Experiment
from memobench.experiments.constructions.promised import (
    Case,
    associations,
    attention,
    labelled,
    mlp,
)
from memobench.models.linear_memory import LinearMemory
from memobench.report.panels import Panels

# Construction, sizes, and how many examples are promised at them.
CASES: tuple[tuple[Case, int], ...] = (
    (("dana2025", associations(50, 210), attention(10, 10, 20)), 210),
    (("random_features", associations(50, 210), mlp(10, 200)), 210),
    (("bubeck2020", associations(50, 216), mlp(10, 96, "relu")), 216),
    (labelled(7, 32, 64, 64, "shared", 50), 218),
    (("linear_least_squares", associations(240, 32, 1), LinearMemory(d_model=32)), 32),
    (("outer_products", associations(240, 59, 1), LinearMemory(d_model=64)), 59),
)
LOADS = (0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 4.0)
# Each group of points has neurons of its own: there is nothing to fit beyond them.
NOT_BEYOND = ("bubeck2020",)


def _run(case: Case, n_examples: int, exact: bool, weights: str, seed: int) -> Run:
    theorem, task, architecture = case
    task = task.first_examples(n_examples).replace(seed=seed)
    # Constructions that are always exact have no such option.
    how: dict[str, Any] = (
        {} if theorem in NOT_BEYOND else {"solve": "exact" if exact else "least_squares"}
    )
    method = Construction.get_kind(theorem)(weights=weights, **how)
    return Run(task=task, architecture=architecture, method=method, seed=seed)


def runs(loads: Sequence[float], seeds: int) -> Iterator[Run]:
    """Every construction at every load and precision."""
    for (case, promised), load in itertools.product(CASES, loads):
        if load > 1 and case[0] in NOT_BEYOND:
            continue
        for weights, seed in itertools.product(WEIGHTS, range(seeds)):
            yield _run(case, round(load * promised), load <= 1, weights, seed)


EXPERIMENT = Experiment(
    name="constructions/load",
    title="Constructed weights below and beyond the promised number, in fewer and fewer bits",
    presets={
        "quick": lambda: tuple(runs((0.5, 0.75, 1.0, 1.5, 2.0, 4.0), seeds=3)),
        "full": lambda: tuple(runs(LOADS, seeds=5)),
    },
    of_full="6 loads of 11, 3 seeds of 5",
    figure=Panels(
        x=("load",), y=("accuracy", "bits_per_parameter"), hue="weights", column="theorem"
    ),
    claims=(
        Claim(
            name="least squares still memorizes",
            statement="At twice the promised number, least squares in float64 memorizes at least "
            "a twentieth of the examples beyond chance.",
            source="memobench",
            test=claims.every_run(
                "memorized over T",
                lambda table: table["memorized"] / table["n_examples"],
                (0.05, 1.0),
                where=lambda table: (table["load"].round(2) == 2) & (table["weights"] == "float64"),
            ),
            across_steps=True,
            variants=(claims.NEAREST,),
        ),
    ),
    notes="Int8 and int4 weights share a float32 scale in each block of 32, which `stored bits` "
    "includes. Arithmetic is in float64 for float64 weights and in float32 for all others. A "
    "scale of the logits, a power of two, is fitted to the loss.",
)
