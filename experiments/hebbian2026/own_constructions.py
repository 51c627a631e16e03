"""Memories of bilinear neurons written down, by Garcia, Liu, Junkins, Eyuboglu, Rudra & Ré (2026).

MLPs are Hebbians (arXiv 2607.10034): with keys k, values v and random A and G the features of a key
are phi(k) = A k * G k, and the map B from features to values is a sum of outer products, or a ridge
regression, of which also A and G may be the result. A memory of the neural tangent kernel is what
they compare with. As in their released code, in float64. Kinds differ in `neurons` and `read_out`.

Shape letters: F facts, D d_model, W d_mlp, N vocab_size.
"""

import dataclasses
from typing import Any, ClassVar

import numpy as np
import scipy.linalg
import scipy.sparse.linalg

from memobench import theory
from memobench.constructions import codes
from memobench.constructions.base import Solved
from memobench.constructions.problem import Constructed, Problem
from memobench.core.columns import choice
from memobench.core.spec import kind
from memobench.models.mlp_memory import MLPMemoryModule

RIDGE = 1e-6
# Conjugate gradients end at this residual, as a share of the right side's, or after so many steps.
RESIDUAL = 1e-10
LEAST_STEPS, MOST_STEPS = 128, 1024


@dataclasses.dataclass(frozen=True)
class Facts:
    """key_FxD and value_FxD of every fact, float64, and random projections of keys, W x D each."""

    key_FxD: np.ndarray
    value_FxD: np.ndarray
    in_WxD: np.ndarray
    gate_WxD: np.ndarray

    def features(self, in_WxD: np.ndarray, gate_WxD: np.ndarray) -> np.ndarray:
        """feature_FxW of bilinear neurons."""
        return (self.key_FxD @ in_WxD.T) * (self.key_FxD @ gate_WxD.T)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Hebbian(Solved):
    """Base of these: random keys, values and projections. A kind defines `weights_of`."""

    activation: ClassVar[str] = "bilinear"

    def weights_of(self, facts: Facts, problem: Problem) -> tuple[np.ndarray, ...]:
        """in_WxD, gate_WxD and out_DxW."""
        raise NotImplementedError

    def construct(self, problem: Problem) -> Constructed:
        module: Any = problem.module
        problem.require(
            isinstance(module, MLPMemoryModule) and module.activation == self.activation,
            f"it is about the architecture mlp_memory with activation={self.activation!r}; take "
            "that",
        )
        examples = problem.one_answer_each(module.d_model)
        tables = {"token_embedding": problem.directions()}
        if not module.tied:
            tables["unembedding"] = problem.directions()
        key_NxD, *values = tables.values()
        facts = Facts(
            key_NxD[examples.tokens_TxS[:, 0]],
            (values[0] if values else key_NxD)[examples.next_TxK[:, 0]],
            *map(problem.held, problem.rng.standard_normal((2, module.d_mlp, module.d_model))),
        )
        in_WxD, gate_WxD, out_DxW = self.weights_of(facts, problem)
        params = tables | {"mlp_in": in_WxD, "mlp_gate": gate_WxD, "mlp_out": out_DxW}
        return Constructed(params, {}, read_out=("mlp_out",))


@kind("hebbian")
class Hebbian(_Hebbian):
    """Random projections, and the sum of outer products of values and features, over F."""

    bound: ClassVar[theory.Bound] = theory.HEBBIAN

    def weights_of(self, facts: Facts, problem: Problem) -> tuple[np.ndarray, ...]:
        feature_FxW, scale = _scale(facts)
        out_DxW = outer_products(feature_FxW, facts.value_FxD)
        return facts.in_WxD, facts.gate_WxD, out_DxW * scale


@kind("hebbian_whitened")
class HebbianWhitened(_Hebbian):
    """Random projections, and the ridge regression of values on features."""

    bound: ClassVar[theory.Bound] = theory.WHITENED

    def weights_of(self, facts: Facts, problem: Problem) -> tuple[np.ndarray, ...]:
        feature_FxW, scale = _scale(facts)
        return facts.in_WxD, facts.gate_WxD, whiten(feature_FxW, facts.value_FxD) * scale


