"""Experiments, one file each (the board: one for all budgets); `EXPERIMENTS` lists them once."""

from typing import Any

from memobench.experiment import Experiment
from memobench.experiments import (
    board,
    capacity_bits,
    capacity_exposure,
    capacity_factual_recall,
    capacity_linear_memory,
    capacity_mlp_memory,
    constructions_load,
    constructions_promised,
    constructions_trained,
    dana2025_attention_vs_mlp,
    dana2025_attention_vs_mlp_deeper,
    dana2025_attention_vs_mlp_larger,
    dana2025_contexts,
    dana2025_distributions,
    dana2025_embedding_dimension,
    dana2025_head_dimension,
    dana2025_head_dimension_deeper,
    dana2025_head_dimension_larger,
    dana2025_heads,
    dana2025_heads_deeper,
    dana2025_heads_larger,
    dana2025_sequence_encoder,
    dana2025_slopes,
    dana2025_smallest,
    mahdavi2024_classification_context,
    mahdavi2024_classification_head_dimension,
    mahdavi2024_classification_heads,
    mahdavi2024_depth,
    mahdavi2024_regression_context,
    mahdavi2024_regression_heads,
    mahdavi2024_saturation,
    mahdavi2024_theorem,
)

_MODULES: tuple[Any, ...] = (
    dana2025_heads,
    dana2025_head_dimension,
    dana2025_embedding_dimension,
    dana2025_slopes,
    dana2025_attention_vs_mlp,
    dana2025_smallest,
    dana2025_heads_larger,
    dana2025_head_dimension_larger,
    dana2025_attention_vs_mlp_larger,
    dana2025_heads_deeper,
    dana2025_head_dimension_deeper,
    dana2025_attention_vs_mlp_deeper,
    dana2025_distributions,
    dana2025_sequence_encoder,
    dana2025_contexts,
    mahdavi2024_classification_heads,
    mahdavi2024_classification_context,
    mahdavi2024_classification_head_dimension,
    mahdavi2024_regression_heads,
    mahdavi2024_regression_context,
    mahdavi2024_saturation,
    mahdavi2024_theorem,
    mahdavi2024_depth,
    constructions_promised,
    constructions_load,
    constructions_trained,
    board,
    capacity_exposure,
    capacity_linear_memory,
    capacity_mlp_memory,
    capacity_factual_recall,
    capacity_bits,
)
EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for module in _MODULES
    for experiment in getattr(module, "EXPERIMENTS", None) or (module.EXPERIMENT,)
}
