"""Training: one model's step, and a pack's program as a `vmap` around it. No files, no printing.

A program is compiled once for the shape of a pack. The host scans it in chunks, which gives
progress and keeps the program free of callbacks.
"""

import dataclasses
import functools
import math
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from memobench import compiling, devices, metrics, packing
from memobench.devices import SHARED, SPLIT
from memobench.methods.training import Training
from memobench.models import base as models
from memobench.models.base import Module
from memobench.runs import Run

MAX_STEPS_PER_CHUNK = 64


@dataclasses.dataclass(frozen=True)
class PackResult:
    """What training a pack gave, in the order of its runs.

    accuracy_R, loss_R (mean, nats), bits_R: over all examples at the final weights.
    step_accuracy_RxL, step_loss_RxL: of each step's batch before its update.
    compile_seconds: 0 where the program was compiled before. variables: final, padded, stacked.
    certificates: further columns of each run's row, from methods that have any.
    """

    accuracy_R: np.ndarray
    loss_R: np.ndarray
    bits_R: np.ndarray
    step_accuracy_RxL: np.ndarray
    step_loss_RxL: np.ndarray
    compile_seconds: float
    run_seconds: float
    variables: Any = dataclasses.field(repr=False)
    certificates: tuple[dict[str, Any], ...] = ()


@dataclasses.dataclass(frozen=True)
class Program:
    """A pack's compiled functions; R runs of K task instances."""

    begin: Callable[..., Any]
    shuffle: Callable[..., Any]
    chunk: Callable[..., Any]
    evaluate: Callable[..., Any]


def train_one(run: Run) -> PackResult:
    """Trains one run alone at its true size, as its method says: a pack of one."""
    return run.method.train(packing.together([run]), lambda steps: None)


def train_many(
    pack: packing.Pack, on_steps: Callable[[int], None] = lambda _: None, initial: Any = None
) -> PackResult:
    """Trains the runs of a pack in one program.

    Args:
      pack: the runs and the module they are padded to.
      on_steps: called with the number of model-steps done since its last call.
      initial: variables to start from, padded and stacked; None draws them from the runs' seeds.

    Returns:
      A PackResult with one entry per run; a run that diverged has a loss that is not finite.

    Raises:
      ValueError: a run starts from a construction, and that was not given.
    """
    runs, methods = pack.runs, [_training(run) for run in pack.runs]
    if initial is None and methods[0].start:
        raise ValueError("a run that starts from a construction needs `constructions.initial`")
    task, method = runs[0].task, methods[0]
    instances = list(dict.fromkeys(run.task for run in runs))
    shape = program_shape(pack)
    program, compile_seconds = compiling.timed(compile_program, shape)

    started = time.perf_counter()
    data = _data(instances, [instances.index(run.task) for run in runs], method)
    variables = devices.split(packing.init_pack(pack) if initial is None else initial)
    state = {"variables": variables, "optimizer": program.begin(variables)}
    key_R = devices.split(jnp.stack([packing.shuffle_key(run) for run in runs]))
    first_R, last_R = np.array(
        [(method.learning_rate, method.final_learning_rate) for method in methods]
    ).T
    steps = steps_per_chunk(method)
    losses: list[jax.Array] = []
    accuracies: list[jax.Array] = []
    for epoch in range(method.epochs):
        order_RxLxB = program.shuffle(key_R, jnp.int32(epoch))
        rate_R = first_R + (last_R - first_R) * epoch / method.epochs
        rate_R = devices.split(rate_R.astype(np.float32))
        for start in range(0, method.n_batches, steps):
            state, (loss_RxC, accuracy_RxC) = program.chunk(
                state, data, rate_R, order_RxLxB[:, start : start + steps]
            )
            if losses:  # One chunk stays in flight: the device is busy and the progress honest.
                losses[-1].block_until_ready()
                on_steps(len(runs) * steps)
            losses.append(loss_RxC)
            accuracies.append(accuracy_RxC)
    evaluated = program.evaluate(state["variables"], data)
    loss_R, accuracy_R = devices.first(len(runs), tuple(map(np.asarray, evaluated)))
    on_steps(len(runs) * steps)
    return PackResult(
        accuracy_R=accuracy_R,
        loss_R=loss_R,
        bits_R=metrics.memorized_bits(loss_R, task.n_predicted, task.n_choices or 2),
        step_accuracy_RxL=devices.first(len(runs), np.concatenate(accuracies, axis=1)),
        step_loss_RxL=devices.first(len(runs), np.concatenate(losses, axis=1)),
        compile_seconds=compile_seconds,
        run_seconds=time.perf_counter() - started,
        variables=devices.first(len(runs), state["variables"]),
    )


def _training(run: Run) -> Training:
    method: Any = run.method
    return method


