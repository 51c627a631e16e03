"""Files and packages of users register kinds and experiments, here and in other processes."""

import functools
import os
import pathlib
import pickle
import subprocess
import sys
import textwrap

import pytest

import memobench
from memobench.cli.command import choose
from memobench.common.errors import UserError
from memobench.core import plugins
from memobench.core.architecture import Architecture
from memobench.experiment import load_file
from memobench.experiments import EXPERIMENTS
from tests.command_line import command_line
from tests.drawn import assert_one_line

EXTENDING = pathlib.Path(__file__).parents[1] / "extending"
MINE = """
import dataclasses
from memobench.experiments import EXPERIMENTS as OURS

EXPERIMENTS = tuple(
    dataclasses.replace(OURS["board/typical"], name=f"mine/{x}") for x in ("squares", "others")
)
"""


@pytest.fixture
def write(tmp_path):
    def write(text, name="mine.py"):
        path = tmp_path / name
        path.write_text(textwrap.dedent(text))
        return path

    return write


def test_a_file_runs_in_processes_of_their_own(tmp_path):
    """Its architecture and its experiment, by a worker."""
    line = [str(EXTENDING / "architecture.py"), "mine/g*", "--results=runs"]
    there = ["--processes=1"]
    done = command_line("run", *line, *there, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "8 runs are in runs\n"), done.stderr
    table = memobench.load_results(tmp_path / "runs")
    assert table["architecture"].tolist() == ["gated"] * 8
    assert table["status"].tolist() == ["ok"] * 8
    logs = "".join(path.read_text() for path in (tmp_path / "runs" / ".logs").iterdir())
    assert "padded to GatedModule(" in logs
    again = command_line("run", *line, *there, cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert "".join(x.read_text() for x in (tmp_path / "runs" / ".logs").iterdir()) == logs


def test_another_process_finds_what_a_file_defines(write):
    """By what it unpickles, and by the names of the modules where nothing that it gets tells."""
    text = "class Mine:\n    pass\n"
    text += "from memobench import Architecture, kind\n"
    text += "@kind('elsewhere')\nclass Elsewhere(Architecture):\n    pass\n"
    path = write(text, "a file.100%.py")
    assert load_file(path) == ()
    (name,) = plugins.names()
    loaded = [sys.modules[name].Mine(), functools.partial(plugins.at_work, (), len, "four")]
    asked = functools.partial(plugins.at_work, plugins.names(), Architecture.get_kind, "elsewhere")
    child = "import pickle, sys; print(*[x() for x in pickle.load(sys.stdin.buffer)])"
    for data in (loaded[1:], [asked]):
        done = subprocess.run(
            [sys.executable, "-c", child], input=pickle.dumps(data), capture_output=True
        )
        assert done.returncode == 0, done.stderr
    assert b"a file%2E100%25%2Epy.Elsewhere" in done.stdout
    child = "import pickle, sys; print(type(pickle.load(sys.stdin.buffer)).__name__)"
    data = pickle.dumps(loaded[0])
    done = subprocess.run([sys.executable, "-c", child], input=data, capture_output=True)
    assert (done.stdout, done.returncode) == (b"Mine\n", 0), done.stderr


def test_completion_lists_what_is_public_and_every_kind(write):
    text = "from memobench import Architecture, kind\n"
    load_file(write(text + "@kind('elsewhere')\nclass Elsewhere(Architecture):\n    pass\n"))
    listed = dir(memobench)
    assert {*memobench.__all__, "MLP", "Elsewhere"} <= {*listed}
    assert all(hasattr(memobench, name) for name in listed)
    with pytest.raises(AttributeError) as error:
        _ = memobench.Elsewere
    # From these Python makes "Did you mean: 'Elsewhere'?"
    assert (error.value.name, error.value.obj) == ("Elsewere", memobench)


def test_a_file_is_loaded_once_under_one_name(write, tmp_path, monkeypatch):
    path = write("import os\nos.environ['LOADED'] = os.environ.get('LOADED', '') + 'x'\n")
    monkeypatch.setenv("LOADED", "")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link.py").symlink_to(path)
    for name in (path, "mine.py", "./mine.py", "link.py"):
        load_file(name)
    assert os.environ["LOADED"] == "x"
    assert len(plugins.names()) == 1


def test_a_file_of_ours_is_no_other_module():
    heads = EXPERIMENTS["dana2025/heads"]
    file = sys.modules["memobench.experiments.dana2025.heads"].__file__
    assert load_file(file) == (heads,)
    assert choose([file]) == [heads]


def test_experiments_of_a_file_are_chosen_by_patterns(write):
    file = str(write(MINE))

    def of(*names):
        return [experiment.name for experiment in choose(names)]

    assert of(file) == ["mine/squares", "mine/others"]
    assert of("*squares", file) == of(file, "mine/squares") == ["mine/squares"]
    assert of("mine", "dana2025/heads") == ["mine/squares", "mine/others", "dana2025/heads"]
    # Beside those of the suite, all of the file's are meant where no name is of one of them.
    assert of(file, "board/typical") == ["mine/squares", "mine/others", "board/typical"]
    assert of(file, "mine/squares", "board/typical") == ["mine/squares", "board/typical"]
    with pytest.raises(UserError, match="unknown experiment 'mine/square'; did you mean mine/sq"):
        of(file, "mine/square")


@pytest.mark.parametrize(
    ("more", "names"),
    [
        ("EXPERIMENT = EXPERIMENTS[0]", ["mine/squares", "mine/others"]),
        ("EXPERIMENT, *EXPERIMENTS = EXPERIMENTS", ["mine/squares", "mine/others"]),
        ("EXPERIMENTS = iter(EXPERIMENTS)", ["mine/squares", "mine/others"]),
        ("EXPERIMENT, EXPERIMENTS = EXPERIMENTS[1], OURS", ["mine/others"]),
        ("EXPERIMENTS = OURS", []),
    ],
)
def test_a_file_declares_one_experiment_several_or_both(write, more, names):
    assert [x.name for x in load_file(write(f"{MINE}\n{more}"))] == names


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a = 1\nb = (\n", ", line 2: SyntaxError: '(' was never closed"),
        ("a = 1\n\nb = a.c\n", ", line 3: AttributeError: 'int' object has no attribute 'c'"),
        ("import nothing_of_the_kind", ", line 1: ModuleNotFoundError: No module named 'nothing"),
        ("\nimport json\njson.loads('{')", ", line 3: JSONDecodeError: Expecting property"),
        ("raise SystemExit('no\\nmore')", ", line 1: SystemExit: no more"),
        (
            "from memobench.tasks.associations import Associations\nAssociations(vocab_size=-1)",
            ", line 2: vocab_size=",
        ),
        (
            "from memobench.core.architecture import Architecture\n"
            "from memobench.core.spec import kind\n"
            "@kind('mlp')\nclass Mine(Architecture):\n    pass",
            ", line 3: architecture name='mlp' is that of memobench.models.transformer.MLP",
        ),
        (
            "import dataclasses\nfrom memobench.experiments import EXPERIMENTS\n"
            "EXPERIMENT = dataclasses.replace(EXPERIMENTS['board/typical'], title='mine')",
            ": an experiment of name='board/typical' is there. Choose another.",
        ),
        (
            "EXPERIMENT = [3]",
            ": EXPERIMENT must be an Experiment, got [3]. Several are EX",
        ),
        (
            "from memobench.experiments.dana2025.heads import EXPERIMENT as EXPERIMENTS",
            ": EXPERIMENTS must be a list of Experiments, got Experiment(name='dana2025/heads', ",
        ),
        ("EXPERIMENTS = [3]", ": EXPERIMENTS must be a list of Experiments, got 3 among them."),
    ],
)
def test_a_mistake_in_a_file_is_one_line_that_names_it(write, text, said):
    path = write(text)
    with pytest.raises(UserError) as error:
        load_file(path)
    assert str(error.value).startswith(f"{path}{said}")
    assert "\n" not in str(error.value)


