"""blocks/optimizers, -zipf: what optimisers store, in attention and in neurons, at equal steps.

No paper says what they memorize at equal parameters. Wang et al. 2025, "Muon outperforms Adam in
tail-end associative memory learning", arXiv 2509.26030, find that Muon learns rare facts better,
for the steps of all singular directions are as long. Claims here extrapolate from that: they are
about all facts, as often as these are asked, and single out no rare ones.

Equal seconds are not compared: on shared cores, at these sizes, they measure the machine.

    memobench run 'blocks/optimizers*' --preset=quick
    memobench report blocks/optimizers --preset=quick
"""

import itertools
import math
from typing import Any

from memobench.board import families
from memobench.core.run import Run
from memobench.experiments.blocks import claims
from memobench.experiments.blocks.common import BUDGETS, LESS, MORE, experiment
from memobench.experiments.blocks.weights import MANY, METHOD, make_runs, shapes
from memobench.methods.training import Training
from memobench.models.modern import Modern
from memobench.optimizers import Adam, Optimizer
from memobench.optimizers.lion import Lion
from memobench.optimizers.muon import Muon
from memobench.optimizers.sgd import SGD

# With rates of which 3 and 10 times are tried.
OPTIMIZERS: dict[str, tuple[Optimizer, float]] = {
    "Adam": (Adam(), 1e-2),
    "Muon": (Muon(), 3e-2),
    "Lion": (Lion(), 3e-3),
    "momentum": (SGD(), 3e-2),
}
# Factors of these rates where frequencies are skewed: the best is none at the edge, and momentum
# diverges at times with rates that are not far beyond its best.
FACTORS = {
    "Adam": (1, 3, 10),
    "Muon": (1 / 3, 1, 3, 10),
    "Lion": (1, 3, 10, 30),
    "momentum": (1, 1.7, 3, 5.5, 10),
}
# Label tables: Muon and Adam differ by little.
TABLES = 72
_TAIL = "expected from what Wang et al. 2025, arXiv 2509.26030, find of rare facts alone"


def _known_bits(row: Any) -> list[float]:
    return [max(0.0, (math.log(row["vocab_size"]) - row["loss"]) / math.log(2))]


# Of an answer, weighed by how often it is asked.
KNOWN = claims.Measure("bits known of an answer", _known_bits)


def _entries(budget: int) -> dict[str, list[Modern]]:
    per_width = 2 * families.VOCAB_SIZES[budget] / budget
    heads = [
        Modern(d_model=width, d_head=width, n_heads=n_heads, norm="none")
        for width, n_heads in ((round(1 / 4 / per_width), 12), (round(1 / 2 / per_width), 2))
    ]
    return {"attention": heads, "neurons": shapes(budget)}


def _training(optimizer: Optimizer, rate: float) -> Training:
    last = rate / 20
    return METHOD.training.replace(
        optimizer=optimizer, learning_rate=rate, final_learning_rate=last
    )


def _uniform(budget: int) -> dict[str, tuple[Run, ...]]:
    return {
        f"{name}, {kind}": make_runs(
            budget, entries, METHOD.replace(training=_training(optimizer, rate))
        )
        for kind, entries in _entries(budget).items()
        for name, (optimizer, rate) in OPTIMIZERS.items()
    }


def _zipf(budget: int) -> dict[str, tuple[Run, ...]]:
    def make_run(entry: Modern, training: Training, seed: int) -> Run:
        task = families.task(budget, seed).replace(zipf_exponent=1.0)
        return Run(task=task, architecture=entry, method=training, seed=seed)

    return {
        f"{name}, {kind}": tuple(
            make_run(entries[-1], _training(optimizer, factor * rate), seed)
            for factor, seed in itertools.product(FACTORS[name], range(TABLES))
        )
        for kind, entries in _entries(budget).items()
        for name, (optimizer, rate) in OPTIMIZERS.items()
    }


def _compare(measure: claims.Measure) -> list[tuple[Any, ...]]:
    return [
        (f"{name}, {kind}", region, f"Adam, {kind}", measure, *source)
        for kind in ("attention", "neurons")
        for name, region, source in (
            ("Muon", MORE, (_TAIL,)),
            ("Lion", LESS, ()),
            ("momentum", LESS, ()),
        )
    ]


_NOTES = "At equal parameters and 1,024 steps; rates are searched for each. "

EXPERIMENTS = (
    experiment(
        "optimizers",
        "Optimisers and what they train",
        {preset: _uniform(budget) for preset, budget in BUDGETS.items()},
        (MANY,),
        *_compare(MANY),
        of_full="256 parameters of 1,024",
        notes=_NOTES + "*Attention* has no neurons; *neurons* are SwiGLU after one head.",
    ),
    experiment(
        "optimizers-zipf",
        "Optimisers where frequencies are skewed",
        {preset: _zipf(budget) for preset, budget in BUDGETS.items()},
        (KNOWN,),
        *_compare(KNOWN),
        of_full="256 parameters of 1,024",
        notes=_NOTES + "Frequencies follow Zipf's law, of exponent 1, and so do gradients: what "
        "counts is the bits known of an answer, weighed by how often it is asked, of log2 N.",
    ),
)
