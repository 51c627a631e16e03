"""Labelled contexts: every pair of a query and a context has a label.

Mahdavi, Liao & Thrampoulidis (2024), section 6. Position 0 is the query, 1 .. n are the context;
each position has its own random stream, and so have the labels: of two tasks that differ only in
size, the smaller is a prefix of the larger. Runs of a pack share one set.

Shape letters: T examples, N context_length, I input_dim.
"""

import math
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, Self

import jax
import numpy as np

from memobench import theory
from memobench.common.errors import require
from memobench.core.columns import choice, integer
from memobench.core.spec import kind
from memobench.core.task import Task
from memobench.numerics import metrics

_LABELS, _TOKENS = 0, 2


class Labelled(NamedTuple):
    """One set of labelled contexts.

    Attributes:
      query_TxI: float32.
      context: float32, (T, N, I), or (N, I) where one is shared.
      label_T: int32 classes or float32 scalars.
    """

    query_TxI: np.ndarray
    context: np.ndarray
    label_T: np.ndarray


class Contexts(NamedTuple):
    """Examples for constructions: query_TxI, context_TxNxI, label_T (classes or float scalars)."""

    query_TxI: np.ndarray
    context_TxNxI: np.ndarray
    label_T: np.ndarray


@kind("labelled_contexts")
class LabelledContexts(Task):
    """A label is memorized for each of `n_examples` pairs of a query and a context.

    A query is a vector in R^input_dim, a context `context_length` of them, all entries
    uniform(0, 1). `contexts` says whether one is `shared` by all examples or every example has a
    `random` one. A label is one of `n_classes`, or where that is None a scalar uniform(0, 1). Of
    two tasks that differ only in n_examples or context_length, the smaller is a prefix of the
    larger (Mahdavi et al. 2024, section 6).
    """

    question: ClassVar[str] = "query"
    constructible: ClassVar[bool] = True
    theorems: ClassVar[dict] = {
        theory.THEOREM_1: theory.always,
        theory.COUNTING: theory.always,
        theory.RANK_OF_WEIGHTS: lambda sizes: sizes["contexts"] == "shared",
    }
    vocab_size: ClassVar[int | None] = None

    n_examples: int = integer("pairs of a query and a context", 1, most=2**24)
    context_length: int = integer("vectors of a context", 1, default=32, most=2**20)
    contexts: str = choice("whether examples share a context", "shared", "random", default="shared")
    n_classes: int | None = integer(
        "classes; none for scalar labels", 2, default=100, most=2**24, optional=True
    )
    input_dim: int = integer("dimension of queries and vectors", 1, default=64, most=2**20)
    # Ids of runs hold it.
    n_bag: int | None = integer("empty in rows of this version", 1, default=None, most=2**20)

    def check(self) -> None:
        require(
            self.n_bag is None,
            f"n_bag={self.n_bag!r}: no contexts are arrangements of a bag; leave it out",
        )

    @property
    def n_choices(self) -> int | None:
        return self.n_classes

    @property
    def chance(self) -> float:
        """The accuracy of guessing: one of the classes, or a scalar that is not near 0 or 1."""
        return 1 / self.n_classes if self.n_classes else 2 * metrics.SCALAR_TOLERANCE

    @property
    def measures(self) -> tuple[str, ...]:
        """The bits of a scalar are not counted."""
        bits = ("bits",) if self.n_classes else ()
        return ("accuracy", "accuracy_protocol", "loss", "memorized", *bits)

    @property
    def one_answer(self) -> bool:
        """True where labels are classes."""
        return self.n_classes is not None

    @classmethod
    def variant(cls, row: Mapping[str, Any]) -> str:
        return f"{row['contexts']} contexts" if row["contexts"] else ""

    def pack_key(self) -> Self:
        """Without sizes: how many examples and vectors a run reads is data, not shape."""
        return self.replace(n_examples=1, context_length=1, seed=0)

    def first_examples(self, n_examples: int) -> Self:
        """The task of the first so many examples."""
        return self.replace(n_examples=n_examples)

    def sample(self) -> Labelled:
        n_examples, size = self.n_examples, self.input_dim
        query_TxI = self._stream(_TOKENS, 0).random((n_examples, size), np.float32)
        label_T = self._sample_labels()
        own = () if self.contexts == "shared" else (n_examples,)
        context = np.empty((*own, self.context_length, size), np.float32)
        for i in range(self.context_length):
            context[..., i, :] = self._stream(_TOKENS, 1 + i).random((*own, size), np.float32)
        return Labelled(query_TxI, context, label_T)

    def shapes(self) -> Any:
        n_examples, length, size = self.n_examples, self.context_length, self.input_dim
        own = () if self.contexts == "shared" else (n_examples,)
        labelled: Any = Labelled
        return labelled(
            query_TxI=jax.ShapeDtypeStruct((n_examples, size), np.float32),
            context=jax.ShapeDtypeStruct((*own, length, size), np.float32),
            label_T=jax.ShapeDtypeStruct(
                (n_examples,), np.float32 if self.n_classes is None else np.int32
            ),
        )

    def inputs(self, data: Labelled, example: jax.Array) -> tuple[Any, Any]:
        return inputs(data, example)

    @property
    def output_shapes(self) -> tuple[tuple[int, ...], ...]:
        return ((self.n_classes or 1,),)

    def answers(self, data: Labelled) -> np.ndarray:
        return np.asarray(data.label_T)

    def judge(self, data: Labelled, output_TxC: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """loss_T (nats, or squared error) and correct_T, in float64."""
        output_TxC, label_T = np.asarray(output_TxC, np.float64), np.asarray(data.label_T)
        if self.n_classes:
            return metrics.judge(output_TxC, label_T[:, None], np.ones((len(label_T), 1)))
        error_T = output_TxC[:, 0] - label_T
        return error_T**2, np.abs(error_T) <= metrics.SCALAR_TOLERANCE

    def floats_shared(self) -> float:
        """The set itself."""
        n_vectors = 1 if self.contexts == "shared" else 1 + self.context_length
        return float(round_up(self.n_examples) * n_vectors * self.input_dim)

    def to_construct(self, data: Labelled, aimed_A: np.ndarray) -> Contexts:
        """The queries with these indices, each with its context, and their labels."""
        context = data.context
        if self.contexts == "shared":
            context = np.broadcast_to(context, (self.n_examples, *context.shape))
        return Contexts(
            data.query_TxI[aimed_A].astype(np.float64),
            context[aimed_A].astype(np.float64),
            data.label_T[aimed_A],
        )

    def _stream(self, kind: int, position: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, kind, position])

    def _sample_labels(self) -> np.ndarray:
        stream = self._stream(_LABELS, 0)
        if self.n_classes is None:
            return stream.random(self.n_examples, np.float32)
        # Scaled uniforms: a bounded integer may take several random words, which breaks prefixes.
        return (stream.random(self.n_examples) * self.n_classes).astype(np.int32)


def round_up(n_examples: int) -> int:
    """The next number of the form 2^i or 3 * 2^i."""
    unit = 1 << max(n_examples.bit_length() - 2, 0)
    return math.ceil(n_examples / unit) * unit


def inputs(data: Labelled, *index: Any) -> tuple[Any, Any]:
    """query_I and context_NxI of example i of one set, or of example i of set k, stacked along k.

    A shared context does not depend on i.
    """
    *which, _ = index
    shared = data.context.ndim < data.query_TxI.ndim + 1
    return data.query_TxI[index], data.context[tuple(which) if shared else index]