def test_two_files_that_define_one_kind_are_both_named(write):
    text = (
        "from memobench import Architecture, kind\n"
        "@kind('elsewhere')\nclass Elsewhere(Architecture):\n    pass\n"
    )
    first, second = write(text, "first.py"), write(text, "second.py")
    load_file(first)
    with pytest.raises(UserError) as error:
        load_file(second)
    assert str(error.value) == (
        f"{second}, line 2: architecture name='elsewhere' is that of Elsewhere of {first} already; "
        "choose another name"
    )


@pytest.mark.parametrize("importing_first", [True, False])
def test_a_file_that_another_imports_may_be_named_too(write, monkeypatch, importing_first):
    text = (
        "from memobench import Architecture, kind\n"
        "@kind('beside')\nclass Beside(Architecture):\n    pass\n"
    )
    files = [write("from defining_beside import Beside\n"), write(text, "defining_beside.py")]
    monkeypatch.syspath_prepend(files[0].parent)
    # As it was when the test began, once it ends.
    monkeypatch.setitem(sys.modules, "defining_beside", None)
    del sys.modules["defining_beside"]
    for file in files if importing_first else files[::-1]:
        load_file(file)
    assert Architecture.get_kind("beside").__qualname__ == "Beside"


def test_a_file_may_import_its_neighbour(write):
    write("WIDTH = 2\n", "sizes_beside.py")
    assert load_file(write("import sizes_beside\nassert sizes_beside.WIDTH == 2\n")) == ()
    del sys.modules["sizes_beside"]


