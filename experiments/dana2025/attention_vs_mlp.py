"""dana2025/attention-vs-mlp: attention-only against MLP Transformers at equal parameters.

Source: Dana, Pydi & Chevaleyre, Memorization in Attention-only Transformers (AISTATS 2025, arXiv
2411.10115), experiment 5. All N^2 = 4,900 pairs of N = 70 tokens, one layer, d = d_h; the MLP
Transformer has one head and width w = 2d(H - 1), so that both sides of a comparison have 4 d^2 H +
d(2N + 1) parameters, not counting the MLP's biases (at most 6% more).

Expected: at d = 10, H = 21 attention reaches 0.389 and the MLP of width 400 reaches 0.578.

    memobench run dana2025/attention-vs-mlp --preset=quick
    memobench report dana2025/attention-vs-mlp --preset=quick
"""

import dataclasses
from collections.abc import Iterable, Sequence

import pandas as pd

from memobench.analysis.freedom import add_freedom
from memobench.claims import Claim, Finding
from memobench.core.architecture import Architecture
from memobench.core.run import Run
from memobench.experiment import Experiment, grid
from memobench.experiments.dana2025.common import (
    SEEDS,
    SOURCE,
    mlp,
    published,
    short,
    square,
    variants,
)
from memobench.experiments.dana2025.family_claims import (
    better_at_equal_parameters,
    gains_more_from_steps,
)
from memobench.methods.training import Training
from memobench.models.transformer import MLP
from memobench.report.figure import Figure
from memobench.tasks.associations import Associations

TASK = Associations(vocab_size=70)
BY_ATTENTION = Training(
    batch_size=1024, n_batches=256, epochs=64, learning_rate=1e-2, final_learning_rate=5e-4
)
BY_MLP = dataclasses.replace(BY_ATTENTION, final_learning_rate=1e-4)
N_HEADS = (1, 6, 11, 16, 21, 26, 31)

# Mean accuracy of five seeds at d = 10, from the data published with the paper.
ACCURACY = {
    "attention_only": (0.068, 0.1514, 0.2301, 0.3009, 0.3893, 0.4901, 0.594),
    "mlp": (0.0698, 0.2365, 0.374, 0.4978, 0.578, 0.5897, 0.6934),
}

_FAMILIES = ("mlp", "attention_only")


def _better_at_equal_freedom(table: pd.DataFrame) -> Finding:
    test = better_at_equal_parameters(*_FAMILIES, n_params="degrees_of_freedom", group=None)
    return test(add_freedom(table))


BETTER = "The MLP Transformer memorizes more than attention with as many parameters"
CLAIMS = (
    Claim(
        name="MLP beats attention at equal d",
        statement=f"{BETTER} and the same d (the paper's axis; with or without embeddings).",
        source=f"{SOURCE}, experiment 5",
        test=better_at_equal_parameters(*_FAMILIES),
    ),
    Claim(
        name="MLP beats attention, all parameters",
        statement=f"{BETTER}, all counted, each family at its best d.",
        source=f"{SOURCE}, experiment 5",
        test=better_at_equal_parameters(*_FAMILIES, group=None),
    ),
    Claim(
        name="MLP beats attention, without embeddings",
        statement=f"{BETTER}, embeddings and unembedding left out, each family at its best d.",
        source=f"{SOURCE}, experiment 5",
        test=better_at_equal_parameters(*_FAMILIES, n_params="n_params_memory", group=None),
    ),
    Claim(
        name="MLP beats attention, degrees of freedom",
        statement=f"{BETTER}, less those that are redundant (half of a head's with d_h = d, and a "
        "basis of the stream), each family at its best d.",
        source=f"{SOURCE}, experiment 5, counted anew",
        test=_better_at_equal_freedom,
    ),
    Claim(
        name="MLP is harder to optimise",
        statement="The MLP gains more from twice the steps than attention does.",
        source=f"{SOURCE}, experiment 5",
        test=gains_more_from_steps(*_FAMILIES),
        across_steps=True,
    ),
)


def _mlps(widths: Iterable[int], n_heads: Sequence[int]) -> list[MLP]:
    """The MLP Transformers that the paper sets beside these numbers of heads."""
    return [mlp(d, 2 * d * (h - 1)) for d in widths for h in n_heads]


WIDTHS = (7, 10, 13)
ATTENTION, MLPS = square(WIDTHS, N_HEADS), _mlps(WIDTHS, N_HEADS)


def _quick(architectures: Sequence[Architecture], method: Training) -> tuple[Run, ...]:
    method = dataclasses.replace(short(method, epochs=16, n_batches=64), batch_size=256)
    return variants([TASK], architectures, method, seeds=3, exact=short(method, epochs=2))


EXPERIMENT = Experiment(
    name="dana2025/attention-vs-mlp",
    title="Attention against MLP at equal parameters (N = 70)",
    presets={
        "quick": _quick(square([10], N_HEADS[:3]), BY_ATTENTION)
        + _quick(_mlps([10], N_HEADS[:3]), BY_MLP),
        "paper": grid([TASK], ATTENTION, [BY_ATTENTION], SEEDS)
        + grid([TASK], MLPS, [BY_MLP], SEEDS),
        "full": variants([TASK], ATTENTION, BY_ATTENTION) + variants([TASK], MLPS, BY_MLP),
    },
    of_full="only d = 10 of 7, 10, 13 and three of seven sizes; 3 seeds of 5; 1,024 and 2,048 "
    "steps of batch 256 for 16,384 and 32,768 of batch 1,024, and 128 and 256 exact ones: too few "
    "for the MLP, which learns more slowly, so that quick does not decide between the two",
    figure=Figure(x="n_params", hue="architecture", row="d_model"),
    published=published(square([10], N_HEADS), ACCURACY["attention_only"], BY_ATTENTION.steps)
    + published(_mlps([10], N_HEADS), ACCURACY["mlp"], BY_MLP.steps),
    too_short=("quick",),
    claims=CLAIMS,
    notes="At the first point both families are the same model: one head, no MLP.",
)
