"""Small runs of the construction of Dana et al. (2025), and what constructed weights know."""

from memobench.constructions import making
from memobench.constructions.dana2025 import Dana2025
from memobench.core.architecture import Architecture
from memobench.core.run import Run
from memobench.planner import packing
from memobench.tasks.associations import Associations
from memobench.tasks.distributions import Distributions

# A task with several right answers.
SEVERAL = Distributions(vocab_size=4, conditional="uniform", n_next=2)
# Full heads as wide as the stream and narrower ones, compressed ones, and longer sequences.
SIZES = {
    "full": {"d_model": 4, "d_head": 4, "n_heads": 5},
    "narrow": {"d_model": 6, "d_head": 3, "n_heads": 6},
    "compressed": {"d_model": 6, "d_head": 3, "n_heads": 6, "heads": "compressed"},
    "square": {"d_model": 4, "d_head": 4, "n_heads": 5, "heads": "compressed"},
    "triples": {"d_model": 6, "d_head": 3, "n_heads": 6, "context_length": 3},
    "five tokens": {
        **{"d_model": 6, "d_head": 3, "n_heads": 6, "heads": "compressed"},
        "context_length": 5,
    },
    "plane": {"d_model": 2, "d_head": 2, "n_heads": 11},
}


def run_of(
    *,
    name="attention_only",
    task=None,
    method=None,
    task_seed=0,
    seed=0,
    vocab_size=9,
    context_length=2,
    T=24,
    **sizes,
):
    """T sequences, by default 24, which is what all SIZES promise."""
    shape = {"vocab_size": vocab_size, "context_length": context_length, "n_sequences": T}
    sizes = {"heads": "full"} | (sizes or SIZES["full"])
    return Run(
        task=task or Associations(seed=task_seed, **shape),
        architecture=Architecture.get_kind(name)(**sizes),
        method=Dana2025(**(method or {})),
        seed=seed,
    )


def judged(run):
    """The pack's result of a run, and its certificate."""
    result = making.construct_pack(packing.make_pack([run]))
    return result, result.columns[0]
