import contextlib
import errno
import io
import os
import pathlib
import re
import shutil
import subprocess
import sys
import zipfile

import pytest
from absl.testing import flagsaver

import memobench
from memobench.cli import main as cli
from memobench.cli.command import choose
from memobench.common.errors import RunsFailed, UserError
from memobench.experiment import load_file
from memobench.experiments import EXPERIMENTS
from memobench.runtime import sweep, verify
from memobench.store import results
from tests.command_line import command_line
from tests.drawn import assert_one_line

ROOT = pathlib.Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            [],
            "name a command: certify, check-submission, compare, leaderboard, list, report",
        ),
        (["rum"], "unknown command 'rum'; did you mean run?"),
        (["run"], "name an experiment, or a paper: dana2025, mahdavi2024, "),
        (
            ["run", "dana2025/head"],
            "unknown experiment 'dana2025/head'; did you mean dana2025/heads",
        ),
        (["run", "poems"], "unknown experiment 'poems'; memobench list shows all; "),
        (["run", "dana2025/heads", "--presett=full"], "no flag --presett; did you mean --preset"),
        (["status", "--seeds=1"], "status knows no flag --seeds; choose one of --results"),
        (["check-submission", "--results=x"], "check-submission knows no flag --results; choose"),
        (
            ["--results=x", "run", "dana2025/heads"],
            "--results belongs after the command",
        ),
        (
            ["run", "dana2025/heads", "--preset=medium"],
            "preset of dana2025/heads must be one of quick, paper, full",
        ),
        (["run", "dana2025/heads", "--for=2"], "flag --for=2: give a number above 0 with a unit"),
        (["run", "dana2025/heads", "--for=0h"], "flag --for=0h: give a number above 0 with"),
        (["run", "dana2025/heads", "--seeds=0"], "--seeds=0: give a positive integer"),
        (["run", "dana2025/heads", "--seeds=abc"], "--seeds=abc: give a positive integer"),
        (["run", "dana2025/heads", "--seeds"], "--seeds: expected one argument"),
        (["run", "dana2025/heads", "--results="], "flag --results=: name a folder"),
        (["run", "dana2025/heads", "--results=file/below"], "cannot be written"),
        (["run", "dana2025/heads", "--results=file"], "results='file' is a file; name a folder"),
        (["run", "dana2025/heads", "--dry-run", "--results=file"], "results='file' is a file"),
        (["run", "dana2025/heads", "--dry-run", "--results=runs"], "did you mean 'runs/shards'?"),
        (["run", "dana2025/heads", "--processes=2", "--on=rai"], "on='rai' must be ray, or"),
        (["run", "dana2025/heads", "--processes=0"], "--processes=0"),
        (["run", "dana2025/heads", "--on=ray"], "on='ray' needs processes=N"),
        (["run", "dana2025/heads", "--processes=2", "--dry-run"], "leave out --processes"),
        (["status", "--results=none"], "results='none' is not a folder; first: memobench run"),
        (
            ["report", "dana2025/heads", "--results=none"],
            "'none' is not a folder; first: memobench",
        ),
        (["report", "dana2025/heads"], "first: memobench run dana2025/heads --preset=quick"),
        (["leaderboard", "--results=none"], "'none' is not a folder; first: memobench"),
        (["leaderboard", "--results=file"], "results='file' is not a folder; it is a file; name a"),
        (["leaderboard", "--output=file"], "output='file' is a file; name a folder"),
        (["report", "dana2025/heads", "--output=file"], "output='file' is a file; name a folder"),
        (["leaderboard", "v1"], "takes no argument, got v1"),
        (
            ["compare", "--results=runs/shards", "--preset=nix"],
            "preset='nix': nothing is published of it; ",
        ),
        (
            ["submit", "--submitter=me", "--architecture=gated"],
            "architecture='gated' is unknown; choose one of",
        ),
    ],
)
def test_a_mistake_gets_a_clear_line_and_no_traceback(arguments, said, tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "runs" / "shards").mkdir(parents=True)
    done = command_line(*arguments, cwd=tmp_path)
    assert done.returncode == 1
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_windows_is_refused_in_a_line(monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(
        SystemExit, match="memobench: the system must be Linux or macOS, got Windows"
    ):
        cli.main()
    for name in ("run", "load_results", "check"):
        with pytest.raises(UserError, match="run memobench in WSL 2") as error:
            getattr(memobench, name)
        assert_one_line(error.value)


def _run_code(code: str) -> str:
    """The output of a process of its own, which runs code with the command line as `cli`."""
    code = f"import sys; from memobench.cli import main as cli\n{code}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_reader_that_has_seen_enough_is_no_mistake(tmp_path):
    program = f"{sys.executable} -m memobench list | true"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        program, shell=True, capture_output=True, text=True, cwd=tmp_path, env=environment
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_a_full_disk_is_one_line(monkeypatch, number):
    def fill(*_, **__):
        raise OSError(number, os.strerror(number), "results/LEADERBOARD.md")

    monkeypatch.setattr(cli.app, "run", fill)
    with pytest.raises(SystemExit, match=r"^memobench: results/LEADERBOARD\.md cannot be wr"):
        cli.main()


def test_help_imports_nothing_that_takes_long():
    code = "sys.argv = ['memobench', '--help']\n"
    code += "try: cli.main()\n"
    code += "except SystemExit: pass\n"
    code += "assert not {'jax', 'pandas', 'numpy'} & set(sys.modules)"
    assert "memobench COMMAND --help" in _run_code(code)


def test_a_mistake_is_found_before_any_work():
    """In the command itself, before what plans and makes runs is imported."""
    code = "for wrong in ('--results=/dev/null/none', '--on=rai'):\n"
    code += "    sys.argv = ['memobench', 'run', 'dana2025/heads', wrong]\n"
    code += "    try: cli.main()\n"
    code += "    except SystemExit as end: print(end)\n"
    code += "late = {f'memobench.runtime.{name}' for name in ('sweep', 'worker')}\n"
    code += "assert not set(sys.modules) & late"
    folder, place = _run_code(code).splitlines()
    assert folder.startswith("memobench: results='/dev/null/none' cannot be written")
    assert place.startswith("memobench: on='rai' needs processes=N")


def test_every_command_has_its_own_help(tmp_path):
    """A line each in the general help; in its own its flags and no other's."""
    general = command_line("--help", cwd=tmp_path)
    assert general.returncode == 0
    for name, command in cli.find().items():
        first, *_ = command.run.__doc__.splitlines()
        assert re.search(rf"^  {name} +{re.escape(first)}$", general.stdout, re.MULTILINE)
        with pytest.raises(SystemExit, match="0"), contextlib.redirect_stdout(io.StringIO()) as out:
            cli.parse(["memobench", name, "--help"])
        told = set(re.findall(r"^  (--\w+)", out.getvalue(), re.MULTILINE))
        assert told == {f"--{flag.name}" for flag in command.flags}
        assert out.getvalue().startswith(f"usage: memobench {name} ")
        assert first in out.getvalue()


def test_a_clone_without_its_dependencies_is_one_line(tmp_path):
    # Without `site` nothing is installed; what lies in a folder can be imported all the same.
    done = _uninstalled([ROOT], tmp_path)
    assert done.stderr == (
        "memobench: must be installed, got a path (No module named 'absl'); "
        f"python -m pip install {ROOT}\n"
    )


# An editable installation is a folder behind all others.
EDITABLE = "import sys; sys.path.append(sys.argv[1])"
WHERE = """
import memobench
import memobench.experiments.dana2025 as folder
print(memobench.__file__, memobench.experiments.__file__, folder.__file__)
"""


def _clone(folder, experiments):
    shutil.copytree(ROOT / "memobench", folder / "memobench")
    for name in ("", "dana2025"):
        (folder / experiments / name).mkdir()
        (folder / experiments / name / "__init__.py").touch()
    return folder


@pytest.mark.parametrize("experiments", ["experiments", "memobench/experiments"])
def test_a_clone_has_its_own_experiments_whichever_is_installed(tmp_path, experiments):
    installed = _clone(tmp_path / "a" / "memobench", "experiments")
    other = _clone(tmp_path / "b", experiments)
    for folder, expected in ((other, other), (tmp_path / "a", installed)):
        line = [sys.executable, "-S", "-c", EDITABLE + WHERE, installed]
        found = subprocess.run(line, cwd=folder, capture_output=True, text=True, check=True)
        inside = "experiments" if expected is installed else experiments
        files = ("memobench", inside, f"{inside}/dana2025")
        assert found.stdout.split() == [str(expected / x / "__init__.py") for x in files]
    shutil.rmtree(other / experiments)
    line = [sys.executable, "-S", "-c", EDITABLE + WHERE, installed]
    found = subprocess.run(line, cwd=other, capture_output=True, text=True)
    said = f"memobench.experiments must be in one of {other / 'memobench'}, {other}, got none; "
    assert said in found.stderr.splitlines()[-1]


def test_a_package_within_an_archive_is_one_line(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as file:
        for name in ("__init__", "__main__"):
            file.write(ROOT / "memobench" / f"{name}.py", f"memobench/{name}.py")
    done = _uninstalled([tmp_path / "a.zip"], tmp_path)
    assert "memobench must be a folder of files, got " in done.stderr
    assert done.stderr.count("\n") == 1


def _uninstalled(path, folder):
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}
    line = [sys.executable, "-S", "-m", "memobench", "list"]
    done = subprocess.run(line, cwd=folder, env=environ, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    return done


def test_a_tilde_after_an_equals_sign_is_the_home(tmp_path, monkeypatch):
    """There a shell leaves it as it is; in Python nobody would expand it."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "own.py").write_text("")
    cli.find()
    with flagsaver.flagsaver():
        command, _ = cli.parse(["memobench", "report", "--results=~/x", "--output=~", "a"])
        values = {flag.name: flag.value for flag in command.flags}
        assert (values["results"], values["output"]) == (f"{tmp_path}/x", str(tmp_path))
    assert load_file("~/own.py") == ()
    for call in (results.check_writable, memobench.load_results, verify.verify):
        with pytest.raises(UserError, match=r"='~/x' begins with ~; give os\.path\.expanduser"):
            call("~/x")


def test_the_version_is_told(tmp_path):
    done = command_line("--version", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"memobench {memobench.__version__}\n")


def test_arguments_and_flags_stand_in_any_order():
    cli.find()  # Flags that are defined inside the block are gone after it.
    line = ["memobench", "report", "a", "--preset=full", "b", "--results", "there", "c"]
    with flagsaver.flagsaver():
        command, arguments = cli.parse(line)
        assert arguments == ["a", "b", "c"]
        assert {flag.name: flag.value for flag in command.flags}["results"] == "there"
        assert {flag.name: flag.value for flag in command.flags}["preset"] == "full"


def test_list_names_every_experiment(tmp_path):
    done = command_line("list", cwd=tmp_path)
    assert all(name in done.stdout for name in EXPERIMENTS)


@pytest.mark.parametrize(("encoding", "shown"), [("ascii", "\\xb7"), ("utf-8", "\xb7")])
def test_a_terminal_that_has_not_every_letter_shows_codes(tmp_path, monkeypatch, encoding, shown):
    """Also for a name that is no text, of which no encoding has the letters."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding)
    monkeypatch.setattr(cli, "_run", lambda chosen: print("1 \xb7 2, \udcff", flush=True))
    done = command_line("list", cwd=tmp_path, out=stream)
    assert done.returncode == 0, done.stderr
    assert stream.buffer.getvalue().decode(encoding) == f"1 {shown} 2, \\udcff\n"


@pytest.fixture
def no_docstrings(monkeypatch):
    """As under -OO: what commands read of their own is gone."""
    for command in cli.find().values():
        monkeypatch.setattr(command.run, "__doc__", None)
        monkeypatch.setattr(sys.modules[command.run.__module__], "__doc__", None)
    monkeypatch.setattr(cli, "__doc__", None)


def test_without_docstrings_commands_have_help(no_docstrings, tmp_path):
    for line in (["--help"], ["run", "--help"]):
        done = command_line(*line, cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.count("usage: memobench") == 1


@pytest.mark.slow
def test_without_docstrings_commands_work():
    """Python compiles all libraries anew for it."""
    command = [sys.executable, "-OO", "-m", "memobench", "run", "--help"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("usage: memobench") == 1


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (["dana2025"], "dana2025/"),
        (["dana2025/"], "dana2025/"),
        (["dana2025/*", "dana2025/heads"], "dana2025/"),
        (["board/shapes"], "board/shapes"),
    ],
)
def test_a_name_may_be_a_pattern_or_a_paper(names, chosen):
    found = [experiment.name for experiment in choose(names)]
    assert sorted(found) == sorted(name for name in EXPERIMENTS if name.startswith(chosen))


def test_a_pattern_leaves_out_experiments_without_the_preset():
    chosen = {experiment.name for experiment in choose(["dana2025"], "paper")}
    having = {name for name, found in EXPERIMENTS.items() if "paper" in found.presets}
    assert chosen == {name for name in having if name.startswith("dana2025/")}
    assert [found.name for found in choose(["dana2025/contexts"], "paper")] == ["dana2025/contexts"]


def test_a_run_whose_time_is_up_says_so_and_is_no_failure(tmp_path, monkeypatch):
    def stopped(runs, results, progress, seconds, *place):
        assert 0 < seconds <= 1800
        raise sweep.TimeUp("the time is up: 1 of 2 runs are saved")

    monkeypatch.setattr(sweep, "run", stopped)
    line = ["run", "dana2025/heads", "--for=0.5h"]
    for more in ([], ["--report"]):
        done = command_line(*line, *more, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert "the time is up: 1 of 2 runs are saved" in done.stdout


def test_a_report_that_runs_out_of_time_still_says_which_runs_are_lost(tmp_path, monkeypatch):
    endings = iter([RunsFailed("1 of 2 runs is lost"), sweep.TimeUp("the time is up")])

    def ended(*of_run):
        raise next(endings)

    monkeypatch.setattr(sweep, "run", ended)
    line = ["run", "dana2025/heads", "dana2025/smallest", "--report", "--for=1h"]
    done = command_line(*line, cwd=tmp_path)
    assert "the time is up" in done.stdout
    assert done.returncode == 1
    assert "1 of 2 runs is lost" in done.stderr


def test_experiments_that_share_runs_run_them_once(tmp_path):
    done = command_line("run", "dana2025/heads*", "dana2025/heads", "--dry-run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "138 runs in" in done.stdout
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["90", "dana2025/heads"] in [[line[0], line[-1]] for line in lines]
    assert "2 at a time" in done.stdout
    line = ["run", "dana2025/heads*", "--dry-run", "--processes=3", "--on=env"]
    assert "3 at a time on machines like" in command_line(*line, cwd=tmp_path).stdout


def test_fewer_seeds_are_fewer_runs(tmp_path):
    done = command_line("run", "mahdavi2024/saturation", "--dry_run", "--seeds=1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "2 runs in" in done.stdout


def test_a_dry_run_prints_the_plan_and_leaves_nothing(tmp_path):
    done = command_line("run", "dana2025/heads", "--preset=quick", "--dry_run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for word in ("runs", "waste", "memory", "MiB", "seconds", "90 runs in", "with compilation"):
        assert word in done.stdout
    assert list(tmp_path.iterdir()) == []
