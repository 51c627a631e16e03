"""Trains runs by the protocol of Mahdavi et al. (2024), many at once, however long each takes.

A pack has slots. All slots take `evaluate_every` steps in one compiled program, then every set is
evaluated; a run that is done leaves its slot to the next one waiting, and when none waits and half
the slots are idle a program of half the width takes over. All runs of a seed read one set of
examples, of which each takes its prefix. State is kept per run, so that a checkpoint serves
whatever pack a run comes to be in. No files, no printing.

Shape letters: R slots, T examples of the largest set, B batch, C steps of a round, E examples
evaluated together.
"""

import collections
import concurrent.futures
import dataclasses
import functools
import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from memobench import compiling, devices, metrics, packing, ranks, saturation, training
from memobench.checkpoints import Arrays, Checkpoints
from memobench.devices import SHARED, SPLIT
from memobench.methods.annealing import Annealing
from memobench.models import base as models
from memobench.models.base import Module
from memobench.optimizers import Optimizer
from memobench.runs import Run
from memobench.tasks import labelled_contexts
from memobench.tasks.labelled_contexts import Labelled, LabelledContexts
from memobench.tasks.tokens import EVALUATED_AT_ONCE

SECONDS_BETWEEN_CHECKPOINTS = 60.0
# A narrower program is worth its compilation in packs predicted to take so many seconds or more.
NARROWED_FROM_SECONDS = 60.0
# Pictures of which heads serve which examples are kept up to so many pairs.
MAX_PAIRS = 16_384

_log = logging.getLogger("memobench")

_POOL = concurrent.futures.ThreadPoolExecutor(thread_name_prefix="shuffle")


class State(NamedTuple):
    """What rounds carry on, of a run at its true size or of a pack stacked along R.

    best: the parameters of the least loss over all examples so far, or those that end the run by
    knowing all; with their loss, how many examples they know, and their step.
    """

    variables: Any
    moments: Any
    best: Any
    best_loss: Any
    best_correct: Any
    best_step: Any


class Schedule(NamedTuple):
    """What a round needs to know of a run beside its state, as traced numbers.

    stops_at: the number of known examples that ends the run, beyond reach where none does.
    """

    step: Any
    steps: Any
    warmup_steps: Any
    learning_rate: Any
    first_share: Any
    n_examples: Any
    which_set: Any
    stops_at: Any


@dataclasses.dataclass
class _Progress:
    """A run as the host knows it.

    curve: (step, loss, accuracy) of its evaluations. state: at true size, None while in a slot.
    """

    run: Run
    step: int = 0
    curve: list[tuple[int, float, float]] = dataclasses.field(default_factory=list)
    done: bool = False
    saved: bool = False
    state: State | None = None


def anneal(
    pack: packing.Pack,
    on_steps: Callable[[int], None] = lambda _: None,
    checkpoints: Checkpoints | None = None,
) -> training.PackResult:
    """Trains every run of a pack whose method is an Annealing.

    Args:
      pack: the runs, the module they are padded to, and how many of them train at a time.
      on_steps: called with the number of model-steps done since its last call.
      checkpoints: where to resume from, and to save to every SECONDS_BETWEEN_CHECKPOINTS.

    Returns:
      A PackResult at the weights of least loss. `certificates` holds each run's evaluations, the
      step it stopped at, that of its best weights, and which heads are saturated.
    """
    started = saved = time.perf_counter()
    slots = _Slots(pack, checkpoints)
    while slots.busy():
        steps = slots.round()
        try:
            on_steps(steps)
        except BaseException:  # The sweep was stopped.
            if checkpoints:
                slots.save(checkpoints)
            raise
        if checkpoints and time.perf_counter() - saved > SECONDS_BETWEEN_CHECKPOINTS:
            slots.save(checkpoints)
            saved = time.perf_counter()
    if checkpoints:
        slots.save(checkpoints)
    return slots.result(started)


