"""A user's kind that is edited under its old name is another one, and what is old is kept."""

import contextlib
import dataclasses
import linecache
import os
import pathlib
import subprocess
import sys

import pytest

import memobench
from memobench import certificates
from memobench.analysis.kinds import FAMILIES
from memobench.common.errors import UnknownKind, UserError
from memobench.core import module as models
from memobench.core import own_code, plugins, source
from memobench.core.cells import cells, from_cells
from memobench.core.run import Run
from memobench.experiment import load_file
from memobench.methods.training import Training
from memobench.runtime import verify
from memobench.store import results
from memobench.tasks.associations import Associations
from tests import registries
from tests.drawn import assert_one_line

MINE = """
from flax import linen as nn

from memobench.core.architecture import Architecture
from memobench.core.module import Module
from memobench.core.spec import kind
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

    process = contextlib.ExitStack()

    def load(mine=MINE, helper=HELPER):
        for name, text in (("mine.py", mine), ("helper.py", helper)):
            (tmp_path / name).write_text(text)
        process.close()
        process.enter_context(registries.restore())
        for name in HELPERS:
            sys.modules.pop(name, None)
        load_file(tmp_path / "mine.py")
        return memobench.MyTable

    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    with process:
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
    kind(d_model=1).module_for(Associations(vocab_size=4))
    memobench.check(kind(d_model=1))
    assert "helper" in sys.modules
    assert own_code.code_of(kind) == before
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
    assert any("1 run not checked" in note and "was edited" in note for note in found.notes)
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
        own_code.code_of(made["Mine"])


CELL = """
import functools

import jax
import jax.numpy as jnp
from flax import linen as nn
from memobench.core.architecture import Architecture
from memobench.core.module import Module
from memobench.core.spec import kind


class Table(Module):
    vocab_size: int

    @nn.compact
    def __call__(self, tokens_S):
        shape = (self.vocab_size + ADDED, self.vocab_size)
        return SCALE * self.param("table", nn.initializers.normal(), shape)[tokens_S[-1]]


@kind("my_table")
class MyTable(Architecture):
    def module(self, task):
        return Table(task.vocab_size)
