"""Copies, which are weights that compute what published ones compute."""

import dataclasses
import functools
import pathlib
from collections.abc import Collection, Iterable

import jax
import numpy as np

from memobench import certificates
from memobench.board import families
from memobench.board.table import find_budget
from memobench.certificates import Certificate, counting
from memobench.common import folders, settings
from memobench.common.errors import UserError
from memobench.core.task import Task

# How far apart functions of size 1 are that count as one. Trained weights as bfloat16 are 0.02 to
# 0.06 from themselves, published ones that train on until they know 2% more 0.18 or farther, and
# two trainings of one architecture from other initial weights 1.3.
SAME = 0.1

# A file of weights, and what it holds.
Weights = tuple[pathlib.Path, Certificate]


@functools.lru_cache(maxsize=16)
@settings.pin
def normalized_outputs(certificate: Certificate) -> np.ndarray:
    """The outputs of weights on all examples of their set of the board, of norm 1.

    It is the same for weights whose neurons or heads are in another order, whose embeddings are
    shifted along what answers do not depend on, and of a wider model with weights of zero.
    """
    whole = dataclasses.replace(certificate, task=_shared_set(certificate.task), first=None)
    data, variables = jax.tree.map(np.asarray, (whole.task.sample(), whole.variables()))
    output_TxC = counting.outputs(whole, variables, data)
    # Answers do not depend on what is added to all choices of an example.
    output_TxC -= output_TxC.mean(axis=1, keepdims=True)
    return (output_TxC / (np.linalg.norm(output_TxC) or 1.0)).astype(np.float32)


def find_original(certificate: Certificate, others: Iterable[Weights]) -> pathlib.Path | None:
    """The first file of others whose weights compute what these do; None without one."""
    for path, other in others:
        is_alike = _shared_set(other.task) == _shared_set(certificate.task)
        if is_alike and _are_same(certificate, other):
            return path
    return None


def _shared_set(task: Task) -> Task:
    """The set as large as the budget, whose examples are also the first ones of a peak's."""
    budget = find_budget(task)
    return task if budget is None else families.task(budget, task.seed)


def _are_same(certificate: Certificate, other: Certificate) -> bool:
    return bool(np.linalg.norm(normalized_outputs(certificate) - normalized_outputs(other)) < SAME)


def load_published(tasks: Collection[Task], submitted: bool = False) -> list[Weights]:
    """Published weights of these tasks, memobench's own and, if asked for, submitted ones.

    What cannot be read, such as weights of code that was not loaded, is left out.
    """
    found, folder = [], folders.published()
    sets = set(map(_shared_set, tasks))
    paths = sorted((folder / "board" / "weights").glob(f"*{certificates.SUFFIX}"))
    if submitted:
        paths += sorted((folder / "submissions").glob(f"*/*{certificates.SUFFIX}"))
    for path in paths:
        try:
            other, _ = certificates.read(path, follow=False)
        except UserError:
            continue
        if _shared_set(other.task) in sets:
            found.append((path, other))
    return found
