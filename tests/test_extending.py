"""The stories of CONTRIBUTING: one short file adds a kind of thing, and no edit of ours."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from memobench import plugins
from memobench.planner import packing
from memobench.runs import cells, from_cells
from memobench.submissions import checks
from memobench.table import results, rows

FOLDER = pathlib.Path(__file__).parent / "extending"
FILES = sorted(FOLDER.glob("*.py"))
pytestmark = pytest.mark.usefixtures("forgotten")

STORIES = [path for path in FILES if path.name != "executor.py"]


def _memobench(*arguments: str, **options) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "memobench", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, **options)
    assert done.returncode == 0, done.stderr
    return done


def _runs(path: pathlib.Path) -> list:
    (experiment,) = plugins.load(path)
    return list(experiment.presets["quick"])


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_story_is_short(path):
    assert len(path.read_text().splitlines()) <= 60


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_a_storys_runs_pack_have_ids_and_can_be_submitted_as_ours(path):
    runs = _runs(path)
    packs = packing.plan(runs, "cpu")
    assert sum(len(pack.runs) for pack in packs) == len(runs)
    assert len(packs) < len(runs) / 2
    for run in runs:
        assert from_cells(json.loads(json.dumps(cells(run)))) == run
        assert cells(run).keys() <= rows.all_columns().keys()


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_a_story_trains_resumes_after_a_kill_reports_ranks_and_verifies(path, tmp_path):
    folder, plugin, runs = tmp_path / "runs", f"--plugin={path}", _runs(path)
    _killed_after_its_first_shard(path, folder)
    kept = {shard: shard.stat().st_mtime_ns for shard in folder.glob("*.json")}
    _memobench("run", path, f"--results={folder}", "--noprogress")
    assert {shard: shard.stat().st_mtime_ns for shard in kept} == kept
    table = results.load_results(folder)
    assert sorted(table["run_id"]) == sorted({run.run_id for run in runs})
    assert (table["status"] == "ok").all()
    for row in results.load_rows(folder).values():
        known = checks.columns()
        plain = {name: value for name, value in row.items() if name in known}
        checks.checked_row(plain)
    _memobench("report", path, f"--results={folder}", f"--output={tmp_path}")
    name = plugins.load(path)[0].name
    for ending in (".md", ".png", "_runs.csv"):
        assert (tmp_path / f"{name}{ending}").exists()
    assert "*(no rows)*" not in (tmp_path / f"{name}.md").read_text()
    _memobench("leaderboard", plugin, f"--results={folder}", f"--output={tmp_path}")
    # Where the checkout was edited a note says so.
    assert "0 errors" in _memobench("verify", folder, plugin).stdout


def _killed_after_its_first_shard(path: pathlib.Path, folder: pathlib.Path) -> None:
    command = [sys.executable, "-m", "memobench", "run", str(path), f"--results={folder}"]
    child = subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)
    deadline = time.monotonic() + 240
    while child.poll() is None and not list(folder.glob("*.json")):
        assert time.monotonic() < deadline, "no shard came"
        time.sleep(0.02)
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def test_the_executor_trains_the_others_files(tmp_path):
    path = FOLDER / "optimizer.py"
    options = [f"--plugin={FOLDER / 'executor.py'}", "--executor=processes", "--noprogress"]
    _memobench("run", path, *options, f"--results={tmp_path}")
    assert len(results.load_results(tmp_path)) == len(_runs(path))
