"""Labelled contexts: every pair of a query and a context has a label.

Mahdavi, Liao & Thrampoulidis (2024), section 6. Position 0 is the query, 1 .. n are the context;
each position, and the labels, are drawn from a stream of their own, so that of two tasks that
differ in their sizes alone the smaller is a prefix of the larger. Runs of a pack share one set.

Shape letters: T examples, N context_length, I input_dim, B vectors in the bag.
"""

from typing import Any, NamedTuple

import jax
import numpy as np

from memobench.specs import LabelledContexts

_LABELS, _BAG, _TOKENS = range(3)


class Labelled(NamedTuple):
    """One set of labelled contexts.

    query_TxI: float32. context: float32, (T, N, I), or (N, I) where one is shared, or (B, I), the
    bag, where place_TxN, int32, says which of its vectors stand where; place_TxN is empty (T, 0)
    otherwise. label_T: int32 classes or float32 scalars.
    """

    query_TxI: np.ndarray
    context: np.ndarray
    place_TxN: np.ndarray
    label_T: np.ndarray


def sample(task: LabelledContexts) -> Labelled:
    """The task's set, drawn from its seed alone."""
    n_examples, size = task.n_examples, task.input_dim
    query_TxI = _stream(task, _TOKENS, 0).random((n_examples, size), np.float32)
    label_T = _sample_labels(task)
    place_TxN = np.zeros((n_examples, 0), np.int32)
    if task.contexts == "bag":
        bag_BxI = _stream(task, _BAG, 0).random((task.n_bag or 0, size), np.float32)
        return Labelled(query_TxI, bag_BxI, _sample_places(task), label_T)
    own = () if task.contexts == "shared" else (n_examples,)
    context = np.empty((*own, task.context_length, size), np.float32)
    for i in range(task.context_length):
        context[..., i, :] = _stream(task, _TOKENS, 1 + i).random((*own, size), np.float32)
    return Labelled(query_TxI, context, place_TxN, label_T)


def shapes(task: LabelledContexts) -> Any:
    """A Labelled of the shapes and dtypes of `sample`, without computing anything."""
    n_examples, length, size = task.n_examples, task.context_length, task.input_dim
    context: dict[str, tuple[int, ...]] = {
        "shared": (length, size),
        "random": (n_examples, length, size),
        "bag": (task.n_bag or 0, size),
    }
    n_places = length if task.contexts == "bag" else 0
    labelled: Any = Labelled
    return labelled(
        query_TxI=jax.ShapeDtypeStruct((n_examples, size), np.float32),
        context=jax.ShapeDtypeStruct(context[task.contexts], np.float32),
        place_TxN=jax.ShapeDtypeStruct((n_examples, n_places), np.int32),
        label_T=jax.ShapeDtypeStruct(
            (n_examples,), np.float32 if task.n_classes is None else np.int32
        ),
    )


def example(data: Labelled, *index: Any) -> tuple[Any, Any]:
    """query_I and context_NxI of example i of one set, or of example k, i of sets stacked along k.

    A shared context does not depend on i.
    """
    *which, _ = index
    query_I = data.query_TxI[index]
    if data.place_TxN.shape[-1]:
        return query_I, data.context[(*which, data.place_TxN[index])]
    shared = data.context.ndim < data.query_TxI.ndim + 1
    return query_I, data.context[tuple(which) if shared else index]


def _stream(task: LabelledContexts, kind: int, position: int) -> np.random.Generator:
    return np.random.default_rng([task.seed, kind, position])


def _sample_labels(task: LabelledContexts) -> np.ndarray:
    stream = _stream(task, _LABELS, 0)
    if task.n_classes is None:
        return stream.random(task.n_examples, np.float32)
    # Scaled uniforms: bounded integers may take several words each, which would break prefixes.
    return (stream.random(task.n_examples) * task.n_classes).astype(np.int32)


def _sample_places(task: LabelledContexts) -> np.ndarray:
    """place_TxN: the first N of a random arrangement of the bag, shuffled position by position."""
    n_bag = task.n_bag or 0
    order_TxB = np.tile(np.arange(n_bag, dtype=np.int32), (task.n_examples, 1))
    rows_T = np.arange(task.n_examples)
    for i in range(task.context_length):
        random_T = _stream(task, _TOKENS, 1 + i).random(task.n_examples)
        chosen_T = i + (random_T * (n_bag - i)).astype(np.int64)
        order_TxB[rows_T, i], order_TxB[rows_T, chosen_T] = (
            order_TxB[rows_T, chosen_T],
            order_TxB[rows_T, i],
        )
    return order_TxB[:, : task.context_length].copy()
