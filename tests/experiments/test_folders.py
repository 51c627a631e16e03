"""The experiments' folders: found without a list, in the pages' order, and declared where named."""

import ast
import doctest
import importlib
import pathlib
import pkgutil
import runpy
import subprocess
import sys
import types

import pytest

import memobench
from memobench import experiments
from memobench.claims import Claim
from memobench.common.errors import UserError
from memobench.core.cells import cells
from memobench.core.run import Run
from memobench.experiment import Experiment, find_experiments, modules
from memobench.experiments import capacity
from memobench.methods.training import Training
from memobench.report.figure import Figure

FIGURE = Figure(x="n_heads", hue="d_model")
FOLDERS = {m.name for m in pkgutil.iter_modules(experiments.__path__)}
IN_FOLDERS = {
    folder: {m.name for m in pkgutil.iter_modules([str(pathlib.Path(path) / folder)])}
    for path in experiments.__path__
    for folder in FOLDERS
}


def test_pages_show_papers_first():
    groups = list(dict.fromkeys(name.partition("/")[0] for name in experiments.EXPERIMENTS))
    assert groups == [
        "dana2025",
        "mahdavi2024",
        "hebbian2026",
        "constructions",
        "board",
        "capacity",
        "blocks",
    ]
    assert next(iter(experiments.EXPERIMENTS)) == "dana2025/heads"


@pytest.mark.parametrize(
    "folder", [experiments.__name__, *(f"{experiments.__name__}.{f}" for f in sorted(FOLDERS))]
)
def test_an_order_names_modules_that_there_are(folder):
    package = importlib.import_module(folder)
    there = FOLDERS if package is experiments else IN_FOLDERS[folder.rpartition(".")[2]]
    order = getattr(package, "ORDER", ())
    assert set(order) <= there
    assert len(set(order)) == len(order)


def test_an_experiments_name_begins_with_its_folder():
    for folder, names in IN_FOLDERS.items():
        for name in names:
            module = importlib.import_module(f"{experiments.__name__}.{folder}.{name}")
            for experiment in find_experiments(module):
                assert experiment.name.startswith(f"{folder}/")
                assert experiments.EXPERIMENTS[experiment.name] is experiment


def test_examples_in_docstrings_are_right():
    counts = [
        doctest.testmod(importlib.import_module(f"{experiments.__name__}.{folder}.{name}"))
        for folder, names in IN_FOLDERS.items()
        for name in names
    ]
    assert sum(count.attempted for count in counts) > 2
    assert sum(count.failed for count in counts) == 0


def test_no_message_is_made_where_nothing_is_wrong(monkeypatch):
    """The text of all runs of an experiment takes longer than to make them."""

    def never(self):
        raise AssertionError(f"the text of a {type(self).__name__}")

    for kind in (Run, Figure, Claim, Experiment, Training):
        monkeypatch.setattr(kind, "__repr__", never)
    training = Training(epochs=2)
    assert Training.from_canonical(training.canonical()) == training
    made = runpy.run_path(
        importlib.import_module("memobench.experiments.dana2025.contexts").__file__
    )
    (experiment,) = find_experiments(types.SimpleNamespace(**made))
    assert experiment.claims


def test_a_new_file_is_found_and_comes_last(tmp_path, monkeypatch):
    """Nothing but the file: neither its folder nor the package names it."""
    text = "import dataclasses\nfrom memobench.experiments.dana2025 import heads\n"
    text += "EXPERIMENT = dataclasses.replace(heads.EXPERIMENT, name='capacity/new')\n"
    (tmp_path / "a_new_one.py").write_text(text)
    monkeypatch.setattr(capacity, "__path__", [*capacity.__path__, str(tmp_path)])
    found = [module for module in modules(capacity) if find_experiments(module)]
    assert [m.__name__.rpartition(".")[2] for m in found] == [*capacity.ORDER, "a_new_one"]
    assert [x.name for x in find_experiments(found[-1])] == ["capacity/new"]


