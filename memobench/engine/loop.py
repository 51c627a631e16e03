"""The one loop: fill, train, evaluate, report, checkpoint, until nothing is left to train."""

import itertools
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from memobench.core import module as models
from memobench.core.checkpoints import Checkpoints
from memobench.engine import compiling, devices, lanes
from memobench.engine.lanes import State
from memobench.engine.policy import Job, Policy
from memobench.engine.program import compile_program
from memobench.engine.signature import Signature

SECONDS_BETWEEN_CHECKPOINTS = 60.0
# Nor more often than takes this share of the time.
SHARE_OF_CHECKPOINTS = 0.05
# A program of fewer lanes or examples is worth its compilation in packs predicted to take so many
# seconds or more.
NARROWED_FROM_SECONDS = 60.0


def train(
    policy: Policy,
    on_steps: Callable[[int], None] = lambda _: None,
    checkpoints: Checkpoints | None = None,
) -> Any:
    """Trains all jobs of a policy.

    Args:
      policy: which jobs there are, and what becomes of them.
      on_steps: called with the number of model-steps done since its last call; what it raises ends
        the training, once all is saved.
      checkpoints: where the state of jobs is saved from time to time.

    Returns:
      The policy's result.
    """
    trained = Lanes(policy)
    next_save = time.perf_counter() + SECONDS_BETWEEN_CHECKPOINTS

    def report(steps: int) -> None:
        if not steps:
            return
        try:
            on_steps(steps)
        except BaseException:  # The sweep was stopped.
            trained.save(checkpoints)
            raise

    while trained.fill():
        report(trained.train())
        report(trained.evaluate())
        if checkpoints and (started := time.perf_counter()) > next_save:
            trained.save(checkpoints)
            stopped = time.perf_counter()
            pause = max(SECONDS_BETWEEN_CHECKPOINTS, (stopped - started) / SHARE_OF_CHECKPOINTS)
            next_save = stopped + pause
    if checkpoints:
        policy.save_finished(checkpoints)
    return policy.result(trained.compile_seconds)


def compile_ahead(signature: Signature, n_lanes: int, n_instances: int) -> None:
    """Compiles the program of lanes that are filled later, while others train."""
    width = devices.round_up_to_devices(n_lanes)
    compiling.call_timed(compile_program, signature, width, n_instances)


