import sys

import pytest

import memobench
from memobench.common.errors import UserError


def test_a_missing_extra_is_one_line(make_run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"extra: pip install '\.\[ray\]'"):
        memobench.run([make_run()], tmp_path, progress=False, processes=1, on="ray")