def test_kinds_of_a_paper_are_found_and_no_experiment_is_imported_for_them(tmp_path):
    (tmp_path / "new2027").mkdir()
    (tmp_path / "new2027" / "__init__.py").touch()
    text = "from memobench.core.spec import kind\nfrom memobench.optimizers.adam import Adam\n"
    text += "@kind('new')\nclass New(Adam):\n    pass\n"
    (tmp_path / "new2027" / "own_optimizers.py").write_text(text)
    code = "import sys, memobench.experiments as experiments\n"
    code += f"experiments.__path__.append({str(tmp_path)!r})\n"
    code += "import memobench; memobench.New, memobench.Hebbian\n"
    code += "within = [x for x in sys.modules if x.startswith(f'{experiments.__name__}.')]\n"
    code += "print(*within, *(f'declares:{x}' for x in within if vars(sys.modules[x]).keys()"
    code += " & {'EXPERIMENT', 'EXPERIMENTS'}))"
    line = [sys.executable, "-c", code]
    found = subprocess.run(line, check=True, capture_output=True, text=True).stdout.split()
    within = {name.removeprefix("memobench.experiments.") for name in found}
    assert {"new2027.own_optimizers", "hebbian2026.own_constructions"} <= within
    assert not [name for name in found if name.startswith("declares:")]


def imported(path):
    """The full names that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_the_core_never_imports_the_studies():
    """Neither what theorems assume nor performance: both only look at the core from outside."""
    (core,) = memobench.__path__
    files = sorted(pathlib.Path(core).rglob("*.py"))
    assert len(files) > 50
    for path in files:
        for name in imported(path):
            assert not {"assumptions", "performance"} & set(name.split(".")), f"{path}: {name}"


def test_preset_paper_is_what_the_full_one_has_of_the_papers_protocol():
    with_paper = [
        found
        for found in experiments.EXPERIMENTS.values()
        if {"paper", "full"} <= set(found.presets)
    ]
    assert len(with_paper) > 12
    for experiment in with_paper:
        full = set(experiment.runs("full"))
        paper = set(experiment.runs("paper"))
        assert paper <= full
        assert {run.method.protocol for run in paper} <= {"published", "annealed"}
        # Every architecture and task that the full preset trains by it.
        by_protocol = {run for run in full if run.method.protocol in {"published", "annealed"}}
        assert {(run.task, run.architecture, run.seed) for run in paper} == {
            (run.task, run.architecture, run.seed) for run in by_protocol
        }
        # What is published beside it has been trained as long.
        for row in experiment.published:
            assert row["published_steps"] in {run.method.steps for run in paper}


def test_a_trend_has_both_ends_of_the_papers_sizes_and_some_between():
    with_trend = [x for x in experiments.EXPERIMENTS.values() if "trend" in x.presets]
    assert len(with_trend) == 5
    for experiment in with_trend:
        trend, paper = set(experiment.runs("trend")), set(experiment.runs("paper"))
        assert trend < paper
        assert {run.seed for run in trend} == {run.seed for run in paper}
        x = experiment.figure.x
        all_sizes = {cells(run)[x] for run in paper}
        for contexts in {run.task.contexts for run in paper}:
            sizes = {cells(run)[x] for run in trend if run.task.contexts == contexts}
            assert len(sizes) >= 3
            assert {min(all_sizes), max(all_sizes)} <= sizes


def test_runs_of_a_preset_are_made_once_and_when_they_are_first_asked_for():
    runs = experiments.EXPERIMENTS["dana2025/heads"].runs("bench")
    made = []

    def make(preset, found):
        made.append(preset)
        return found

    presets = {"quick": lambda: make("quick", iter(runs)), "full": lambda: make("full", [])}
    found = Experiment(name="mine/lazy", title="Lazy", presets=presets, figure=FIGURE)
    assert list(found.presets) == ["quick", "full"]
    assert made == []
    assert found.runs("quick") == found.presets["quick"] == runs
    assert made == ["quick"]
    with pytest.raises(UserError, match=r"mine/lazy: preset 'full' is empty\. Give some runs"):
        found.runs("full")
