"""mahdavi2024/theorem: accuracy where T lies just below and above H (min(n, d_h) - 1) + 1.

Source: Theorem 1 of Mahdavi, Liao & Thrampoulidis (ICLR 2024, arXiv 2306.02010) promises weights
that memorize this many examples; the paper's own experiments train on tens of times more. This one
is ours.

Expected: nothing was published. Training may find less than exists, or more than the theorem
promises.

    memobench run mahdavi2024/theorem --preset=quick
    memobench report mahdavi2024/theorem --preset=quick
"""

import dataclasses
import itertools
from collections.abc import Callable, Sequence

from memobench import claims
from memobench.claims import Claim
from memobench.core.run import Run
from memobench.experiment import Experiment
from memobench.experiments.mahdavi2024 import common
from memobench.experiments.mahdavi2024.figure import Ranked
from memobench.experiments.mahdavi2024.own_methods import Annealing
from memobench.experiments.mahdavi2024.own_models import QueryAttention
from memobench.tasks.labelled_contexts import LabelledContexts
from memobench.theory import THEOREM_1

# T over H (min(n, d_h) - 1) + 1.
LOADS = (0.5, 0.75, 0.95, 1.0, 1.05, 1.5, 2.0, 3.0, 4.0)
QUICK_ON = dataclasses.replace(common.QUICK, steps=8_000)

ALL_UP_TO_THE_BOUND = Claim(
    name="all known up to T = H·(r − 1) + 1",
    statement="Training also memorizes every example of sets no larger than the theorem's.",
    source=f"our reading of {common.SOURCE}, Theorem 1",
    test=claims.every_run(
        "accuracy",
        lambda table: table["accuracy"],
        (1.0, 1.0),
        where=lambda table: table["load"] <= 1,
    ),
    across_steps=True,
)


def _runs(
    runs: Callable[..., tuple[Run, ...]],
    task: Callable[[str, int], LabelledContexts],
    model: Callable[[int], QueryAttention],
    n_heads: Sequence[int],
    *method: Annealing,
) -> tuple[Run, ...]:
    """As many random or shared contexts as the loads say, for every number of heads."""
    found: list[Run] = []
    for contexts, h, load in itertools.product(("random", "shared"), n_heads, LOADS):
        one, architecture = task(contexts, 1), model(h)
        sizes = {"n_heads": h, "d_head": architecture.d_head, "context_length": one.context_length}
        examples = one.replace(n_examples=round(load * THEOREM_1.value(sizes)))
        found += runs([examples], [architecture], *method)
    return tuple(found)


EXPERIMENT = Experiment(
    name="mahdavi2024/theorem",
    title="Around the theorem's number of examples",
    presets={
        "quick": _runs(common.quick_runs, common.small_task, common.small_model, (4, 8), QUICK_ON),
        "full": _runs(common.full_runs, common.paper_task, common.paper_model, (4, 20)),
    },
    of_full="d = 16, n = 8 in place of d = 64, n = 32; H = 4 and 8 in place of 4 and 20; "
    "8,000 steps of 64 examples in place of 50,000 of 256; 5 seeds of 6",
    figure=Ranked(x="load", hue="n_heads"),
    claims=(ALL_UP_TO_THE_BOUND,),
    notes=common.NOTES,
)
