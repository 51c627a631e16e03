"""Experiments, one file each; `EXPERIMENTS` lists them once."""

from memobench.experiment import Experiment
from memobench.experiments import dana2025_attention_vs_mlp, dana2025_heads

EXPERIMENTS: dict[str, Experiment] = {
    module.EXPERIMENT.name: module.EXPERIMENT
    for module in (dana2025_heads, dana2025_attention_vs_mlp)
}
