"""blocks/recall: what attention of several kinds recalls from its context, at equal state.

A track of its own: pairs are new in every context, and no weight holds them. A softmax keeps the
keys and values of all positions, 2 S K numbers of a head; linear attention and DeltaNet keep K^2.
Heads are of unequal sizes, so that states are of about as many numbers: with 2 pairs, S = 5, of 80
and 81 in a layer (K = 8 and 9), with 4 of 144 (K = 8 and 12), with 8 of 272 and 256.

Source: Arora et al. 2024, "Zoology", arXiv 2312.04927 (attention solves the task at every width,
linear recurrences only with states that grow with the pairs), and Yang et al. 2024,
arXiv 2406.06484 (DeltaNet recalls more than linear attention of the same state). Their models have
short convolutions; ours have two layers of attention with learned positions and nothing else.
Published orders depend on learning rates: three are tried, the best counts.

No state here is too small: one of K^2 numbers holds K orthogonal keys, more than there are pairs.
What linear attention and DeltaNet do not recall they have not learnt.

    memobench run blocks/recall --preset=quick
    memobench report blocks/recall --preset=quick
"""

import itertools
import math
from collections.abc import Mapping

from memobench.core.run import Run
from memobench.experiments.blocks import claims
from memobench.experiments.blocks.common import MORE, experiment
from memobench.methods.training import Training
from memobench.models.modern import Modern
from memobench.tasks.in_context_recall import InContextRecall

KINDS = {"softmax": "softmax", "linear": "linear", "DeltaNet": "delta"}
RATES = (1e-3, 3e-3, 1e-2)
SOFTMAX_HEAD = 8
ZOOLOGY, DELTA = "Arora et al. 2024, arXiv 2312.04927", "Yang et al. 2024, arXiv 2406.06484"
RECALLED = claims.Measure(
    "share recalled",
    lambda row: [row["accuracy"]],
    most=1.0,
    step=1 / InContextRecall.n_examples,
)


def _runs(attention: str, n_pairs: int, steps: int, seeds: int) -> tuple[Run, ...]:
    task = InContextRecall(vocab_size=16, n_pairs=n_pairs)
    d_head = SOFTMAX_HEAD
    if attention != "softmax":
        d_head = round(math.sqrt(2 * task.context_length * SOFTMAX_HEAD))
    model = Modern(
        d_model=16, d_head=d_head, n_heads=1, n_layers=2, attention=attention, positions="learned"
    )
    return tuple(
        Run(
            task=task.replace(seed=seed),
            architecture=model,
            method=Training(
                batch_size=64,
                n_batches=64,
                epochs=steps // 64,
                learning_rate=rate,
                final_learning_rate=rate / 20,
            ),
            seed=seed,
        )
        for rate, seed in itertools.product(RATES, range(seeds))
    )


def _groups(seeds: Mapping[int, int], steps: int) -> claims.Groups:
    """Of so many seeds for every number of pairs."""
    return {
        f"{name}, {n} pairs": _runs(attention, n, steps, n_seeds)
        for n, n_seeds in seeds.items()
        for name, attention in KINDS.items()
    }


EXPERIMENT = experiment(
    "recall",
    "Recall from the context, at equal state",
    {
        "quick": _groups({2: 16, 4: 4}, steps=2048),
        "full": _groups({2: 5, 4: 5, 8: 5}, steps=16_384),
    },
    (RECALLED,),
    *(
        (f"{first}, {n} pairs", MORE, f"{second}, {n} pairs", RECALLED, source)
        for n in (2, 4, 8)
        for first, second, source in (
            ("softmax", "linear", ZOOLOGY),
            ("softmax", "DeltaNet", ZOOLOGY),
            ("DeltaNet", "linear", DELTA),
        )
    ),
    of_full="2 and 4 pairs of up to 8; 2,048 steps of 16,384; 16 and 4 seeds in place of 5",
    notes="No capacity of weights: pairs are new in every context, of 8 keys and 8 values, and one "
    "key is asked. Two layers of one head, d = 16, RMSNorm, no neurons, no convolutions. The "
    "value that was read most often, whatever its key, is right for 0.56 of the contexts of 2 "
    "pairs, 0.41 of those of 4 and 0.32 of those of 8, a blind guess for an eighth. Each seed has "
    "contexts of its own; label tables are seeds here.\n\n"
    "This tests no limit of the state: heads of linear attention and DeltaNet have 9, 12 and 16 "
    "dimensions for 2, 4 and 8 pairs, and so many orthogonal keys fit. What they do not recall "
    "they have not learnt, in so many steps, at these rates and without convolutions. Where 0.001 "
    "is the best rate (of 4 pairs in `full`) it is the lowest tried: lower ones may recall more, "
    "and how many label tables would decide holds for these rates alone.",
)
