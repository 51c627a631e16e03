"""Packs that compile quickly, one that many tests read, and the widths of rounds."""

import pytest

from memobench.engine import compiling, loop
from tests import small
from tests.experiments.mahdavi2024.annealing.runs import MIX, QUICK, pack_of


@pytest.fixture(scope="package", autouse=True)
def small_packs():
    """Optimising code that runs a few times would take longer; small packs are narrowed too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "NARROWED_FROM_SECONDS", 0)
        for name, value in QUICK.items():
            patch.setitem(compiling.OPTIONS, name, value)
        yield


@pytest.fixture(scope="package")
def mixed():
    return small.train(pack_of(MIX))


@pytest.fixture
def rounds(monkeypatch):
    """The widths of the rounds from here on."""
    widths, train = [], loop.Lanes.train

    def recorded(lanes):
        widths.append(len(lanes.jobs))
        return train(lanes)

    monkeypatch.setattr(loop.Lanes, "train", recorded)
    return widths
