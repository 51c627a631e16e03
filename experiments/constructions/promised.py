"""constructions/promised: the weights that theorems promise, loaded into the models and checked.

Sources: Dana, Pydi & Chevaleyre 2025 (Theorem 1, Corollary 1, Proposition 3), Mahdavi, Liao &
Thrampoulidis 2024 (Theorem 1), Bubeck, Eldan, Lee & Mikulincer 2020, linear associative memories.
Every construction is tested on as many examples as it promises, by the model's own forward pass in
float64 and float32, and on one example more, where its linear system has no solution.

Expected: accuracy 1 on every seed in float64; with one example more, an error of the fit beyond
rounding.

    memobench run constructions/promised --preset=quick
    memobench report constructions/promised --preset=quick
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pandas as pd

from memobench import claims
from memobench.claims import Claim
from memobench.constructions.base import Construction
from memobench.core.architecture import Architecture
from memobench.core.run import Run
from memobench.core.task import Task
from memobench.experiment import Experiment
from memobench.experiments.dana2025.distributions import DIRICHLET, UNIFORM
from memobench.experiments.mahdavi2024.own_models import QueryAttention
from memobench.models.linear_memory import LinearMemory
from memobench.models.sequence_encoder import SequenceEncoder
from memobench.models.transformer import MLP, AttentionOnly
from memobench.report.panels import Panels
from memobench.tasks.associations import Associations
from memobench.tasks.labelled_contexts import LabelledContexts
from memobench.theory import t_eps

# A theorem, a task and an architecture; their fields are those of their kinds.
Case = tuple[str, Any, Any]


def attention(d_model: int, d_head: int, n_heads: int, heads: str = "full") -> AttentionOnly:
    """One layer of attention on tokens."""
    return AttentionOnly(d_model=d_model, d_head=d_head, n_heads=n_heads, heads=heads)


def associations(vocab_size: int, n_sequences: int | None, context_length: int = 2) -> Task:
    """So many associations, or all."""
    return Associations(
        vocab_size=vocab_size, n_sequences=n_sequences, context_length=context_length
    )


def labelled(
    n_heads: int, n: int, d_model: int, d_head: int, contexts: str, n_classes: int | None = 100
) -> Case:
    """As many labelled contexts as Mahdavi's theorem promises."""
    task = LabelledContexts(
        n_examples=n_heads * (min(n, d_head) - 1) + 1,
        context_length=n,
        contexts=contexts,
        n_classes=n_classes,
        input_dim=d_model,
    )
    architecture = QueryAttention(d_model=d_model, d_head=d_head, n_heads=n_heads)
    return "mahdavi2024", task, architecture


def mlp(d_model: int, d_mlp: int, activation: str = "gelu") -> Architecture:
    """One layer of an MLP Transformer with one head."""
    return MLP(
        d_model=d_model,
        d_head=d_model,
        d_mlp=d_mlp,
        heads="full",
        activation=activation,
    )


EPS = 0.1
SMALL: tuple[Case, ...] = (
    ("dana2025", associations(50, 210), attention(10, 10, 20)),
    ("dana2025", associations(50, 110), attention(10, 5, 20)),
    ("dana2025", associations(50, 110), attention(10, 5, 20, "compressed")),
    ("dana2025", associations(50, 202), attention(2, 2, 100)),
    ("dana2025", associations(50, 210, 6), attention(10, 10, 20)),
    ("bubeck2020", associations(50, 216), mlp(10, 96, "relu")),
    ("random_features", associations(50, 210), mlp(10, 200)),
    labelled(8, 16, 64, 8, "shared"),
    labelled(8, 16, 64, 8, "random"),
    labelled(20, 32, 64, 64, "shared"),
    labelled(20, 32, 64, 64, "random"),
    labelled(20, 32, 64, 64, "shared", None),
    labelled(20, 32, 64, 64, "random", None),
    ("linear_least_squares", associations(64, None, 1), LinearMemory(d_model=64)),
    ("dana2025_proposition3", associations(50, None), SequenceEncoder(d_model=2)),
)
# All 2,500 pairs of 50 tokens, and the largest sizes of the papers.
LARGE: tuple[Case, ...] = (
    ("dana2025", associations(50, None), attention(10, 10, 249)),
    ("dana2025", associations(200, 2050), attention(50, 50, 40)),
    ("random_features", associations(50, None), mlp(10, 2490)),
    ("bubeck2020", associations(50, None), mlp(10, 1112, "relu")),
    labelled(60, 32, 64, 64, "shared"),
    labelled(60, 32, 64, 64, "random"),
)
# The most frequent sequences of T_eps, and all.
DISTRIBUTIONS: tuple[tuple[Task, int, int], ...] = (
    (UNIFORM, 100, 24),
    (DIRICHLET, t_eps(100, 1.0, EPS), 14),
    (DIRICHLET, 100, 24),
)
# Where the promised number is the rank itself; Mahdavi's is in shared contexts with d_h >= n.
_RANKS = ("dana2025", "mahdavi2024", "random_features", "linear_least_squares")


