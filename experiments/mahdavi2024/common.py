"""Shared parts of the experiments of Mahdavi, Liao & Thrampoulidis (ICLR 2024, arXiv 2306.02010).

One layer of attention is read out at a query: Linear(64 -> 64) on query and context, sinusoidal
positions, value dimension 1, scores over sqrt(d). Seeds draw the data as well as the weights.

Their protocol: Adam, warm-up and cosine, batches of 256, max(500 epochs, 50,000) steps, the whole
set evaluated every 500, the weights of the least loss kept, and classifiers stopped once they know
every label. `paper` and `full` are their grid with their six seeds (`--seeds=1` runs the first
alone). `trend` is as much of it as may decide the trends: one set of each kind, at both ends of its
sizes and between. `quick` is the same in 16 dimensions with contexts of 8 and a few
hundred examples.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from memobench import claims
from memobench.claims import Claim
from memobench.core.architecture import Architecture
from memobench.core.run import Run
from memobench.experiment import Experiment
from memobench.experiments.mahdavi2024.claims import never_falls
from memobench.experiments.mahdavi2024.figure import Ranked
from memobench.experiments.mahdavi2024.own_methods import Annealing
from memobench.experiments.mahdavi2024.own_models import QueryAttention
from memobench.numerics.metrics import SCALAR_TOLERANCE
from memobench.tasks.labelled_contexts import LabelledContexts
from memobench.theory import THEOREM_1

SOURCE = "Mahdavi, Liao & Thrampoulidis 2024"
SEEDS = 6
# Of `trend` where contexts are random, which takes hours of two cores.
FEW_SEEDS = 3
QUICK_SEEDS = 5

PUBLISHED = Annealing()
# Of the sweep over d_h and of saturation.
LONG = dataclasses.replace(PUBLISHED, steps=300_000)
QUICK = Annealing(batch_size=64, steps=4_000, learning_rate=1e-2, evaluate_every=200)

SIZES = (1, 5, *range(10, 61, 10))
# At both ends and between; a line needs four unsaturated points, growth three.
TREND_HEADS = (1, 5, 10, 20, 30, 40, 60)
TREND_LENGTHS = dict.fromkeys(("random", "shared"), (1, 5, 10, 20, 30, 60))
QUICK_HEADS = (1, 2, 4, 6, 8)
QUICK_LENGTHS = (1, 2, 4, 8, 12)

NOTES = (
    "Every run is reported at the weights of its least loss over all examples; data and weights "
    "differ between seeds. In the CSV `stopped_at` and `best_step` are the steps at which a run "
    "ended and at which it was best."
)
REGRESSION_NOTES = (
    f"{NOTES} A scalar counts as memorized if the output lies within {SCALAR_TOLERANCE} of it, "
    f"which guessing reaches for {2 * SCALAR_TOLERANCE:.0%}."
)

LINEAR_IN_HEADS = Claim(
    name="linear in H",
    statement="For every set, memorization grows linearly with the number of heads.",
    source=f"{SOURCE}, section 6",
    value=1,
    test=claims.linear_in_heads("n_examples"),
    across_steps=True,
)
MONOTONE_IN_CONTEXT = Claim(
    name="grows with n",
    statement="For every set, memorization grows with the length of the context and never falls.",
    source=f"{SOURCE}, section 6",
    test=never_falls("context_length"),
    across_steps=True,
)
ABOVE_THE_THEOREM = Claim(
    name="above the theorem",
    statement="Training memorizes at least the H·(min(n, d_h) − 1) + 1 examples that some weights "
    "of these sizes memorize.",
    source=f"{SOURCE}, Theorem 1",
    # What is known beyond guessing spreads by more than one example.
    test=lambda table: claims.above_bound(THEOREM_1.value, "Theorem 1")(
        table[table["promised"] > 1]
    ),
    across_steps=True,
)


def paper_model(n_heads: int, d_head: int = 64) -> QueryAttention:
    """The paper's model."""
    return QueryAttention(d_model=64, d_head=d_head, n_heads=n_heads)


def small_model(n_heads: int, d_head: int = 16) -> QueryAttention:
    """The same with a quarter of the width."""
    return dataclasses.replace(paper_model(n_heads, d_head), d_model=16)


def paper_task(
    contexts: str, n_examples: int, length: int = 32, classes: int | None = 100
) -> LabelledContexts:
    """The paper's task; classes=None asks for scalars."""
    return LabelledContexts(
        contexts=contexts, n_examples=n_examples, context_length=length, n_classes=classes
    )


def small_task(
    contexts: str, n_examples: int, length: int = 8, classes: int | None = 20
) -> LabelledContexts:
    """The same in 16 dimensions."""
    return dataclasses.replace(paper_task(contexts, n_examples, length, classes), input_dim=16)


