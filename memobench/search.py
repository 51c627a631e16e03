"""Searches for capacities: all runs of a pack bisect side by side, in one compiled program.

`capacity` says which trials come next; here they are trained. A trial's number of examples is data
(examples beyond it have no weight), as are its learning rate and its instance, so that every round
of every run is the same program. Runs that are done make room: lanes are halved as they suffice.

Shape letters: L lanes, T examples, S context_length, C steps of a chunk, B batch, M draws.
"""

import dataclasses
import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from memobench import capacity, compiling, devices, metrics, packing, training
from memobench.capacity import Proposal, Trial
from memobench.checkpoints import Checkpoints
from memobench.devices import SHARED, SPLIT
from memobench.methods.search import Search
from memobench.methods.training import Training
from memobench.models import base as models
from memobench.models.base import Module
from memobench.runs import Run

# Steps between two looks at what is known, as Nichani et al. (2025) look. The published protocol
# sees batches, so that only its final weights are looked at.
CHECK_EVERY = 32


@dataclasses.dataclass(frozen=True)
class Program:
    """The compiled functions of L lanes."""

    begin: Callable[..., Any]
    shuffle: Callable[..., Any]
    chunk: Callable[..., Any]
    evaluate: Callable[..., Any]


def search(
    pack: packing.Pack,
    on_steps: Callable[[int], None] = lambda _: None,
    checkpoints: Checkpoints | None = None,
) -> training.PackResult:
    """Searches the capacity of every run of a pack.

    Args:
      pack: searches that share a program.
      on_steps: called with the number of model-steps done since its last call.
      checkpoints: where trials are kept, so that a killed search goes on where it was.

    Returns:
      A PackResult whose accuracies and losses are those on all examples, each by its best learning
      rate; what was found stands in its certificates.
    """
    started = time.perf_counter()
    runs = pack.runs
    trials = [_saved(run, checkpoints) for run in runs]
    trainer = _Trainer(pack, on_steps)
    while True:
        proposed = {
            i: capacity.next_trials(_method(run), run.task.n_examples, trials[i])
            for i, run in enumerate(runs)
        }
        waiting = {i: proposals for i, proposals in proposed.items() if proposals}
        if not waiting:
            break
        # Trials of a round take equal steps: those with the fewest go first.
        steps = min(proposals[0].steps for proposals in waiting.values())
        chosen = {i: p for i, p in waiting.items() if p[0].steps == steps}
        for i, made in trainer.train(chosen).items():
            trials[i] += made
            if checkpoints is not None:
                table = np.array(trials[i], np.float64)
                checkpoints.save(runs[i].run_id, {"trials": table})
    return _result(runs, trials, trainer.compile_seconds, time.perf_counter() - started)


def _method(run: Run) -> Search:
    method: Any = run.method
    return method


def _saved(run: Run, checkpoints: Checkpoints | None) -> list[Trial]:
    saved = checkpoints.load(run.run_id) if checkpoints is not None else None
    if saved is None:
        return []
    return [
        Trial(int(steps), int(n), float(factor), int(known), int(last), float(loss))
        for steps, n, factor, known, last, loss in saved["trials"]
    ]


def _result(
    runs: Sequence[Run], trials: list[list[Trial]], compile_seconds: float, seconds: float
) -> training.PackResult:
    found = [
        capacity.best_of_whole(trial, run.task.n_examples)
        for trial, run in zip(trials, runs, strict=True)
    ]
    accuracy_R, loss_R = np.array(found).T
    sizes_R = np.array([run.task.n_examples for run in runs])
    vocab_R = np.array([run.task.n_choices for run in runs])
    return training.PackResult(
        accuracy_R=accuracy_R,
        loss_R=loss_R,
        bits_R=metrics.memorized_bits(loss_R, sizes_R, vocab_R),
        step_accuracy_RxL=accuracy_R[:, None],
        step_loss_RxL=loss_R[:, None],
        compile_seconds=compile_seconds,
        run_seconds=seconds - compile_seconds,
        variables=None,
        certificates=tuple(
            capacity.columns(run.task.n_examples, made, run.task.n_choices or 2)
            for run, made in zip(runs, trials, strict=True)
        ),
    )


