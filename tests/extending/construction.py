"""A theorem: weights by its proof, what they are promised, and a limit that none exceeds."""

from typing import Any, ClassVar

import numpy as np
from flax import linen as nn

from memobench import theory
from memobench.constructions import linear
from memobench.constructions.base import Solved
from memobench.constructions.problem import Constructed, Problem
from memobench.core.architecture import Architecture
from memobench.core.columns import integer
from memobench.core.module import Module
from memobench.core.spec import kind
from memobench.experiment import Experiment, grid
from memobench.report.figure import Figure
from memobench.tasks.associations import Associations

WIDTH = {"value": lambda sizes: sizes["d_mlp"], "source": "Cover 1965", "about": ("architecture",)}
PROMISE = theory.Bound(name="as many as units", **WIDTH)
RANK = theory.Limit(name="rank", measure=lambda sizes: sizes["feature_rank"], **WIDTH)


class UnitsModule(Module):
    vocab_size: int
    d_mlp: int

    @nn.compact
    def __call__(self, tokens_S: Any) -> Any:
        normal, shape = nn.initializers.normal(1.0), (2, self.vocab_size, self.d_mlp)
        unit_W = self.param("units", normal, shape)[np.arange(2), tokens_S].sum(axis=0)
        return nn.tanh(unit_W) @ self.param("unembedding", normal, shape[:0:-1])


@kind("units")
class Units(Architecture):
    theorems: ClassVar = {PROMISE: theory.always, RANK: theory.always}
    d_mlp: int = integer("units", 1)

    def module(self, task: Any) -> UnitsModule:
        return self.fill_module(UnitsModule, task)


@kind("random_units")
class RandomUnits(Solved):
    bound: ClassVar = PROMISE

    def construct(self, problem: Problem) -> Constructed:
        (tokens_TxS, next_TxK), n = problem.examples[:2], problem.module.vocab_size
        units = problem.held(problem.rng.standard_normal((2, n, problem.module.d_mlp)))
        unit_TxW = np.tanh(units[np.arange(2), tokens_TxS].sum(axis=1))
        solved = linear.solve(unit_TxW, np.eye(n)[next_TxK[:, 0]], self.solve)
        params = {"units": units, "unembedding": solved.weights_FxD}
        return Constructed(params, solved.certificate(), read_out=("unembedding",))


MODELS = [Units(d_model=1, d_mlp=d_mlp) for d_mlp in (12, 16)]
RUNS = grid([Associations(vocab_size=5, n_sequences=12)], MODELS, [RandomUnits()], seeds=3)
FIGURE = Figure(x="d_mlp", hue="architecture")
EXPERIMENT = Experiment(name="mine/units", title="Units", presets={"quick": RUNS}, figure=FIGURE)