def full_runs(
    tasks: Iterable[LabelledContexts],
    architectures: Sequence[Architecture],
    method: Annealing = PUBLISHED,
    seeds: int = SEEDS,
    epochs: int = 500,
) -> tuple[Run, ...]:
    """Every task and architecture, for at least so many epochs; seeds draw data and weights."""
    return tuple(
        Run(
            task=dataclasses.replace(task, seed=seed),
            architecture=architecture,
            method=method.for_examples(task.n_examples, epochs),
            seed=seed,
        )
        for task in tasks
        for architecture in architectures
        for seed in range(seeds)
    )


def at_full_size(
    paper: tuple[Run, ...],
    size: Callable[[Any], int],
    trend: Mapping[str, Iterable[int]],
    sets: Mapping[str, tuple[int, int]],
) -> dict[str, tuple[Run, ...]]:
    """The presets of the paper's runs.

    Args:
      paper: all runs.
      size: of a run.
      trend: sizes of the preset of that name, for each kind of contexts.
      sets: the numbers of examples and of seeds of that preset, for each kind of contexts; a model
        that knows all examples tells nothing of a trend.
    """
    several: Any = paper
    wanted = {
        contexts: {(n_examples, seed) for seed in range(seeds)}
        for contexts, (n_examples, seeds) in sets.items()
    }
    chosen = tuple(
        run
        for run in several
        if size(run) in trend[run.task.contexts]
        and (run.task.n_examples, run.seed) in wanted[run.task.contexts]
    )
    return {"trend": chosen, "paper": paper, "full": paper}


def quick_runs(
    tasks: Iterable[LabelledContexts],
    architectures: Sequence[Architecture],
    method: Annealing = QUICK,
) -> tuple[Run, ...]:
    """The same with QUICK_SEEDS, all for equally many steps."""
    return full_runs(tasks, architectures, method, QUICK_SEEDS, epochs=0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sets:
    """Numbers of examples, with random and with shared contexts; `classes` as in `paper_task`."""

    random: Iterable[int]
    shared: Iterable[int]
    classes: int | None = 100

    def make_tasks(
        self, task: Callable[..., LabelledContexts], length: int
    ) -> list[LabelledContexts]:
        """The sets of one length."""
        return [
            task(contexts, n_examples, length, self.classes)
            for contexts, numbers in (("random", self.random), ("shared", self.shared))
            for n_examples in numbers
        ]


def against_heads(
    kind: str, quick: Sets, full: Sets, trend: Mapping[str, tuple[int, int]]
) -> Experiment:
    """The sweep over the number of heads.

    Args:
      kind: classification or regression.
      quick: sets of the preset of that name.
      full: sets of the paper.
      trend: `sets` of `at_full_size`.
    """
    return Experiment(
        name=f"mahdavi2024/{kind}-heads",
        title=f"{kind.capitalize()}: memorized examples against heads",
        presets={
            "quick": quick_runs(
                quick.make_tasks(small_task, 8), [small_model(h) for h in QUICK_HEADS]
            ),
        }
        | at_full_size(
            full_runs(full.make_tasks(paper_task, 32), [paper_model(h) for h in SIZES]),
            lambda run: run.architecture.n_heads,
            dict.fromkeys(trend, TREND_HEADS),
            trend,
        ),
        of_full="d = 16, n = 8 and hundreds of examples in place of d = 64, n = 32 and thousands; "
        "H to 8 of 60; 4,000 steps of 64 examples; 5 seeds of 6",
        figure=Ranked(x="n_heads", hue="n_examples", y="known"),
        claims=(LINEAR_IN_HEADS, ABOVE_THE_THEOREM),
        notes=REGRESSION_NOTES if full.classes is None else NOTES,
    )


def against_length(
    kind: str,
    quick: Sets,
    full: Sets,
    trend: Mapping[str, tuple[int, int]],
) -> Experiment:
    """The sweep over the length of the context, as `against_heads`."""
    small = [task for n in QUICK_LENGTHS for task in quick.make_tasks(small_task, n)]
    large = [task for n in SIZES for task in full.make_tasks(paper_task, n)]
    return Experiment(
        name=f"mahdavi2024/{kind}-context",
        title=f"{kind.capitalize()}: memorized examples against the context's length",
        presets={
            "quick": quick_runs(small, [small_model(4)]),
        }
        | at_full_size(
            full_runs(large, [paper_model(20)]),
            lambda run: run.task.context_length,
            TREND_LENGTHS,
            trend,
        ),
        of_full="d = 16, H = 4 and hundreds of examples in place of d = 64, H = 20 and thousands; "
        "n to 12 of 60; 4,000 steps of 64 examples; 5 seeds of 6",
        figure=Ranked(x="context_length", hue="n_examples", y="known"),
        claims=(MONOTONE_IN_CONTEXT, ABOVE_THE_THEOREM),
        notes=REGRESSION_NOTES if full.classes is None else NOTES,
    )
