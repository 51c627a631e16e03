"""capacity/linear-memory: how many facts a matrix holds.

Source: Nichani, Lee & Bietti, Understanding Factual Recall in Transformers via Associative Memories
(ICLR 2025, arXiv 2412.06538), figure 1, left: d^2 = 1.3 N ln N for N facts at 99% accuracy. Their
protocol: a bijection, fixed unit-norm Gaussian keys and values, AdamW without decay at a learning
rate of 1,000, 4,096 steps of all facts, evaluated every 32, bisection to 1%, five seeds.
Conjecture: d^2 = 2 N ln N (Barnfield et al. 2026, arXiv 2605.05189), for large d.

Expected: 17 facts at d = 8, 156 at d = 32, 506 at d = 64.

    memobench run capacity/linear-memory --preset=quick
    memobench report capacity/linear-memory --preset=quick
"""

from collections.abc import Iterable, Iterator

import numpy as np
import pandas as pd
import scipy.special

from memobench import claims
from memobench.claims import Claim
from memobench.core.run import Run
from memobench.experiment import Experiment
from memobench.experiments.capacity import scaling_claims
from memobench.experiments.capacity.scaling_figure import Scaling
from memobench.methods.search import Search
from memobench.methods.training import Training
from memobench.models.linear_memory import LinearMemory
from memobench.tasks.bijection import Bijection

SOURCE = "Nichani, Lee & Bietti 2025, figure 1"
FOUND, CONJECTURED = 1.3, 2.0
METHOD = Search(
    training=Training(
        protocol="exact",
        batch_size=None,
        learning_rate=1000,
        final_learning_rate=1000,
        trained="memory",
    ),
    sizes=3,
    resolution=0.01,
    doublings=0,
)
WIDTHS = (8, 11, 16, 23, 32, 45, 64, 91, 128)


def facts(d_model: float, constant: float) -> float:
    """N in d^2 = constant N ln N.

    >>> round(facts(64, 1.3))
    506
    """
    return float(np.exp(scipy.special.lambertw(d_model**2 / constant).real))


def _runs(widths: Iterable[int]) -> Iterator[Run]:
    for d_model in widths:
        # More than a memory holds; small ones hold most beyond what was found.
        n_facts = round((1.2 + 4 / d_model) * facts(d_model, FOUND))
        for seed in range(5):
            yield Run(
                task=Bijection(vocab_size=n_facts, seed=seed),
                architecture=LinearMemory(d_model=d_model),
                method=METHOD,
                seed=seed,
            )


def _constant(table: pd.DataFrame) -> pd.Series:
    n_facts = table["complete_99"].astype(float)
    return table["d_model"] ** 2 / (n_facts * np.log(n_facts))


def _claim(name: str, statement: str, source: str, constant: float, made_for: str = "") -> Claim:
    region = (round(constant / 1.1, 2), round(constant * 1.1, 2))
    test = scaling_claims.constant("d²/(N ln N)", _constant, region, "d_model", _COUNTS)
    test = claims.restrict(test, d_model=WIDTHS[4:])
    return Claim(
        name=name,
        statement=statement,
        source=source,
        value=constant,
        test=test,
        made_for=made_for,
    )


_COUNTS = ("d_head", "vocab_size", "n_examples", "n_params", "n_params_memory")

EXPERIMENT = Experiment(
    name="capacity/linear-memory",
    title="Facts in a linear associative memory",
    presets={"quick": tuple(_runs(WIDTHS[:7])), "paper": tuple(_runs(WIDTHS))},
    of_full="seven of nine widths, up to 64 of 128",
    figure=Scaling(
        x="d_model",
        y="complete_99",
        guides=(
            ("d² = 1.3 N ln N (found by Nichani et al.)", np.vectorize(lambda d: facts(d, 1.3))),
            ("d² = 2 N ln N (conjectured)", np.vectorize(lambda d: facts(d, 2.0))),
        ),
    ),
    claims=(
        _claim(
            "1.3 N ln N",
            "A matrix holds N facts with d² = 1.3 N ln N, within a tenth (d from 32).",
            SOURCE,
            FOUND,
        ),
        _claim(
            "2 N ln N",
            "d² = 2 N ln N, within a tenth (conjectured for large d; here from 32).",
            "Barnfield et al. 2026",
            CONJECTURED,
            made_for="the limit of large d",
        ),
    ),
    notes="The number of steps is the paper's and is not doubled, so no row can say `converged`.",
)
