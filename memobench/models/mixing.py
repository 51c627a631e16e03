"""The sum of attention heads in the form that is fast on an accelerator.

Shape letters: Q places that look, S places that are seen, E places before the one that looks, H
heads, I width of a key and J of another, X any.
"""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from memobench.numerics import lookup

# The attention of accelerators over so few places is written out, place by place.
FEW_PLACES = 4
# The score of a place that is not seen: the difference of two of them is a number.
UNSEEN = -1e30


def fold(einsum: str, left: jax.Array, right: jax.Array) -> jax.Array:
    """product_HJI of every head's two matrices, transposed: as written, or the other way round.

    Accelerators then read and write it in one order in all products, CPUs are faster so.
    """
    operands, _ = einsum.split("->")
    first, second = operands.split(",")

    def multiply_other_way_round(left: jax.Array, right: jax.Array) -> jax.Array:
        if len(left) > 1:
            return jnp.einsum(f"{second},{first}->hji", right, left)
        # Around an axis of one head a GPU's weights would be transposed in every step.
        return jnp.einsum(f"{second[1:]},{first[1:]}->ji", right[0], left[0])[None]

    def multiply_as_written(left: jax.Array, right: jax.Array) -> jax.Array:
        return jnp.einsum(einsum, left, right).swapaxes(1, 2)

    return lookup.select_by_platform(multiply_as_written, multiply_other_way_round, left, right)


def attend(
    key_SxI: jax.Array,
    query_key_HJI: jax.Array,
    output_value_HJI: jax.Array,
    scale: jax.Array,
    n_places: int,
) -> jax.Array:
    """attended_QxI: what all heads add at the last n_places of S, each seeing those before it.

    An example holds a query and a mixture of keys for every head. Where heads are many it holds
    less by pairs of places: the products of their numbers, whose weighted sums are all scores, and
    the mixture of all heads' maps.
    """
    n_heads, width, _ = query_key_HJI.shape
    if has_few_pairs(len(key_SxI), n_places, n_heads, width):
        places = range(len(key_SxI) - n_places, len(key_SxI))
        further_QxI = jnp.concatenate(
            [_add_pairs(key_SxI[: q + 1], query_key_HJI, output_value_HJI, scale) for q in places]
        )
        # As sums, which are part of kernels that do more.
        alone_QxI = (key_SxI[-n_places:, :, None] * output_value_HJI.sum(axis=0)[None]).sum(axis=1)
        return alone_QxI + further_QxI
    query_QxHxJ = jnp.einsum("qi,hji->qhj", key_SxI[-n_places:], query_key_HJI * scale)
    return jnp.einsum("qhj,hji->qi", _mix_keys(query_QxHxJ, key_SxI), output_value_HJI)


def has_few_pairs(n_seen: int, n_places: int, n_heads: int, width: int) -> bool:
    """True where products of two places' numbers are fewer than what heads hold."""
    n_pairs = sum(range(n_seen - n_places, n_seen))
    return n_seen <= FEW_PLACES and 0 < n_pairs * width < n_places * n_heads


def _add_pairs(
    key_SxI: jax.Array, query_key_HJI: jax.Array, output_value_HJI: jax.Array, scale: jax.Array
) -> jax.Array:
    """further_1xI: what heads add at the last place beyond what they do where all see it alone."""
    own_1xI, apart_ExJ = key_SxI[-1:], key_SxI[:-1] - key_SxI[-1:]
    product_ExJxI = apart_ExJ[..., None] * own_1xI[:, None]
    score_ExH = scale * jnp.einsum("eji,hji->eh", product_ExJxI, query_key_HJI)
    if len(score_ExH) == 1:
        attention_ExH = jax.nn.sigmoid(score_ExH)
    else:
        # Of its own key the score is 0.
        attention_ExH = jax.nn.softmax(jnp.pad(score_ExH, ((0, 1), (0, 0))), axis=0)[:-1]
    map_ExJxI = jnp.einsum("eh,hji->eji", attention_ExH, output_value_HJI)
    return (apart_ExJ[..., None] * map_ExJxI).sum(axis=1).sum(axis=0, keepdims=True)


def _mix_keys(query_QxHxI: jax.Array, key_SxI: jax.Array) -> jax.Array:
    """mixed_QxHxI: the keys mixed by every head's attention, from the last Q of S places."""
    score_QxHxS = jnp.einsum("qhj,sj->qhs", query_QxHxI, key_SxI)
    if len(query_QxHxI) > 1:
        # Each of the last Q sees itself and those before it.
        seen_QxS = np.tri(len(key_SxI), dtype=bool)[-len(query_QxHxI) :]
        score_QxHxS = jnp.where(seen_QxS[:, None], score_QxHxS, UNSEEN)
    of_scores = _softmax_of_few if len(key_SxI) <= FEW_PLACES else jax.nn.softmax
    return jnp.einsum("qhs,si->qhi", of_scores(score_QxHxS), key_SxI)


def softmax(scores: Sequence[jax.Array]) -> list[jax.Array]:
    """The softmax over a few arrays of scores, written out: no axis is reduced."""
    largest = jax.lax.stop_gradient(functools.reduce(jnp.maximum, scores))
    weights = [jnp.exp(score - largest) for score in scores]
    total = functools.reduce(jnp.add, weights)
    return [weight / total for weight in weights]


@jax.custom_vjp
def _softmax_of_few(score_XxS: jax.Array) -> jax.Array:
    """attention_XxS: softmax over the last axis, one kernel without reductions, and so backward."""
    ratios = [jnp.exp(score_XxS[..., s, None] - score_XxS) for s in range(score_XxS.shape[-1])]
    return 1 / functools.reduce(jnp.add, ratios)


def _softmax_forward(score_XxS: jax.Array) -> tuple[jax.Array, jax.Array]:
    attention_XxS = _softmax_of_few(score_XxS)
    return attention_XxS, attention_XxS


def _softmax_backward(attention_XxS: jax.Array, gradient_XxS: jax.Array) -> tuple[jax.Array]:
    weighted_XxS = attention_XxS * gradient_XxS
    mean_X = functools.reduce(jnp.add, jnp.unstack(weighted_XxS, axis=-1))
    return (weighted_XxS - attention_XxS * mean_X[..., None],)


_softmax_of_few.defvjp(_softmax_forward, _softmax_backward)
