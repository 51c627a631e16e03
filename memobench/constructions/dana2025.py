"""Theorem 1 and Corollary 1 of Dana, Pydi & Chevaleyre (2025): H d_h + d sequences by rank.

Random embeddings and random attention give every sequence a vector of H d_h + d features: what the
heads' values read, and the skip connection. Where the sequences are no more than that the features
are independent (Lemma 2), and linear maps take them to any stream: for one next token to that
token's code (Corollary 1), for several to the vector of the best sequence encoder (Theorem 1).

The skip connection joins the linear system exactly by a change of basis. The stream x + W_O Z is
wanted to be M^-1 E for an invertible M, with W_U = W M: then the logits are W E, and what is to be
solved, M x + (M W_O) Z = E, is linear in the unknowns M and M W_O. (The paper changes the basis of
the embeddings and lets all heads undo it; changing that of the unembedding leaves attention alone.)

Shape letters: T sequences, S tokens, N vocab_size, D d_model, I width of a head's input, H n_heads,
K d_head, C coordinates that heads can write.
"""

from typing import Any

import numpy as np
import scipy.special

from memobench import optimum, packing
from memobench.constructions import codes, linear
from memobench.constructions.problem import Constructed, Problem, Tokens
from memobench.specs import Architecture, Optimum, Run

# The standard deviation of attention scores: small ones make features nearly dependent.
SCALE = 16.0
# Random sequences on which it is measured.
_SAMPLED = 512


