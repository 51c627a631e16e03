"""A user's kind that is edited under its old name is another one, and what is old is kept."""

import dataclasses
import linecache
import sys

import pytest

import memobench
from memobench import certificates, own_code, plugins
from memobench.errors import UnknownKind, UserError
from memobench.kinds import FAMILIES
from memobench.methods.training import Training
from memobench.runs import Run, cells, from_cells
from memobench.table import results, verify
from memobench.tasks.associations import Associations

MINE = """
from flax import linen as nn

from memobench.models.base import Architecture, Module
from memobench.spec import kind
from helper import SCALES, unused

SPREAD = 1.0
OTHER = 2.0


def draw(*arguments):
    # A comment.
    return SPREAD * nn.initializers.normal()(*arguments)


class Table(Module):
    vocab_size: int

    @nn.compact
    def __call__(self, tokens_S):
        return SCALES[0] * self.param("table", draw, (self.vocab_size,) * 2)[tokens_S[-1]]


@kind("my_table")
class MyTable(Architecture):
    def module(self, task):
        return Table(task.vocab_size)


def of_no_matter():
    return OTHER
"""
HELPER = """
import functools

SCALES = [1.0]


def scales():
    return SCALES


cached = functools.cache(scales)


def unused():
    return 0
"""
HELPERS = ("helper", "passing_on", "using")
SAME = [
    lambda mine, helper: (mine.replace("# A comment.", "# Another,\n\n    # longer one."), helper),
    lambda mine, helper: (mine.replace("OTHER = 2.0", "OTHER = 3.0"), helper),
    lambda mine, helper: (mine.replace("return OTHER", "return -OTHER"), helper),
    lambda mine, helper: ("'''A docstring.'''\nimport math\n" + mine, helper),
    lambda mine, helper: (mine, helper.replace("return 0", "return 1")),
]
ANOTHER = [
    lambda mine, helper: (mine.replace("SPREAD = 1.0", "SPREAD = 0.5"), helper),
    lambda mine, helper: (mine.replace("return SPREAD *", "return -SPREAD *"), helper),
    lambda mine, helper: (mine.replace("tokens_S[-1]", "tokens_S[0]"), helper),
    lambda mine, helper: (mine.replace("return Table(", "return  Table("), helper),
    lambda mine, helper: (
        mine.replace("    def module", "    version = '2'\n\n    def module"),
        helper,
    ),
]


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Loads the file anew, as another process would, and returns its architecture."""
    monkeypatch.syspath_prepend(tmp_path)

    def load(mine=MINE, helper=HELPER):
        for name, text in (("mine.py", mine), ("helper.py", helper)):
            (tmp_path / name).write_text(text)
        for family in FAMILIES:
            family.registry.pop("my_table", None)
        for name in (*HELPERS, *(x for x in sys.modules if x.startswith("memobench.plugins."))):
            sys.modules.pop(name, None)
        plugins.load(tmp_path / "mine.py")
        return memobench.MyTable

    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield load
    for name in HELPERS:
        sys.modules.pop(name, None)


def _run(architecture, **more):
    method = Training(n_batches=2, epochs=1).exact()
    task = Associations(vocab_size=4)
    return Run(task=task, architecture=architecture(d_model=1), method=method, **more)


def test_only_what_a_kind_rests_on_makes_it_another(load):
    before = _run(load()).run_id
    for edit in SAME:
        assert _run(load(*edit(MINE, HELPER))).run_id == before
    ids = [_run(load(*edit(MINE, HELPER))).run_id for edit in ANOTHER]
    assert len({before, *ids}) == len(ids) + 1


@pytest.mark.parametrize(
    ("imported", "name"),
    [
        ("from helper import SCALES", "SCALES"),
        ("from helper import SCALES as sizes", "sizes"),
        ("from helper import *", "SCALES"),
        ("from passing_on import SCALES", "SCALES"),
        ("import helper", "helper.SCALES"),
        ("import using", "using.TWICE"),
        ("from helper import scales", "scales()"),
        ("from helper import cached", "cached()"),
    ],
)
def test_what_is_imported_from_ones_own_folder_counts(load, tmp_path, imported, name):
    """However it is imported: a value, what is wrapped, or a file and what that uses."""
    (tmp_path / "passing_on.py").write_text("from helper import SCALES")
    (tmp_path / "using.py").write_text("from helper import SCALES\n\nTWICE = SCALES * 2")
    mine = MINE.replace("from helper import SCALES, unused", imported)
    mine = mine.replace("SCALES[0]", f"{name}[0]")
    before = load(mine).code
    assert load(mine, HELPER.replace("[1.0]", "[2.0]")).code != before
    assert load(mine, "# Why.\n" + HELPER).code == before


@pytest.mark.parametrize(
    ("imported", "name"),
    [
        ("from helper import SCALES", "SCALES"),
        ("from helper import SCALES as sizes", "sizes"),
        ("from using import TWICE", "TWICE"),
        ("import helper", "helper.SCALES"),
        ("import helper as sizes", "sizes.SCALES"),
    ],
)
def test_what_a_method_imports_counts_before_it_is_imported(load, tmp_path, imported, name):
    (tmp_path / "using.py").write_text("from helper import SCALES\n\nTWICE = SCALES * 2")
    mine = MINE.replace("from helper import SCALES, unused", "")
    mine = mine.replace("        return SCALES[0]", f"        {imported}\n        return {name}[0]")
    kind = load(mine)
    assert "helper" not in sys.modules
    before = kind.code
    kind(d_model=1).build(Associations(vocab_size=4))
    memobench.check(kind(d_model=1))
    assert "helper" in sys.modules
    assert own_code.of(kind) == before
    assert load(mine, HELPER.replace("[1.0]", "[2.0]")).code != before


def test_a_declared_version_stands_for_the_code(load):
    mine = MINE.replace("    def module", "    version = '3'\n\n    def module")
    assert load(mine).code == "version-3"
    edited = mine.replace("SPREAD = 1.0", "SPREAD = 0.5")
    assert load(edited).code == "version-3"


def test_an_edited_kind_trains_anew_and_the_old_rows_stay(load, tmp_path, caplog):
    folder = tmp_path / "runs"
    old = _run(load())
    first = memobench.run([old], folder, progress=False)
    (weights,) = (folder / "weights").iterdir()
    new = _run(load(MINE.replace("SPREAD = 1.0", "SPREAD = 30.0")))
    second = memobench.run([new], folder, progress=False)
    assert "1 run of the architecture 'my_table' were made by other code" in caplog.text
    assert second["loss"][0] != first["loss"][0]
    table = memobench.load_results(folder)
    assert sorted(table["run_id"]) == sorted([old.run_id, new.run_id])
    # What is old reads as it was written, is checked as far as it can be, and never made again.
    rows = {row["run_id"]: row for row in results.load_rows(folder).values()}
    read = from_cells(rows[old.run_id])
    assert read.architecture.code != new.architecture.code
    assert cells(read) == {name: rows[old.run_id].get(name) for name in cells(read)}
    found = verify.verify(folder)
    assert not found.errors
    assert any("1 runs were not checked" in note and "was edited" in note for note in found.notes)
    for refused in (
        lambda: memobench.run([dataclasses.replace(read, seed=7)], progress=False),
        lambda: certificates.load(weights),
    ):
        with pytest.raises(UnknownKind, match="was edited in between; go back"):
            refused()
    # And when the file is as it was, its runs are there.
    again = _run(load())
    assert memobench.run([again], folder, progress=False)["loss"][0] == first["loss"][0]


def test_rows_from_before_codes_were_recorded_are_read(load):
    run = _run(load())
    old = dataclasses.replace(run, architecture=run.architecture.replace(code=None))
    row = {name: cell for name, cell in cells(old).items() if name != "architecture_code"}
    assert from_cells(row) == old
    assert "code" not in old.architecture.canonical()


def test_ours_have_versions_of_memobench():
    for family in FAMILIES:
        for kind in family.kinds().values():
            assert own_code.in_tree(kind)
            assert not hasattr(kind, "code")


def test_without_source_a_version_is_asked_for(monkeypatch):
    # As Python 3.13 keeps what `python -c` is given, under the name of all strings.
    monkeypatch.setitem(linecache.cache, "<string>", (5, None, ["x = 1\n"], "<string>"))
    made: dict = {"__name__": "nowhere"}
    exec("class Mine:\n    def module(self, task):\n        return None", made)
    with pytest.raises(UserError, match="give the class version = '1'"):
        own_code.of(made["Mine"])