def _run(case: Case, seed: int, **method: Any) -> Run:
    theorem, task, architecture = case
    return Run(
        task=dataclasses.replace(task, seed=seed),
        architecture=architecture,
        method=Construction.get_kind(theorem)(**method),
        seed=seed,
    )


def _one_more(case: Case) -> Case | None:
    """The case with one example more, where a rank forbids it and the task has one."""
    theorem, task, architecture = case
    if theorem not in _RANKS:
        return None
    if isinstance(task, LabelledContexts):
        if task.contexts != "shared" or architecture.d_head < task.context_length:
            return None
        return theorem, dataclasses.replace(task, n_examples=task.n_examples + 1), architecture
    if task.n_sequences is None:
        return None
    return theorem, dataclasses.replace(task, n_sequences=task.n_sequences + 1), architecture


def runs(cases: Iterable[Case], seeds: int) -> Iterator[Run]:
    """Every case in float64 and float32, and with one example more by least squares."""
    for case, seed in itertools.product(cases, range(seeds)):
        yield _run(case, seed)
        yield _run(case, seed, weights="float32")
        more = _one_more(case)
        if more is not None:
            yield _run(more, seed, solve="least_squares")


def distributions(seeds: int) -> Iterator[Run]:
    """Theorem 1's form for distributions, with as many sequences as d_h H + d covers."""
    for (task, n_aimed, n_heads), seed in itertools.product(DISTRIBUTIONS, range(seeds)):
        yield _run(("dana2025", task, attention(4, 4, n_heads)), seed, n_aimed=n_aimed)


def _has_weights(weights: str) -> Callable[[pd.DataFrame], pd.Series]:
    return lambda table: table["weights"] == weights


def _claim_known(name: str, statement: str, weights: str, source: str) -> Claim:
    return Claim(
        name=name,
        statement=statement,
        source=source,
        test=claims.every_run(
            "accuracy on the examples aimed at",
            lambda table: pd.to_numeric(table["aimed_accuracy"]),
            (1.0, 1.0),
            where=_has_weights(weights),
        ),
        across_steps=True,
        variants=(claims.CONSTRUCTED,),
    )


CLAIMS = (
    _claim_known(
        "all known in float64",
        "Constructed weights know every example that their theorem promises.",
        "float64",
        "the theorems' promise",
    ),
    _claim_known(
        "all known in float32",
        "They still do with weights and arithmetic in float32.",
        "float32",
        "our question: theorems are of real numbers",
    ),
    Claim(
        name="one more is not solvable",
        statement="With one example more than features have dimensions their rank stays below the "
        "number of examples, and the linear system has no solution (compare `fit_error` of least "
        "squares with that of exact solutions).",
        source="rank arguments of the same papers",
        test=claims.every_run(
            "examples minus rank",
            lambda table: table["n_examples"] - pd.to_numeric(table["feature_rank"]),
            (1, math.inf),
        ),
        across_steps=True,
        variants=(claims.NEAREST,),
    ),
    Claim(
        name="as near as the encoder",
        statement="On T_eps sequences of several next tokens, all of which may follow, attention "
        "diverges no more than the best sequence encoder, within gamma = 1e-6 nats.",
        source="Dana, Pydi & Chevaleyre 2025, Theorem 1",
        test=claims.every_run(
            "gamma (nats)",
            lambda table: pd.to_numeric(table["gamma"]),
            (-1e-6, 1e-6),
            where=lambda table: table["conditional"] == DIRICHLET.conditional,
        ),
        across_steps=True,
        variants=(claims.CONSTRUCTED,),
    ),
)

EXPERIMENT = Experiment(
    name="constructions/promised",
    title="Constructed weights at the number of examples that theorems promise",
    presets={
        "quick": (*runs(SMALL, seeds=3), *runs(LARGE[3:5], seeds=1), *distributions(seeds=1)),
        "full": (*runs(SMALL, seeds=20), *runs(LARGE, seeds=20), *distributions(seeds=20)),
    },
    of_full="3 seeds of 20; two of six large cases, of one seed each",
    figure=Panels(
        x=("n_examples",),
        y=("condition", "largest_weight", "margin"),
        hue="theorem",
        column="weights",
        lines=False,
    ),
    claims=CLAIMS,
    notes="Where some tokens may not follow (`uniform`) the best encoder has no finite weights, "
    "and gamma is as large as rounding makes it. The largest weight is that before rounding, "
    "margins are those of the weights as stored. With one example more (`least_squares`) accuracy "
    "may still be 1, because the right answer only has to be the largest.",
)
