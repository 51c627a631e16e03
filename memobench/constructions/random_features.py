"""The rank argument for an MLP Transformer: w + d sequences with any activation.

Random embeddings, attention and hidden neurons give every sequence d + w features: the stream after
attention, which the MLP's skip connection keeps, and the neurons. For at most that many sequences
the features are independent, and linear maps take them to the answers, with the change of basis
that `random_attention` explains.

Shape letters: T sequences, D d_model, W d_mlp, C coordinates written: all of D.
"""

from typing import ClassVar

import jax
import numpy as np

from memobench import theory
from memobench.constructions import random_attention
from memobench.constructions.base import Solved, scale_of
from memobench.constructions.problem import Constructed, Problem
from memobench.core.spec import kind
from memobench.models.feed_forward import ACTIVATIONS
from memobench.models.transformer import Transformer

# The standard deviation of what hidden neurons read: small values make them nearly linear.
SCALE = 4.0
# That of attention scores: with large scores heads look at a single token, and sequences that
# differ in another one cannot be told apart.
_SCORES = 0.3
# That of thresholds, as a share of SCALE: no neuron should be off on all sequences.
_THRESHOLDS = 0.5


@kind("random_features")
class RandomFeatures(Solved):
    """w + d sequences, by random neurons and a linear solve."""

    bound: ClassVar[theory.Bound] = theory.RANDOM_FEATURES
    scales: ClassVar[tuple[float | None, ...]] = (None, 2.0, 8.0)

    scale: float | None = scale_of("what neurons read")  # type: ignore[misc]

    def construct(self, problem: Problem) -> Constructed:
        """Weights of a one-layer MLP Transformer with any activation and any kind of heads."""
        module = random_attention.transformer(problem)
        problem.require(
            module.d_mlp > 0,
            "d_mlp=0; it is about an MLP, take the architecture 'mlp' with d_mlp >= 1",
        )
        targets_TxD, unembedding_NxD = random_attention.targets(problem, module.d_model)
        params = random_attention.draw(problem)
        params = random_attention.with_scores(problem, params, _SCORES)
        params |= problem.all_held(random_attention.draw_output(problem))
        x_TxD = random_attention.attend(params, *random_attention.read(problem, params))

        in_WxD, bias_W = map(problem.held, _neurons(problem, module, x_TxD))
        hidden_TxW = _activate(module.activation, x_TxD @ in_WxD.T + bias_W)
        solved = random_attention.solve(x_TxD, hidden_TxW, targets_TxD, self.solve)
        params |= {
            "layer0_mlp_in": in_WxD,
            "layer0_mlp_in_bias": bias_W,
            "layer0_mlp_out": solved.inverse_DxC @ solved.weights_FxC.T,
            "unembedding": unembedding_NxD @ solved.basis_CxD,
        }
        read_out = ("unembedding",) if problem.examples.next_TxK.shape[1] == 1 else ()
        return Constructed(params, solved.certificate, read_out)


def _neurons(
    problem: Problem, module: Transformer, x_TxD: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """in_WxD and bias_W of random neurons that read numbers of standard deviation `scale`."""
    scale = problem.method.scale or SCALE
    in_WxD = problem.rng.standard_normal((module.d_mlp, module.d_model))
    threshold_W = problem.rng.standard_normal(module.d_mlp) * _THRESHOLDS * scale
    if len(x_TxD) < 2:
        return in_WxD, threshold_W
    read_TxW = x_TxD @ in_WxD.T
    in_WxD *= scale / read_TxW.std(axis=0)[:, None]
    return in_WxD, threshold_W - x_TxD.mean(axis=0) @ in_WxD.T


def _activate(name: str, before_TxW: np.ndarray) -> np.ndarray:
    with jax.enable_x64(True):
        return np.asarray(ACTIVATIONS[name](jax.numpy.asarray(before_TxW)))
