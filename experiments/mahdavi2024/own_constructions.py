"""Theorem 1 of Mahdavi, Liao & Thrampoulidis (2024): H (min(n, d_h) - 1) + 1 labelled contexts.

Every head owns r - 1 examples, r = min(n, d_h). On each of these it attends as required, on all
others it looks at a single vector, so what the heads see is linearly independent over all examples
and one linear map takes it to any labels. Scores of one head are

    q^T (Q^+ K^T + c w k^T) x,

Q the queries that it owns, K their keys, and w orthogonal to Q: with c large enough all others
saturate. The paper asks owned scores to be generic. Here an owned query looks at one vector too,
each query at a different one: the features are nearly a permutation, hence far better conditioned,
and saturated attention does not pass on the rounding of scores.

In a shared context of n = r vectors the others look at the last or, where w^T q < 0, at the one
before. One owned query looks half at each of these two: what elimination leaves of the system, one
row of each head, is, when doubled, odd on its diagonal and even elsewhere, hence never singular.
Every head chooses that query such that these rows are far from dependent.

Shape letters: T examples aimed at, I input_dim, D d_model, N context vectors, C contexts (T, or one
that all share), H n_heads, K d_head, V d_value, G queries that a head owns, O others, B dimensions
of a span, W candidates, J the 1 + H unknowns of those rows.
"""

from typing import Any, ClassVar

import numpy as np
import scipy.special

from memobench import theory
from memobench.constructions import linear
from memobench.constructions.base import Solved, scale_of
from memobench.constructions.problem import Constructed, Problem
from memobench.core.spec import kind
from memobench.tasks.labelled_contexts import Contexts

# By how many nats the vector looked at is ahead, on the least saturated query. From 7 on condition
# numbers no longer change, and the larger it is, the less attention passes on of the scores'
# rounding.
SCALE = 10.0
# Singular values count from this share of the largest.
_INDEPENDENT = 1e-6
_CANDIDATES = {"query": 1024, "key": 16}


@kind("mahdavi2024")
class Mahdavi2024(Solved):
    """H (min(n, d_h) - 1) + 1 labelled contexts: each head serves a group of queries."""

    bound: ClassVar[theory.Bound] = theory.THEOREM_1
    theorems: ClassVar[dict] = {theory.RANK_OF_WEIGHTS: theory.always}
    scales: ClassVar[tuple[float | None, ...]] = (None, 5.0, 20.0)

    scale: float | None = scale_of("attention scores")  # type: ignore[misc]

    def construct(self, problem: Problem) -> Constructed:
        """Weights of one layer of query attention that takes every example to its label."""
        module: Any = problem.module
        examples: Contexts = problem.examples
        _require_a_layer(problem)
        embedding_IxD = problem.held(_embedding(module.input_dim, module.d_model, problem.rng))
        position_MxD = _positions(problem)
        query_TxD = examples.query_TxI @ embedding_IxD + position_MxD[0]
        own = slice(1) if module.shared_context else slice(None)
        context_CxNxD = examples.context_TxNxI[own] @ embedding_IxD + position_MxD[1:]
        _require_independence(problem, query_TxD, context_CxNxD)

        query_HxDxK, key_HxDxK = _maps(problem, query_TxD, context_CxNxD)
        query_HxDxK, key_HxDxK = problem.held(query_HxDxK), problem.held(key_HxDxK)
        score_HxTxN = np.stack(
            [
                _scores(query_TxD, context_CxNxD, query_DxK, key_DxK * _scaled_by(problem))
                for query_DxK, key_DxK in zip(query_HxDxK, key_HxDxK, strict=True)
            ]
        )
        basis_DxB = _whitening(context_CxNxD)
        read_TxHxB = scipy.special.softmax(score_HxTxN, axis=-1).transpose(1, 0, 2) @ (
            context_CxNxD @ basis_DxB
        )
        target_T, decoder_C, bias_C = _read_out(module.n_outputs, examples.label_T)
        features_TxF = read_TxHxB.reshape(len(target_T), module.n_heads * basis_DxB.shape[1])
        solution = linear.solve(features_TxF, target_T[:, None], self.solve)

        value_HxDxV = np.zeros((module.n_heads, module.d_model, module.d_value))
        value_HxDxV[..., 0] = solution.weights_FxD.reshape(module.n_heads, -1) @ basis_DxB.T
        output_HxVxD = np.zeros((module.n_heads, module.d_value, module.d_model))
        output_HxVxD[:, 0, 0] = 1
        params = {
            "embedding": embedding_IxD,
            "embedding_bias": np.zeros(module.d_model),
            "decoder": np.eye(module.d_model, 1) * decoder_C,
            "decoder_bias": bias_C,
            "layer0_query": query_HxDxK,
            "layer0_key": key_HxDxK,
            "layer0_value": value_HxDxV,
            "layer0_output": output_HxVxD,
        }
        if module.positions == "learned":
            params["position"] = position_MxD
        classes = examples.label_T.dtype.kind == "i"
        read_out = ("decoder", "decoder_bias") if classes else ()
        return Constructed(params, solution.certificate(), read_out)


