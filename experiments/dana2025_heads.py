"""dana2025/heads: accuracy of attention-only Transformers against the number of heads.

Source: Dana, Pydi & Chevaleyre, Memorization in Attention-only Transformers (AISTATS 2025,
arXiv 2411.10115), experiment 1. All N^2 = 2,500 pairs of N = 50 tokens, one layer, d = d_h.

Expected: accuracy grows linearly with H until it saturates; at d = 10, H = 21 the published
protocol gives 0.861 and the exact gradient over the same number of steps gives over 0.99.

    memobench run dana2025/heads --preset=quick
    memobench report dana2025/heads --preset=quick
"""

from memobench.experiment import Experiment
from memobench.specs import Architecture, Run, Task, Training

TASK = Task(vocab_size=50)
PUBLISHED = Training(
    batch_size=256, n_batches=64, epochs=64, learning_rate=1e-2, final_learning_rate=5e-4
)
# A quarter of the steps; the schedule shrinks with them.
SHORT_EXACT = Training(
    batch_size=256, n_batches=64, epochs=16, learning_rate=1e-2, final_learning_rate=5e-4
).exact()
N_HEADS = (1, 6, 11, 16, 21, 26, 31)

# Mean accuracy of five seeds, from the data published with the paper.
ACCURACY = {
    5: (0.0738, 0.1193, 0.1582, 0.1922, 0.2248, 0.2572, 0.2936),
    10: (0.1298, 0.3243, 0.5062, 0.6852, 0.8608, 0.9634, 0.9974),
    13: (0.1626, 0.482, 0.7745, 0.9882, 0.9998, 1.0, 0.9999),
}


def _runs(d_models: range, method: Training, seeds: int) -> tuple[Run, ...]:
    return tuple(
        Run(
            task=TASK,
            architecture=Architecture(
                name="attention_only", d_model=d_model, d_head=d_model, n_heads=n_heads
            ),
            method=method,
            seed=seed,
        )
        for d_model in d_models
        for n_heads in N_HEADS
        for seed in range(seeds)
    )


EXPERIMENT = Experiment(
    name="dana2025/heads",
    title="Attention-only Transformers: accuracy against heads (N = 50)",
    presets={
        "quick": _runs(range(10, 11), PUBLISHED, 3) + _runs(range(10, 11), SHORT_EXACT, 2),
        "full": _runs(range(3, 14), PUBLISHED, 5) + _runs(range(3, 14), PUBLISHED.exact(), 5),
    },
    left_out="only d = 10 of d = 3..13; 3 seeds of 5 (published) and 2 of 5 (exact); "
    "1,024 of 4,096 steps in the exact protocol",
    published=tuple(
        {
            "architecture": "attention_only",
            "d_model": d_model,
            "d_head": d_model,
            "n_heads": n_heads,
            "d_mlp": 0,
            "published": accuracy,
            "published_steps": PUBLISHED.steps,
        }
        for d_model, accuracies in ACCURACY.items()
        for n_heads, accuracy in zip(N_HEADS, accuracies, strict=True)
    ),
)