@kind("hebbian_data_dependent")
class HebbianDataDependent(_Hebbian):
    """Projections fitted to the facts, one after the other, and the ridge regression on features.

    The read-out of the fits is that of outer products with random projections. What they fit:
    `scores` of all answers, 1 for the right one and 0 else, as released, or the `values`.
    """

    # Nothing is published of its constant; it ends with the regression, on features of its own.
    bound: ClassVar[theory.Bound] = theory.WHITENED

    fitted: str = choice("what projections are fitted to", "scores", "values", default="scores")

    def weights_of(self, facts: Facts, problem: Problem) -> tuple[np.ndarray, ...]:
        in_WxD, gate_WxD = facts.in_WxD, facts.gate_WxD
        out_DxW = outer_products(facts.features(in_WxD, gate_WxD), facts.value_FxD)
        read_CxW, target_FxC = out_DxW, facts.value_FxD
        if self.fitted == "scores":
            read_CxW, target_FxC = facts.value_FxD @ out_DxW, np.eye(len(facts.value_FxD))
        gate_WxD = projection(facts.key_FxD, facts.key_FxD @ in_WxD.T, read_CxW, target_FxC)
        in_WxD = projection(facts.key_FxD, facts.key_FxD @ gate_WxD.T, read_CxW, target_FxC)
        return in_WxD, gate_WxD, whiten(facts.features(in_WxD, gate_WxD), facts.value_FxD)


@kind("ntk")
class NTK(_Hebbian):
    """The neural tangent kernel's memory, with Hermite polynomials of degree 1.

    Random gates and read-out, with columns of norm 1; only what relu gates multiply depends on the
    facts: A = (K G^T * V B)^T K / m.
    """

    activation: ClassVar[str] = "reglu"
    bound: ClassVar[theory.Bound] = theory.NTK

    def weights_of(self, facts: Facts, problem: Problem) -> tuple[np.ndarray, ...]:
        drawn_WxD = problem.rng.standard_normal(facts.in_WxD.shape)
        out_DxW = problem.held(codes.unit(drawn_WxD).T)
        gate_FxW = facts.key_FxD @ facts.gate_WxD.T
        in_WxD = (gate_FxW * (facts.value_FxD @ out_DxW)).T @ facts.key_FxD / len(facts.in_WxD)
        return in_WxD, facts.gate_WxD, out_DxW


def _scale(facts: Facts) -> tuple[np.ndarray, float]:
    """feature_FxW over sqrt(W), which is the factor that goes into what reads them."""
    scale = 1 / np.sqrt(len(facts.in_WxD))
    return facts.features(facts.in_WxD, facts.gate_WxD) * scale, scale


def outer_products(feature_FxW: np.ndarray, value_FxD: np.ndarray) -> np.ndarray:
    """out_DxW: the mean of outer products of values and features."""
    return value_FxD.T @ feature_FxW / len(value_FxD)


def whiten(feature_FxW: np.ndarray, value_FxD: np.ndarray, ridge: float = RIDGE) -> np.ndarray:
    """out_DxW: a ridge regression, in the smaller of its two forms.

    As released, with the same ridge in both: of the mean of squares where features are no more than
    facts, of their sum where they are more.
    """
    n_facts, n_features = feature_FxW.shape
    if n_features <= n_facts:
        gram_WxW = feature_FxW.T @ feature_FxW / n_facts + ridge * np.eye(n_features)
        moment_WxD = feature_FxW.T @ value_FxD / n_facts
        return scipy.linalg.solve(gram_WxW, moment_WxD, assume_a="pos").T
    gram_FxF = feature_FxW @ feature_FxW.T + ridge * np.eye(n_facts)
    return scipy.linalg.solve(gram_FxF, value_FxD, assume_a="pos").T @ feature_FxW


def projection(
    key_FxD: np.ndarray,
    other_FxW: np.ndarray,
    read_CxW: np.ndarray,
    target_FxC: np.ndarray,
    ridge: float = RIDGE,
) -> np.ndarray:
    """x_WxD that takes keys nearest to targets through the other projection and a linear read-out.

    The minimum of |(other_FxW * key_FxD x^T) read^T - target_FxC|^2 + ridge |x|^2, by conjugate
    gradients on its normal equations from 0, with the inverse diagonal as a preconditioner; ended
    early it is nearer to 0.
    """
    shape = other_FxW.shape[1], key_FxD.shape[1]
    gram_WxW = read_CxW.T @ read_CxW

    def normal(x: np.ndarray) -> np.ndarray:
        x_WxD = x.reshape(shape)
        through_FxW = (other_FxW * (key_FxD @ x_WxD.T)) @ gram_WxW
        return ((other_FxW * through_FxW).T @ key_FxD + ridge * x_WxD).ravel()

    right_WxD = (other_FxW * (target_FxC @ read_CxW)).T @ key_FxD
    diagonal_WxD = np.diag(gram_WxW)[:, None] * ((other_FxW**2).T @ key_FxD**2) + ridge
    size = right_WxD.size
    found, _ = scipy.sparse.linalg.cg(
        scipy.sparse.linalg.LinearOperator((size, size), normal, dtype=np.float64),
        right_WxD.ravel(),
        rtol=RESIDUAL,
        maxiter=min(max(2 * shape[0], LEAST_STEPS), MOST_STEPS),
        M=scipy.sparse.diags_array(1 / diagonal_WxD.ravel()),
    )
    solution: np.ndarray = found.reshape(shape)
    return solution
