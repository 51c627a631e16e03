"""Shared parts of the experiments of Dana, Pydi & Chevaleyre (AISTATS 2025, arXiv 2411.10115).

Every experiment on associations compares three variants: (a) the published protocol with compressed
heads, as the released code trains; (b) the exact gradient, for as many steps, with the same
compressed heads; (c) the exact gradient with the full heads of the paper's equations. Each is
repeated with twice the steps, so that a report can say which verdicts depend on the budget.
"""

import dataclasses
from collections.abc import Callable, Iterable, Sequence

from memobench.core.architecture import Architecture
from memobench.core.run import Run
from memobench.core.task import Task
from memobench.experiment import grid, use_full_heads
from memobench.methods.training import Training
from memobench.models.transformer import MLP, AttentionOnly

SOURCE = "Dana, Pydi & Chevaleyre 2025"
# Experiments 1 to 4 and 6.
PUBLISHED = Training(
    batch_size=256, n_batches=64, epochs=64, learning_rate=1e-2, final_learning_rate=5e-4
)
SEEDS = 5


def variants(
    tasks: Iterable[Task],
    architectures: Sequence[Architecture],
    method: Training,
    seeds: int = SEEDS,
    exact: Training | None = None,
) -> tuple[Run, ...]:
    """Variants (a), (b) and (c), each also with twice the steps.

    Args:
      tasks: what is memorized.
      architectures: with compressed heads.
      method: the published protocol.
      seeds: how many.
      exact: the method of (b) and (c); None takes the exact protocol with the steps of `method`.
    """
    tasks, gradient = list(tasks), (exact or method).exact()
    return (
        grid(tasks, architectures, twice(method), seeds)
        + grid(tasks, architectures, twice(gradient), seeds)
        + grid(tasks, use_full_heads(architectures), twice(gradient), seeds)
    )


def twice(method: Training) -> list[Training]:
    """The method, and the same with twice the steps."""
    return [method, method.replace(epochs=2 * method.epochs)]


def presets(
    task: Task,
    quick: Sequence[Architecture],
    full: Sequence[Architecture],
    epochs: int,
    exact_epochs: int,
) -> dict[str, Callable[[], tuple[Run, ...]]]:
    """All variants: `full` as published, `quick` with fewer epochs; `paper` is (a) alone."""
    exact = short(PUBLISHED, exact_epochs)
    return {
        "quick": lambda: variants([task], quick, short(PUBLISHED, epochs), seeds=3, exact=exact),
        "paper": lambda: grid([task], full, [PUBLISHED], SEEDS),
        "full": lambda: variants([task], full, PUBLISHED),
    }


def published_alone(
    task: Task, architectures: Sequence[Architecture], method: Training, epochs: int
) -> tuple[Run, ...]:
    """Variant (a) with a few epochs of 64 batches: exact steps are too slow for CPUs here."""
    return grid([task], architectures, twice(short(method, epochs, n_batches=64)), seeds=3)


def short(method: Training, epochs: int, n_batches: int | None = None) -> Training:
    """The same protocol with fewer epochs, and batches if asked for; the schedule shrinks too."""
    return dataclasses.replace(method, epochs=epochs, n_batches=n_batches or method.n_batches)


def attention_only(d_model: int, d_head: int, n_heads: int, n_layers: int = 1) -> AttentionOnly:
    """An attention-only Transformer with compressed heads."""
    return AttentionOnly(d_model=d_model, d_head=d_head, n_heads=n_heads, n_layers=n_layers)


def square(
    d_models: Iterable[int], n_heads: Sequence[int], n_layers: int = 1
) -> list[AttentionOnly]:
    """Attention-only Transformers of every width d = d_h with every number of heads."""
    return [attention_only(d, d, h, n_layers) for d in d_models for h in n_heads]


def mlp(d_model: int, d_mlp: int, n_layers: int = 1) -> MLP:
    """An MLP Transformer: one head of the stream's width, and an MLP, in every layer."""
    return MLP(d_model=d_model, d_head=d_model, d_mlp=d_mlp, n_layers=n_layers)


def published(
    architectures: Iterable[Architecture],
    accuracies: Iterable[float],
    steps: int = PUBLISHED.steps,
) -> tuple[dict[str, object], ...]:
    """Published mean accuracies beside the sizes they belong to."""
    return tuple(
        {
            "architecture": a.name,
            **a.shared_cells(),
            "published": accuracy,
            "published_steps": steps,
        }
        for a, accuracy in zip(architectures, accuracies, strict=True)
    )
