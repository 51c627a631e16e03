"""Proposition 3 of Dana, Pydi & Chevaleyre (2025): two dimensions encode certain answers.

The best encoding where each sequence has one next token: the unembedding lies on a circle, a
sequence's vector is that of its next token, and the longer the vector, the surer the answer.

Shape letters: T = N^S sequences, K next tokens, N vocab_size, D d_model.
"""

from typing import Any, ClassVar

import numpy as np

from memobench import theory
from memobench.constructions import codes
from memobench.constructions.base import Construction
from memobench.constructions.problem import Constructed, Problem
from memobench.core.spec import kind
from memobench.models.sequence_encoder import SequenceEncoderModule


@kind("dana2025_proposition3")
class Proposition3(Construction):
    """All sequences of a sequence encoder, on a circle of outputs."""

    bound: ClassVar[theory.Bound] = theory.PROPOSITION_3

    def construct(self, problem: Problem) -> Constructed:
        """Weights of a sequence encoder; the encoding of sequences not aimed at is zero."""
        module: Any = problem.module
        problem.require(
            isinstance(module, SequenceEncoderModule),
            f"{problem.run.architecture.name} is not a sequence encoder; take sequence_encoder",
        )
        examples = problem.one_answer_each(module.d_model)
        code_NxD = codes.circle(module.vocab_size, module.d_model)
        place_S = module.vocab_size ** np.arange(module.context_length - 1, -1, -1)
        # Of all sequences, whichever of them the task holds.
        encoding_TxD = np.zeros((module.vocab_size**module.context_length, module.d_model))
        encoding_TxD[examples.tokens_TxS @ place_S] = code_NxD[examples.next_TxK[:, 0]]
        params = {"encoding": encoding_TxD, "unembedding": code_NxD}
        return Constructed(params, certificate={}, read_out=("unembedding",))