def _require_a_layer(problem: Problem) -> None:
    module: Any = problem.module
    problem.require(
        isinstance(problem.examples, Contexts),
        f"it is about labelled contexts, not the task {problem.run.task.name!r}; "
        "take task=LabelledContexts(...)",
    )
    problem.require(
        module.n_layers == 1, f"n_layers={module.n_layers}; it is about one layer, set n_layers=1"
    )
    problem.require(
        not module.residual, "residual=True; it has no residual connection, set residual=False"
    )


def _require_independence(
    problem: Problem, query_TxD: np.ndarray, context_CxNxD: np.ndarray
) -> None:
    """Assumptions 1 and 2: r independent queries, and r independent vectors in every context."""
    module: Any = problem.module
    rank = min(module.context_length, module.d_head)
    reached = _span(query_TxD).shape[1]
    problem.require(
        reached >= min(rank, len(query_TxD)),
        f"input_dim={module.input_dim}: the queries span {reached} dimensions and heads need "
        f"min(context_length, d_head)={rank}; raise input_dim or lower d_head to {reached}",
    )
    singular_CxN = np.linalg.svd(context_CxNxD, compute_uv=False)
    least = (singular_CxN > _INDEPENDENT * singular_CxN[:, :1]).sum(axis=1).min(initial=rank)
    problem.require(
        least >= rank,
        f"input_dim={module.input_dim}: a context spans {least} dimensions and heads need "
        f"min(context_length, d_head)={rank}; raise input_dim or lower d_head to {least}",
    )


def _embedding(input_dim: int, d_model: int, rng: np.random.Generator) -> np.ndarray:
    """embedding_IxD: the identity, or a random map whose singular values are all 1."""
    if input_dim == d_model:
        return np.eye(d_model)
    longer, shorter = max(input_dim, d_model), min(input_dim, d_model)
    basis = np.linalg.qr(rng.standard_normal((longer, shorter)))[0]
    return basis if input_dim > d_model else basis.T


def _positions(problem: Problem) -> np.ndarray:
    """position_MxD of the query and the context: the module's, or random ones where it learns."""
    module: Any = problem.module
    if module.positions != "learned":
        return problem.constants["position"].astype(np.float64)
    shape = (module.context_length + 1, module.d_model)
    return problem.held(problem.rng.uniform(-0.5, 0.5, shape))


