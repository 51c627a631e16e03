"""The scripts of experiments/performance import each other by their bare names, as they are run."""

import pathlib

import pytest

FOLDER = pathlib.Path(__file__).parents[3] / "experiments" / "performance"


@pytest.fixture
def folder(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    return FOLDER
