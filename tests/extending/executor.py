"""An executor: each pack in a Python process of its own on this machine."""

import pickle
import subprocess
import sys
import time

import memobench as mb
from memobench.executors import Ended, Executor, Pool

CHILD = "import pickle, sys; work, pack = pickle.load(sys.stdin.buffer); work(pack)"


@mb.kind("processes")
class Processes(Executor):
    """Trains each pack in a process of its own on this machine."""

    workers: int = mb.integer("processes at a time", default=2)

    def start(self, work, folder, on_steps):
        return _Pool(work, self.workers)


class _Pool(Pool):
    def __init__(self, work, workers):
        self._work, self._workers = work, workers
        self._waiting, self._running = [], {}

    def submit(self, packs):
        self._waiting += packs
        while self._waiting and len(self._running) < self._workers:
            pack = self._waiting.pop(0)
            pipe = subprocess.PIPE
            child = subprocess.Popen([sys.executable, "-c", CHILD], stdin=pipe, stderr=pipe)
            child.stdin.write(pickle.dumps((self._work, pack)))
            child.stdin.close()
            self._running[child] = pack

    def ended(self, timeout):
        deadline = time.monotonic() + timeout
        while True:
            done = [child for child in self._running if child.poll() is not None]
            if done or time.monotonic() > deadline:
                break
            time.sleep(0.05)
        ended = []
        for child in done:
            with child.stderr:
                lines = child.stderr.read().decode().splitlines()
            error = lines[-1] if child.returncode and lines else None
            ended.append(Ended(self._running.pop(child), error))
        self.submit([])
        return ended

    def close(self):
        for child in self._running:
            child.kill()
            child.wait()
