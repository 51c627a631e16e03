"""`make bench` at tiny sizes, in a copy of the checkout: what it writes, says and leaves alone."""

import pathlib
import re
import shutil
import subprocess
import sys

import pytest

import memobench
from memobench.cli import main as cli
from memobench.cli.command import choose
from memobench.common import folders
from memobench.core import plugins
from memobench.store import results
from tests import registries
from tests.command_line import command_line

ROOT = pathlib.Path(__file__).parents[2]
TINY = """
import dataclasses
from memobench import Associations, AttentionOnly, Training
from memobench.experiment import Experiment, grid
from memobench.experiment import Drawing
from memobench.report.drawing import subplots

@dataclasses.dataclass(frozen=True, kw_only=True)
class Plain(Drawing):
    def draw(self, experiment, preset, table):
        return subplots(1, 1, (3, 2))[0]

    def answer(self, table):
        return f"{len(table)} runs answer."

def _experiment(name, n_heads, seeds, epochs):
    architecture = AttentionOnly(d_model=2, d_head=2, n_heads=n_heads)
    method = Training(batch_size=4, n_batches=2, epochs=epochs)
    task = Associations(vocab_size=3)
    runs = grid([task], [architecture], [method], seeds)
    return Experiment(name=name, title=name, presets={"bench": runs}, figure=Plain())

EXPERIMENTS = (_experiment("tiny/dear", 2, 2, 256), _experiment("tiny/cheap", 1, 3, 2))
"""


