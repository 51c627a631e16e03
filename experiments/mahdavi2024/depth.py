"""mahdavi2024/depth: examples memorized by 1 to 4 layers of attention, with and without residuals.

A question that the reviewers of Mahdavi, Liao & Thrampoulidis (ICLR 2024, arXiv 2306.02010) left
open. Layers before the last keep all tokens; no token attends to itself. Beside what is memorized,
the table of runs has the ranks (in float64) that bound it: of the vectors that enter each layer at
the query, and of the attention weights of the last.

Expected: nothing was published.

    memobench run mahdavi2024/depth --preset=quick
    memobench report mahdavi2024/depth --preset=quick
"""

import dataclasses

from memobench import claims
from memobench.claims import Claim
from memobench.experiment import Experiment
from memobench.experiments.mahdavi2024 import common
from memobench.experiments.mahdavi2024.claims import never_falls
from memobench.experiments.mahdavi2024.figure import Ranked
from memobench.experiments.mahdavi2024.own_models import QueryAttention

LAYERS = (1, 2, 3, 4)


def layered(model: QueryAttention) -> list[QueryAttention]:
    """The model with every number of layers, without and with residuals."""
    return [
        dataclasses.replace(model, n_layers=n_layers, residual=residual)
        for residual in (False, True)
        for n_layers in LAYERS
    ]


def _grows(residual: bool) -> Claim:
    words = "with" if residual else "without"
    return Claim(
        name=f"grows with depth {words} residuals",
        statement=f"More layers of attention {words} residuals memorize more.",
        source=f"asked by the reviewers of {common.SOURCE}",
        test=claims.restrict(never_falls("n_layers"), residual=residual),
        across_steps=True,
    )


EXPERIMENT = Experiment(
    name="mahdavi2024/depth",
    title="Memorized examples against layers of attention",
    presets={
        "quick": common.quick_runs(
            [common.small_task("shared", 1_000)],
            [model for model in layered(common.small_model(4)) if model.n_layers < max(LAYERS)],
            dataclasses.replace(common.QUICK, steps=2_000),
        ),
        "full": common.full_runs(
            [common.paper_task("random", 50_000), common.paper_task("shared", 20_000)],
            layered(common.paper_model(20)),
        ),
    },
    of_full="d = 16, n = 8, H = 4 and 1,000 examples in place of d = 64, n = 32, H = 20 and "
    "thousands; shared contexts; up to 3 layers of 4; 2,000 steps of 64 examples; 5 seeds of 6",
    figure=Ranked(x="n_layers", hue="residual", y="known", bounds=False),
    claims=(_grows(residual=False), _grows(residual=True)),
    notes=common.NOTES,
)