class _Trainer:
    """Trains rounds of trials; holds what all rounds share."""

    def __init__(self, pack: packing.Pack, on_steps: Callable[[int], None]) -> None:
        self._pack, self._on_steps = pack, on_steps
        self._lanes = _method(pack.runs[0]).lanes
        self._task = packing.search_task(pack.runs, pack.module)
        instances = list(dict.fromkeys(run.task for run in pack.runs))
        self._instance_of_run = [instances.index(run.task) for run in pack.runs]
        target = self._task.shapes()
        padded = [packing.pad_to(task.sample(), target) for task in instances]
        self._instances = devices.shared(jax.tree.map(lambda *xs: np.stack(xs), *padded))
        self._uniform_KxM = devices.shared(jnp.stack([_uniform(task, pack) for task in instances]))
        self._initial = devices.shared(packing.init_pack(pack))
        self.compile_seconds = 0.0

    def train(self, chosen: dict[int, list[Proposal]]) -> dict[int, list[Trial]]:
        """Makes the proposed trials, of equal steps, of some of the pack's runs."""
        n_runs = packing.width(len(self._pack.runs), len(chosen))
        places = (list(chosen) * n_runs)[:n_runs]
        lanes = [(i, proposal) for i in places for proposal in chosen[i]]
        method = _method(self._pack.runs[0]).training
        shape = (
            self._pack.module,
            self._task,
            method.static(),
            devices.filled(len(lanes)),
            len(self._pack.runs),
            len(self._uniform_KxM),
        )
        program, seconds = compiling.timed(compile_program, shape)
        self.compile_seconds += seconds
        known_L, last_L, loss_L = self._run(program, lanes)
        # Lanes may repeat others; a loss that is NaN equals no other.
        made: dict[int, dict[Proposal, Trial]] = {i: {} for i in chosen}
        for lane in range(len(chosen) * self._lanes):
            i, proposal = lanes[lane]
            trial = Trial(*proposal, int(known_L[lane]), int(last_L[lane]), float(loss_L[lane]))
            made[i].setdefault(proposal, trial)
        return {i: list(trials.values()) for i, trials in made.items()}

    def _run(
        self, program: Program, lanes: list[tuple[int, Proposal]]
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """known_L and last_known_L, counts, and loss_L of one round."""
        runs = [self._pack.runs[i] for i, _ in lanes]
        methods = [_method(run).training for run in runs]
        steps = lanes[0][1].steps
        epochs = steps // methods[0].n_batches
        factor_L = np.array([proposal.factor for _, proposal in lanes])
        n_L = np.array([proposal.n_examples for _, proposal in lanes])
        data = {
            "instances": self._instances,
            "uniform": self._uniform_KxM,
            "instance_L": _split([self._instance_of_run[i] for i, _ in lanes], np.int32),
            "n_L": _split(n_L, np.int32),
        }
        first_L = factor_L * [method.learning_rate for method in methods]
        last_L = factor_L * [method.final_learning_rate for method in methods]
        key_L = devices.split(jnp.stack([packing.shuffle_key(run) for run in runs]))
        state = program.begin(self._initial, _split([i for i, _ in lanes], np.int32))
        n_batches, per_chunk = methods[0].n_batches, training.steps_per_chunk(methods[0])
        best_L, pending = np.zeros(devices.filled(len(lanes))), None
        for epoch in range(epochs):
            order_LxCxB = program.shuffle(key_L, jnp.int32(epoch))
            rate_L = _split(first_L + (last_L - first_L) * epoch / epochs, np.float32)
            for start in range(0, n_batches, per_chunk):
                state, accuracy_LxC = program.chunk(
                    state, data, rate_L, order_LxCxB[:, start : start + per_chunk]
                )
                if pending is not None:  # One chunk stays in flight: the device is busy.
                    best_L = np.maximum(best_L, np.asarray(pending).max(axis=1))
                    self._on_steps(len(lanes) * per_chunk)
                first_check = -(epoch * n_batches + start) % CHECK_EVERY
                pending = accuracy_LxC[:, first_check::CHECK_EVERY]
                if first_check >= per_chunk:
                    pending = np.zeros((len(best_L), 1))
        evaluated = program.evaluate(state["variables"], data)
        loss_L, accuracy_L = devices.first(len(lanes), tuple(map(np.asarray, evaluated)))
        self._on_steps(len(lanes) * per_chunk)
        finite_L = np.isfinite(loss_L)
        # A batch's accuracy is no accuracy on all examples.
        if methods[0].protocol == "exact":
            best_L = np.maximum(best_L, np.asarray(pending).max(axis=1))[: len(lanes)]
        else:
            best_L = np.zeros(len(lanes))
        last_L = np.rint(np.where(finite_L, accuracy_L, 0) * n_L)
        return np.maximum(np.rint(best_L * n_L), last_L), last_L, loss_L


def _split(numbers: Any, dtype: Any) -> jax.Array:
    """A number for each lane."""
    return devices.split(np.asarray(numbers).astype(dtype))


def _uniform(task: Any, pack: packing.Pack) -> jax.Array:
    """uniform_M in [0, 1): times a number of examples they are a trial's training set.

    Drawn from the task's seed alone, as the plain protocol's are.
    """
    method = _method(pack.runs[0]).training
    key = jax.random.fold_in(jax.random.key(task.seed), 1)
    return jax.random.uniform(key, (method.n_batches * (method.batch_size or 0),))


_DATA = {"instances": SHARED, "uniform": SHARED, "instance_L": SPLIT, "n_L": SPLIT}

# Padded module, largest task, method, numbers of lanes, runs and instances.
Shape = tuple[Module, Any, Training, int, int, int]


@functools.lru_cache(maxsize=32)
def compile_program(shape: Shape) -> Program:
    """The compiled functions of every round of this shape."""
    module, task, method, n_lanes, n_runs, n_instances = shape
    batch_size = method.batch_size or 0

    def begin(initial: Any, run_L: jax.Array) -> Any:
        variables = training.of(initial, run_L)
        return {"variables": variables, "optimizer": training.optimizer(module, method, variables)}

    def subset(data: Any, which: jax.Array, n: jax.Array) -> Any:
        instance = training.of(data["instances"], which)
        number_T = jnp.arange(instance.prior_T.shape[0])
        return instance._replace(prior_T=jnp.where(number_T < n, 1 / n, 0.0))

    def chunk(state: Any, data: Any, rate_L: jax.Array, order_LxCxB: jax.Array) -> Any:
        def train(
            state: Any, which: jax.Array, n: jax.Array, rate: jax.Array, order_CxB: jax.Array
        ) -> Any:
            instance = subset(data, which, n)
            draws_M = jnp.minimum((data["uniform"][which] * n).astype(jnp.int32), n - 1)

            def one_step(state: Any, order_B: jax.Array) -> Any:
                examples_B = draws_M[order_B] if batch_size else None
                # All examples are weighed by their prior, which is zero beyond a trial's.
                state, (_, accuracy) = training.step(
                    module, task, method, state, instance, rate, examples_B, weighted=True
                )
                return state, accuracy

            return jax.lax.scan(one_step, state, order_CxB)

        return jax.vmap(train)(state, data["instance_L"], data["n_L"], rate_L, order_LxCxB)

    def evaluate(variables: Any, data: Any) -> Any:
        def one(lane: Any) -> Any:
            variables, which, n = lane
            instance = subset(data, which, n)
            return task.objective(module, variables, instance, weighted=True)

        return jax.lax.map(one, (variables, data["instance_L"], data["n_L"]))

    initial = training.stacked(models.shapes(module, task.context_length), n_runs)
    number_L = jax.ShapeDtypeStruct((n_lanes,), jnp.int32)
    rate_L = jax.ShapeDtypeStruct((n_lanes,), jnp.float32)
    state = jax.eval_shape(begin, initial, number_L)
    data = {
        "instances": training.stacked(task.shapes(), n_instances),
        "uniform": jax.ShapeDtypeStruct((n_instances, method.n_batches * batch_size), jnp.float32),
        "instance_L": number_L,
        "n_L": number_L,
    }
    per_chunk = training.steps_per_chunk(method)
    order = jax.ShapeDtypeStruct((n_lanes, per_chunk, batch_size), jnp.int32)
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), n_lanes))
    epoch = jax.ShapeDtypeStruct((), jnp.int32)
    return Program(
        begin=compiling.compiled(begin, initial, number_L, specs=(SHARED, SPLIT)),
        shuffle=compiling.compiled(training.shuffler(method), keys, epoch, specs=(SPLIT, SHARED)),
        chunk=compiling.compiled(
            chunk, state, data, rate_L, order, specs=(SPLIT, _DATA, SPLIT, SPLIT), donate=(0,)
        ),
        evaluate=compiling.compiled(evaluate, state["variables"], data, specs=(SPLIT, _DATA)),
    )
