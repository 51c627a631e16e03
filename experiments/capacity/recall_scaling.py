"""capacity/recall-scaling: facts recalled from noise, against the parameters of the memory.

Source: Nichani, Lee & Bietti (ICLR 2025, arXiv 2412.06538), the scaling figure, and their released
code: models and training of `capacity/recall-trade-off`, with 8 heads of alpha d dimensions
together and beta d neurons, alpha and beta from 1/4 to 4. S subjects and as many relations have S²
facts. A capacity is the largest S² of which 99% is known at a check, at any of three learning
rates. Through a cloud of sizes they draw 0.15 facts per parameter; points of 64 facts and fewer are
left out.

They bisect S. Here every S of a grid is trained, from 81 facts up to twice what the line promises,
so that each training is a row; a capacity is between the largest set that was known and the next,
their geometric mean. Preset `small` has 15 sizes of d = 8, 11 and 16, from 400 to 6,200 parameters,
at a rate of 1e-2 alone, which can only lower what is found.

    memobench run capacity/recall-scaling --preset=quick
    memobench report capacity/recall-scaling --preset=quick
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pandas as pd

from memobench.claims import UNDECIDED, Claim, Finding
from memobench.core.run import Run
from memobench.experiment import Experiment
from memobench.experiments.capacity import scaling_claims
from memobench.experiments.capacity.factual_recall import RATES, SOURCE
from memobench.experiments.capacity.own_models import RELEASED, RecallTransformer
from memobench.experiments.capacity.own_tasks import FactualRecall
from memobench.experiments.capacity.scaling_figure import Scaling
from memobench.experiments.capacity.trade_off import METHOD
from memobench.numerics.metrics import NEARLY

_SOURCE = SOURCE.replace("figure 4", "scaling figure")
# Facts per parameter on their line.
DENSITY = 0.15
N_HEADS = 8
WIDTHS = tuple(int(2 ** (i / 2)) for i in range(6, 11))
# Subjects of a point: more than 64 facts, a tenth more each time.
SUBJECTS = tuple(round(8 * 1.1**i) for i in range(1, 45))
# The most facts that are trained, over those on the line.
MOST = 2


def _models(widths: Iterable[int], mixes: Iterable[tuple[float, float]]) -> list[RecallTransformer]:
    """The models with one dimension a head at least, each once."""
    models: dict[RecallTransformer, None] = {}
    for d_model, (alpha, beta) in itertools.product(widths, mixes):
        if d_head := int(alpha * d_model / N_HEADS):
            model = RecallTransformer(
                d_model=d_model,
                d_head=d_head,
                n_heads=N_HEADS,
                d_mlp=int(beta * d_model),
                **RELEASED,
            )
            models[model] = None
    return list(models)


def _parameters(sizes: Any) -> Any:
    """4 H d_h d + 2 m d of a model or a table, as the authors count: without neurons' biases."""
    attention = 2 * sizes["n_heads"] * sizes["d_head"]
    return 2 * sizes["d_model"] * (attention + sizes["d_mlp"])


def _runs(models: Iterable[RecallTransformer], rates: Iterable[float], seeds: int) -> Iterator[Run]:
    for model, rate, seed in itertools.product(models, rates, range(seeds)):
        most_facts = MOST * DENSITY * _parameters(vars(model))
        training = dataclasses.replace(
            METHOD.training, learning_rate=rate, final_learning_rate=rate
        )
        for n_subjects in SUBJECTS:
            if n_subjects**2 <= most_facts:
                yield Run(
                    task=FactualRecall(
                        n_subjects=n_subjects,
                        n_relations=n_subjects,
                        n_answers=8,
                        n_noise=2 * n_subjects,
                        context_length=32,
                        seed=seed,
                    ),
                    architecture=model,
                    method=dataclasses.replace(METHOD, training=training, enough=NEARLY),
                    seed=seed,
                )


# By the S of the largest set that is known: the geometric mean of S² and the next S².
_CAPACITIES = {s: float(s * larger) for s, larger in itertools.pairwise(SUBJECTS)}
_MODEL = ["d_model", "d_head", "n_heads", "d_mlp"]
# What differs between trainings of a model and a seed: more subjects are more tokens to embed.
_SET = ["n_subjects", "n_relations", "n_noise", "vocab_size", "n_examples"]
_SET += ["n_params", "n_params_distinct", "learning_rate", "final_learning_rate"]