def construct(problem: Problem) -> Constructed:
    """Weights of a one-layer attention-only Transformer, with full or compressed heads."""
    module: Any = problem.module
    problem.require(
        module.n_layers == 1 and module.d_mlp == 0,
        f"n_layers={module.n_layers}, d_mlp={module.d_mlp}; it is about one layer without MLP, "
        "set n_layers=1 and d_mlp=0",
    )
    examples: Tokens = problem.examples
    targets_TxC, unembedding_NxC = _targets(problem)
    width = targets_TxC.shape[1]
    n, d_model, d_head, h = module.vocab_size, module.d_model, module.d_head, module.n_heads
    draw = problem.rng.standard_normal
    embedding_NxD = draw((n, d_model))
    # Positions join the stream of full heads; of the others only what heads read.
    compress_IxD = draw((d_head, d_model)) / np.sqrt(d_model) if module.compress else None
    d_in = d_head if module.compress else d_model
    position_SxI = draw((module.context_length, d_in))
    query_HxKxI, key_HxKxI, value_HxKxI = (draw((h, d_head, d_in)) for _ in range(3))

    def seen(tokens_TxS: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The stream of every token, and what heads read of it."""
        stream_TxSxD = embedding_NxD[tokens_TxS] + (position_SxI if module.full else 0)
        read_TxSxI = stream_TxSxD if compress_IxD is None else stream_TxSxD @ compress_IxD.T
        return stream_TxSxD, read_TxSxI + (0 if module.full else position_SxI)

    scaled = float(problem.constants["score_scale"])
    sample_TxS = problem.rng.integers(n, size=(_SAMPLED, module.context_length))
    score_TxHxS = scaled * _scores(query_HxKxI, key_HxKxI, seen(sample_TxS)[1])
    factor_H = (problem.method.scale or SCALE) / score_TxHxS.std(axis=(0, 2))
    query_HxKxI = query_HxKxI * factor_H[:, None, None]
    stream_TxSxD, read_TxSxI = seen(examples.tokens_TxS)
    attention_TxHxS = _softmax(scaled * _scores(query_HxKxI, key_HxKxI, read_TxSxI))
    heads_TxHxK = np.einsum("thi,hki->thk", attention_TxHxS @ read_TxSxI, value_HxKxI)
    skip_TxD = stream_TxSxD[:, -1]
    features_TxF = np.concatenate(
        [skip_TxD, heads_TxHxK.reshape(len(skip_TxD), h * d_head)], axis=1
    )

    # Of all solutions the one whose basis is nearest to the identity: it can be inverted.
    solution = linear.solve(features_TxF, targets_TxC - skip_TxD[:, :width], problem.method.solve)
    basis_CxD = np.eye(width, d_model) + solution.weights_FxD[:d_model].T
    output_CxHxK = solution.weights_FxD[d_model:].T.reshape(width, h, d_head)
    back_DxC = np.linalg.pinv(basis_CxD)
    params = {
        "token_embedding": embedding_NxD,
        "position_embedding": position_SxI,
        "layer0_query": query_HxKxI,
        "layer0_key": key_HxKxI,
        "layer0_value": value_HxKxI,
        "layer0_mlp_in": np.zeros((0, d_model)),
        "layer0_mlp_in_bias": np.zeros(0),
        "layer0_mlp_out": np.zeros((d_model, 0)),
        "unembedding": unembedding_NxC @ basis_CxD,
    }
    if compress_IxD is None:
        params["layer0_output"] = np.einsum("dc,chk->hdk", back_DxC, output_CxHxK)
    else:
        params |= {"compress": compress_IxD, "decompress": back_DxC}
        params["layer0_output"] = output_CxHxK.transpose(1, 0, 2)
    certificate = {**solution.certificate(), "basis_condition": float(np.linalg.cond(basis_CxD))}
    if examples.next_TxK.shape[1] > 1:
        # The divergence of the encoder, which is not to be scaled.
        certificate["encoder_loss"] = _divergence(targets_TxC @ unembedding_NxC.T, examples)
        return Constructed(params, certificate)
    return Constructed(params, certificate, read_out=("unembedding",))


def _targets(problem: Problem) -> tuple[np.ndarray, np.ndarray]:
    """targets_TxC of the stream, and unembedding_NxC, which reads them.

    As many coordinates as the heads can write: compressed heads have d_head, full ones d_model.
    """
    module: Any = problem.module
    examples: Tokens = problem.examples
    width = module.d_head if module.compress else module.d_model
    problem.require(width >= 2, "one dimension holds two answers; take d_model, d_head >= 2")
    if examples.next_TxK.shape[1] == 1:
        unembedding_NxC = codes.spread(module.vocab_size, width, problem.rng)
        return unembedding_NxC[examples.next_TxK[:, 0]], unembedding_NxC
    problem.require(
        width == module.d_model,
        "compressed heads reach d_head of the encoder's dimensions; take heads='full'",
    )
    encoding_TxD, unembedding_NxD = _encoder(problem.run)
    place_S = module.vocab_size ** np.arange(module.context_length - 1, -1, -1)
    return encoding_TxD[examples.tokens_TxS @ place_S], unembedding_NxD


def _encoder(run: Run) -> tuple[np.ndarray, np.ndarray]:
    """encoding_TxD of all sequences and unembedding_NxD of the task's best sequence encoder."""
    d_model = run.architecture.d_model
    encoder = Architecture(name="sequence_encoder", d_model=d_model, d_head=d_model)
    best = Run(task=run.task, architecture=encoder, method=Optimum(), seed=run.seed)
    params = optimum.solve(packing.together([best])).variables["params"]
    return tuple(np.asarray(params[name])[0] for name in ("encoding", "unembedding"))


def _divergence(logits_TxN: np.ndarray, examples: Tokens) -> float:
    """Mean KL divergence from the examples' next tokens, by their prior, in nats."""
    of_next_TxK = np.take_along_axis(logits_TxN, examples.next_TxK, axis=1)
    normalizer_T = scipy.special.logsumexp(logits_TxN, axis=1)
    entropy_T = scipy.special.entr(examples.probability_TxK).sum(axis=1)
    kl_T = normalizer_T - (examples.probability_TxK * of_next_TxK).sum(axis=1) - entropy_T
    return float(examples.prior_T @ kl_T / examples.prior_T.sum())


def _scores(query_HxKxI: np.ndarray, key_HxKxI: np.ndarray, read_TxSxI: np.ndarray) -> np.ndarray:
    query_TxHxK = np.einsum("ti,hki->thk", read_TxSxI[:, -1], query_HxKxI)
    key_TxHxIxS = np.einsum("thk,hki->thi", query_TxHxK, key_HxKxI)
    return np.einsum("thi,tsi->ths", key_TxHxIxS, read_TxSxI)


def _softmax(score_TxHxS: np.ndarray) -> np.ndarray:
    weight_TxHxS = np.exp(score_TxHxS - score_TxHxS.max(axis=-1, keepdims=True))
    return weight_TxHxS / weight_TxHxS.sum(axis=-1, keepdims=True)
