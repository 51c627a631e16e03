"""blocks/precision: bits per byte of weights that are trained for few bits, or rounded afterwards.

Of float32 weights most bits say nothing: of the 32 that one takes a Transformer knows about 2 bits
(`results/board/certified.md`). Those of bfloat16, int8 and int4 take fewer. Training for them goes
straight through the rounding (Bengio et al. 2013, arXiv 1308.3432), as quantisation-aware training
does (Jacob et al. 2018, arXiv 1712.05877); or float32 weights are rounded when they are trained.
Bytes are those of certificates: 32 weights of a parameter share a scale, which is counted.

The overfull set of the board; an MLP and attention alone, of the sizes that are best there. Rates
are searched for each, by what is known after rounding.

    memobench run blocks/precision --preset=quick
    memobench report blocks/precision --preset=quick
"""

from typing import Any

import jax

from memobench.board import families
from memobench.core import cells as runs
from memobench.core import module as models
from memobench.core.architecture import Architecture
from memobench.core.run import Run
from memobench.experiments.blocks import claims
from memobench.experiments.blocks.common import EQUAL, LESS, MORE, experiment
from memobench.experiments.blocks.weights import MANY, METHOD, make_runs
from memobench.models.transformer import MLP, AttentionOnly
from memobench.numerics import precision

# One number of steps.
LONG = METHOD.replace(rungs=1)
# Factors of the learning rate of weights that are rounded in the end: to four bits they lose least
# where they have learnt slowly.
ROUNDED = dict.fromkeys(precision.COARSE, LONG.rate_factors) | {"int4": (0.01, 0.03, 0.1, 0.3, 1.0)}


def n_bytes(row: Any) -> int:
    """Of the weights of a row's model, with their scales."""
    run = runs.from_cells(row)
    stored: Any = run.method
    shapes = models.shapes(run.module(), run.task.context_length)["params"]
    kind = stored.training.precision or "float32"
    return sum(precision.n_bytes(x.size, kind) for x in jax.tree.leaves(shapes))


def _bits_per_byte(row: Any) -> Any:
    return MANY.values(row) * row["n_params"] / n_bytes(row)


BYTES = claims.Measure("bits per byte", _bits_per_byte, step=MANY.step)


def _entries(budget: int) -> dict[str, Architecture]:
    """Half of the parameters are embeddings."""
    width = budget // (4 * families.VOCAB_SIZES[budget])
    sizes: dict[str, Any] = {"d_model": width, "d_head": width}
    memory = budget // 2 - 2 * width
    heads = round(memory / (4 * width**2))
    neurons = round((memory - 4 * width**2) / (2 * width + 1))
    return {"attention": AttentionOnly(**sizes, n_heads=heads), "MLP": MLP(**sizes, d_mlp=neurons)}


def _groups(budget: int) -> dict[str, tuple[Run, ...]]:
    def stored_runs(
        entry: Architecture, factors: tuple[float, ...] = LONG.rate_factors, **how: Any
    ) -> tuple[Run, ...]:
        training = LONG.training.replace(**how)
        return make_runs(budget, [entry], LONG.replace(training=training, rate_factors=factors))

    groups: dict[str, tuple[Run, ...]] = {}
    for name, entry in _entries(budget).items():
        after = {
            f"{name} rounded to {kind}": stored_runs(
                entry, factors, precision=kind, rounded="after"
            )
            for kind, factors in ROUNDED.items()
        }
        plain = {f"{name}, float32": stored_runs(entry)}
        trained = {
            f"{name} trained for {kind}": stored_runs(entry, precision=kind)
            for kind in precision.COARSE
        }
        rounded = tuple(run for made in (plain, after) for of in made.values() for run in of)
        groups |= plain | trained | after | {f"{name}, float32 or rounded": rounded}
    return groups


def _compare(name: str) -> list[tuple[Any, ...]]:
    float32 = f"{name}, float32"
    return [
        (f"{name} trained for bfloat16", EQUAL, float32, MANY),
        (f"{name} trained for int8", EQUAL, float32, MANY),
        (f"{name} rounded to int8", EQUAL, float32, MANY),
        (f"{name} trained for int4", LESS, float32, MANY),
        (f"{name} rounded to int4", LESS, f"{name} trained for int4", BYTES),
        (f"{name} trained for int4", MORE, f"{name} trained for int8", BYTES),
        (f"{name} trained for int4", MORE, f"{name}, float32 or rounded", BYTES),
    ]


EXPERIMENT = experiment(
    "precision",
    "Precision trained for",
    {preset: _groups(budget) for preset, budget in {"quick": 512, "full": 2048}.items()},
    (MANY, BYTES),
    *(each for name in ("attention", "MLP") for each in _compare(name)),
    of_full="512 parameters of 2,048",
    notes="*Trained for* a precision: gradients are those of the rounded weights, and move float32 "
    "ones. *Rounded to*: after training in float32. Of *float32 or rounded* the best counts.",
)
