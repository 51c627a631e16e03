"""capacity/one-step and -batches: what one step of Muon stores in a linear memory, and one of SGD.

Source: Kim, Nichani, Wu, Bietti & Lee 2026 (arXiv 2603.26554): N random keys and values, item i of
frequency i^-alpha, cross-entropy over all N, one step from W = 0. Up to constants and logarithms
Muon stores the top min(d^(1 + 1/(2 alpha)), B^(1/alpha)) of batches of B, SGD d^(1/(2 alpha)). By
our summary; they regularise Muon's singular values as `MuonStep` does.

Expected: with alpha = 1.5 exponents in d of 1.33 and 0.33, and of 0.67 in B.

    memobench run capacity/one-step --preset=quick
    memobench report capacity/one-step --preset=quick
    memobench run capacity/one-step-batches --preset=quick
"""

import itertools
from collections.abc import Iterable, Iterator

from memobench import claims
from memobench.analysis import seeds as analysis
from memobench.claims import Claim
from memobench.core.run import Run
from memobench.experiment import Experiment
from memobench.experiments.capacity import scaling_claims
from memobench.experiments.capacity.own_constructions import GradientStep, MuonStep
from memobench.models.linear_memory import LinearMemory
from memobench.report.panels import Panels
from memobench.tasks.associations import Associations

SOURCE = "Kim, Nichani, Wu, Bietti & Lee 2026"
STEPS = {"SGD": GradientStep, "Muon": MuonStep}
EXPONENTS = (1.5, 2.0)
# Batches with which fewer are stored than with all, at alpha = 1.5 and the width below.
BATCHES = (32, 128, 512, 2048)
WIDTH = 128
NEAR = 0.1


def _runs(
    widths: Iterable[int],
    exponents: Iterable[float],
    batches: Iterable[int | None],
    vocab_size: int,
    seeds: int,
) -> Iterator[Run]:
    for d_model, exponent, batch in itertools.product(widths, exponents, batches):
        for step, seed in itertools.product(STEPS.values(), range(seeds)):
            yield Run(
                task=Associations(
                    vocab_size=vocab_size, context_length=1, zipf_exponent=exponent, seed=seed
                ),
                architecture=LinearMemory(d_model=d_model),
                method=step(solve="least_squares", drawn=batch),
                seed=seed,
            )


def _exponent(step: str, alpha: float, expected: float) -> Claim:
    test = scaling_claims.exponent(
        "exponent of items stored in d",
        lambda table: table["d_model"].astype(float),
        analysis.count_known,
        (round(expected - NEAR, 3), round(expected + NEAR, 3)),
        ["d_model", "d_head", "n_params", "n_params_memory", "n_params_distinct"],
    )
    return Claim(
        name=f"{step} in d, α = {alpha:g}",
        statement=f"Of frequencies i^-{alpha:g} one step of {step} stores d^{expected:.3g} items, "
        f"the exponent within {NEAR}.",
        source=SOURCE,
        value=expected,
        test=claims.restrict(test, theorem=STEPS[step].name, zipf_exponent=alpha),
        across_steps=True,
    )


def _in_batches(expected: float) -> Claim:
    test = scaling_claims.exponent(
        "exponent of items stored in B",
        lambda table: table["drawn"].astype(float),
        analysis.count_known,
        (round(expected - NEAR, 3), round(expected + NEAR, 3)),
        ["drawn"],
    )
    return Claim(
        name="Muon in B, α = 1.5",
        statement=f"Of frequencies i^-1.5 one step of Muon on small batches stores "
        f"B^{expected:.3g} items, the exponent within {NEAR}.",
        source=SOURCE,
        value=expected,
        test=claims.restrict(test, theorem=MuonStep.name),
        across_steps=True,
    )


_NOTES = (
    "Items known are counted whatever their frequency, `aimed_accuracy` is their share; a guess "
    "among so many is worth one item. Theirs are the most frequent ones known without a gap. "
    "Answers are drawn with repetitions, keys and values have norm 1."
)


def _figure(x: str) -> Panels:
    """Power laws are lines in logarithms."""
    y = "items_known"
    return Panels(x=(x,), y=(y,), hue="theorem", column="zipf_exponent", logarithmic=(x, y))


EXPERIMENTS = (
    Experiment(
        name="capacity/one-step",
        title="Items stored by one step of SGD and of Muon",
        presets={
            "quick": tuple(_runs((16, 32, 64, 128), EXPONENTS, [None], 2048, 4)),
            "full": tuple(_runs((16, 32, 64, 128, 256, 512), EXPONENTS, [None], 8192, 5)),
        },
        of_full="four of six widths, up to 128 of 512; 2,048 items of 8,192; 4 seeds of 5",
        figure=_figure("d_model"),
        claims=(
            *(_exponent("Muon", alpha, 1 + 0.5 / alpha) for alpha in EXPONENTS),
            *(_exponent("SGD", alpha, 0.5 / alpha) for alpha in EXPONENTS),
        ),
        notes=_NOTES,
    ),
    Experiment(
        name="capacity/one-step-batches",
        title="Items stored by one step on a batch",
        presets={
            "quick": tuple(_runs([WIDTH], EXPONENTS[:1], BATCHES, 2048, 12)),
            "full": tuple(_runs([WIDTH], EXPONENTS[:1], BATCHES, 8192, 5)),
        },
        of_full="2,048 items of 8,192",
        figure=_figure("drawn"),
        claims=(_in_batches(1 / 1.5),),
        notes=_NOTES,
    ),
)
