"""The queue for a GPU, on a CPU and of tiny steps: it goes on where it stopped, nothing is lost."""

import importlib
import os
import pathlib
import subprocess
import sys
import time

import pytest
from absl.testing import flagsaver

from memobench.cli import main as cli
from memobench.cli.command import PRESET, SEEDS, choose
from memobench.store import results

ROOT = pathlib.Path(__file__).parents[3]
TINY = """
from memobench import Associations, AttentionOnly, Training
from memobench.experiment import Experiment, grid
from memobench.report.figure import Figure

EXPERIMENT = Experiment(
    name="tiny/heads",
    title="Tiny",
    presets={
        "quick": grid(
            [Associations(vocab_size=3)],
            [AttentionOnly(d_model=2, d_head=2, n_heads=n) for n in (1, 2)],
            [Training(batch_size=4, n_batches=2, epochs=2)],
            1,
        )
    },
    figure=Figure(x="n_heads", hue="d_model"),
)
"""


@pytest.fixture
def gpu():
    # Flags that are defined within a saver's context go with it, and modules stay.
    cli.find()
    return importlib.import_module("memobench.experiments.performance.gpu")


@pytest.fixture
def tiny(gpu, tmp_path):
    (tmp_path / "tiny.py").write_text(TINY)
    words = f"-m memobench run {tmp_path / 'tiny.py'} --preset=quick"
    return gpu.Step(words, trains=True, shares=True)


def _ends(lines):
    return [line.partition(":")[0] for line in lines]


def test_a_queue_does_again_only_what_was_not_done(gpu, tmp_path):
    for name, text in (("fails", "raise SystemExit(3)"), ("works", "print('worked')")):
        (tmp_path / f"{name}.py").write_text(text)
    steps = [gpu.Step(str(tmp_path / f"{name}.py")) for name in ("fails", "works")]
    for seconds, ends in (
        (0, ["left", "left"]),
        (600, ["not done, status 3", "done"]),
        (600, ["not done, status 3", "done before"]),
    ):
        assert _ends(gpu.work(steps, tmp_path / "gpu", seconds, 1)) == ends


@pytest.mark.accelerators
def test_a_queue_goes_on_where_it_stopped(gpu, tiny, tmp_path):
    folder = tmp_path / "gpu"
    broken = gpu.Step("-m memobench run nothing/such", trains=True)
    counts = gpu.Step("-m memobench verify {folder}/shards --recompute", on_cpu=True)
    assert _ends(gpu.work([broken, tiny, counts], folder, 0, 1)) == ["left"] * 3
    assert not (folder / "shards").exists()
    lines = gpu.work([broken, tiny, counts], folder, 600, 1)
    assert _ends(lines) == ["not done, status 1", "done", "done"]
    assert len(results.load_rows(folder / "shards")) == 2
    (log,) = folder.glob("logs/*nothing*")
    assert "nothing/such" in log.read_text()
    assert _ends(gpu.work([tiny, counts], folder, 600, 1)) == ["done before"] * 2


def test_a_step_that_takes_longer_is_told_to_end_and_is_not_done(gpu, tmp_path, monkeypatch):
    monkeypatch.setattr(gpu, "RESERVED", 2.0)
    (tmp_path / "slow.py").write_text("import time\ntime.sleep(600)\n")
    started = time.monotonic()
    lines = gpu.work([gpu.Step(f"{tmp_path / 'slow.py'}")], tmp_path, 3.2, 1)
    assert _ends(lines) == ["not done, the time is up"]
    assert time.monotonic() - started < 60


def test_workers_are_asked_for_where_they_are_of_use(gpu, tiny, tmp_path):
    assert "--processes=15" in tiny.command(tmp_path, 60.0, 15)
    assert not [x for x in tiny.command(tmp_path, 60.0, 1) if x.startswith("--processes")]
    alone = gpu._run("dana2025/heads", "bench", shares=False)
    assert not [x for x in alone.command(tmp_path, 60.0, 15) if x.startswith("--processes")]


def test_every_step_of_the_queue_is_a_command_that_exists(gpu, tmp_path):
    assert len({step.name for step in gpu.QUEUE}) == len(gpu.QUEUE)
    for step in gpu.QUEUE:
        _, *words = step.command(tmp_path, 60.0, 2)
        if words[:2] == ["-m", "memobench"]:
            with flagsaver.flagsaver():
                _, names = cli.parse(words[1:])
                if step.trains:
                    chosen = choose(names, PRESET.value)
                    assert all(x.runs(PRESET.value, SEEDS.value) for x in chosen)
        elif words[0] == "-m":
            assert (ROOT / (words[1].replace(".", "/") + ".py")).exists()
        else:
            assert (ROOT / words[0]).exists()


def test_a_checkout_that_is_not_installed_is_enough(tmp_path):
    """Python finds the package where it is started, and needs nothing of it elsewhere."""
    code = """if True:
        import runpy, sys
        sys.meta_path[:] = [x for x in sys.meta_path if "editable" not in repr(x)]
        name = "memobench.experiments.performance.gpu"
        runpy.run_module(name, run_name="__main__")
    """
    done = subprocess.run(
        [sys.executable, "-c", code, "--minutes=0", f"--folder={tmp_path}"],
        cwd=ROOT,
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].endswith(f"left; results are in {tmp_path}")
