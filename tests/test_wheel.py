"""In a venv of its own a wheel works where no checkout is, and a clone in the folder above it."""

import pathlib
import shutil
import subprocess
import sys
import zipfile

import pytest

pytestmark = pytest.mark.slow
ROOT = pathlib.Path(__file__).parents[1]
SOURCES = (
    "memobench",
    "experiments",
    "results",
    "setup.cfg",
    "setup.py",
    "pyproject.toml",
    "README.md",
    "LICENSE",
)
CODE = """
import pathlib, memobench
from memobench.experiments import EXPERIMENTS
assert pathlib.Path(memobench.__file__).is_relative_to(pathlib.Path(sys.prefix))
assert len(EXPERIMENTS) > 30
assert len(memobench.published("board/typical")) > 20
"""


def _check(*command, cwd):
    done = subprocess.run(list(map(str, command)), cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_wheel_runs_an_experiment_outside_the_checkout(tmp_path):
    """Built, installed with what it asks for, and run from an empty folder."""
    source, clean = tmp_path / "memobench", tmp_path / "venv"
    source.mkdir()
    for name in SOURCES:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, source / name)
    _check(sys.executable, "-m", "venv", clean, cwd=tmp_path)
    python = clean / "bin" / "python"
    _check(python, "-m", "pip", "wheel", "-q", "--no-deps", "-w", tmp_path, source, cwd=tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    published = [x for x in zipfile.ZipFile(wheel).namelist() if x.startswith("memobench/results/")]
    assert all(x.endswith(("_runs.csv", "/board/certified.csv")) for x in published)
    _check(python, "-m", "pip", "install", "-q", wheel, cwd=tmp_path)
    _check(python, "-c", f"import sys\n{CODE}", cwd=tmp_path)
    command = clean / "bin" / "memobench"
    assert "memobench 0." in _check(command, "--version", cwd=tmp_path)
    _check(command, "run", "mahdavi2024/saturation", "--seeds=1", cwd=tmp_path)
    _check(command, "report", "mahdavi2024/saturation", "--seeds=1", cwd=tmp_path)
    _check(command, "leaderboard", cwd=tmp_path)
    assert (tmp_path / "runs" / "mahdavi2024" / "saturation.md").exists()
    # Where it runs the clone is a folder of the package's name.
    _check(python, "-m", "pip", "install", "-q", "--no-deps", "-e", source, cwd=tmp_path)
    for cwd in (tmp_path, source, clean):
        found = _check(python, "-c", "import memobench; print(memobench.__file__)", cwd=cwd)
        assert found.strip() == str(source / "memobench" / "__init__.py")
        assert "dana2025/heads" in _check(command, "list", cwd=cwd)