def _git(folder, *words):
    done = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A clone after `make bench`, whose experiments are tiny ones; with what the bench said."""
    folder = tmp_path_factory.mktemp("clone") / "memobench"
    _git(ROOT, "clone", "--quiet", "--shared", str(ROOT), str(folder))
    # As it is now, committed or not.
    shutil.copy(ROOT / ".gitignore", folder)
    plugin = folder.parent / "tiny.py"
    plugin.write_text(TINY)
    recipe = (ROOT / "Makefile").read_text().split("\nbench:")[1].split("\n\n")[0]
    lines = re.findall(r"^\t\$\(VENV\)/bin/memobench (.*)$", recipe, flags=re.M)
    before, said = _git(folder, "status", "--porcelain"), ""
    with pytest.MonkeyPatch.context() as patch, registries.restore():
        patch.setattr(folders, "CHECKOUT", folder)
        patch.setattr(plugins, "_names", [])
        for line in lines:
            words = line.replace("$(EXPERIMENTS)", str(plugin)).replace("$(PRESET)", "bench")
            words = words.replace("$(WORKERS)", "")
            done = command_line(*words.split(), cwd=folder)
            assert done.returncode == 0, done.stderr
            said += done.stdout
        yield folder, plugin, before, said


def test_the_bench_changes_no_file_of_the_checkout(checkout):
    folder, plugin, before, _ = checkout
    for words in (
        ["report", plugin, "--preset=bench"],
        ["leaderboard"],
        ["compare", "dana2025/heads"],
    ):
        done = command_line(*words, cwd=folder)
        assert done.returncode == 0, done.stderr
    assert _git(folder, "status", "--porcelain") == before
    assert (folder / "runs" / "leaderboard.html").exists()


def test_the_bench_reports_the_cheapest_first_and_ends_with_the_answer(checkout):
    folder, plugin, _, said = checkout
    reported = [line.partition(":")[0] for line in said.splitlines() if line.startswith("tiny/")]
    assert reported == ["tiny/cheap", "tiny/dear"]
    *answers, where, head, first, second = said.splitlines()[-6:]
    assert answers == ["3 runs answer.", "2 runs answer."]
    assert where == "Figures, pages and tables are in runs/bench/."
    assert head == "Next:"
    assert [x.partition("#")[0].strip() for x in (first, second)] == [
        "memobench compare",
        "memobench leaderboard",
    ]
    for name in reported:
        assert (folder / "runs" / "bench" / f"{name}.png").stat().st_size > 0
    # Again it finds every run.
    shards = sorted((folder / "runs" / "shards").glob("*.json"))
    done = command_line("run", plugin, "--preset=bench", "--report", cwd=folder)
    assert "2 runs answer." in done.stdout
    assert sorted((folder / "runs" / "shards").glob("*.json")) == shards


# In place of Python: it notes how it was called, and makes environments of itself.
NOTING = """#!/bin/sh
case "$2" in
venv) for folder; do :; done; mkdir -p "$folder/bin"; cp "$0" "$folder/bin/python";;
esac
echo "$@" >> "$NOTES"
"""


SMI = "#!/bin/sh\necho 'CUDA Version: 13.0'\n"
OLD = "#!/bin/sh\necho 'CUDA Version: 11.8'\n"
ON_CPU = ["dana2025/heads board/typical --preset=bench"]
ON_GPU = ["dana2025 --preset=paper", "board/typical --preset=bench-gpu"]


@pytest.mark.parametrize(
    ("programs", "given", "runs", "workers", "said"),
    [
        ({}, [], ON_CPU, "", ""),
        ({"nvidia-smi": SMI}, [], ON_GPU, "", ""),
        ({"nvidia-smi": OLD}, [], ON_CPU, "", "names no CUDA >= 12"),
        ({"nvidia-smi": OLD}, ["ACCEL=cpu"], ON_CPU, "", ""),
        ({"nvidia-smi": SMI, "nvidia-cuda-mps-control": SMI}, [], ON_GPU, "--processes=8", ""),
        (
            {"nvidia-smi": SMI},
            ["PRESET=quick"],
            [ON_GPU[0], "board/typical --preset=quick"],
            *("", ""),
        ),
        # The paper's grid is for those who ask for nothing.
        (
            {"nvidia-smi": SMI},
            ["PRESET=quick", "EXPERIMENTS=dana2025/slopes"],
            ["dana2025/slopes --preset=quick"],
            *("", ""),
        ),
        # From a node without a GPU, for others.
        (
            {},
            ["PROCESSES=4", "ON=srun --gpus=1"],
            *(ON_CPU, "--processes=4 --on='srun --gpus=1'", "add ACCEL=cuda13"),
        ),
        (
            {},
            ["PROCESSES=4", "ON=srun --gpus=1", "ACCEL=cuda13"],
            *(ON_GPU, "--processes=4 --on='srun --gpus=1'", ""),
        ),
    ],
)
def test_the_bench_does_more_on_a_gpu(programs, given, runs, workers, said, tmp_path, monkeypatch):
    for name, text in programs.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    # Nothing is installed: only what the recipe itself runs is looked at.
    command = ["make", "--dry-run", "--always-make", "bench", *given]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    found = re.findall(r"^\S+/bin/memobench run (.*?) *$", done.stdout, flags=re.M)
    assert found == [f"{each} --report {workers}".strip() for each in runs]
    spoken = re.findall(r'^echo "(.*this trains|.*workers of ON.*)', done.stdout, flags=re.M)
    assert len(spoken) == bool(said)
    assert said in done.stdout
    # What they name is there.
    for line in runs:
        *names, preset = line.split()
        cli.find()
        assert choose(names, preset.removeprefix("--preset="))


def test_the_environment_of_a_clone_that_was_renamed_is_made_anew(tmp_path, monkeypatch):
    clone, renamed, notes = tmp_path / "a clone", tmp_path / "renamed", tmp_path / "notes"
    clone.mkdir()
    for name in ("Makefile", "setup.cfg", "setup.py", "pyproject.toml"):
        shutil.copy(ROOT / name, clone)
    (tmp_path / "python").write_text(NOTING)
    (tmp_path / "python").chmod(0o755)
    monkeypatch.setenv("NOTES", str(notes))

    def called(folder):
        notes.write_text("")
        words = ("make", "test", "ACCEL=cpu", f"PYTHON={tmp_path / 'python'}")
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return [line for line in notes.read_text().splitlines() if line.startswith("-m")]

    install = ["-m pip install --quiet --editable .", "-m pip install --quiet --editable .[test]"]
    test = ["-m pytest -n 2 --dist=worksteal"]
    assert called(clone) == ["-m venv .venv", *install, *test]
    assert called(clone) == test
    clone.rename(renamed)
    anew = ["-m venv --clear .venv", *install, *test]
    assert called(renamed) == anew
    assert called(renamed) == test
    (renamed / ".venv" / "bin" / "python").unlink()
    assert called(renamed) == anew


BROKEN = """
from tiny import Plain, _experiment
import dataclasses

