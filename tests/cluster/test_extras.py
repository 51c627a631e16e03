import sys

import pytest

import memobench
from memobench.errors import UserError


@pytest.mark.parametrize(("extra", "package"), [("ray", "ray"), ("slurm", "submitit")])
def test_a_missing_extra_is_one_line(extra, package, make_run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=rf"extra: pip install 'memobench\[{extra}\]'"):
        memobench.run([make_run()], tmp_path, progress=False, processes=1, on=extra)
