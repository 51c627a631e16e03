"""Optimisers: what turns gradients into steps. A kind is one class in one file, found unlisted."""

from memobench.optimizers.adam import Adam
from memobench.optimizers.base import Optimizer

__all__ = ["Adam", "Optimizer"]
