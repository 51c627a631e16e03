"""Batches of lanes: the examples of a step, the objective on them, and on all examples."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from memobench.core.module import Module
from memobench.core.run import Run
from memobench.engine.lanes import Lane, stack_shapes
from memobench.engine.signature import Signature
from memobench.numerics import lookup, metrics
from memobench.tasks import labelled_contexts
from memobench.tasks.labelled_contexts import Labelled
from memobench.tasks.tokens import EVALUATED_AT_ONCE, Instance, TokenTask

# What a CPU computes of so many examples at a time stays in its caches.
READ_AT_ONCE = 4096

# Loss and accuracy.
Seen = tuple[jax.Array, jax.Array]


@dataclasses.dataclass(frozen=True)
class Reader:
    """A way to read examples, for the lanes of one signature."""

    signature: Signature

    def shapes(self, n_instances: int) -> Any:
        """Shapes of the data of so many instances."""
        raise NotImplementedError

    def steps(self, data: Any, lane: Lane) -> Callable[..., Seen]:
        """A function of a step's order_B and a lane's variables to loss and accuracy.

        Given one of `parts` as well, it returns that part's share of both.
        """
        raise NotImplementedError

    def parts(self, data: Any, lane: Lane) -> Any:
        """Parts of equal size of a step's examples, stacked; None where it reads all at once."""
        del data, lane

    def evaluate(self, variables: Any, data: Any, lane_R: Lane, due_R: jax.Array) -> Seen:
        """loss_R and accuracy_R on all examples, of the lanes that are due."""
        raise NotImplementedError


def reader_for(signature: Signature) -> Reader:
    """The Reader of the lanes of a signature."""
    return (TokenReader if isinstance(signature.task, TokenTask) else ContextReader)(signature)


# --- Tokens ------------------------------------------------------------------------------------


class TokenReader(Reader):
    """Reader of `instances`, and of `draws`, the training set of each, K x M.

    Draws are numbers of examples; of subsets, numbers in [0, 1) that scale with their size.
    """

    def shapes(self, n_instances: int) -> Any:
        subsets, task = self.signature.subsets, self.signature.task
        dtype = jnp.float32 if subsets else jnp.int32
        draws = jax.ShapeDtypeStruct((n_instances, self.signature.n_draws), dtype)
        return {"instances": stack_shapes(task.shapes(), n_instances), "draws": draws}

    def steps(self, data: Any, lane: Lane) -> Callable[..., Seen]:
        signature, task = self.signature, self.signature.task
        instance, draws_M = self._instance_of(data, lane), data["draws"][lane.instance]
        if signature.subsets:
            n = lane.n_examples
            draws_M = jnp.minimum((draws_M * n).astype(jnp.int32), n - 1)
        # Of a subset only the examples that it holds count.
        weighted = True if signature.subsets else None

        def measure(order_B: jax.Array, variables: Any, part: Any = None) -> Seen:
            if part is not None:
                of_part: Any = task.first_examples(len(part.prior_T))
                return of_part.objective(signature.module, variables, part, weighted=True)
            examples_B: Any = None
            if task.is_fresh:
                key = jax.random.wrap_key_data(order_B)
                examples_B = task.draw_batch(key, signature.batch_size)
            elif signature.batch_size:
                examples_B = draws_M[order_B]
            return task.objective(signature.module, variables, instance, examples_B, weighted)

        return measure

    def parts(self, data: Any, lane: Lane) -> Any:
        """Of a listed set that is read whole: padded with examples that never occur."""
        task, n = self.signature.task, self.signature.task.n_examples
        n_parts = math.ceil(n / READ_AT_ONCE)
        size = math.ceil(n / n_parts)
        is_whole = not self.signature.batch_size and n_parts > 1
        if not (is_whole and task.is_listed and task.first_examples(size)):
            return None

        def split(x_Tx: jax.Array) -> jax.Array:
            padded = jnp.pad(x_Tx, [(0, n_parts * size - n), *[(0, 0)] * (x_Tx.ndim - 1)])
            return padded.reshape(n_parts, size, *x_Tx.shape[1:])

        return jax.tree.map(split, self._instance_of(data, lane))

    def evaluate(self, variables: Any, data: Any, lane_R: Lane, due_R: jax.Array) -> Seen:
        module, task = self.signature.module, self.signature.task

        def evaluate_whole(variables: Any, lane: Lane) -> Seen:
            instance = self._instance_of(data, lane)
            if self.signature.subsets:
                return task.objective(module, variables, instance, weighted=True)
            return task.evaluate(module, variables, instance)

        def one(lane: Any) -> Seen:
            *lane, due = lane
            return jax.lax.cond(
                due, evaluate_whole, lambda *_: (jnp.float32(0), jnp.float32(0)), *lane
            )

        # One lane after another: all examples of all lanes at once would not fit beside training.
        return jax.lax.map(one, (variables, lane_R, due_R))

    def _instance_of(self, data: Any, lane: Lane) -> Instance:
        instance = jax.tree.map(lambda x: x[lane.instance], data["instances"])
        if not self.signature.subsets:
            return instance
        number_T = jnp.arange(instance.prior_T.shape[0])
        prior_T = jnp.where(number_T < lane.n_examples, 1 / lane.n_examples, 0.0)
        return instance._replace(prior_T=prior_T)


