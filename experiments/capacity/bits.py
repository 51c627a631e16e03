"""capacity/bits, -steps: bits per parameter of a small GPT that memorizes random sequences.

Source: Morris et al., How much do language models memorize? (2025, arXiv 2505.24832): 3.5 to 3.6
bits per parameter (3.51 in bfloat16, 3.83 in float32) of GPT-2-like models on uniformly random
tokens, V = 2,048, S = 64, after 10^6 steps of batches of 2,048; memorized bits are N S log2 V minus
the negative log-likelihood in bits, the maximum over N.

Expected: below their number, because our budget is a few thousand steps: a lower bound. `-steps`
trains a set that no number of steps exhausts for four times as many again and again, and asks what
the bits approach.

    memobench run capacity/bits --preset=quick
    memobench report capacity/bits --preset=quick
"""

import itertools
import math
from collections.abc import Iterable, Iterator

from memobench.claims import Claim
from memobench.core.architecture import Architecture
from memobench.core.run import Run
from memobench.experiment import Experiment
from memobench.experiments.capacity import scaling_claims
from memobench.experiments.capacity.scaling_figure import Scaling
from memobench.methods.training import Training
from memobench.models.gpt import GPT
from memobench.tasks.sequences import Sequences

FOUND = 3.83
VOCAB_SIZE, CONTEXT_LENGTH = 64, 16
RATES = (3e-3, 1e-2)
STEPS = (128, 512, 2048, 8192, 32_768)
# Of those above the larger was the better one at every number of steps; at 3e-2 some of 8,192 fail.
HIGHER_RATES = (1e-2, 1.7e-2, 3e-2)


def _gpt(d_model: int) -> Architecture:
    return GPT(
        d_model=d_model,
        d_head=d_model // 2,
        n_heads=2,
        n_layers=2,
        d_mlp=4 * d_model,
    )


def _runs(
    sets: Iterable[tuple[int, int]], steps: int, seeds: int, rates: Iterable[float] = RATES
) -> Iterator[Run]:
    for (d_model, n_sequences), rate, seed in itertools.product(sets, rates, range(seeds)):
        yield Run(
            task=Sequences(
                vocab_size=VOCAB_SIZE,
                context_length=CONTEXT_LENGTH,
                n_sequences=n_sequences,
                seed=seed,
            ),
            architecture=_gpt(d_model),
            method=Training(
                protocol="exact",
                batch_size=None,
                epochs=steps // 64,
                learning_rate=rate,
                final_learning_rate=rate / 20,
            ),
            seed=seed,
        )


def _ladder(widths: Iterable[int], steps: Iterable[int]) -> tuple[Run, ...]:
    """Sets of twice the bits that are expected, or more."""
    sets = [(d_model, 4 * d_model**2) for d_model in widths]
    runs = (_runs(sets, each, 3, HIGHER_RATES) for each in steps)
    return tuple(itertools.chain.from_iterable(runs))


RATE = ("learning_rate", "final_learning_rate")
_BITS = Experiment(
    name="capacity/bits",
    title="Bits in a small GPT: a lower bound at our budget",
    presets={
        "quick": tuple(_runs([(8, 64), (8, 128), (16, 256), (16, 512)], 2048, seeds=3)),
        "full": tuple(
            _runs(
                [(d, d * d * factor) for d in (8, 16, 32, 64) for factor in (1, 2, 4)],
                65_536,
                seeds=5,
            )
        ),
    },
    of_full="d = 8 and 16 of up to 64; 2,048 steps of 65,536; 3 seeds of 5",
    figure=Scaling(
        x="n_params",
        y="bits",
        hue="n_examples",
        best_of=RATE,
        guides=(
            ("3.83 bits per parameter (Morris et al., float32)", lambda x: FOUND * x),
            ("2 bits per parameter (Allen-Zhu & Li)", lambda x: 2 * x),
        ),
    ),
    notes="Whole sequences: every token is predicted from those before it, the first from "
    "nothing. With few steps and two sets for each size, the result is a lower bound and not a "
    "capacity.",
)

_STEPS = Experiment(
    name="capacity/bits-steps",
    title="Bits in a small GPT with more steps",
    presets={
        "quick": _ladder([8], STEPS[:-1]),
        "full": _ladder([8, 16], STEPS),
    },
    of_full="up to 8,192 steps of 32,768; d = 8 alone of 8 and 16",
    figure=Scaling(
        x="steps",
        y="bits",
        per="n_params",
        hue="n_params",
        best_of=RATE,
        guides=(("3.83 (Morris et al., float32)", lambda x: FOUND + 0 * x),),
    ),
    claims=(
        Claim(
            name="bits per parameter with more steps",
            statement="With more steps a GPT of two layers comes to hold what Morris et al. found, "
            f"{FOUND} bits per parameter in float32, within a tenth or more.",
            source="Morris et al. 2025, section 4 (larger models, 10^6 steps of batches)",
            value=FOUND,
            test=scaling_claims.limit(
                "bits per parameter in the limit",
                lambda rows: rows["bits"] / rows["n_params"],
                (0.9 * FOUND, math.inf),
            ),
            across_steps=True,
            made_for="GPTs of half a million parameters and more after a million steps",
            covers=lambda table: table["n_params"].min() >= 5e5,
        ),
    ),
    notes="A set of 4 d² sequences, twice the bits that the model is expected to hold; the best of "
    "three learning rates at each number of steps, by the seeds that are shown. Steps are of the "
    "gradient of the whole set. The limit is L of L - a steps^-p; `quick` has too few numbers of "
    "steps for one.",
)

EXPERIMENTS = (_BITS, _STEPS)
