"""One line for a sweep, of all its processes: runs done, model-steps per second, time left."""

import collections
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any

import tqdm

from memobench.common.notation import pluralize
from memobench.core.run import Pack
from memobench.planner.costs import Prediction
from memobench.runtime.leases import HeldLease

# For so many seconds the predicted speed weighs more than the measured one.
PRIOR_SECONDS = 10.0


class Progress:
    """The progress line of a sweep.

    Time left is the predicted time of packs, scaled by how fast those so far were.

    Attributes:
      line: the text, which is shown on standard error where enabled.
    """

    def __init__(self, n_runs: int, enabled: bool) -> None:
        self.line = ""
        self._n_runs, self._steps_done = n_runs, 0
        # By a pack's first run: the pack, seconds predicted and done of it, steps done.
        self._packs: dict[str, Pack] = {}
        self._seconds: dict[str, float] = {}
        self._done: dict[str, float] = {}
        self._steps: collections.Counter[str] = collections.Counter()
        self._total = self._total_done = 0.0
        self._workers = 1
        self._waiting = 0
        self._lock = threading.Lock()
        # A clock that is set meanwhile changes nothing.
        self._started = time.monotonic()
        self._bar = tqdm.tqdm(
            disable=not enabled, miniters=0, bar_format="{percentage:3.0f}%|{bar}| {desc}"
        )

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: Any) -> None:
        self._bar.close()

    def add(self, packs: Sequence[Pack], predicted: Prediction) -> None:
        """Adds packs and the seconds that they are predicted to take."""
        with self._lock:
            self._workers = predicted.workers
            for pack, seconds in zip(packs, predicted.seconds, strict=True):
                first = pack.runs[0].run_id
                self._packs[first], self._seconds[first], self._done[first] = pack, seconds, 0.0
                self._total += seconds

    def add_steps(self, pack: Pack, steps: int) -> None:
        """Counts model-steps of a pack that were done since the last call."""
        with self._lock:
            self._steps_done += steps
            self._steps[pack.runs[0].run_id] += steps
            self._advance(pack, steps / sum(run.method.cost(run).steps for run in pack.runs))

    def read_leases(self, leases: Iterable[HeldLease]) -> None:
        """Counts the steps that leases of other processes report."""
        for held in leases:
            pack = self._packs.get(held.about.get("first", ""))
            if pack:
                new = int(held.about.get("done", 0)) - self._steps[held.about["first"]]
                if new > 0:
                    self.add_steps(pack, new)

    def finish(self, pack: Pack) -> None:
        """Counts all of a pack as done, also what it did not need, for runs ended early."""
        with self._lock:
            self._advance(pack, 1.0)

    def wait_for(self, n_runs: int) -> None:
        """Says that only runs of other processes are left, and how many; 0 for other ones too."""
        self._waiting = n_runs

    def show(self, runs_done: int) -> None:
        """Writes the line."""
        with self._lock:
            elapsed = time.monotonic() - self._started
            expected = self._workers * PRIOR_SECONDS
            speed = (self._total_done + expected) / (elapsed + PRIOR_SECONDS)
            left = max(0.0, self._total - self._total_done) / speed
            rest = f"{_clock(left)} left"
            if self._waiting:
                rest = f"waiting for {pluralize(self._waiting, 'run')} of other processes"
            self.line = (
                f"{runs_done}/{self._n_runs} runs, {self._steps_done / max(elapsed, 1e-9):,.0f} "
                f"model-steps/s [{_clock(elapsed)}, {rest}]"
            )
            self._bar.total = self._total
            self._bar.set_description_str(self.line, refresh=False)
            # Set, as a sum of what is added to it may be rounded to more than the total.
            self._bar.n = min(self._total_done, self._total)
            self._bar.update(0)

    def _advance(self, pack: Pack, share: float) -> None:
        first = pack.runs[0].run_id
        if first in self._packs:  # Others were planned anew, of what is left of these.
            # A search may take more steps than were predicted.
            seconds = min(self._seconds[first] * share, self._seconds[first] - self._done[first])
            self._done[first] += seconds
            self._total_done += seconds


def _clock(seconds: float) -> str:
    return tqdm.tqdm.format_interval(seconds)
