"""dana2025/sequence-encoder: the least divergence of sequence encoders W E(t) against width.

Source: Dana, Pydi & Chevaleyre (AISTATS 2025, arXiv 2411.10115), Propositions 2 and 3, Theorem 2.
Every sequence has a free vector E(t) in R^d; Adam and L-BFGS in double precision search for the
infimum from many starts. All N^2 = 100 pairs of N = 10 tokens.

Expected: positive below d = N - 1 for some conditionals and zero from there on; zero from d = 2 on
for associations. Theorem 2's bound says nothing below d = 128 ln(N + 1) = 307.

    memobench run dana2025/sequence-encoder --preset=quick
    memobench report dana2025/sequence-encoder --preset=quick
"""

import dataclasses
from collections.abc import Iterable

import pandas as pd

from memobench import claims, theory
from memobench.claims import Claim
from memobench.core.run import Run
from memobench.experiment import Experiment, grid
from memobench.experiments.dana2025.common import SOURCE
from memobench.experiments.dana2025.distributions import DIRICHLET, POWER_LAW, UNIFORM, encoder
from memobench.methods.optimum import Optimum
from memobench.report.figure import Figure
from memobench.tasks.associations import Associations

ASSOCIATIONS = Associations(vocab_size=10)
TASKS = (ASSOCIATIONS, UNIFORM, POWER_LAW, DIRICHLET)
ZERO = 1e-5
# Theorem 2 says something from d = 307 on.
THEOREM_2 = 320
THOROUGH = Optimum(starts=256, adam_steps=2000, steps=5000)


def _runs(widths: Iterable[int], method: Optimum, seeds: int) -> tuple[Run, ...]:
    return grid(TASKS, map(encoder, widths), [method], seeds)


def _bound(table: pd.DataFrame) -> list[float]:
    rows = table[["vocab_size", "d_model", "n_next", "conditional", "conditional_parameter"]]
    return [
        theory.encoder_bound(
            int(n), int(d), int(k), conditional, None if pd.isna(parameter) else parameter
        )
        for n, d, k, conditional, parameter in rows.itertuples(index=False)
    ]


EXPERIMENT = Experiment(
    name="dana2025/sequence-encoder",
    title="Least divergence of sequence encoders against width (N = 10)",
    presets={
        "quick": _runs((1, 2, 4, 8, 9), Optimum(polished=1, steps=500), seeds=1),
        # Where every start reaches zero, few are enough.
        "full": _runs(range(1, 11), THOROUGH, seeds=1)
        + _runs((THEOREM_2,), dataclasses.replace(THOROUGH, starts=8, polished=1), seeds=1),
    },
    of_full="five of eleven widths; 64 starts of 256, and shorter searches",
    figure=Figure(x="d_model", hue="conditional", y="loss", bounds=False),
    claims=(
        Claim(
            name="zero from d = N - 1 on",
            statement=f"From d = N - 1 on every distribution is reached (to {ZERO:g} nats).",
            source=f"{SOURCE}, Proposition 2",
            test=claims.every_run(
                "floor (nats)",
                lambda table: table["loss"],
                (float("-inf"), ZERO),
                where=lambda table: table["d_model"] >= table["vocab_size"] - 1,
            ),
        ),
        Claim(
            name="positive below d = N - 1",
            statement="Below d = N - 1 some distributions are not reached; here Dirichlet's.",
            source=f"{SOURCE}, Proposition 2",
            test=claims.every_run(
                "floor (nats)",
                lambda table: table["loss"],
                (ZERO, float("inf")),
                where=lambda table: (
                    (table["conditional"] == "dirichlet")
                    & (table["d_model"] < table["vocab_size"] - 1)
                ),
            ),
        ),
        Claim(
            name="two dimensions without entropy",
            statement=f"A single certain next token is reached from d = 2 on (to {ZERO:g} nats).",
            source=f"{SOURCE}, Proposition 3",
            test=claims.every_run(
                "floor (nats)",
                lambda table: table["loss"],
                (float("-inf"), ZERO),
                where=lambda table: (table["task"] == "associations") & (table["d_model"] >= 2),
            ),
        ),
        Claim(
            name="below Theorem 2",
            statement="The floor lies below Theorem 2's bound where that is finite (d > 307; there "
            "Proposition 2 makes the floor zero already; Dirichlet's bound is not computed).",
            source=f"{SOURCE}, Theorem 2",
            test=claims.every_run(
                "floor minus bound (nats)",
                lambda table: table["loss"] - _bound(table),
                (float("-inf"), 0.0),
                where=lambda table: (
                    (table["task"] == "distributions") & (table["d_model"] > 128 * 2.4)
                ),
            ),
        ),
    ),
    notes="`gradient_norm` and `start_losses` in the table of runs are the certificate: the "
    "largest entry of the gradient at the best start, and where every start ended. An infimum that "
    "no weights attain (logits must grow without end) leaves a gradient that is small, not zero.",
)
