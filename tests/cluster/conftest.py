"""Work for workers, and asking a launcher until they have ended."""

import contextlib
import dataclasses
import functools
import os
import pathlib
import signal
import threading

import pytest

import memobench
from memobench.planner import packing
from memobench.runtime import launch
from memobench.runtime.leases import Leases
from tests.cluster import stand_ins


@pytest.fixture(autouse=True)
def _importable(monkeypatch):
    # Workers start elsewhere and must find the stand-ins.
    monkeypatch.setenv("PYTHONPATH", str(pathlib.Path(__file__).parents[2]))


@pytest.fixture
def at(tmp_path):
    """Work of this name with its diary in the test's folder."""
    return lambda name: launch.make_portable(functools.partial(getattr(stand_ins, name), tmp_path))


@pytest.fixture
def all_ended():
    """The reasons of as many workers as are out; fails where one comes twice or none does."""

    def ask(launcher, n):
        found = []
        stand_ins.until(
            lambda: found.extend(launcher.pop_ended()) or len(found) >= n, f"{n} workers"
        )
        assert len(found) == n
        assert launcher.pop_ended() == []
        return found

    return ask


@pytest.fixture
def sweep(make_run, tmp_path, caplog):
    """A sweep of two packs by two workers; the first is killed and the rows are right."""

    def run(on):
        models = ({"name": "attention_only"}, {"name": "mlp", "d_mlp": 0})
        runs = [make_run(seed=seed, **model) for model in models for seed in (0, 1)]
        shorter = dataclasses.replace(runs[-1].method, batch_size=8)
        runs = [*runs[:2], *(dataclasses.replace(run, method=shorter) for run in runs[2:])]
        assert len(packing.plan(runs, "cpu")) == 2
        alone = memobench.run(runs, progress=False)
        with _killer(tmp_path) as killed:
            table = memobench.run(runs, tmp_path, progress=False, processes=2, on=on)
        assert len(killed) == 1
        assert caplog.records
        measured = ["run_id", "status", "accuracy", "bits", "loss", "curve_loss"]
        assert table[measured].equals(alone[measured])
        assert len(memobench.load_results(tmp_path)) == len(runs)
        assert table["pack_size"].tolist() == [2] * 4

    return run


@contextlib.contextmanager
def _killer(folder):
    """Kills the first worker that takes a pack in hand."""
    killed, over = [], threading.Event()

    def watch():
        while not (killed or over.wait(0.01)):
            for held in Leases(folder).read():
                if held.about.get("kind") == "pack" and not killed:
                    os.kill(held.pid, signal.SIGKILL)
                    killed.append(held.pid)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield killed
    finally:
        over.set()
        thread.join()