# Of so many draws about sixteen share the bits that order them.
MOST_IN_WORDS = 2**18


def shuffle_key(run: Run) -> jax.Array:
    """The key of the run's shuffles, from its seed alone."""
    return jax.random.fold_in(jax.random.key(run.seed), 1)


def epoch_order(key: jax.Array, epoch: jax.Array, batch_size: int, n_batches: int) -> jax.Array:
    """order_LxB: a permutation of the draws for this epoch.

    The low bits of random words carry the index, so that one sort of plain words shuffles (five
    times faster on a CPU than sorting pairs). Ties of the high bits keep their order, which could
    matter only where a batch ends within a tie. Longer epochs, of which too few bits are left, sort
    pairs.
    """
    n = batch_size * n_batches
    random = jax.random.bits(jax.random.fold_in(key, epoch), (n,), jnp.uint32)
    if n > MOST_IN_WORDS:
        _, order = jax.lax.sort_key_val(random, jnp.arange(n, dtype=jnp.int32))
        return order.reshape(n_batches, batch_size)
    mask = jnp.uint32((1 << max(n - 1, 1).bit_length()) - 1)
    words = jnp.sort((random & ~mask) | jnp.arange(n, dtype=jnp.uint32))
    return (words & mask).astype(jnp.int32).reshape(n_batches, batch_size)


def step_keys(key: jax.Array, epoch: jax.Array, batch_size: int, n_batches: int) -> jax.Array:
    """words_Lx2: the words of every step's key, from which its batch is drawn."""
    return jax.random.key_data(jax.random.split(jax.random.fold_in(key, epoch), n_batches))


# --- Labelled contexts -------------------------------------------------------------------------


class ContextReader(Reader):
    """Reader of the largest set of every seed, stacked as drawn; batches come from the host."""

    def shapes(self, n_instances: int) -> Any:
        return stack_shapes(self.signature.task.shapes(), n_instances)

    def steps(self, data: Labelled, lane: Lane) -> Callable[..., Seen]:
        def measure(rows_B: jax.Array, variables: Any) -> Seen:
            module = self.signature.module
            loss_B, correct_B = labelled_objective(module, variables, data, lane.instance, rows_B)
            return loss_B.mean(), correct_B.mean()

        return measure

    def evaluate(self, variables: Any, data: Labelled, lane_R: Lane, due_R: jax.Array) -> Seen:
        return evaluate_prefixes(self.signature.module, variables, data, lane_R)


def labelled_objective(
    module: Module, variables: Any, data: Labelled, instance: jax.Array, rows_B: jax.Array
) -> Seen:
    """loss_B and correct_B: cross-entropy in nats, or the squared error and whether it is small."""
    # Where there is one set only, what lanes read of it is the same for all of them.
    which = 0 if len(data.label_T) == 1 else instance

    def one(row: jax.Array) -> Seen:
        output: Any = module.apply(variables, *labelled_contexts.inputs(data, which, row))
        return metrics.loss_and_correct(output, data.label_T[which, row])

    with jax.default_matmul_precision("highest"):
        return jax.vmap(one)(rows_B)


def evaluate_prefixes(module: Module, variables: Any, data: Labelled, lane_R: Lane) -> Seen:
    """loss_R and accuracy_R, means over the prefixes that lanes memorize, block by block."""
    n_examples_R, n_all = lane_R.n_examples, data.label_T.shape[1]
    block = math.ceil(n_all / math.ceil(n_all / EVALUATED_AT_ONCE))

    def add(i: jax.Array, sums: Any) -> Any:
        rows_E = i * block + jnp.arange(block)
        loss_RxE, correct_RxE = jax.vmap(
            lambda variables, instance: labelled_objective(
                module, variables, data, instance, rows_E
            )
        )(variables, lane_R.instance)
        mine_RxE = rows_E[None] < n_examples_R[:, None]
        loss_R = jnp.where(mine_RxE, loss_RxE, 0).sum(axis=1)
        return sums[0] + loss_R, sums[1] + (correct_RxE & mine_RxE).sum(axis=1)

    zeros = jnp.zeros(n_examples_R.shape), jnp.zeros(n_examples_R.shape, jnp.int32)
    # On a CPU no more blocks than any lane needs; an accelerator would ask the host in every turn.
    loss_R, correct_R = lookup.select_by_platform(
        lambda: jax.lax.fori_loop(0, -(-n_examples_R.max() // block), add, zeros),
        lambda: jax.lax.fori_loop(0, -(-n_all // block), add, zeros),
    )
    return loss_R / n_examples_R, correct_R / n_examples_R