class _Slots:
    """The runs in training, stacked on the device, and those that wait or are done."""

    def __init__(self, pack: packing.Pack, checkpoints: Checkpoints | None) -> None:
        self.pack, self.compile_seconds = pack, 0.0
        self.task = packing.largest_task(pack)
        self.seeds = sorted({run.task.seed for run in pack.runs})
        self.data = devices.shared(_sets(self.task, self.seeds))
        self.shuffled = _Shuffled()
        self.all = [_load(run, checkpoints) for run in pack.runs]
        self.waiting = collections.deque(each for each in self.all if not each.done)
        width = self._width(pack.slots, len(self.waiting))
        self.here = [self._next() for _ in range(width)] if self.waiting else []
        self.stacked = devices.split(self._enter(self.here)) if self.here else None

    def busy(self) -> bool:
        """Whether any run is not done."""
        return any(not each.done for each in self.here)

    def round(self) -> int:
        """Trains and evaluates every slot once; returns the model-steps that took."""
        first = self.pack.runs[0]
        shape = (
            self.pack.module,
            self.task,
            _annealing(first).static(),
            len(self.here),
            len(self.seeds),
        )
        program, seconds = compiling.timed(compile_round, *shape)
        self.compile_seconds += seconds
        each_schedule = [_schedule(each, self.seeds) for each in self.here]
        schedule = Schedule(*map(np.stack, zip(*each_schedule, strict=True)))
        working = [not each.done for each in self.here]
        rows_RxCxB = np.stack([self.shuffled(each) for each in self.here])
        self.stacked, loss_R, correct_R = program(self.stacked, self.data, schedule, rows_RxCxB)
        for each in self.here:
            self.shuffled.ahead(each)
        for each, loss, correct in zip(
            self.here, *map(np.asarray, (loss_R, correct_R)), strict=True
        ):
            if not each.done:
                _advance(each, float(loss), int(correct))
        self._exchange(working)
        return sum(working) * _annealing(first).evaluate_every

    def save(self, checkpoints: Checkpoints) -> None:
        """Saves every run that has begun, those that are done once."""
        if self.busy():
            on_host = jax.device_get(self.stacked)
            for i, each in enumerate(self.here):
                if not each.done:
                    checkpoints.save(each.run.run_id, _arrays(each, _crop(on_host, i, each.run)))
        for each in self.all:
            if each.done and not each.saved:
                checkpoints.save(each.run.run_id, _arrays(each, _of(each)))
                each.saved = True

    def _next(self) -> _Progress:
        """The next run that waits, or an idle one."""
        return self.waiting.popleft() if self.waiting else _Progress(self.pack.runs[0], done=True)

    def _exchange(self, working: Sequence[bool]) -> None:
        """Takes finished runs out, waiting ones in, and narrows the pack where slots are idle."""
        finished = [i for i, each in enumerate(self.here) if working[i] and each.done]
        if not finished:
            return
        which = np.array(finished)
        on_host = jax.device_get(jax.tree.map(lambda x: x[which], self.stacked))
        for place, i in enumerate(finished):
            self.shuffled.forget(self.here[i])
            self.here[i].state = _crop(on_host, place, self.here[i].run)
        entering = finished[: len(self.waiting)]
        for i in entering:
            self.here[i] = self._next()
        if entering:
            new = self._enter([self.here[i] for i in entering])
            where = np.array(entering)
            self.stacked = jax.tree.map(
                lambda x, y: devices.split(x.at[where].set(y)), self.stacked, new
            )
        by_idleness = sorted(range(len(self.here)), key=lambda i: self.here[i].done)
        n_working = sum(not each.done for each in self.here)
        kept = np.array(by_idleness[: self._width(len(self.here), n_working)])
        if n_working and len(kept) < len(self.here):
            self.here = [self.here[i] for i in kept]
            self.stacked = jax.tree.map(lambda x: devices.split(x[kept]), self.stacked)

    def _width(self, slots: int, n_working: int) -> int:
        # Nothing measured decides, so that a resumed pack has the width it was left with.
        worth = self.pack.seconds >= NARROWED_FROM_SECONDS
        slots, n_working = devices.share(slots), devices.share(n_working)
        return devices.count() * (packing.width(slots, n_working) if worth else slots)

    def _enter(self, entering: Sequence[_Progress]) -> Any:
        """The states of runs, padded and stacked."""
        target = _shapes(self.pack.module, _annealing(self.pack.runs[0]).optimizer)
        states = [packing.pad_to(each.state or _start(each.run), target) for each in entering]
        for each in entering:
            each.state = None
        return _stack(states)

    def result(self, started: float) -> training.PackResult:
        """Everything about runs that are all done."""
        states = [_of(each) for each in self.all]
        n_examples = np.array([each.run.task.n_examples for each in self.all])
        loss_R = np.array([float(state.best_loss) for state in states])
        accuracy_R = np.array([int(state.best_correct) for state in states]) / n_examples
        certificates = tuple(self._certificate(each) for each in self.all)
        return training.PackResult(
            accuracy_R=accuracy_R,
            loss_R=loss_R,
            bits_R=metrics.memorized_bits(loss_R, n_examples, self.task.n_classes or 1),
            step_accuracy_RxL=accuracy_R[:, None],
            step_loss_RxL=loss_R[:, None],
            compile_seconds=self.compile_seconds,
            run_seconds=time.perf_counter() - started - self.compile_seconds,
            variables=_stack(self._best(each) for each in self.all),
            certificates=certificates,
        )

    def _best(self, each: _Progress) -> Any:
        state = _of(each)
        variables = {"params": state.best, "constants": state.variables["constants"]}
        return packing.pad_to(variables, models.shapes(self.pack.module, 0))

    def _certificate(self, each: _Progress) -> dict[str, Any]:
        state, run, best = _of(each), each.run, self._best(each)
        n_examples = run.task.n_examples
        n_heads = run.architecture.shared_cells()["n_heads"]
        mine = self.seeds.index(run.task.seed)
        data = jax.tree.map(lambda x: x.addressable_data(0)[mine], self.data)
        largest_TxH = saturation.of_module(
            self.pack.module, best, labelled_contexts.inputs, data, n_examples
        )[:, :n_heads]
        deep = self.pack.module.deep
        small = largest_TxH.size <= MAX_PAIRS
        points = np.unique(np.geomspace(1, len(each.curve), 24).round().astype(int)) - 1
        steps, losses, accuracies = zip(*(each.curve[i] for i in points), strict=True)
        return {
            "curve_steps": [int(step) for step in steps],
            "curve_accuracy": list(accuracies),
            "curve_loss": [loss if math.isfinite(loss) else None for loss in losses],
            "stopped_at": each.step,
            "best_step": int(state.best_step),
            **saturation.columns(largest_TxH),
            "largest_attention": np.round(largest_TxH.T, 3).tolist() if small else None,
            **(ranks.columns(self.pack.module, best, data, n_examples) if deep else {}),
        }


