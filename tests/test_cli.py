import subprocess
import sys

import pytest


def _memobench(*arguments, cwd):
    return subprocess.run(
        [sys.executable, "-m", "memobench.cli", *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        timeout=300,
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "name a command: list, run, status, report, leaderboard"),
        (["rum"], "unknown command 'rum'; did you mean run?"),
        (["run"], "name an experiment: dana2025/heads"),
        (
            ["run", "dana2025/head"],
            "unknown experiment 'dana2025/head'; did you mean dana2025/heads",
        ),
        (["run", "dana2025/heads", "--presett=full"], "Unknown command line flag 'presett'"),
        (["run", "dana2025/heads", "--preset=medium"], "value should be one of <quick|full>"),
        (["run", "dana2025/heads", "--results=file/below"], "cannot be written"),
        (["report", "dana2025/heads"], "first: memobench run dana2025/heads --preset=quick"),
        (["leaderboard"], "holds no run; first: memobench run"),
        (["leaderboard", "--output=file"], "first: memobench run"),
        (["report", "dana2025/heads", "--output=file"], "output='file' cannot be written"),
        (["leaderboard", "v1"], "takes no argument"),
    ],
)
def test_a_mistake_gets_a_clear_line_and_no_traceback(arguments, said, tmp_path):
    (tmp_path / "file").write_text("")
    done = _memobench(*arguments, cwd=tmp_path)
    assert done.returncode == 1
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_list_names_every_experiment(tmp_path):
    from memobench.experiments import EXPERIMENTS

    done = _memobench("list", cwd=tmp_path)
    assert all(name in done.stdout for name in EXPERIMENTS)


def test_a_pattern_names_all_of_a_paper(tmp_path):
    done = _memobench("run", "dana2025/heads*", "dana2025/heads", "--dry_run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "138 runs in" in done.stdout


def test_fewer_seeds_are_fewer_runs(tmp_path):
    done = _memobench("run", "mahdavi2024/saturation", "--dry_run", "--seeds=1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "2 runs in" in done.stdout


def test_a_dry_run_prints_the_plan_and_leaves_nothing(tmp_path):
    done = _memobench("run", "dana2025/heads", "--preset=quick", "--dry_run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for word in ("runs", "waste", "memory", "MiB", "seconds", "90 runs in", "with compilation"):
        assert word in done.stdout
    assert list(tmp_path.iterdir()) == []
