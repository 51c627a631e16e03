"""Trainings that are stopped, and the checkpoints they go on from."""

import itertools

import numpy as np


class Memory:
    """Checkpoints in memory: the last of each run, the runs asked for, and all after every save."""

    def __init__(self, kept=()):
        self.kept = dict(kept)
        self.loaded = []
        self.rejected = []
        self.saves = []

    def load(self, run_id):
        self.loaded.append(run_id)
        return self.kept.get(run_id)

    def reject(self, run_id):
        self.rejected.append(run_id)

    def save(self, run_id, arrays):
        self.kept[run_id] = {name: np.array(x) for name, x in arrays.items()}
        self.saves.append(dict(self.kept))


class Stop(Exception):
    """What ends a training."""


def stopping_after(calls):
    """Raises Stop when it has been called so many times, once for every chunk of steps."""
    counted = itertools.count(1)

    def on_steps(_):
        if next(counted) == calls:
            raise Stop

    return on_steps