class _Shuffled:
    """Batches that the host's cores shuffle while the device trains."""

    def __init__(self) -> None:
        self.ready: dict[str, concurrent.futures.Future] = {}

    def ahead(self, each: _Progress) -> None:
        """Begins with the batches of a run's next round, if there will be one."""
        method = _annealing(each.run)
        step = each.step + method.evaluate_every
        if not each.done and step < method.steps:
            self.ready[each.run.run_id] = _POOL.submit(batches, each.run, step)

    def __call__(self, each: _Progress) -> np.ndarray:
        """`batches` of a run's round, at once if begun ahead; those of an idle slot are zeros."""
        method = _annealing(each.run)
        if each.done:
            return np.zeros((method.evaluate_every, method.batch_size), np.int32)
        begun = self.ready.pop(each.run.run_id, None)
        return begun.result() if begun else batches(each.run, each.step)

    def forget(self, each: _Progress) -> None:
        """Of a run that ended early."""
        self.ready.pop(each.run.run_id, None)


def _sets(task: LabelledContexts, seeds: Sequence[int]) -> Any:
    """The sets of all seeds, stacked as they are drawn: they may take gigabytes."""
    sets = jax.tree.map(lambda x: np.empty((len(seeds), *x.shape), x.dtype), task.shapes())
    for k, seed in enumerate(seeds):
        drawn = task.replace(seed=seed).sample()
        for into, x in zip(sets, drawn, strict=True):
            into[k] = x
    return sets


