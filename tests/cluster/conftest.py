"""Packs, and asking an executor until all of them have ended."""

import functools
import pathlib

import pytest

from memobench import packing
from tests.cluster import stand_ins


@pytest.fixture(autouse=True)
def _importable(monkeypatch):
    # Workers start elsewhere and must find the stand-ins.
    monkeypatch.setenv("PYTHONPATH", str(pathlib.Path(__file__).parents[2]))


@pytest.fixture
def packs(make_run):
    return lambda n: [packing.together([make_run(seed=seed)]) for seed in range(n)]


@pytest.fixture
def at(tmp_path):
    """Work of this name with its diary in the test's folder."""
    return lambda name: functools.partial(getattr(stand_ins, name), tmp_path)


@pytest.fixture
def all_ended():
    """Every `Ended` of as many packs as are out; fails where one comes twice or none does."""

    def ask(executor, n):
        found = []
        stand_ins.until(lambda: found.extend(executor.ended(1)) or len(found) >= n, f"{n} packs")
        assert len(found) == n
        assert executor.ended(0) == []
        return found

    return ask