def steps_per_chunk(method: Training) -> int:
    """The largest number of steps up to MAX_STEPS_PER_CHUNK that divides an epoch."""
    at_most = min(method.n_batches, MAX_STEPS_PER_CHUNK)
    return next(c for c in range(at_most, 0, -1) if method.n_batches % c == 0)


def _trained(module: Module, method: Training, params: dict[str, Any]) -> dict[str, Any]:
    """Those of the parameters that the method trains."""
    chosen = method.trains(module)
    return {name: x for name, x in params.items() if chosen(name)}


def optimizer(module: Module, method: Training, variables: Any) -> Any:
    """The optimiser's state before the first step, of stacked variables."""
    return jax.vmap(method.optimizer.transform().init)(
        _trained(module, method, variables["params"])
    )


def step(
    module: Module,
    task: Any,
    method: Training,
    state: Any,
    instance: Any,
    rate: jax.Array,
    examples_B: Any,
    weighted: bool | None = None,
) -> tuple[Any, tuple[jax.Array, jax.Array]]:
    """One step of one model; returns its new state, and loss and accuracy before the step."""
    variables = state["variables"]

    def loss_and_accuracy(trained: Any) -> tuple[jax.Array, jax.Array]:
        tried = {**variables, "params": {**variables["params"], **trained}}
        return task.objective(module, tried, instance, examples_B, weighted)

    trained = _trained(module, method, variables["params"])
    (loss, accuracy), gradient = jax.value_and_grad(loss_and_accuracy, has_aux=True)(trained)
    transform = method.optimizer.transform()
    update, optimizer = transform.update(gradient, state["optimizer"], trained)
    trained = jax.tree.map(lambda p, u: p - rate * u, trained, update)
    variables = {**variables, "params": {**variables["params"], **trained}}
    return {"variables": variables, "optimizer": optimizer}, (loss, accuracy)


def _epoch_order(key: jax.Array, epoch: jax.Array, batch_size: int, n_batches: int) -> jax.Array:
    """order_LxB: a permutation of the draws for this epoch.

    The low bits of random words carry the index, so that one sort of plain words shuffles (five
    times faster on a CPU than sorting pairs). Ties of the high bits keep their order, which could
    matter only where a batch ends within a tie.
    """
    n = batch_size * n_batches
    mask = jnp.uint32((1 << max(n - 1, 1).bit_length()) - 1)
    random = jax.random.bits(jax.random.fold_in(key, epoch), (n,), jnp.uint32)
    words = jnp.sort((random & ~mask) | jnp.arange(n, dtype=jnp.uint32))
    return (words & mask).astype(jnp.int32).reshape(n_batches, batch_size)


def _step_keys(key: jax.Array, epoch: jax.Array, n_batches: int) -> jax.Array:
    """The words of every step's key: (L, 2)."""
    return jax.random.key_data(jax.random.split(jax.random.fold_in(key, epoch), n_batches))


def _data(instances: list[Any], instance_of_run: list[int], method: Training) -> Any:
    """What is memorized, once for each task instance, and which of them each run memorizes."""
    return {
        "instance_R": devices.split(np.array(instance_of_run, np.int32)),
        "instances": devices.shared(
            jax.tree.map(lambda *xs: jnp.stack(xs), *(task.sample() for task in instances))
        ),
        "draws": devices.shared(jnp.stack([_draws(task, method) for task in instances])),
    }


_DATA = {"instance_R": SPLIT, "instances": SHARED, "draws": SHARED}


def _n_draws(task: Any, method: Training) -> int:
    """Size of the training set; 0 where there is none."""
    return 0 if task.is_fresh else method.n_batches * (method.batch_size or 0)


def _draws(task: Any, method: Training) -> jax.Array:
    """draws_M: the training set, which the protocol `passes` does not leave to chance."""
    n_draws = _n_draws(task, method)
    if method.protocol == "passes":
        return jnp.arange(n_draws, dtype=jnp.int32) % task.n_examples
    return task.sample_draws(n_draws)


def of(tree: Any, which: jax.Array) -> Any:
    """One of a stacked tree, or several."""
    return jax.tree.map(lambda x: x[which], tree)


def stacked(tree: Any, n: int) -> Any:
    """The shapes of n such trees, stacked."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct((n, *x.shape), x.dtype), tree)


# Everything that decides a compilation: padded module, task, method, numbers of runs and instances.
Shape = tuple[Module, Any, Training, int, int]


def program_shape(pack: packing.Pack) -> Shape:
    """What the pack's program depends on; equal shapes share one compilation."""
    run = pack.runs[0]
    return (
        pack.module,
        run.task.signature(),
        _training(run).static(),
        devices.filled(len(pack.runs)),
        len({run.task for run in pack.runs}),
    )