def _stack(trees: Iterable[Any]) -> Any:
    return jax.tree.map(lambda *xs: np.stack(xs), *trees)


def _of(each: _Progress) -> State:
    """The state of a run that is on the host."""
    if each.state is None:
        raise ValueError(f"run {each.run.run_id} is still in training")
    return each.state


def _crop(stacked: Any, i: int, run: Run) -> Any:
    """The state in slot i at its true size."""
    shapes = _shapes(run.module(), _annealing(run).optimizer)
    return jax.tree.map(
        # Copied, so that it does not keep what the others have.
        lambda x, shape: np.array(x[i][tuple(slice(size) for size in shape.shape)]),
        stacked,
        shapes,
    )


def batches(run: Run, step: int) -> np.ndarray:
    """rows_CxB, int32: the examples of the batches of a round that begins at a step.

    Epoch after epoch runs through all examples in an order drawn from the run's seed and the
    epoch's number; a batch may reach from one epoch into the next.
    """
    method, n_examples = _annealing(run), run.task.n_examples
    start = step * method.batch_size
    stop = start + method.evaluate_every * method.batch_size
    epochs = range(start // n_examples, -(-stop // n_examples))
    orders = [np.random.default_rng([run.seed, epoch]).permutation(n_examples) for epoch in epochs]
    skipped = start - epochs[0] * n_examples
    rows = np.concatenate(orders)[skipped : skipped + stop - start]
    return rows.astype(np.int32).reshape(method.evaluate_every, method.batch_size)


def rate(schedule: Schedule, step: jax.Array) -> jax.Array:
    """The learning rate of a step, counted from 0: linear warm-up, then a cosine to zero."""
    warm = schedule.warmup_steps
    share = schedule.first_share + (1 - schedule.first_share) * step / jnp.maximum(warm, 1)
    progress = (step - warm) / (schedule.steps - warm)
    falling = (1 + jnp.cos(math.pi * progress)) / 2
    return schedule.learning_rate * jnp.where(step < warm, share, falling)


def objective(
    module: Module, variables: Any, data: Labelled, which_set: jax.Array, rows_B: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """loss_B and correct_B: cross-entropy in nats, or the squared error and whether it is small."""
    # Where there is one set only, what runs read of it is the same for all of them.
    which = 0 if len(data.label_T) == 1 else which_set

    def one(row: jax.Array) -> tuple[jax.Array, jax.Array]:
        output_C: Any = module.apply(variables, *labelled_contexts.inputs(data, which, row))
        return metrics.loss_and_correct(output_C, data.label_T[which, row])

    with jax.default_matmul_precision("highest"):
        return jax.vmap(one)(rows_B)


def step(
    module: Module,
    method: Annealing,
    data: Labelled,
    schedule: Schedule,
    state: State,
    rows_B: jax.Array,
    i: Any,
) -> State:
    """One step of one run on a batch; i counts the steps of the round."""
    constants = state.variables["constants"]

    def loss(params: Any) -> jax.Array:
        variables = {"params": params, "constants": constants}
        return objective(module, variables, data, schedule.which_set, rows_B)[0].mean()

    params = state.variables["params"]
    gradient, transform = jax.grad(loss)(params), method.optimizer.transform()
    update, moments = transform.update(gradient, state.moments, params)
    size = rate(schedule, schedule.step + i)
    params = jax.tree.map(lambda p, u: p - size * u, params, update)
    return state._replace(variables={"params": params, "constants": constants}, moments=moments)


def evaluate(
    module: Module, data: Labelled, variables: Any, schedule: Schedule
) -> tuple[jax.Array, jax.Array]:
    """Mean loss, and how many examples are correct, of R runs on the prefixes they memorize."""
    n_examples, n_all = schedule.n_examples, data.label_T.shape[1]
    block = math.ceil(n_all / math.ceil(n_all / EVALUATED_AT_ONCE))

    def add(i: jax.Array, sums: Any) -> Any:
        rows_E = i * block + jnp.arange(block)
        loss_RxE, correct_RxE = jax.vmap(
            lambda variables, which_set: objective(module, variables, data, which_set, rows_E)
        )(variables, schedule.which_set)
        mine_RxE = rows_E[None] < n_examples[:, None]
        loss_R = jnp.where(mine_RxE, loss_RxE, 0).sum(axis=1)
        return sums[0] + loss_R, sums[1] + (correct_RxE & mine_RxE).sum(axis=1)

    zeros = jnp.zeros(n_examples.shape), jnp.zeros(n_examples.shape, jnp.int32)
    blocks = -(-n_examples.max() // block)
    loss_R, correct_R = jax.lax.fori_loop(0, blocks, add, zeros)
    return loss_R / n_examples, correct_R


@functools.lru_cache(maxsize=32)
def compile_round(
    module: Module, task: LabelledContexts, method: Annealing, width: int, n_sets: int
) -> Any:
    """A round of as many slots: (state, data, schedule, rows_RxCxB) -> state, loss_R, correct_R."""

    def train(state: State, data: Labelled, schedule: Schedule, rows_CxB: jax.Array) -> State:
        def one(state: State, batch: Any) -> tuple[State, None]:
            return step(module, method, data, schedule, state, *batch), None

        counted = rows_CxB, jnp.arange(len(rows_CxB), dtype=jnp.float32)
        return jax.lax.scan(one, state, counted)[0]

    def whole(state: State, data: Labelled, schedule: Schedule, rows_RxCxB: jax.Array) -> Any:
        state = jax.vmap(train, in_axes=(0, None, 0, 0))(state, data, schedule, rows_RxCxB)
        loss_R, correct_R = evaluate(module, data, state.variables, schedule)
        step_R = (schedule.step + len(rows_RxCxB[0])).astype(jnp.int32)
        better_R = (loss_R < state.best_loss) | (correct_R >= schedule.stops_at)
        state = jax.vmap(_keep_best)(state, better_R, loss_R, correct_R, step_R)
        return state, loss_R, correct_R

    def stacked(tree: Any, n: int = width) -> Any:
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct((n, *x.shape), x.dtype), tree)

    number = jax.ShapeDtypeStruct((), jnp.float32)
    whole_number = jax.ShapeDtypeStruct((), jnp.int32)
    schedule: Any = Schedule
    schedule = schedule(*[number] * 5, *[whole_number] * 3)
    rows = jax.ShapeDtypeStruct((method.evaluate_every, method.batch_size), jnp.int32)
    return compiling.compiled(
        whole,
        stacked(_shapes(module, method.optimizer)),
        stacked(task.shapes(), n_sets),
        stacked(schedule),
        stacked(rows),
        specs=(SPLIT, SHARED, SPLIT, SPLIT),
        donate=(0,),
    )


def _keep_best(
    state: State, better: jax.Array, loss: jax.Array, correct: jax.Array, at_step: jax.Array
) -> State:
    new = state.variables["params"], loss, correct, at_step
    old = state.best, state.best_loss, state.best_correct, state.best_step
    best = jax.tree.map(lambda x, y: jnp.where(better, x, y), new, old)
    return State(state.variables, state.moments, *best)


def _annealing(run: Run) -> Annealing:
    method: Any = run.method
    return method


def _schedule(each: _Progress, seeds: Sequence[int]) -> Schedule:
    method = _annealing(each.run)
    return Schedule(
        step=np.float32(each.step),
        steps=np.float32(method.steps),
        warmup_steps=np.float32(round(method.warmup * method.steps)),
        learning_rate=np.float32(method.learning_rate),
        first_share=np.float32(method.first_share),
        n_examples=np.int32(each.run.task.n_examples),
        which_set=np.int32(seeds.index(each.run.task.seed)),
        stops_at=np.int32(_annealing(each.run).stops_at(each.run)),
    )


def _advance(each: _Progress, loss: float, correct: int) -> None:
    method, task = _annealing(each.run), each.run.task
    each.step += method.evaluate_every
    each.curve.append((each.step, loss, correct / task.n_examples))
    ended = correct >= _annealing(each.run).stops_at(each.run) or each.step >= method.steps
    # What is not finite stays so: only earlier weights count.
    each.done = ended or not math.isfinite(loss)


@functools.lru_cache(maxsize=1024)
def _shapes(module: Module, optimizer: Optimizer) -> Any:
    """A State of shapes and dtypes."""
    variables = models.shapes(module, 0)
    scalar = functools.partial(jax.ShapeDtypeStruct, ())
    state: Any = State
    return state(
        variables=variables,
        moments=jax.eval_shape(optimizer.transform().init, variables["params"]),
        best=variables["params"],
        best_loss=scalar(jnp.float32),
        best_correct=scalar(jnp.int32),
        best_step=scalar(jnp.int32),
    )


def _start(run: Run) -> State:
    module = run.module()
    variables = models.init_on_host(module, 0, packing.init_key(run))
    optimizer = _annealing(run).optimizer
    if _starts_at_zero(optimizer):  # Without a compilation for every size.
        shapes = _shapes(module, optimizer).moments
        moments = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes)
    else:
        moments = jax.device_get(optimizer.transform().init(variables["params"]))
    numbers = np.float32(np.inf), np.int32(0), np.int32(0)
    return State(variables, moments, variables["params"], *numbers)


@functools.cache
def _starts_at_zero(optimizer: Optimizer) -> bool:
    """Whether its state before the first step is zero, whatever the weights are."""
    state = optimizer.transform().init({"w": jnp.ones(1)})
    return not any(np.any(x) for x in jax.tree.leaves(state))


def _arrays(each: _Progress, state: State) -> Arrays:
    leaves, _ = jax.tree_util.tree_flatten_with_path(state)
    progress = {"step": each.step, "done": each.done, "curve": each.curve}
    named = {jax.tree_util.keystr(path): leaf for path, leaf in leaves}
    return {name: np.asarray(x) for name, x in (progress | named).items()}


def _load(run: Run, checkpoints: Checkpoints | None) -> _Progress:
    """The run where its checkpoint left it, or at its beginning."""
    arrays = checkpoints.load(run.run_id) if checkpoints else None
    if arrays is None:
        return _Progress(run)
    shapes, tree = jax.tree_util.tree_flatten_with_path(
        _shapes(run.module(), _annealing(run).optimizer)
    )
    leaves = [arrays.get(jax.tree_util.keystr(path)) for path, _ in shapes]
    expected = [shape.shape for _, shape in shapes]
    if [None if leaf is None else leaf.shape for leaf in leaves] != expected:
        _log.warning("the checkpoint of run %s is of another version; it starts anew", run.run_id)
        return _Progress(run)
    curve = [(int(step), loss, accuracy) for step, loss, accuracy in arrays["curve"].tolist()]
    done = bool(arrays["done"])
    state = jax.tree.unflatten(tree, leaves)
    return _Progress(run, int(arrays["step"]), curve, done, saved=done, state=state)
