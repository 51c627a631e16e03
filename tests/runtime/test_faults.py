import dataclasses

import pytest

from tests import faults


@pytest.mark.parametrize("kills", [6, pytest.param(100, marks=pytest.mark.slow)])
def test_no_kill_loses_or_doubles_anything(tmp_path, caplog, kills):
    counts = faults.shake(tmp_path, kills)
    print(counts)
    assert counts.kills == kills
    # Or else nothing was tried.
    assert counts.in_flight > 0
    assert counts.torn > 0
    assert caplog.text.count("is not JSON") >= counts.torn
    happened = {"rounds", "kills", "in_flight", "torn"}
    wrong = {k: v for k, v in dataclasses.asdict(counts).items() if v and k not in happened}
    assert wrong == {}
