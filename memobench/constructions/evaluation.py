"""What constructed weights know, by the module's own forward pass.

Shape letters: T examples of the task, A of them aimed at, C outputs.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special
from flax import linen as nn

from memobench import metrics, models, tasks
from memobench.specs import LabelledContexts, Task
from memobench.tasks import labelled_contexts

# Logits are scaled until the least certain answer has this advantage, in nats, if all are right.
SURE = 40.0
_MOST_DOUBLINGS = 60


def sample(task: Task | LabelledContexts) -> Any:
    """The task's examples, whatever kind it is."""
    if isinstance(task, LabelledContexts):
        return labelled_contexts.sample(task)
    return tasks.sample(task)


def prior(task: Task | LabelledContexts, data: Any) -> np.ndarray:
    """prior_T, float64, summing to 1."""
    if isinstance(task, LabelledContexts) or task.zipf_exponent is None:
        return np.full(task.n_examples, 1 / task.n_examples)
    prior_T = np.asarray(data.prior_T, np.float64)
    return prior_T / prior_T.sum()


def has_one_answer(task: Task | LabelledContexts) -> bool:
    """Whether every example has a single right class or next token."""
    if isinstance(task, LabelledContexts):
        return task.n_classes is not None
    return (task.n_next or 1) == 1


def outputs(
    module: nn.Module, variables: Any, task: Task | LabelledContexts, data: Any, double: bool
) -> np.ndarray:
    """output_TxC of all examples, computed in float64 or float32."""
    kind = np.float64 if double else np.float32

    def cast(x: Any) -> jax.Array:
        x = np.asarray(x)
        return jnp.asarray(x, kind if np.issubdtype(x.dtype, np.floating) else x.dtype)

    with jax.enable_x64(double), jax.default_matmul_precision("highest"):
        variables, data = jax.tree.map(cast, (variables, data))
        shape = dataclasses.replace(task, seed=0)
        return np.asarray(_outputs(module, shape, variables, data))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _outputs(module: nn.Module, task: Any, variables: Any, data: Any) -> jax.Array:
    if isinstance(task, LabelledContexts):
        return jax.vmap(
            lambda i: jnp.asarray(module.apply(variables, *labelled_contexts.example(data, i)))
        )(jnp.arange(task.n_examples))
    tokens_TxS = tasks.tokens_of_example(task, data, jnp.arange(task.n_examples))
    if task.n_sequences is None:
        return models.all_logits(module, variables, tokens_TxS)
    return jax.vmap(lambda tokens_S: models.logits(module, variables, tokens_S))(tokens_TxS)


@dataclasses.dataclass(frozen=True)
class Judged:
    """loss_T (nats, or squared error), correct_T, margin_T: how far the right answer is ahead.

    Margins are shares of the largest output; NaN for scalars and for several right answers.
    """

    loss_T: np.ndarray
    correct_T: np.ndarray
    margin_T: np.ndarray


def judge(task: Task | LabelledContexts, data: Any, output_TxC: np.ndarray) -> Judged:
    """Every example's loss, whether it is known, and its margin."""
    output_TxC = output_TxC.astype(np.float64)
    margin_T = np.full(len(output_TxC), np.nan)
    if has_one_answer(task):
        margin_T = _advantage(output_TxC, _answers(task, data))
        margin_T /= max(np.abs(output_TxC).max(), np.finfo(np.float64).tiny)
    with jax.enable_x64(True):
        if isinstance(task, LabelledContexts):
            label_T = jnp.asarray(data.label_T)
            measured = jax.vmap(metrics.loss_and_correct)(jnp.asarray(output_TxC), label_T)
        else:
            probability_TxK = np.asarray(data.probability_TxK, np.float64)
            probability_TxK = probability_TxK / probability_TxK.sum(axis=1, keepdims=True)
            measured = jax.vmap(metrics.kl_and_correct)(
                jnp.asarray(output_TxC), jnp.asarray(data.next_TxK), jnp.asarray(probability_TxK)
            )
        loss_T, correct_T = (np.asarray(x) for x in measured)
    return Judged(loss_T, correct_T, margin_T)


def doublings(
    task: Task | LabelledContexts, data: Any, output_TxC: np.ndarray, prior_T: np.ndarray
) -> int:
    """The k for which the logits times 2^k have the least loss, or are all SURE.

    A power of two changes no digit of any weight. Zero where there is more than one right answer.
    """
    if not has_one_answer(task) or not np.isfinite(output_TxC).all() or not output_TxC.any():
        return 0
    output_TxC = output_TxC.astype(np.float64)
    answer_T = _answers(task, data)
    right_T = output_TxC[np.arange(len(answer_T)), answer_T]
    advantage = float(_advantage(output_TxC, answer_T).min())

    def loss(k: int) -> float:
        normalizer_T = scipy.special.logsumexp(output_TxC * 2.0**k, axis=1)
        return float(prior_T @ (normalizer_T - right_T * 2.0**k))

    def sure(k: int) -> bool:
        return advantage * 2.0**k >= SURE

    best = round(-np.log2(np.abs(output_TxC).max()))
    direction = 1 if loss(best + 1) < loss(best) else -1
    for _ in range(_MOST_DOUBLINGS):
        # The loss is convex in the scale, so that the first rise is behind the least.
        if (direction > 0 and sure(best)) or loss(best + direction) >= loss(best):
            break
        best += direction
    return best


def _answers(task: Task | LabelledContexts, data: Any) -> np.ndarray:
    if isinstance(task, LabelledContexts):
        return np.asarray(data.label_T)
    return np.asarray(data.next_TxK)[:, 0]


def _advantage(output_TxC: np.ndarray, answer_T: np.ndarray) -> np.ndarray:
    rows_T = np.arange(len(answer_T))
    others_TxC = output_TxC.astype(np.float64)
    right_T = others_TxC[rows_T, answer_T].copy()
    others_TxC[rows_T, answer_T] = -np.inf
    return right_T - others_TxC.max(axis=1)
