"""The stories of CONTRIBUTING: one short file adds a kind of thing, and no edit of ours."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from memobench.core.cells import cells, from_cells
from memobench.experiment import load_file
from memobench.planner import packing
from memobench.store import results, rows
from tests.command_line import command_line
from tests.small import checked_row

FOLDER = pathlib.Path(__file__).parents[1] / "extending"
STORIES = sorted(FOLDER.glob("*.py"))


def _runs(path: pathlib.Path) -> list:
    (experiment,) = load_file(path)
    return list(experiment.presets["quick"])


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_a_story_is_short(path):
    assert len(path.read_text().splitlines()) <= 60


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_a_storys_runs_pack_have_ids_and_columns_as_ours(path):
    runs = _runs(path)
    packs = packing.plan(runs, "cpu")
    assert sum(len(pack.runs) for pack in packs) == len(runs)
    assert len(packs) < len(runs) / 2
    for run in runs:
        assert from_cells(json.loads(json.dumps(cells(run)))) == run
        assert cells(run).keys() <= rows.all_columns().keys()


_COMPARES = FOLDER / "experiment.py"


@pytest.mark.parametrize(
    "stories",
    [
        # Kinds of the other stories train in packs in tests of what the least of a kind is.
        pytest.param([_COMPARES], id="one"),
        pytest.param(STORIES, id="all, killed", marks=pytest.mark.slow),
    ],
)
def test_stories_train_resume_after_a_kill_report_rank_and_verify(tmp_path, stories):
    """All in one sweep, begun by a process and ended by another."""
    folder, plugins_given = tmp_path / "runs", [f"--plugin={path}" for path in stories]

    def memobench(*arguments):
        done = command_line(*arguments, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    runs = {path: _runs(path) for path in stories}
    if stories == STORIES:
        _killed_after_its_first_shard(folder)
    kept = {shard: shard.stat().st_mtime_ns for shard in folder.glob("*.json")}
    memobench("run", *stories, f"--results={folder}", "--noprogress")
    assert {shard: shard.stat().st_mtime_ns for shard in kept} == kept
    table = results.load_results(folder)
    ids = {run.run_id for each in runs.values() for run in each}
    assert sorted(table["run_id"]) == sorted(ids)
    assert (table["status"] == "ok").all()
    for row in results.load_rows(folder).values():
        checked_row(row)
    memobench("report", *stories, f"--results={folder}", f"--output={tmp_path}")
    for path in stories:
        name = load_file(path)[0].name
        for ending in (".md", "_runs.csv"):
            assert (tmp_path / f"{name}{ending}").exists()
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert "*(no rows)*" not in (tmp_path / f"{name}.md").read_text()
    # Nothing of this kind of figure, nor of this claim, is known to memobench.
    page = (tmp_path / "mine/two-heads.md").read_text()
    assert "\n\n## Best\n\nThe mean loss is smallest at n_heads = " in page
    assert "| two beat one |" in page
    if stories == STORIES:
        memobench("leaderboard", *plugins_given, f"--results={folder}", f"--output={tmp_path}")
    # Where the checkout was edited a note says so.
    assert "0 errors" in memobench("verify", folder, *plugins_given)


def _killed_after_its_first_shard(folder: pathlib.Path) -> None:
    command = [sys.executable, "-m", "memobench", "run", *STORIES, f"--results={folder}"]
    child = subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)
    deadline = time.monotonic() + 240
    while child.poll() is None and not list(folder.glob("*.json")):
        assert time.monotonic() < deadline, "no shard came"
        time.sleep(0.02)
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()