def _maps(
    problem: Problem, query_TxD: np.ndarray, context_CxNxD: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """query_HxDxK and key_HxDxK; the last examples are owned by no head."""
    module: Any = problem.module
    shape = (module.n_heads, module.d_model, module.d_head)
    query_HxDxK, key_HxDxK = np.zeros(shape), np.zeros(shape)
    if not len(query_TxD):
        return query_HxDxK, key_HxDxK
    n_owned = min(module.context_length, module.d_head) - 1
    every_T, span_DxB = np.arange(len(query_TxD)), _span(query_TxD)
    groups = [every_T[h * n_owned : (h + 1) * n_owned] for h in range(module.n_heads)]
    apart_HxD = np.stack(
        [_orthogonal_vector(query_TxD, own_G, span_DxB, problem.rng) for own_G in groups]
    )
    if module.shared_context:
        groups = _halves_last(groups, query_TxD @ apart_HxD.T < 0)
    gap = problem.method.scale or SCALE
    for h, (own_G, apart_D) in enumerate(zip(groups, apart_HxD, strict=True)):
        query_DxR, key_DxR = _head(query_TxD, context_CxNxD, own_G, apart_D, gap, problem.rng)
        query_HxDxK[h, :, : query_DxR.shape[1]] = query_DxR
        key_HxDxK[h, :, : key_DxR.shape[1]] = key_DxR / _scaled_by(problem)
    return query_HxDxK, key_HxDxK


def _head(
    query_TxD: np.ndarray,
    context_CxNxD: np.ndarray,
    own_G: np.ndarray,
    apart_D: np.ndarray,
    gap: float,
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """query_DxR and key_DxR of one head: a column for every query that it owns, one for the rest.

    Both columns of a product are equally long, so that coarse numbers hold them equally well.
    """
    shared = len(context_CxNxD) == 1
    ours = context_CxNxD if shared else context_CxNxD[own_G]
    theirs = context_CxNxD if shared else np.delete(context_CxNxD, own_G, axis=0)
    other_OxD = np.delete(query_TxD, own_G, axis=0)
    query_DxG = np.linalg.pinv(query_TxD[own_G])
    target_GxN = gap * (_shared_targets if shared else _own_targets)(ours, len(own_G))
    key_DxG = (np.linalg.pinv(ours, rcond=_INDEPENDENT) @ target_GxN[..., None])[..., 0].T
    owned_OxN = _scores(other_OxD, theirs, query_DxG, key_DxG)
    key_WxD = _looks_at_the_ends(ours) if shared else _directions(context_CxNxD, rng)
    side_WxOxN = ((other_OxD @ apart_D)[:, None] * (theirs @ key_D) for key_D in key_WxD)
    factor_W = np.array([_factor(owned_OxN, side_OxN, gap) for side_OxN in side_WxOxN])
    best = int(np.argmin(factor_W))
    key_D = factor_W[best] * key_WxD[best]
    return _balance(np.column_stack([query_DxG, apart_D]), np.column_stack([key_DxG, key_D]))


def _halves_last(groups: list[np.ndarray], before_TxH: np.ndarray) -> list[np.ndarray]:
    """The groups, each ending with the query that looks half at each of two vectors.

    The rows of these queries, and of one that no head owns, are chosen one by one, each the
    farthest from the span of its predecessors.

    Args:
      groups: queries of each head.
      before_TxH: whether the head looks at the last vector but one.
    """
    row_TxJ = np.column_stack([np.ones(len(before_TxH)), before_TxH])
    chosen_RxJ = row_TxJ[sum(map(len, groups)) :][:1]
    basis_RxJ = chosen_RxJ / np.linalg.norm(chosen_RxJ, axis=1, keepdims=True)
    ordered = []
    for h, own_G in enumerate(groups):
        row_GxJ = row_TxJ[own_G]
        row_GxJ[:, 1 + h] = 0.5
        rest_GxJ = row_GxJ - row_GxJ @ basis_RxJ.T @ basis_RxJ
        length_G = np.linalg.norm(rest_GxJ, axis=1)
        last = np.argsort(length_G)[-1:]
        basis_RxJ = np.concatenate([basis_RxJ, rest_GxJ[last] / length_G[last, None]])
        ordered.append(np.concatenate([np.delete(own_G, last), own_G[last]]))
    return ordered


def _shared_targets(context_CxNxD: np.ndarray, n_owned: int) -> np.ndarray:
    """target_GxN: the first vectors in turn; others look at the last two (see the module)."""
    length = context_CxNxD.shape[1]
    target_GxN = np.eye(n_owned, length)
    if n_owned and n_owned == length - 1:
        target_GxN[-1, -1] = 1
    return target_GxN


def _own_targets(context_GxNxD: np.ndarray, n_owned: int) -> np.ndarray:
    """target_GxN: of every context the vector farthest from the span of those chosen before."""
    target_GxN = np.zeros(context_GxNxD.shape[:2])
    rest_GxNxD = context_GxNxD.copy()
    for i in range(n_owned):
        length_N = np.linalg.norm(rest_GxNxD[i], axis=1)
        n = int(np.argmax(length_N))
        target_GxN[i, n] = 1
        unit_D = rest_GxNxD[i, n] / (length_N[n] or 1)
        rest_GxNxD -= (rest_GxNxD @ unit_D)[..., None] * unit_D
    return target_GxN


def _orthogonal_vector(
    query_TxD: np.ndarray, own_G: np.ndarray, span_DxB: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """w_D, a unit vector orthogonal to the owned queries and to none of the others.

    Of random candidates it is the one whose smallest product with another query is the largest.
    """
    other_OxD = np.delete(query_TxD, own_G, axis=0)
    if not len(other_OxD):
        return np.zeros(len(span_DxB))
    _, _, basis_BxB = np.linalg.svd(query_TxD[own_G] @ span_DxB)
    free_FxD = basis_BxB[len(own_G) :] @ span_DxB.T
    apart_WxD = rng.standard_normal((_CANDIDATES["query"], len(free_FxD))) @ free_FxD
    apart_WxD /= np.linalg.norm(apart_WxD, axis=1, keepdims=True)
    least_W = np.abs(apart_WxD @ other_OxD.T).min(axis=1)
    return apart_WxD[np.argmax(least_W)]


def _looks_at_the_ends(context_CxNxD: np.ndarray) -> np.ndarray:
    """key_WxD, one: 1 on the last vector of the shared context, -1 on the one before, else 0."""
    side_N = np.zeros(context_CxNxD.shape[1])
    side_N[-1:] += 1
    side_N[-2:-1] -= 1
    return (np.linalg.pinv(context_CxNxD[0], rcond=_INDEPENDENT) @ side_N)[None]


def _directions(context_TxNxD: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """key_WxD, random units orthogonal to the mean vector, which no attention can see."""
    d_model = context_TxNxD.shape[-1]
    mean_D = context_TxNxD.mean(axis=(0, 1))
    key_WxD = rng.standard_normal((_CANDIDATES["key"], d_model))
    if d_model > 1:
        key_WxD -= np.outer(key_WxD @ mean_D, mean_D) / (mean_D @ mean_D)
    return key_WxD / np.linalg.norm(key_WxD, axis=1, keepdims=True)


def _factor(owned_OxN: np.ndarray, side_OxN: np.ndarray, gap: float) -> float:
    """The least c >= 0 for which the top of side leads by the gap in owned + c side everywhere."""
    top_Ox1 = side_OxN.argmax(axis=1)[:, None]
    lead_OxN = np.take_along_axis(side_OxN, top_Ox1, axis=1) - side_OxN
    behind_OxN = gap - (np.take_along_axis(owned_OxN, top_Ox1, axis=1) - owned_OxN)
    needed_OxN = np.zeros_like(lead_OxN)
    np.divide(behind_OxN, lead_OxN, out=needed_OxN, where=lead_OxN > 0)
    return float(needed_OxN.max(initial=0))


def _read_out(n_outputs: int, label_T: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """target_T of the one coordinate that is read, and decoder_C and bias_C that read it.

    A class is the nearest of evenly spaced numbers m: -(z - m)^2 is z^2 plus its logit 2 m z - m^2.
    """
    if label_T.dtype.kind != "i":
        label_T = label_T.astype(np.float64)
        mean = float(label_T.mean()) if len(label_T) else 0.0
        return label_T - mean, np.ones(1), np.array([mean])
    place_C = np.linspace(-1, 1, n_outputs)
    return place_C[label_T], 2 * place_C, -(place_C**2)


def _scores(
    query_TxD: np.ndarray, context_CxNxD: np.ndarray, query_DxK: np.ndarray, key_DxK: np.ndarray
) -> np.ndarray:
    """score_TxN of one head."""
    key_CxNxK = context_CxNxD @ key_DxK
    return (key_CxNxK @ (query_TxD @ query_DxK)[..., None])[..., 0]


def _whitening(context_CxNxD: np.ndarray) -> np.ndarray:
    """basis_DxB in which the context vectors have second moments of 1, without empty directions."""
    rows_RxD = context_CxNxD.reshape(-1, context_CxNxD.shape[-1])
    square_D, basis_DxD = np.linalg.eigh(rows_RxD.T @ rows_RxD / max(len(context_CxNxD), 1))
    kept_D = square_D > _INDEPENDENT**2 * square_D[-1]
    return basis_DxD[:, kept_D] / np.sqrt(square_D[kept_D])


def _span(rows_TxD: np.ndarray) -> np.ndarray:
    """basis_DxB: an orthonormal basis of the rows' span."""
    _, singular, basis = np.linalg.svd(rows_TxD, full_matrices=False)
    return basis[singular > _INDEPENDENT * singular.max(initial=0)].T


def _balance(query_DxR: np.ndarray, key_DxR: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The same products of columns, both factors of equal length."""
    length_R, other_R = np.linalg.norm(query_DxR, axis=0), np.linalg.norm(key_DxR, axis=0)
    ratio_R = np.sqrt(np.divide(other_R, length_R, out=np.ones_like(length_R), where=other_R > 0))
    return query_DxR * ratio_R, key_DxR / ratio_R


def _scaled_by(problem: Problem) -> float:
    return float(problem.constants["score_scale"])
