"""Optimisers: what turns gradients into steps. A kind is one class in one file, found unlisted."""

from memobench.core.optimizer import Optimizer
from memobench.optimizers.adam import Adam
