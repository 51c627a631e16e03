"""hebbian2026/widths: how many weights store F facts, trained and written down.

Source: Garcia, Liu, Junkins, Eyuboglu, Rudra & Ré, MLPs are Hebbians (COLM 2026, arXiv 2607.10034):
bilinear MLPs B (A x * G x) without biases, W = 3 d m weights; F facts that a random permutation of
one table of unit vectors is, all known by the largest score. Trained ones against least squares on
random and on fitted features, and the neural tangent kernel. By our summary of their released code
and abstract (they publish no point): d = 64, 90 and 128, F = d^2/32 to d^2, one seed, bisection of
the width, full-batch Adam for 10,000 steps with a cosine from 1e-3 to 1e-6.

Expected: fitted features need 6 to 10 times the trained MLP's weights, the kernel 10 to 104 times
those of fitted features; W = Θ(F log F), of which the exponent between the F measured is tested. By
a Gaussian estimate no sum of outer products knows all beyond F = 0.36 d^2 at d = 64
(`theory.HEBBIAN`).

Here each width of a grid is tried with several seeds, each a table, a map and initial weights of
its own, in place of a bisection by one; a training ends once all is known. The preset `paper` has
their sizes, `d64` those of d = 64 with F from 512 to 4,096.

    memobench run hebbian2026/widths --preset=quick
    memobench report hebbian2026/widths --preset=quick
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import pandas as pd

from memobench import claims
from memobench.claims import Claim
from memobench.core.run import Method, Run
from memobench.experiment import Experiment
from memobench.experiments.hebbian2026.claims import exponent, ratio
from memobench.experiments.hebbian2026.figure import Widths
from memobench.experiments.hebbian2026.own_constructions import (
    NTK,
    Hebbian,
    HebbianDataDependent,
    HebbianWhitened,
)
from memobench.methods.checked import Checked
from memobench.methods.training import Training
from memobench.models.mlp_memory import MLPMemory
from memobench.schedules.cosine import CosineSchedule
from memobench.tasks.bijection import Bijection

SOURCE = "Garcia et al. 2026"
MOST = 65_536
TRAINED = Checked(
    training=Training(
        protocol="exact",
        batch_size=None,
        n_batches=50,
        epochs=200,
        learning_rate=1e-3,
        final_learning_rate=1e-6,
        schedule=CosineSchedule(),
        trained="memory",
    ),
    evaluate_every=250,
)


def _crosstalk(d_model: int, n_facts: int) -> float:
    """The width at which `theory.HEBBIAN` promises so many facts; infinite where none does."""
    allowed = 1 / (8 * math.log(n_facts)) - 3 * n_facts / d_model**3
    return n_facts / d_model / allowed if allowed > 0 else math.inf


def _regression(d_model: int, n_facts: int) -> float:
    """The width at which `theory.WHITENED` does."""
    return n_facts / (1 + d_model / (8 * math.log(n_facts)))


@dataclasses.dataclass(frozen=True)
class Way:
    """A way to make weights.

    Attributes:
      name: for readers.
      method: of its runs.
      estimate: the width that knows all, from d and F.
      octaves: above the estimate, the first, the last and their distance, of the widths to try.
      activation: of the neurons.
      seeds: their number; each has a table, a map and initial weights of its own.
    """

    name: str
    method: Method
    estimate: Callable[[int, int], float]
    octaves: tuple[float, float, float]
    activation: str = "bilinear"
    seeds: int = 8

    def widths(self, d_model: int, n_facts: int) -> list[int]:
        """The widths that are tried; none where no width is estimated to do."""
        estimate = self.estimate(d_model, n_facts)
        if math.isinf(estimate):
            return []
        first, last, step = self.octaves
        tried = estimate * 2.0 ** np.arange(first, last + step / 2, step)
        return sorted({min(max(round(m), 1), MOST) for m in tried})

    def runs(self, sizes: Iterable[tuple[int, int]]) -> Iterator[Run]:
        """Every width and seed."""
        for d_model, n_facts in sizes:
            for d_mlp in self.widths(d_model, n_facts):
                yield from self.of_width(d_model, n_facts, d_mlp)

    def of_width(self, d_model: int, n_facts: int, d_mlp: int) -> Iterator[Run]:
        """Every seed."""
        for seed in range(self.seeds):
            yield Run(
                task=Bijection(vocab_size=n_facts, permuted=True, seed=seed),
                architecture=MLPMemory(
                    d_model=d_model, d_mlp=d_mlp, activation=self.activation, tied=True
                ),
                method=self.method,
                seed=seed,
            )


# Widths around 4 weights a fact, as their code sizes trained MLPs.
GRADIENT = Way("trained", TRAINED, lambda d, n: 4 * n / (3 * d), (-0.75, 1.25, 0.25))
FITTED = Way(
    "fitted features",
    HebbianDataDependent(solve="least_squares"),
    _regression,
    (-1.5, 0.25, 0.25),
)
VALUES = dataclasses.replace(
    FITTED,
    name="fitted to values",
    method=HebbianDataDependent(solve="least_squares", fitted="values"),
    seeds=4,
)
RANDOM = Way(
    "random features",
    HebbianWhitened(solve="least_squares"),
    _regression,
    (-0.5, 1.5, 0.5),
    seeds=4,
)
PRODUCTS = Way(
    "outer products",
    Hebbian(solve="least_squares"),
    _crosstalk,
    (-0.5, 3.5, 0.5),
    seeds=4,
)
KERNEL = Way(
    "neural tangent kernel",
    NTK(solve="least_squares"),
    lambda d, n: 2 * _crosstalk(d, n),
    (-0.5, 3.5, 0.5),
    "reglu",
)
WAYS = (GRADIENT, FITTED, VALUES, RANDOM, PRODUCTS, KERNEL)
THEIR_WIDTHS = (64, 90, 128)


def _paper(
    way: Way, widths: Iterable[int] = THEIR_WIDTHS, least: float = 1 / 32
) -> tuple[Run, ...]:
    """At their sizes: d = 64, 90, 128 and F from d^2/32 to d^2; or some widths, F from a share."""
    shares = (1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 3 / 4, 1)
    sizes = [(d, int(share * d**2)) for d in widths for share in shares if share >= least]
    return tuple(way.runs(sizes))


_SMALL = ((32, 32), (32, 64), (32, 128), (64, 128), (64, 256))
_SIZES = {
    GRADIENT: _SMALL,
    FITTED: (*_SMALL, (32, 256)),
    VALUES: _SMALL[3:],
    RANDOM: (*_SMALL, (32, 256), (32, 512), (64, 512)),
    PRODUCTS: _SMALL,
    KERNEL: _SMALL,
}
# The neurons with which outer products are tried where F = d^2/2, and within the wall, F = d^2/4.
WIDE, WALL, WITHIN = 8192, 2048, 1024
_WALL = tuple(run for n in (WITHIN, WALL) for run in PRODUCTS.of_width(64, n, WIDE))

QUICK = {way.name: tuple(way.runs(_SIZES[way])) for way in WAYS}
QUICK[PRODUCTS.name] += _WALL
PAPER = {way.name: _paper(way) for way in WAYS}
GROUPS = {name: tuple(dict.fromkeys((*QUICK[name], *PAPER[name]))) for name in QUICK}
REGIONS = {(GRADIENT, FITTED): (6.0, 10.0), (FITTED, KERNEL): (10.0, 104.0)}


def _ratio(low: Way, high: Way, d_model: tuple[int, ...], at: str, made_for: str = "") -> Claim:
    least, most = REGIONS[low, high]
    test = ratio(GROUPS, high.name, low.name, (least, most))
    return Claim(
        name=f"{high.name} over {low.name}, {at}",
        statement=f"Where all is known W of {high.name} is {least:g} to {most:g} times that of "
        f"{low.name}, at every F ({at}).",
        source=SOURCE,
        test=claims.restrict(test, d_model=d_model),
        across_steps=True,
        across_variants=True,
        made_for=made_for,
    )


def _exponent(way: Way) -> Claim:
    tried = [n_facts for _, n_facts in _SIZES[way]]
    return Claim(
        name=f"as F log F at sizes measured, {way.name}",
        statement=f"Between the least and the largest F measured (in `quick` {min(tried)} and "
        f"{max(tried)}) W of {way.name}, where all is known, grows as F log F to a power of 0.9 to "
        "1.1. What is Θ(F log F) need not do so yet.",
        source=f"{SOURCE}, whose theorem is about large F",
        value=1,
        test=exponent(GROUPS, way.name, (0.9, 1.1)),
        made_for="large F, in the paper up to 4,096",
        covers=lambda table: table["n_examples"].max() >= 4096,
        across_steps=True,
        across_variants=True,
    )


def _wall(name: str, statement: str, n_facts: int, region: tuple[float, float]) -> Claim:
    def is_wide(table: pd.DataFrame) -> pd.Series:
        of_way = (table["theorem"] == PRODUCTS.method.name) & (table["d_model"] == 64)
        return of_way & (table["n_examples"] == n_facts) & (table["d_mlp"] >= WIDE)

    test = claims.every_run(
        "facts not known",
        lambda x: ((1 - x["accuracy"]) * x["n_examples"]).round(),
        region,
        is_wide,
    )
    return Claim(
        name=name,
        statement=statement,
        source="expected from a Gaussian estimate (`theory.HEBBIAN`)",
        test=test,
        across_steps=True,
        variants=(claims.NEAREST,),
    )


EXPERIMENT = Experiment(
    name="hebbian2026/widths",
    title="Weights that store F facts: trained, fitted and random features",
    presets={
        "quick": tuple(run for runs in QUICK.values() for run in runs),
        "d64": tuple(run for way in WAYS for run in _paper(way, (64,), 1 / 8)),
        "paper": tuple(run for runs in PAPER.values() for run in runs),
    },
    of_full="d = 64 alone of 64, 90, 128, and the five smallest of its seven F; beyond them d = "
    "32, and outer products of 8,192 neurons",
    figure=Widths(groups=GROUPS),
    claims=(
        _ratio(GRADIENT, FITTED, THEIR_WIDTHS, "d from 64"),
        _ratio(GRADIENT, FITTED, (32,), "d = 32", "widths from 64 on"),
        _ratio(FITTED, KERNEL, THEIR_WIDTHS, "d from 64"),
        _ratio(FITTED, KERNEL, (32,), "d = 32", "widths from 64 on"),
        *(_exponent(way) for way in (GRADIENT, FITTED, RANDOM)),
        _wall(
            "a wall for outer products",
            "At d = 64 outer products of 8,192 neurons do not know all of F = d^2/2 facts: by the "
            "estimate no width does.",
            WALL,
            (1, math.inf),
        ),
        _wall(
            "no wall at half as many facts",
            "At d = 64 those of 8,192 neurons know all of F = d^2/4.",
            WITHIN,
            (0, 0),
        ),
    ),
    notes="W counts 3 d m weights and no embeddings, which are fixed. The kernel has relu gates; "
    "their code counts its biases, which are 0, too. "
    "Their ratios are read from figure code and notes, not from points: none are published.",
)