def test_a_file_that_is_none_or_has_no_experiment_is_one_line(write, tmp_path):
    write("")
    for line, said in [
        (["run", "none.py"], "'none.py' is not a file; name one of kinds or experiments"),
        (["list", "--plugin=none.py"], "'none.py' is not a file; name one of kinds or experiments"),
        (["run", "mine.py"], "mine.py: no experiment; declare one as EXPERIMENT"),
    ]:
        done = command_line(*line, cwd=tmp_path)
        assert done.returncode == 1
        assert done.stderr.startswith(f"memobench: {said}")
        assert done.stderr.count("\n") == 1


def test_a_report_without_runs_names_the_command_that_makes_them(tmp_path):
    (tmp_path / "runs" / "shards").mkdir(parents=True)
    file = EXTENDING / "experiment.py"
    done = command_line("report", file, cwd=tmp_path)
    assert done.returncode == 1
    # After a warning of the reader that the folder is empty, which some processes show.
    _, _, line = done.stderr.strip().rpartition("; first: memobench ")
    ran = command_line(*line.split(), "--dry-run", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert "runs in" in ran.stdout


def test_an_installed_package_registers_its_modules(write, tmp_path, monkeypatch):
    installed = tmp_path / "mine-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text("[memobench]\nmine = mine\n")
    monkeypatch.syspath_prepend(tmp_path)
    # Once in a process is enough elsewhere.
    monkeypatch.setattr(plugins, "load_installed", plugins.load_installed.__wrapped__)
    write(MINE)
    done = command_line("list", "mine", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["mine/squares", "mine/others"]
    write("1 / 0")
    monkeypatch.delitem(sys.modules, "mine")
    done = command_line("list", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr == (
        "memobench: the installed module mine: ZeroDivisionError: division by zero\n"
    )


def test_a_file_does_not_get_the_helper_of_another_folder(tmp_path, monkeypatch):
    """Python has one module of a name, so that the second would silently use the first's."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("helping", "helped_one"):
        monkeypatch.setitem(sys.modules, name, None)
        del sys.modules[name]
    for folder, value in (("one", 1), ("two", 2)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "helping.py").write_text(f"import helped_{folder}\nVALUE = {value}")
        (tmp_path / folder / f"helped_{folder}.py").write_text("import helping")
        (tmp_path / folder / "mine.py").write_text("from helping import VALUE")
    assert plugins.load(tmp_path / "one" / "mine.py", lambda module: module.VALUE) == 1
    with pytest.raises(UserError, match=r"helping is .*one.*, not the one beside it; rename one"):
        plugins.load(tmp_path / "two" / "mine.py")
    (tmp_path / "two" / "mine.py").write_text("def value():\n    from helping import VALUE")
    with pytest.raises(UserError, match="rename one") as error:
        plugins.load(tmp_path / "two" / "mine.py")
    assert_one_line(error.value)
    (tmp_path / "two" / "helping.py").unlink()
    (tmp_path / "two" / "helping.py").symlink_to(tmp_path / "one" / "helping.py")
    plugins.load(tmp_path / "two" / "mine.py")