def capacities(table: pd.DataFrame) -> pd.DataFrame:
    """One row per model and seed: the largest set that it knows at any learning rate.

    `complete_99` is the geometric mean of its facts and those of the next set of the grid,
    `n_examples` the facts of the largest set tried, and `lower_bound` says that this is known. A
    model that with some seed does not even know the least set has no row.
    """
    most = table.groupby([*_MODEL, "seed"])["n_examples"].transform("max")
    known = table[(table["status"] == "ok") & (table["accuracy"] >= NEARLY)]
    largest = known.sort_values("n_examples").drop_duplicates([*_MODEL, "seed"], keep="last")
    found = largest.groupby(_MODEL)["seed"].transform("nunique")
    largest = largest[found == table["seed"].nunique()]
    most = most[largest.index]
    return largest.assign(
        complete_99=largest["n_subjects"].map(_CAPACITIES),
        lower_bound=largest["n_examples"] == most,
        n_examples=most,
    )


def _of_capacities(test: Callable[[pd.DataFrame], Finding]) -> Callable[[pd.DataFrame], Finding]:
    """The test of capacities, undecided where learning rates are left out."""

    def of_best_rate(table: pd.DataFrame) -> Finding:
        found = test(capacities(table).drop(columns=_SET, errors="ignore"))
        n_rates = table["learning_rate"].nunique()
        if n_rates == len(RATES):
            return found
        why = f"{n_rates} of {len(RATES)} learning rates, and others may find larger sets"
        return dataclasses.replace(found, verdict=UNDECIDED, evidence=f"{why}; {found.evidence}")

    return of_best_rate


def _facts(table: pd.DataFrame) -> pd.Series:
    return table["complete_99"]


def _to_next(table: pd.DataFrame) -> pd.Series:
    """From a capacity to the next that can be found."""
    steps = {this: larger - this for this, larger in itertools.pairwise(_CAPACITIES.values())}
    return table["complete_99"].map(steps)


# Alpha and beta.
_SMALL = ((1, 1), (2, 2), (4, 4), (1, 4), (4, 1))
_FULL = (*itertools.product((0.25, 1, 4), (0.25, 1, 4)), (2, 2))

EXPERIMENT = Experiment(
    name="capacity/recall-scaling",
    title="Facts recalled from noise, against the memory's parameters",
    presets={
        "quick": lambda: tuple(_runs(_models(WIDTHS[:2], _SMALL[:2]), RATES[2:], seeds=3)),
        "small": lambda: tuple(_runs(_models(WIDTHS[:3], _SMALL), RATES[2:], seeds=3)),
        "full": lambda: tuple(_runs(_models(WIDTHS, _FULL), RATES, seeds=3)),
    },
    of_full="d = 8 and 11 of up to 32 (theirs go to 181), two of 25 models of a width (ten in "
    "`full`), one of three learning rates",
    figure=Scaling(
        x="n_params_memory",
        y="complete_99",
        hue="d_model",
        rows=capacities,
        guides=(("0.15 facts per parameter (Nichani et al.)", lambda x: DENSITY * x),),
    ),
    claims=(
        Claim(
            name="linear in the parameters",
            statement="The largest number of facts known is linear in the memory's parameters: its "
            "exponent is 0.9 to 1.1.",
            source=_SOURCE,
            value=1,
            test=_of_capacities(
                scaling_claims.exponent(
                    "exponent of facts in parameters",
                    _parameters,
                    _facts,
                    (0.9, 1.1),
                    [*_MODEL, "n_params_memory"],
                    _to_next,
                )
            ),
        ),
        Claim(
            name="0.15 facts per parameter",
            statement="A memory holds 0.15 facts per parameter within a quarter, in the mean over "
            "sizes.",
            source=_SOURCE,
            value=DENSITY,
            test=_of_capacities(
                scaling_claims.constant(
                    "facts per parameter",
                    lambda table: _facts(table) / _parameters(table),
                    (0.75 * DENSITY, 1.25 * DENSITY),
                    "n_params_memory",
                    _MODEL,
                    step=lambda table: _to_next(table) / _parameters(table),
                )
            ),
        ),
    ),
    notes="The protocol is that of the authors' code. A check asks every fact once, where theirs "
    "asks 1,024 facts drawn with repetitions. S is one of a grid, a tenth apart, where they bisect "
    "it: a capacity is the geometric mean of the largest set known and the next. A model that with "
    "some seed does not know 99% of 81 facts is not shown, and enters no claim. Presets `quick` "
    "and `small` have a learning rate of 1e-2 alone, where the best of three counts for theirs, "
    "and decide no claim.",
)
