"""The functions that are compiled: steps of all lanes, and their evaluation."""

import concurrent.futures
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from memobench.core.module import trains
from memobench.engine import batches, compiling, devices, lanes, resident
from memobench.engine.compiling import Part
from memobench.engine.devices import SHARED, SPLIT
from memobench.engine.lanes import Best, Lane, State
from memobench.engine.signature import Signature
from memobench.numerics import lookup


@dataclasses.dataclass(frozen=True)
class Program:
    """The compiled functions of R lanes.

    Attributes:
      begin: from their variables, the state of all lanes.
      enter: the state in which some of them begin anew.
      shuffle: from keys and epochs, order_RxLxB; None without epochs.
      slice_epoch: from order_RxLxB and first steps, order_RxCxB.
      chunk: takes C steps of every lane.
      evaluate: loss and accuracy of the lanes that are due, and the best weights.
    """

    begin: Callable[..., Any]
    enter: Callable[..., Any]
    shuffle: Callable[..., Any] | None
    slice_epoch: Callable[..., Any]
    chunk: Callable[..., Any]
    evaluate: Callable[..., Any]


def step(
    signature: Signature,
    loss_and_accuracy: Callable[..., tuple[jax.Array, jax.Array]],
    variables: Any,
    opt_state: Any,
    rate: jax.Array,
    of_shapes: Any = None,
    parts: Any = None,
) -> tuple[Any, Any, tuple[jax.Array, jax.Array]]:
    """One step of one model: variables, opt_state, and loss and accuracy before the step.

    Args:
      signature: of the program.
      loss_and_accuracy: of variables, and of one of `parts` if there are any (`Reader.parts`).
      variables: before the step.
      opt_state: before the step.
      rate: the learning rate.
      of_shapes: see `Lane`.
      parts: of the batch, stacked; None where a step reads all at once.
    """

    def loss_of_trained(trained: Any, *part: Any) -> tuple[jax.Array, jax.Array]:
        params = {**variables["params"], **trained}
        return loss_and_accuracy({**variables, "params": params}, *part)

    is_trainable = trains(signature.module, signature.trained)
    trained = {name: x for name, x in variables["params"].items() if is_trainable(name)}
    optimizer, of_shapes = signature.optimizer, of_shapes or {}
    point = optimizer.point(trained, opt_state, of_shapes)
    seen, gradient = value_and_gradient(loss_of_trained, point, parts)
    with jax.default_matmul_precision("highest"):
        trained, opt_state = optimizer.step(trained, gradient, opt_state, rate, of_shapes)
    return {**variables, "params": {**variables["params"], **trained}}, opt_state, seen


def value_and_gradient(objective: Callable[..., Any], point: Any, parts: Any = None) -> Any:
    """The objective and its gradient at a point.

    On a CPU the sum of those of parts, one after another: then its caches hold what a part needs.
    """
    whole = jax.value_and_grad(objective, has_aux=True)

    def sum_parts(point: Any, parts: Any) -> Any:
        def add(sums: Any, part: Any) -> Any:
            return jax.tree.map(jnp.add, sums, whole(point, part)), None

        shapes = jax.eval_shape(whole, point, jax.tree.map(lambda x: x[0], parts))
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        return jax.lax.scan(add, zeros, parts)[0]

    if parts is None:
        return whole(point)
    return lookup.select_by_platform(sum_parts, lambda point, _: whole(point), point, parts)


@functools.lru_cache(maxsize=32)
@compiling.time_calls
def compile_program(signature: Signature, n_lanes: int, n_instances: int) -> Program:
    """The functions of all packs of this signature, with so many lanes and instances."""
    parts = to_compile(signature, n_lanes, n_instances)
    begin, chunk = parts["begin"].function, parts.pop("chunk")
    # The compiler of a kernel takes seconds, in a process of its own.
    with concurrent.futures.ThreadPoolExecutor(1) as beside:
        kernel = beside.submit(resident.find_chunk, signature)
        compiled = {name: part.compile() for name, part in parts.items()}
        compiled |= {"chunk": kernel.result() or chunk.compile()}

    def enter(state: State, variables_R: Any, enters_R: jax.Array) -> State:
        def one(old: State, new: State, enters: jax.Array) -> State:
            return jax.tree.map(lambda x, y: jnp.where(enters, y, x), old, new)

        return jax.vmap(one)(state, begin(variables_R), enters_R)

    return Program(
        # Compiled where a lane is filled again; no pack of plain runs does that.
        enter=devices.jit(enter, (SPLIT, SPLIT, SPLIT), donate_argnums=(0,)),
        slice_epoch=devices.jit(
            functools.partial(_slice_epoch, signature.chunk_steps), (SPLIT, SPLIT)
        ),
        **{"shuffle": None} | compiled,
    )