class Torn(Plain):
    def draw(self, experiment, preset, table):
        return table["bit"]

@@more@@
sound = _experiment("torn/sound", 2, 1, 512)
EXPERIMENTS = (dataclasses.replace(_experiment("torn/first", 1, 1, 2), figure=Torn()), sound)
"""


# As if the method were in memobench, or in its experiments.
OURS = """
exec(compile("def draw(self, experiment, preset, table): return table['bit']", {file!r}, "exec"))
Torn.draw = draw
"""
FILES = [pathlib.Path(memobench.__file__), ROOT / "experiments" / "dana2025" / "heads.py"]


@pytest.mark.parametrize(
    "file",
    [
        pytest.param(None, id="the user's"),
        pytest.param(FILES[0], id="ours"),
        pytest.param(FILES[1], id="an experiment's", marks=pytest.mark.slow),
    ],
)
def test_a_page_that_cannot_be_made_costs_no_other(tmp_path, monkeypatch, file):
    """Code of the user's is named by file and line; a bug of ours has its traceback."""
    (tmp_path / "tiny.py").write_text(TINY)
    more = OURS.format(file=str(file)) if file else ""
    (tmp_path / "torn.py").write_text(BROKEN.replace("@@more@@", more))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "tiny", raising=False)
    monkeypatch.setattr(plugins, "_names", [])
    words = ("run", "torn.py", "--preset=bench", "--report")
    done = command_line(*words, cwd=tmp_path)
    assert done.returncode == 1
    assert ("Traceback" in done.stderr) == bool(file)
    place = f"({file}, line 1)" if file else f"({tmp_path / 'torn.py'}, line 7)"
    assert f"torn/first: no page: KeyError: 'bit' {place}" in done.stderr
    assert (tmp_path / "runs" / "bench" / "torn" / "sound.md").exists()
    assert len(results.load_rows(tmp_path / "runs" / "shards")) == 2


def test_published_tables_change_only_when_asked_and_lose_no_run(checkout):
    folder, plugin, _, _ = checkout
    report = ("report", plugin, "--preset=bench")
    published = folder / "results" / "bench" / "tiny"
    whole = command_line(*report, "--publish", cwd=folder)
    assert whole.returncode == 0, whole.stderr
    table = memobench.published("tiny/cheap")
    assert len(table) == 3
    shutil.copy(published / "cheap_runs.csv", folder.parent)
    # Of a folder with fewer runs the others stay as they are published, and only there.
    (folder / "fewer").mkdir()
    for path in (folder / "runs" / "shards").glob("*.json"):
        shard = results.read_shard(path)
        results.write_shard(folder / "fewer", shard.rows[:1], shard.provenance)
    fewer = command_line(*report, "--publish", "--results=fewer", cwd=folder)
    assert "tiny/cheap: 1 runs of fewer, 2 others as they are published" in fewer.stdout
    again = memobench.published("tiny/cheap").set_index("run_id")
    assert again["loss"].to_dict() == pytest.approx(table.set_index("run_id")["loss"].to_dict())
    assert "3 of 3 runs are here" in (published / "cheap.md").read_text()
    first = command_line(*report, "--publish", "--seeds=1", cwd=folder)
    assert "--preset=bench is published with more than --seeds=1; leave --seeds out" in first.stderr
    assert len(memobench.published("tiny/cheap")) == 3
    alone = command_line(*report, "--results=fewer", "--output=own", cwd=folder)
    assert alone.returncode == 0
    assert "1 of 3 runs are here" in (folder / "own" / "bench" / "tiny" / "cheap.md").read_text()
    both = command_line(*report, "--publish", "--output=own", cwd=folder)
    assert "--publish writes into results/; leave out --output=own" in both.stderr


def test_an_accelerator_that_is_none_is_refused():
    command = ["make", "--dry-run", "bench", "ACCEL=gpu"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "ACCEL must be cpu, cuda12, cuda13 or tpu, got gpu" in done.stderr