def narrow_width(width: int, n_jobs: int) -> int:
    """The number of lanes for so few jobs: half as many, again and again, while they suffice.

    >>> [narrow_width(6, n) for n in range(1, 7)]
    [1, 2, 3, 6, 6, 6]
    """
    while width > 1 and n_jobs <= (half := (width + 1) // 2):
        width = half
    return width


# Compiled for all arrays at once: one after another, their programs take longer than a chunk.
@jax.jit
def _take_rows(state: Any, row_R: np.ndarray) -> Any:
    return jax.tree.map(lambda x: x[row_R], state)


@jax.jit
def _put_rows(state: Any, row_R: np.ndarray, rows: Any) -> Any:
    return jax.tree.map(lambda x, y: x.at[row_R].set(y), state, rows)


class Lanes:
    """The lanes of one program: their jobs on the host, their states on the devices."""

    def __init__(self, policy: Policy) -> None:
        self.policy, self.compile_seconds = policy, 0.0
        self.jobs: list[Job | None] = []
        self.state: State | None = None
        # The program for so many lanes, and what it reads, of all and of each; made as lanes are
        # filled.
        self.program: Any = None
        self._data: Any = None
        self.lane_R: Any = None
        self._input_jobs: list[Job | None] = []
        self._in_flight: tuple | None = None
        self._unreported, self._unevaluated = 0, False

    def fill(self) -> bool:
        """Makes as many lanes as all jobs need, and fills them; returns whether any is busy."""
        n_busy = len(self._busy_jobs())
        waiting = iter(self.policy.next, None)
        entering = list(itertools.islice(waiting, self.policy.width - n_busy))
        if not n_busy and not entering:
            return False
        changed = self._resize(n_busy + len(entering))
        if entering:
            free = [i for i, job in enumerate(self.jobs) if job is None]
            self._enter(dict(zip(free, entering, strict=False)))
        elif changed:
            self._compile()
        return True

    def train(self) -> int:
        """Takes a chunk of steps in every lane; returns the model-steps of the previous chunk.

        One chunk stays in flight: the device is busy, and the progress true.
        """
        assert self.state is not None
        self._refresh_lane_inputs()
        step_R = np.array([job.step for job in self._job_of_each_lane()])
        rate_RxC, order_RxCxB = self.policy.feed(self.program, step_R)
        self.state, curve = self.program.chunk(
            self.state, self._data, self.lane_R, rate_RxC, order_RxCxB
        )
        for job in self._busy_jobs():
            job.step += self.policy.signature.chunk_steps
        before, self._in_flight = self._in_flight, (list(self.jobs), step_R, curve)
        self._unevaluated = True
        self._record_chunk(before)
        return self._steps_done()

    def evaluate(self) -> int:
        """Evaluates the jobs that are due, and frees the lanes of those that are done.

        Returns the model-steps that this has waited for.
        """
        due_R = np.array([job is not None and self.policy.is_due(job) for job in self.jobs])
        if not (self._unevaluated and due_R.any()) or self.state is None:
            return 0
        self._unevaluated = False
        step_R = np.array([job.step for job in self._job_of_each_lane()], np.int32)
        lane_R = self.lane_R._replace(step=devices.split(step_R))
        best, loss_R, accuracy_R = self.program.evaluate(
            self.state.variables, self.state.best, self._data, lane_R, devices.split(due_R)
        )
        self.state = self.state._replace(best=best)
        self._wait()
        seen = zip(self.jobs, due_R, np.asarray(loss_R), _limit(accuracy_R), strict=True)
        for job, due, loss, accuracy in seen:
            if job is not None and due:
                self.policy.record_evaluation(job, float(loss), float(accuracy))
        self._retire()
        return self._steps_done()

    def save(self, checkpoints: Checkpoints | None) -> None:
        """Saves every job in a lane, and each finished job once."""
        if checkpoints is None:
            return
        self.evaluate()
        self._wait()
        if self.policy.resumes and any(self.jobs):
            on_host = jax.device_get(self.state)
            for i, job in enumerate(self.jobs):
                if job is not None:
                    state = lanes.crop(on_host, i, self.policy.true_shapes(job))
                    self.policy.save(checkpoints, job, state)
        self.policy.save_finished(checkpoints)

    def _busy_jobs(self) -> list[Job]:
        return [job for job in self.jobs if job is not None]

    def _job_of_each_lane(self) -> list[Job]:
        """The job of every lane; idle ones repeat the first, and nothing comes of it."""
        first = self._busy_jobs()[0] if any(self.jobs) else None
        return [job or first for job in self.jobs]  # type: ignore[misc]

    # --- Lane assignment ----------------------------------------------------------------------

    def _resize(self, n_jobs: int) -> bool:
        """Makes as many lanes as so many jobs are given; returns whether there were others."""
        before, width = len(self.jobs), self._width(n_jobs)
        if width == before:
            return False
        by_idleness = sorted(range(before), key=lambda i: self.jobs[i] is None)
        kept, n_new = by_idleness[:width], max(0, width - before)
        self.jobs = [*(self.jobs[i] for i in kept), *[None] * n_new]
        if self.state is not None:
            # New lanes hold what another does, until a job enters.
            rows = np.array(kept + kept[:1] * n_new)
            self.state = devices.split(_take_rows(self.state, rows))
        return True

    def _enter(self, entering: dict[int, Job]) -> None:
        """Puts jobs into free lanes, with initial weights or the state that they resume from."""
        for i, job in entering.items():
            self.jobs[i] = job
        self._compile()
        target, width = self.policy.signature.shapes(), len(self.jobs)
        fresh = {i: job for i, job in entering.items() if job.state is None}
        resumed = {i: job.state for i, job in entering.items() if job.state is not None}
        if fresh or self.state is None:
            first = {i: self.policy.variables(job) for i, job in fresh.items()}
            variables = devices.split(lanes.place_rows(first, width, target.variables))
            if self.state is None:
                self.state = self.program.begin(variables)
            else:
                enters_R = devices.split(np.isin(np.arange(width), list(fresh)))
                self.state = self.program.enter(self.state, variables, enters_R)
        if resumed:
            where = np.array(list(resumed))
            states = models.stack(models.pad_to(state, target) for state in resumed.values())
            self.state = devices.split(_put_rows(self.state, where, states))
        for job in entering.values():
            job.state = None

    def _retire(self) -> None:
        """Takes out the jobs that are done."""
        out = [i for i, job in enumerate(self.jobs) if job is not None and job.done]
        if not out:
            return

        state, which = self.state, np.array(out)
        if len(out) == len(self.jobs):  # The next jobs begin a new state.
            self.state = None

        def take() -> Any:
            if len(out) == len(self.jobs):
                return state
            if jax.default_backend() == "cpu":  # In place of a program for every number of lanes.
                return jax.tree.map(lambda x: np.asarray(x)[which], state)
            # Programs for few numbers of lanes.
            return _take_rows(state, np.resize(which, 1 << (len(out) - 1).bit_length()))

        self.policy.receive_finished([job for i in out if (job := self.jobs[i])], take)
        for i in out:
            self.jobs[i] = None

    def _width(self, n_jobs: int) -> int:
        # Nothing measured decides, so that a resumed pack has the width it was left with.
        width, n_jobs = devices.share(self.policy.width), devices.share(n_jobs)
        return devices.count() * (narrow_width(width, n_jobs) if self._is_long else width)

    @property
    def _is_long(self) -> bool:
        """True where smaller programs are worth their compilation."""
        return self.policy.seconds >= NARROWED_FROM_SECONDS

    def _compile(self) -> None:
        signature, self._data = self.policy.signature, self.policy.data
        if self._is_long:
            signature, self._data = self.policy.program_inputs(self._job_of_each_lane())
        shape = signature, len(self.jobs), self.policy.n_instances
        self.program, seconds = compiling.call_timed(compile_program, *shape)
        self.compile_seconds += seconds

    def _refresh_lane_inputs(self) -> None:
        if self._input_jobs != self.jobs:
            self._input_jobs, jobs = list(self.jobs), self._job_of_each_lane()
            modules = [job.run.module() for job in jobs]
            known = {x: self.policy.signature.of_shapes(x) for x in dict.fromkeys(modules)}
            rows = {i: known[module] for i, module in enumerate(modules)}
            of_shapes = lanes.place_rows(rows, len(modules), self.policy.signature.of_shapes())
            lane_R = self.policy.lane_inputs(jobs)._replace(of_shapes=of_shapes)
            self.lane_R = jax.tree.map(devices.split, lane_R)

    # --- Chunks in flight -----------------------------------------------------------------------

    def _wait(self) -> None:
        """Waits for the chunk in flight."""
        self._in_flight, arriving = None, self._in_flight
        self._record_chunk(arriving)

    def _record_chunk(self, chunk: tuple | None) -> None:
        if chunk is None:
            return
        jobs, step_R, curve = chunk
        if curve is not None:
            loss_RxC, accuracy_RxC = curve
            self.policy.record(jobs, step_R, (np.asarray(loss_RxC), _limit(accuracy_RxC)))
        n_busy = sum(job is not None for job in jobs)
        self._unreported += n_busy * self.policy.signature.chunk_steps

    def _steps_done(self) -> int:
        steps, self._unreported = self._unreported, 0
        return steps


def _limit(accuracy: Any) -> np.ndarray:
    """Accuracies of at most 1, which the sum of unequal frequencies is but for rounding."""
    return np.minimum(np.asarray(accuracy), 1)