def to_compile(signature: Signature, n_lanes: int, n_instances: int) -> dict[str, Part]:
    """The functions that a program compiles at once, by name, and the shapes they take."""
    state = lanes.stack_shapes(signature.shapes(), n_lanes)
    data = batches.reader_for(signature).shapes(n_instances)
    number, count = (jax.ShapeDtypeStruct((n_lanes,), dtype) for dtype in (jnp.float32, jnp.int32))
    of_shapes = lanes.stack_shapes(signature.of_shapes(), n_lanes)
    lane = Lane(count, count, number, count, of_shapes)
    rate = jax.ShapeDtypeStruct((n_lanes, signature.chunk_steps), jnp.float32)
    shuffle, order = _make_shuffle(signature, n_lanes)
    order = jax.ShapeDtypeStruct((n_lanes, signature.chunk_steps, *order.shape[2:]), order.dtype)
    due = jax.ShapeDtypeStruct((n_lanes,), jnp.bool_)
    parts = {
        "begin": Part(_make_begin(signature), (state.variables,), (SPLIT,)),
        "chunk": Part(
            _make_chunk(signature),
            (state, data, lane, rate, order),
            (SPLIT, SHARED, SPLIT, SPLIT, SPLIT),
            donate=(0,),
        ),
        "evaluate": Part(
            _make_evaluate(signature),
            (state.variables, state.best, data, lane, due),
            (SPLIT, SPLIT, SHARED, SPLIT, SPLIT),
            donate=(1,),
        ),
    }
    return parts | ({"shuffle": shuffle} if shuffle else {})


def _make_begin(signature: Signature) -> Callable[..., Any]:
    """`Program.begin`, to be compiled."""

    def begin(variables_R: Any) -> State:
        is_trainable = trains(signature.module, signature.trained)
        one = functools.partial(
            lanes.begin, signature.optimizer, is_trainable, signature.keeps_best
        )
        return jax.vmap(one)(variables_R)

    return begin


def _make_chunk(signature: Signature) -> Callable[..., Any]:
    """`Program.chunk`, to be compiled."""
    reader = batches.reader_for(signature)

    def chunk(state: State, data: Any, lane_R: Lane, rate_RxC: Any, order_RxCxB: Any) -> Any:
        def train(variables: Any, opt_state: Any, lane: Lane, rate_C: Any, order_CxB: Any) -> Any:
            loss_of, parts = reader.steps(data, lane), reader.parts(data, lane)

            def one(carried: Any, of_step: Any) -> Any:
                rate, order_B = of_step
                loss = functools.partial(loss_of, order_B)
                variables, opt_state = carried
                *carried, seen = step(
                    signature, loss, variables, opt_state, rate, lane.of_shapes, parts
                )
                return tuple(carried), seen if signature.curve else None

            return jax.lax.scan(one, (variables, opt_state), (rate_C, order_CxB))

        (variables, opt_state), curve = jax.vmap(train)(
            state.variables, state.opt_state, lane_R, rate_RxC, order_RxCxB
        )
        return State(variables, opt_state, state.best), curve

    return chunk


def _make_evaluate(signature: Signature) -> Callable[..., Any]:
    """`Program.evaluate`, to be compiled."""
    reader = batches.reader_for(signature)

    def evaluate(variables: Any, best: Any, data: Any, lane_R: Lane, due_R: jax.Array) -> Any:
        loss_R, accuracy_R = reader.evaluate(variables, data, lane_R, due_R)
        if signature.keeps_best:
            # A loss that is not due never counts as better.
            counted_R, target_R = (jnp.where(due_R, x, jnp.inf) for x in (loss_R, lane_R.target))
            new = Best(variables["params"], counted_R, accuracy_R, lane_R.step)
            best = jax.vmap(keep_better)(best, new, target_R)
        return best, loss_R, accuracy_R

    return evaluate


def keep_better(best: Best, new: Best, target: jax.Array) -> Best:
    """The weights of less loss, or new ones whose accuracy ends the job, whatever their loss."""
    better = (new.loss < best.loss) | (new.accuracy >= target)
    return jax.tree.map(lambda x, y: jnp.where(better, y, x), best, new)


def _make_shuffle(signature: Signature, n_lanes: int) -> tuple[Part | None, Any]:
    """The shuffles of an epoch, if there are any, and the shape of an order of batches."""
    batch_size, n_batches = signature.batch_size, signature.epoch_steps
    if not (batch_size and n_batches):
        shape = n_lanes, signature.chunk_steps, batch_size
        return None, jax.ShapeDtypeStruct(shape, jnp.int32)
    one = functools.partial(
        batches.step_keys if signature.task.is_fresh else batches.epoch_order,
        batch_size=batch_size,
        n_batches=n_batches,
    )
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), n_lanes))
    epoch = jax.ShapeDtypeStruct((n_lanes,), jnp.int32)
    shuffle = Part(jax.vmap(one), (keys, epoch), (SPLIT, SPLIT))
    return shuffle, jax.eval_shape(shuffle.function, *shuffle.arguments)


def _slice_epoch(n_steps: int, order_RxLxB: jax.Array, start_R: jax.Array) -> jax.Array:
    """order_RxCxB: of every lane's epoch the steps from its own start."""

    def one(order_LxB: jax.Array, start: jax.Array) -> jax.Array:
        return jax.lax.dynamic_slice_in_dim(order_LxB, start, n_steps)

    return jax.vmap(one)(order_RxLxB, start_R)
