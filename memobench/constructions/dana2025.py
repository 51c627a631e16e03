"""Theorem 1 and Corollary 1 of Dana, Pydi & Chevaleyre (2025): H d_h + d sequences by rank.

Random embeddings and random attention give every sequence H d_h + d features: what the heads'
values read, and the skip connection. For at most that many sequences the features are independent
(Lemma 2), and linear maps take them to any stream: for one next token to that token's code
(Corollary 1), for several to the vector of the best sequence encoder (Theorem 1).

The paper includes the skip connection by changing the basis of the embeddings, which all heads
undo; `random_attention` changes that of the unembedding, so attention stays as it is. Both are
exact.

Shape letters: T sequences, N vocab_size, D d_model, H n_heads, K d_head, C coordinates that heads
can write.
"""

from typing import ClassVar

import numpy as np

from memobench import theory
from memobench.constructions import random_attention
from memobench.constructions.base import Solved, scale_of
from memobench.constructions.problem import Constructed, Problem
from memobench.core.spec import kind
from memobench.numerics import metrics
from memobench.tasks.tokens import Tokens

# The standard deviation of attention scores: small scores make features nearly dependent.
SCALE = 16.0


@kind("dana2025")
class Dana2025(Solved):
    """H d_h + d sequences by random attention and a linear solve."""

    bound: ClassVar[theory.Bound] = theory.COROLLARY_2
    scales: ClassVar[tuple[float | None, ...]] = (None, 8.0, 4.0, 2.0, 1.0)

    scale: float | None = scale_of("attention scores")  # type: ignore[misc]

    def construct(self, problem: Problem) -> Constructed:
        """Weights of a one-layer attention-only Transformer, with full or compressed heads."""
        module = random_attention.transformer(problem)
        problem.require(
            module.d_mlp == 0, f"d_mlp={module.d_mlp}; it is about attention only, set d_mlp=0"
        )
        problem.require(
            module.d_head <= module.d_model,
            f"d_head={module.d_head} exceeds d_model={module.d_model}, and heads see no more than "
            "the stream; lower d_head",
        )
        # Compressed heads write as many coordinates as they have dimensions.
        width = module.d_head if module.compress else module.d_model
        targets_TxC, unembedding_NxC = random_attention.targets(problem, width)
        params = random_attention.draw(problem)
        params = random_attention.with_scores(problem, params, self.scale or SCALE)
        stream_TxD, heads_TxHxK = random_attention.read(problem, params)
        features_TxF = heads_TxHxK.reshape(len(stream_TxD), module.n_heads * module.d_head)
        solved = random_attention.solve(stream_TxD, features_TxF, targets_TxC, self.solve)

        output_HxKxC = solved.weights_FxC.reshape(module.n_heads, module.d_head, width)
        if module.compress:
            params |= {
                "decompress": solved.inverse_DxC,
                "layer0_output": output_HxKxC.swapaxes(1, 2),
            }
        else:
            params["layer0_output"] = np.einsum("dc,hkc->hdk", solved.inverse_DxC, output_HxKxC)
        params |= {
            "layer0_mlp_in": np.zeros((0, module.d_model)),
            "layer0_mlp_in_bias": np.zeros(0),
            "layer0_mlp_out": np.zeros((module.d_model, 0)),
            "unembedding": unembedding_NxC @ solved.basis_CxD,
        }
        examples: Tokens = problem.examples
        if examples.next_TxK.shape[1] == 1:
            return Constructed(params, solved.certificate, read_out=("unembedding",))
        # The logits must equal the encoder's, scale included.
        encoder_loss = _divergence(targets_TxC @ unembedding_NxC.T, examples)
        return Constructed(params, {**solved.certificate, "encoder_loss": encoder_loss})


def _divergence(logits_TxN: np.ndarray, examples: Tokens) -> float:
    """Mean KL divergence from the examples' next tokens, by their prior, in nats."""
    loss_T, _ = metrics.judge(logits_TxN, examples.next_TxK, examples.probability_TxK)
    return float(examples.prior_T @ loss_T / examples.prior_T.sum())