"""


@pytest.fixture
def notebook():
    """Runs cells one after another, and returns the names that they share."""
    names, ran = {"__name__": "notebook", "ADDED": 0}, []

    def run(*cells):
        for cell in cells:
            file = f"<cell {len(linecache.cache)}>"
            linecache.cache[file] = (len(cell), None, cell.splitlines(keepends=True), file)
            ran.append(file)
            exec(compile(cell, file, "exec"), names)
        return names

    yield run
    for file in ran:
        del linecache.cache[file]


def _reading(scale):
    """The class of CELL with another expression for SCALE."""
    return CELL.replace("SCALE", scale)


# What is run before the class, and what after it, so that another value is read.
EDITS = {
    "a constant": ("K = 1.0", "K", "K = 30.0"),
    "an equal one of another type": ("K = 1", "K", "K = 1.0"),
    "a helper": ("def f():\n    return 1.0", "f()", "def f():\n    return 30.0"),
    "a helper's constant": ("K = 1.0\ndef f():\n    return K", "f()", "K = 30.0"),
    "a default": ("def f(x=1.0):\n    return x", "f()", "f.__defaults__ = (30.0,)"),
    "an attribute": ("class C:\n    x = 1.0", "C.x", "C.x = 30.0"),
    "an instance": ("class C: pass\nc = C()\nc.x = 1.0", "c.x", "c.x = 30.0"),
    "an item": ("D = {'x': [1.0]}", "D['x'][0]", "D['x'][0] = 30.0"),
    "a member of a set": ("S = {1.0}", "sum(S)", "S.add(29.0)"),
    "an array": ("A = jnp.ones(1)", "A[0]", "A = 30 * A"),
    "a partial": ("f = functools.partial(max, 1.0)", "f(0)", "f = functools.partial(max, 30.0)"),
    "what JAX compiles": ("K = 1.0\n@jax.jit\ndef f():\n    return K", "f()", "K = 30.0"),
    "one in a class within": ("K = 1.0", "type('C', (), {'f': lambda s: K})().f()", "K = 30.0"),
    "what is not there yet": ("", "(K if 'K' in globals() else 1.0)", "K = 30.0"),
    "a method": ("", "1.0", "Table.idle = lambda self: 3"),
    "what a library was given": (
        "f = nn.initializers.constant(1.0)",
        "f(None, ())",
        "f = nn.initializers.constant(30.0)",
    ),
}


@pytest.mark.parametrize(("before", "read", "after"), EDITS.values(), ids=EDITS)
def test_another_value_of_what_the_code_reads_is_another_code(
    notebook, before, read, after, monkeypatch
):
    """Whether or not the class itself is run again."""
    # Nothing is trained here: what JAX has traced for other tests may stay.
    monkeypatch.setattr(own_code, "_forget", lambda: None)
    imports = CELL.partition("class")[0]
    first = notebook(imports, before, _reading(read))["MyTable"]
    old = first(d_model=1)
    assert first.code == old.code == notebook(_reading(read), "# Nothing")["MyTable"].code
    notebook(after)
    assert first(d_model=1).code == first.code != old.code
    with pytest.raises(
        UnknownKind, match="edited in between; go back to that one, or make"
    ) as error:
        memobench.check(old)
    assert_one_line(error.value)


def test_classes_of_one_function_differ_in_what_that_was_given(notebook):
    body = "".join(f"    {line}\n" for line in _reading("scale").splitlines())
    make = notebook(f"def make(scale):\n{body}    return MyTable")["make"]
    made = {scale: make(scale) for scale in (1.0, 30.0)}
    codes = {scale: kind.code for scale, kind in made.items()}
    assert codes[1.0] != codes[30.0]
    # Both stay what they are, in whichever order they are used.
    assert all(made[scale](d_model=1).code == codes[scale] for scale in (30.0, 1.0, 30.0))


@pytest.mark.parametrize(
    ("helper", "edited"),
    [
        pytest.param(
            *("def scale():\n    return 1.0", "def scale():\n    return 30.0"),
            marks=pytest.mark.slow,
        ),
        ("K = 1.0\n@jax.jit\ndef scale():\n    return K", "K = 30.0"),
    ],
    ids=["a helper", "what JAX has traced"],
)
def test_what_was_compiled_of_old_code_is_not_trained_on(notebook, tmp_path, helper, edited):
    """In one process, where the class and its module are not run again."""
    names = notebook(_reading("scale()"), helper)
    losses = []
    for edit in ("", edited):
        notebook(edit)
        run = _run(names["MyTable"])
        losses += [*memobench.run([run], tmp_path, progress=False)["loss"]]
        assert list(memobench.run([run], tmp_path, progress=False)["loss"]) == losses[-1:]
    assert losses[0] != losses[1]
    notebook(helper)
    again = memobench.run([_run(names["MyTable"])], tmp_path, progress=False)
    assert list(again["loss"]) == losses[:1]
    assert len(memobench.load_results(tmp_path)) == 2


def test_what_jax_has_traced_is_kept_while_nothing_changes(notebook, monkeypatch):
    """Functions that call each other are entered elsewhere by each kind."""
    forgotten = []
    monkeypatch.setattr(own_code, "_forget", lambda: forgotten.append(1))
    notebook(
        "K = 1.0\ndef even(n):\n    return odd(n - 1) if n else K",
        "def odd(n):\n    return even(n - 1) if n else K",
        _reading("even(2)"),
    )
    other = _reading("odd(2)").replace("MyTable", "Other").replace("my_table", "other")
    names = notebook(other.replace("Table", "OtherTable"))
    for kind in ("MyTable", "Other", "MyTable"):
        names[kind](d_model=1)
    assert not forgotten
    notebook("K = 2.0")
    names["Other"](d_model=1)
    assert forgotten


def test_nothing_kept_by_modules_is_taken_for_what_other_code_makes(notebook):
    names, task, counted = notebook(_reading("1")), Associations(vocab_size=4), []
    for added in (0, 1):
        notebook(f"ADDED = {added}")
        module = names["MyTable"](d_model=1).module_for(task)
        counted += [models.count_parameters(module, 2), certificates.shapes(module, 2)]
    assert counted == [(16, 16), {"table": (4, 4)}, (20, 20), {"table": (5, 4)}]


@pytest.mark.parametrize(
    "value",
    ["__import__('threading').Lock()", "(x for x in ())", "memoryview(b'')"],
)
def test_a_value_without_a_stable_form_is_refused(notebook, value):
    names = notebook(f"THING = {value}", _reading("(THING and 1)"))
    with pytest.raises(UserError, match=r"give the class version = '1'$") as error:
        names["MyTable"](d_model=1)
    assert_one_line(error.value, "MyTable reads THING, whose value no id")
    names["MyTable"].version = "1"
    assert names["MyTable"](d_model=1).code == "version-1"


ANYWHERE = """
import dataclasses, enum, functools, logging, re
from typing import ClassVar, NamedTuple

import numpy as np

from memobench.core.spec import Spec, kind

log = logging.getLogger(__name__)
NAMES = {"one", "two", "three"}
PAIRS = {(x, y) for x in NAMES for y in NAMES}
TABLE = {"b": np.arange(6.0).reshape(2, 3), "a": [None, True, 1, 1.5, b"x", 1j, ...]}
MATCH = re.compile("a+")


class Color(enum.Enum):
    RED = 1
    BLUE = "b"


