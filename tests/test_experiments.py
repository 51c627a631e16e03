"""The experiments' folders: found without a list, in the pages' order, and declared where named."""

import importlib
import pathlib
import pkgutil

import pytest

from memobench import experiments
from memobench.experiments import capacity

FOLDERS = {m.name for m in pkgutil.iter_modules(experiments.__path__)}
IN_FOLDERS = {
    folder: {m.name for m in pkgutil.iter_modules([str(pathlib.Path(path) / folder)])}
    for path in experiments.__path__
    for folder in FOLDERS
}


def test_pages_show_papers_first():
    groups = list(dict.fromkeys(name.partition("/")[0] for name in experiments.EXPERIMENTS))
    assert groups == ["dana2025", "mahdavi2024", "constructions", "board", "capacity"]
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
    for folder, modules in IN_FOLDERS.items():
        for name in modules:
            module = importlib.import_module(f"{experiments.__name__}.{folder}.{name}")
            for experiment in experiments._declared(module):
                assert experiment.name.startswith(f"{folder}/")
                assert experiments.EXPERIMENTS[experiment.name] is experiment


def test_a_new_file_is_found_and_comes_last(tmp_path, monkeypatch):
    """Nothing but the file: neither its folder nor the package names it."""
    (tmp_path / "a_new_one.py").write_text("EXPERIMENT = 'declared'\n")
    monkeypatch.setattr(capacity, "__path__", [*capacity.__path__, str(tmp_path)])
    modules = experiments._modules(capacity)
    assert [m.__name__.rpartition(".")[2] for m in modules] == [*capacity.ORDER, "a_new_one"]
    assert experiments._declared(modules[-1]) == ("declared",)
