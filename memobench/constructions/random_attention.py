"""The rank argument: random features of a sequence, and linear maps from them to its answer.

Random embeddings, positions and attention give every sequence a stream and what the heads' values
read of it. Linear maps take independent features to any stream: for one next token to that token's
code, for several to the vector of the best sequence encoder.

The skip connection joins the linear system exactly by a change of basis. The stream x + W Z should
equal M^-1 E for an invertible M, with W_U = U M: then the logits are U E, and the system to solve,
M x + (M W) Z = E, is linear in the unknowns M and M W.

Shape letters: T sequences, S tokens, N vocab_size, D d_model, I width of a head's input, H n_heads,
K d_head, F features besides the stream, C coordinates that can be written.
"""

from typing import NamedTuple

import numpy as np
import scipy.special

from memobench.constructions import codes, linear
from memobench.constructions.problem import Problem
from memobench.core.run import Method, Run
from memobench.models.sequence_encoder import SequenceEncoder
from memobench.models.transformer import Transformer
from memobench.planner import packing
from memobench.tasks.tokens import Tokens

Params = dict[str, np.ndarray]

# The deviation of answers from their codes, over the distance of codes nearer than 1.
_BLUR = 0.1
# Random sequences on which the deviation of scores is measured.
_SAMPLED = 512


def transformer(problem: Problem) -> Transformer:
    """The run's module, if it is a Transformer of one layer."""
    problem.require(
        isinstance(problem.module, Transformer) and problem.module.n_layers == 1,
        "it is about one layer on tokens; take 'attention_only' or 'mlp' with n_layers=1",
    )
    assert isinstance(problem.module, Transformer)
    return problem.module


def draw(problem: Problem) -> Params:
    """Standard normal embeddings and heads; what heads write is left out."""
    module = transformer(problem)
    n, d_model, d_head, h = module.vocab_size, module.d_model, module.d_head, module.n_heads
    normal = problem.rng.standard_normal
    params = {"token_embedding": normal((n, d_model))}
    if module.compress:
        params["compress"] = normal((d_head, d_model)) / np.sqrt(d_model)
    d_in = d_head if module.compress else d_model
    params["position_embedding"] = normal((module.context_length, d_in))
    for name in ("query", "key", "value"):
        params[f"layer0_{name}"] = normal((h, d_head, d_in))
    return params


def with_scores(problem: Problem, params: Params, scale: float) -> Params:
    """The weights as stored, with queries scaled to give scores the standard deviation `scale`."""
    module = transformer(problem)
    sample_TxS = problem.rng.integers(module.vocab_size, size=(_SAMPLED, module.context_length))
    score_TxHxS = _scores(problem, params, _read_tokens(problem, params, sample_TxS)[1])
    factor_H = scale / score_TxHxS.std(axis=(0, 2))
    scaled = params | {"layer0_query": params["layer0_query"] * factor_H[:, None, None]}
    return problem.all_held(scaled)


def read(problem: Problem, params: Params) -> tuple[np.ndarray, np.ndarray]:
    """stream_TxD, the last token's, and heads_TxHxK, what values read, of all sequences."""
    stream_TxSxD, read_TxSxI = _read_tokens(problem, params, problem.examples.tokens_TxS)
    attention_TxHxS = scipy.special.softmax(_scores(problem, params, read_TxSxI), axis=-1)
    mixed_TxHxI = attention_TxHxS @ read_TxSxI
    return stream_TxSxD[:, -1], np.einsum("thi,hki->thk", mixed_TxHxI, params["layer0_value"])


def draw_output(problem: Problem) -> Params:
    """Random weights by which heads write into the stream, about as large as the stream is."""
    module = transformer(problem)
    d_model, d_head, h = module.d_model, module.d_head, module.n_heads
    normal = problem.rng.standard_normal
    d_in = d_head if module.compress else d_model
    params = {"layer0_output": normal((h, d_in, d_head)) / np.sqrt(d_in * d_head * h)}
    if module.compress:
        params["decompress"] = normal((d_model, d_head)) / np.sqrt(d_head)
    return params


def attend(params: Params, stream_TxD: np.ndarray, heads_TxHxK: np.ndarray) -> np.ndarray:
    """stream_TxD after attention."""
    written_TxI = np.einsum("thk,hik->ti", heads_TxHxK, params["layer0_output"])
    return stream_TxD + (
        written_TxI @ params["decompress"].T if "decompress" in params else written_TxI
    )


