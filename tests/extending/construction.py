"""A theorem: weights by its proof, what they are promised, and a limit that none exceeds."""

from typing import Any, ClassVar

import numpy as np
from flax import linen as nn

import memobench as mb
from memobench import theory
from memobench.constructions import linear

WIDTH = {"value": lambda sizes: sizes["d_mlp"], "source": "Cover 1965", "about": ("architecture",)}
PROMISE = theory.Bound(name="as many as units", **WIDTH)
RANK = theory.Limit(name="rank", measure=lambda sizes: sizes["feature_rank"], **WIDTH)


class UnitsModule(mb.Module):
    vocab_size: int
    d_mlp: int

    @nn.compact
    def __call__(self, tokens_S: Any) -> Any:
        normal, shape = nn.initializers.normal(1.0), (2, self.vocab_size, self.d_mlp)
        unit_W = self.param("units", normal, shape)[np.arange(2), tokens_S].sum(axis=0)
        return nn.tanh(unit_W) @ self.param("unembedding", normal, shape[:0:-1])


@mb.kind("units")
class Units(mb.Architecture):
    theorems: ClassVar = {PROMISE: theory.always, RANK: theory.always}
    d_mlp: int = mb.integer("units", 1)

    def module(self, task: Any) -> UnitsModule:
        return self.fill_module(UnitsModule, task)


@mb.kind("random_units")
class RandomUnits(mb.Solved):
    bound: ClassVar = PROMISE

    def construct(self, problem: mb.Problem) -> mb.Constructed:
        (tokens_TxS, next_TxK), n = problem.examples[:2], problem.module.vocab_size
        units = problem.held(problem.rng.standard_normal((2, n, problem.module.d_mlp)))
        unit_TxW = np.tanh(units[np.arange(2), tokens_TxS].sum(axis=1))
        solved = linear.solve(unit_TxW, np.eye(n)[next_TxK[:, 0]], self.solve)
        params = {"units": units, "unembedding": solved.weights_FxD}
        return mb.Constructed(params, solved.certificate(), read_out=("unembedding",))


MODELS = [Units(d_model=1, d_mlp=d_mlp) for d_mlp in (12, 16)]
RUNS = mb.grid([mb.Associations(vocab_size=5, n_sequences=12)], MODELS, [RandomUnits()], seeds=3)
FIGURE = mb.Figure(x="d_mlp", hue="architecture")
EXPERIMENT = mb.Experiment(name="mine/units", title="Units", presets={"quick": RUNS}, figure=FIGURE)