class Pair(NamedTuple):
    x: int
    y: int = 2


@dataclasses.dataclass
class Sizes:
    width: int = 1
    more: list = dataclasses.field(default_factory=lambda: [1])


@functools.cache
def deep(n):
    return deep(n - 1) if n else other(n)


def other(n):
    return deep(n) and (
        lambda x: x
        + len(NAMES)
    )


class Family(Spec, noun="family"):
    pass


@kind("mine")
class Mine(Family):
    def all(self):
        log.info(__file__)
        return NAMES & {"one", "two"}, PAIRS, TABLE, Color.RED, Pair(1), Sizes(), MATCH, other(1)


print(Mine().code)
"""


def test_a_code_is_the_same_in_another_process_and_another_folder(tmp_path):
    """Sets have another order in each, equal strings are one or several, and paths are others."""
    codes = set()
    for seed in "12":
        folder = tmp_path / seed
        folder.mkdir()
        (folder / "mine.py").write_text("\n" * int(seed) + ANYWHERE)
        more = {"PYTHONHASHSEED": seed, "PYTHONPATH": str(pathlib.Path(__file__).parents[2])}
        command = [sys.executable, *["-O"] * (seed == "2"), str(folder / "mine.py")]
        done = subprocess.run(
            command, env=os.environ | more, capture_output=True, text=True, check=True
        )
        codes.add(done.stdout)
    (code,) = codes
    assert code.startswith("code-")


def test_a_file_that_was_edited_after_it_was_loaded_is_loaded_again(load, tmp_path):
    """What runs is the old code, and its text is no longer there."""
    source.text.cache_clear()
    mine = MINE.replace("SCALES, unused", "SCALES, scales").replace("SCALES[0]", "scales()[0]")
    edited = HELPER.replace("return SCALES", "return SCALES[:]")
    kind = load(mine)
    (tmp_path / "helper.py").write_text(edited)
    with pytest.raises(UserError, match=r"^MyTable: the code of scales is another in ") as error:
        kind(d_model=1)
    assert_one_line(error.value)
    # What was read once is kept: a file may be edited while what it defines is trained.
    kind = load(mine, edited)
    before = kind.code
    (tmp_path / "helper.py").write_text(HELPER)
    assert kind.code == before
    # Lines that moved do not matter.
    kind = load(mine, "# Why.\n" + HELPER)
    (tmp_path / "helper.py").write_text(HELPER)
    assert kind.code == load(mine).code != before


WRAPPED = """
import jax

@jax.checkpoint
def mix(x):
    return {text}

class Mixed:
    def module(self):
        return mix
"""


def test_the_code_of_a_wrapped_function_does_not_depend_on_its_folder(tmp_path):
    codes = []
    for folder, text in (("a", "2 * x"), ("b", "2 * x"), ("c", "3 * x")):
        file = tmp_path / folder / "mine.py"
        file.parent.mkdir()
        file.write_text(WRAPPED.format(text=text))
        codes.append(own_code.code_of(plugins.load(file, lambda module: module).Mixed))
    assert codes[0] == codes[1] != codes[2]


@pytest.mark.parametrize(
    ("lifted", "other"),
    [
        ("nn.remat(Table)", "nn.remat(Table, policy=lambda *_: False)"),
        ("nn.jit(Table)", "nn.remat(Table)"),
        ("nn.vmap(Table, {'params': None})", "nn.vmap(Table, {'params': 0})"),
    ],
)
def test_the_code_of_a_module_that_flax_lifted_counts(load, lifted, other):
    """Flax makes such a class, whose module is one of Flax's."""

    def lift(how):
        mine = MINE.replace("return Table(", "return Lifted(")
        return mine.replace('@kind("', f'Lifted = {how}\n\n\n@kind("')

    texts = [lift(lifted), lift(lifted).replace("tokens_S[-1]", "tokens_S[0]"), lift(other)]
    codes = [
        load(text).code for text in [*texts, lift(lifted).replace("SPREAD = 1.0", "SPREAD = 2.0")]
    ]
    assert load(texts[0]).code == codes[0]
    assert len(set(codes)) == 4


@pytest.mark.parametrize("mark", ['"""', 'f"""{1}'])
def test_blank_lines_and_spaces_of_a_string_count(notebook, mark):
    """Those of a docstring and between statements do not."""
    codes = []
    for docs, text in (
        ("\n", "\n"),
        ("\n\n", "\n"),
        *(("\n", x) for x in ("\n\n", " \n", "\n \n")),
    ):
        helper = f'def f():\n    """A.{docs}"""{docs}\n    return len({mark}a{text}b""")'
        codes.append(notebook(helper, _reading("f()"))["MyTable"].code)
    assert codes[0] == codes[1]
    assert len(set(codes)) == 4