def targets(problem: Problem, width: int) -> tuple[np.ndarray, np.ndarray]:
    """targets_TxC of the first `width` coordinates, and unembedding_NxC, which reads them."""
    module = transformer(problem)
    examples: Tokens = problem.examples
    problem.require(width >= 2, "one dimension holds two answers; take d_model, d_head >= 2")
    if examples.next_TxK.shape[1] == 1:
        unembedding_NxC = codes.spread(module.vocab_size, width, problem.rng)
        targets_TxC = unembedding_NxC[examples.next_TxK[:, 0]]
        answer_A = np.unique(examples.next_TxK)
        if len(answer_A) <= width:
            # Fewer answers than dimensions span too few of them for a basis.
            blur_TxC = problem.rng.standard_normal(targets_TxC.shape) / np.sqrt(width)
            nearest = _least_distance(unembedding_NxC, answer_A)
            targets_TxC = targets_TxC + _BLUR * min(1.0, nearest) * blur_TxC
        return targets_TxC, unembedding_NxC
    problem.require(
        width == module.d_model,
        "compressed heads reach d_head of the encoder's dimensions; take heads='full'",
    )
    encoding_TxD, unembedding_NxD = _encoder(problem.run)
    place_S = module.vocab_size ** np.arange(module.context_length - 1, -1, -1)
    return encoding_TxD[examples.tokens_TxS @ place_S], unembedding_NxD


def _least_distance(code_NxC: np.ndarray, row_A: np.ndarray) -> float:
    """The least distance of some codes from any other."""
    square_N = (code_NxC**2).sum(axis=1)
    square_AxN = square_N[row_A, None] + square_N[None] - 2 * code_NxC[row_A] @ code_NxC.T
    square_AxN[np.arange(len(row_A)), row_A] = np.inf
    return float(np.sqrt(max(0.0, square_AxN.min(initial=np.inf))))


class Solved(NamedTuple):
    """basis_CxD, the M above, and its inverse; weights_FxC, transposed M W; and a certificate."""

    basis_CxD: np.ndarray
    inverse_DxC: np.ndarray
    weights_FxC: np.ndarray
    certificate: dict[str, float]


def solve(
    stream_TxD: np.ndarray, features_TxF: np.ndarray, targets_TxC: np.ndarray, how: str
) -> Solved:
    """The maps with M stream + (M W) features = targets, as `linear.solve` finds them."""
    d_model, width = stream_TxD.shape[1], targets_TxC.shape[1]
    all_TxF = np.concatenate([stream_TxD, features_TxF], axis=1)
    # Of all solutions the one whose basis is nearest to the identity.
    solution = linear.solve(all_TxF, targets_TxC - stream_TxD[:, :width], how)
    basis_CxD = np.eye(width, d_model) + solution.weights_FxD[:d_model].T
    inverse_DxC, weights_FxC = np.linalg.pinv(basis_CxD), solution.weights_FxD[d_model:]
    met_TxC = (stream_TxD + features_TxF @ weights_FxC @ inverse_DxC.T) @ basis_CxD.T
    error = float(np.abs(met_TxC - targets_TxC).max(initial=0))
    condition = float(np.linalg.cond(basis_CxD))
    if how == "exact" and not error <= linear.EXACT * max(np.abs(targets_TxC).max(initial=0), 1):
        message = f"the basis that answers need is not invertible (condition {condition:.0e})"
        raise linear.NotExact(message, len(targets_TxC) - 1)
    certificate = {**solution.certificate(), "fit_error": error, "basis_condition": condition}
    return Solved(basis_CxD, inverse_DxC, weights_FxC, certificate)


def _read_tokens(
    problem: Problem, params: Params, tokens_TxS: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """stream_TxSxD of every token, and read_TxSxI, what heads see of it."""
    module = transformer(problem)
    position_SxI = params["position_embedding"]
    stream_TxSxD = params["token_embedding"][tokens_TxS] + (position_SxI if module.full else 0)
    read_TxSxI = stream_TxSxD @ params["compress"].T if module.compress else stream_TxSxD
    return stream_TxSxD, read_TxSxI + (0 if module.full else position_SxI)


def _scores(problem: Problem, params: Params, read_TxSxI: np.ndarray) -> np.ndarray:
    query_TxHxK = np.einsum("ti,hki->thk", read_TxSxI[:, -1], params["layer0_query"])
    key_TxHxIxS = np.einsum("thk,hki->thi", query_TxHxK, params["layer0_key"])
    score_TxHxS = np.einsum("thi,tsi->ths", key_TxHxIxS, read_TxSxI)
    return float(problem.constants["score_scale"]) * score_TxHxS


def _encoder(run: Run) -> tuple[np.ndarray, np.ndarray]:
    """encoding_TxD of all sequences and unembedding_NxD of the task's best sequence encoder."""
    d_model = run.architecture.d_model
    encoder = SequenceEncoder(d_model=d_model)
    best = Run(
        task=run.task, architecture=encoder, method=Method.get_kind("optimised")(), seed=run.seed
    )
    params = best.method.train(packing.make_pack([best])).variables["params"]
    return tuple(np.asarray(params[name])[0] for name in ("encoding", "unembedding"))