def shuffler(method: Training, fresh: bool = False) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """From the runs' keys and the epoch: order_RxLxB, empty (R, L, 0) without batches.

    fresh: every step draws a batch of its own, from a key that stands in place of the order.
    """
    batch_size = method.batch_size or 0

    def shuffle(key_R: jax.Array, epoch: jax.Array) -> jax.Array:
        if fresh:
            return jax.vmap(_step_keys, in_axes=(0, None, None))(key_R, epoch, method.n_batches)
        if not batch_size:
            return jnp.zeros((len(key_R), method.n_batches, 0), jnp.int32)
        order = functools.partial(_epoch_order, batch_size=batch_size, n_batches=method.n_batches)
        return jax.vmap(order, in_axes=(0, None))(key_R, epoch)

    return shuffle


@functools.lru_cache(maxsize=32)
def compile_program(shape: Shape) -> Program:
    """The compiled functions of every pack of this shape."""
    module, task, method, n_runs, n_instances = shape
    batch_size, fresh = method.batch_size or 0, task.is_fresh

    def chunk(state: Any, data: Any, rate_R: jax.Array, order_RxCxB: jax.Array) -> Any:
        def train(state: Any, which: jax.Array, rate: jax.Array, order_CxB: jax.Array) -> Any:
            memorized, draws_M = of(data["instances"], which), data["draws"][which]

            def one_step(state: Any, order_B: jax.Array) -> Any:
                if fresh:
                    examples_B: Any = task.fresh(jax.random.wrap_key_data(order_B), batch_size)
                else:
                    examples_B = draws_M[order_B] if batch_size else None
                return step(module, task, method, state, memorized, rate, examples_B)

            return jax.lax.scan(one_step, state, order_CxB)

        return jax.vmap(train)(state, data["instance_R"], rate_R, order_RxCxB)

    def evaluate(variables: Any, data: Any) -> Any:
        def one(run: Any) -> Any:
            variables, which = run
            return task.evaluate(module, variables, of(data["instances"], which))

        # One run after another: all examples of all runs at once would not fit beside training.
        return jax.lax.map(one, (variables, data["instance_R"]))

    begin = functools.partial(optimizer, module, method)
    variables = stacked(models.shapes(module, task.context_length), n_runs)
    state = {
        "variables": variables,
        "optimizer": jax.eval_shape(begin, variables),
    }
    data = {
        "instance_R": jax.ShapeDtypeStruct((n_runs,), jnp.int32),
        "instances": stacked(task.shapes(), n_instances),
        "draws": jax.ShapeDtypeStruct((n_instances, _n_draws(task, method)), jnp.int32),
    }
    rate_R = jax.ShapeDtypeStruct((n_runs,), jnp.float32)
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), n_runs))
    epoch = jax.ShapeDtypeStruct((), jnp.int32)
    shuffle = shuffler(method, fresh)
    of_epoch = jax.eval_shape(shuffle, keys, epoch)
    order = jax.ShapeDtypeStruct(
        (n_runs, steps_per_chunk(method), of_epoch.shape[-1]), of_epoch.dtype
    )

    return Program(
        begin=compiling.compiled(begin, variables, specs=(SPLIT,)),
        shuffle=compiling.compiled(shuffle, keys, epoch, specs=(SPLIT, SHARED)),
        chunk=compiling.compiled(
            chunk, state, data, rate_R, order, specs=(SPLIT, _DATA, SPLIT, SPLIT), donate=(0,)
        ),
        evaluate=compiling.compiled(evaluate, variables, data, specs=(SPLIT, _DATA)),
    )


def protocol_accuracy(result: PackResult) -> np.ndarray:
    """accuracy_R as the published code reports it: mean over the last 100 steps but the very last.

    Of each step's batch before its update, on the sampled set (Dana et al. 2025, released code).
    A single step counts itself.
    """
    accuracy_RxL = result.step_accuracy_RxL
    last_RxL = accuracy_RxL[:, -100:-1] if accuracy_RxL.shape[1] > 1 else accuracy_RxL
    return last_RxL.mean(axis=1)


def log_spaced_curve(
    accuracy_L: np.ndarray, loss_L: np.ndarray, points: int = 24
) -> tuple[list[int], list[float], list[float | None]]:
    """Log-spaced numbers of steps, and the mean batch accuracy and loss since the one before.

    A loss that is not finite is None.
    """
    stops = sorted({math.ceil(stop) for stop in np.geomspace(1, len(accuracy_L), points)})
    spans = [slice(*span) for span in zip([0, *stops[:-1]], stops, strict=True)]
    losses = [float(loss_L[span].mean()) for span in spans]
    return (
        stops,
        [float(accuracy_L[span].mean()) for span in spans],
        [loss if math.isfinite(loss) else None for loss in losses],
    )
