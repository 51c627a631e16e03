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
from collections.abc import Iterator, Sequence

from memobench import claims
from memobench.claims import Claim
from memobench.experiment import Experiment
from memobench.experiments.mahdavi2024.common import (
    NOTES,
    QUICK,
    SOURCE,
    full_runs,
    paper_model,
    paper_task,
    quick_runs,
    small_model,
    small_task,
)
from memobench.models.base import Architecture
from memobench.models.query_attention import QueryAttention
from memobench.report.figure import Figure
from memobench.tasks.labelled_contexts import LabelledContexts
from memobench.theory import THEOREM_1

# T over H (min(n, d_h) - 1) + 1.
LOADS = (0.5, 0.75, 0.95, 1.0, 1.05, 1.5, 2.0, 3.0, 4.0)
QUICK_ON = dataclasses.replace(QUICK, steps=8_000)

ALL_UP_TO_THE_BOUND = Claim(
    name="all known up to T = H·(r − 1) + 1",
    statement="Training also memorizes every example of sets no larger than the theorem's.",
    source=f"our reading of {SOURCE}, Theorem 1",
    test=claims.every_run(
        "accuracy",
        lambda table: table["accuracy"],
        (1.0, 1.0),
        where=lambda table: table["load"] <= 1,
    ),
    across_steps=True,
)


def loads(
    task: LabelledContexts, architectures: Sequence[QueryAttention]
) -> Iterator[tuple[LabelledContexts, Architecture]]:
    """The task with as many examples as the loads say, for every architecture."""
    for architecture, load in itertools.product(architectures, LOADS):
        sizes = {
            "n_heads": architecture.n_heads,
            "d_head": architecture.d_head,
            "context_length": task.context_length,
        }
        n_examples = round(load * THEOREM_1.value(sizes))
        yield dataclasses.replace(task, n_examples=n_examples), architecture


EXPERIMENT = Experiment(
    name="mahdavi2024/theorem",
    title="Around the theorem's number of examples",
    presets={
        "quick": tuple(
            run
            for contexts in ("random", "shared")
            for task, model in loads(small_task(contexts, 1), [small_model(4), small_model(8)])
            for run in quick_runs([task], [model], QUICK_ON)
        ),
        "full": tuple(
            run
            for contexts in ("random", "shared")
            for task, model in loads(paper_task(contexts, 1), [paper_model(4), paper_model(20)])
            for run in full_runs([task], [model])
        ),
    },
    left_out="d = 16, n = 8 in place of d = 64, n = 32; H = 4 and 8 in place of 4 and 20; "
    "8,000 steps of 64 examples in place of 50,000 of 256; 5 seeds of 6",
    figure=Figure(x="load", hue="n_heads"),
    claims=(ALL_UP_TO_THE_BOUND,),
    notes=NOTES,
)
