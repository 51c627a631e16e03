"""Submissions of architectures of one's own, whose code is reviewed, and may not know labels."""

import shutil

import numpy as np
import pandas as pd
import pytest

import memobench
from memobench import certificates
from memobench.board import families, submissions
from memobench.board import table as board
from memobench.cli.commands import submit
from memobench.common import folders
from memobench.common.errors import UserError
from memobench.core.architecture import Architecture
from memobench.core.run import Run
from memobench.experiment import load_file
from memobench.methods.training import Training
from memobench.report import leaderboard
from memobench.store import results
from tests import entries, registries
from tests.board.test_submissions import SET, STANDARD, refused
from tests.certificates.test_certificates import drawn
from tests.command_line import command_line

_IMPORTS = """\
import jax.numpy as jnp
from flax import linen as nn
from memobench.core.architecture import Architecture
from memobench.core.module import Module
from memobench.core.spec import kind
"""
OWN = f"""\
{_IMPORTS}

class Table(Module):
    vocab_size: int
    d_model: int

    @nn.compact
    def __call__(self, tokens_S):
        table_NxN = self.param("table", nn.initializers.normal(), (self.vocab_size,) * 2)
        return table_NxN[tokens_S[-1]]


@kind("own_table")
class OwnTable(Architecture):
    def module(self, task):
        return Table(task.vocab_size, self.d_model)
"""


def test_an_own_architecture_brings_its_file_for_review(tmp_path):
    file = tmp_path / "own.py"
    file.write_text(OWN)
    with registries.restore():
        load_file(file)
        table = memobench.OwnTable(d_model=1)
        task = families.task(256)
        found = [drawn(table, task), drawn(STANDARD, task)]
        path = submissions.write(found, "me", tmp_path / "out")
        (code,) = submissions.read(path).code
        assert (path / code).read_text() == OWN
        plain = shutil.copytree(path, tmp_path / "plain" / path.name)
        (plain / code).write_text(OWN + "\n")
        assert f"{code} was changed" in refused(plain)
        done = command_line("check-submission", str(path), cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert "2 certificates by me" in done.stdout
        assert f"review {code}, which defines what memobench does not" in done.stdout
    said = refused(path)
    assert "or load the file that defines it with --plugin; here it is defined by code-" in said
    assert f"{code}: review that before you load it" in said
    assert said.count(path.name) == 1


# Code that knows the labels of every d_model-th example, whatever the weights are.
CHEAT = f"""\
{_IMPORTS}

class Labels(Module):
    vocab_size: int
    known: tuple

    @nn.compact
    def __call__(self, tokens_S):
        table_NxN = self.param("table", nn.initializers.normal(), (self.vocab_size,) * 2)
        label = jnp.array(self.known)[tokens_S[0] * self.vocab_size + tokens_S[1]]
        return table_NxN[tokens_S[-1]] + 50 * (jnp.arange(self.vocab_size) == label)


@kind("own_labels")
class OwnLabels(Architecture):
    def module(self, task):
        data, known = task.sample(), [-1] * task.vocab_size**2
        for i in range(0, task.n_examples, self.d_model):
            first, second = data.tokens_TxS[i].tolist()
            known[first * task.vocab_size + second] = int(data.next_TxK[i, 0])
        return Labels(task.vocab_size, tuple(known))
"""


@pytest.mark.parametrize(("part", "scale"), [(1, 0.0), (4, 1.0)])
def test_labels_in_the_code_are_refused(tmp_path, monkeypatch, part, scale):
    """All of them, or a quarter; written by `submit`, or by other means."""
    file = tmp_path / "cheat.py"
    file.write_text(CHEAT)
    load_file(file)
    table = np.float32(scale) * drawn(memobench.OwnLabels(d_model=part), SET).params["table"]
    made = certificates.make(SET, memobench.OwnLabels(d_model=part), {"table": table})
    said = r"random weights in place of those of own_labels know \d+ of 256 examples"
    with pytest.raises(UserError, match=said):
        submissions.write([made], "me", tmp_path / "out")
    with monkeypatch.context() as others:
        others.setattr(submissions, "_require_no_labels", lambda certificate: None)
        path = submissions.write([made], "me", tmp_path / "out")
    assert "so its code knows labels" in refused(path)


# Labels, but only where one weight has a sign; from a class that says it is memobench's.
_GATE = "(jnp.arange(self.vocab_size) == label)"
GATED = CHEAT.replace(f"50 * {_GATE}", f"50 * nn.relu(SIGN * table_NxN[0, 1]) * {_GATE}")
FAKED = CHEAT.replace(
    "    def module", '    __module__ = "memobench.models.transformer"\n\n    def module'
)


@pytest.mark.parametrize(
    "code",
    [GATED.replace("SIGN", "1"), GATED.replace("SIGN", "-1"), FAKED],
    ids=["of a positive weight", "of a negative weight", "faked"],
)
def test_labels_behind_a_gate_or_a_false_name_are_refused(tmp_path, code):
    """Half of all weights open a gate, so that a single draw would miss it as often."""
    assert code != CHEAT
    file = tmp_path / "cheat.py"
    file.write_text(code)
    load_file(file)
    made = drawn(memobench.OwnLabels(d_model=1), SET)
    with pytest.raises(UserError, match="so its code knows labels"):
        submissions.write([made], "me", tmp_path / "out")


def test_draws_differ_every_time(monkeypatch, tmp_path):
    file = tmp_path / "own.py"
    file.write_text(OWN)
    load_file(file)
    asked = []
    monkeypatch.setattr(
        submissions.counting,
        "count",
        lambda x, formats: asked.append(x.params["table"]) or {"known": 0},
    )
    for _ in range(2):
        submissions.write([drawn(memobench.OwnTable(d_model=1), SET)], "me", tmp_path / "out")
    assert len(asked) == 2 * submissions.DRAWS
    assert len({x.tobytes() for x in asked}) == len(asked)
    assert any((x > 0).all() for x in asked)
    assert any((x < 0).all() for x in asked)


# A task whose every label is the same, which says that it is the board's.
EQUAL = """\
import jax
import jax.numpy as jnp
from memobench.core.spec import kind
from memobench.tasks.tokens import SampledTask


@kind("own_task")
class OwnTask(SampledTask):
    def sample_next(self, key):
        shape = (self.n_examples, 1)
        return jnp.zeros(shape, jnp.int32), jnp.ones(shape)

    def __eq__(self, other):
        return True

    def __hash__(self):
        return 0
"""


def test_a_task_that_equals_any_other_has_no_place(tmp_path):
    file = tmp_path / "task.py"
    file.write_text(EQUAL)
    load_file(file)
    task = memobench.OwnTask(vocab_size=16, n_sequences=256)
    assert task == SET
    assert "its task must be one of the board's" in board.placement_error(task, 256)
    with pytest.raises(UserError, match="its task must be one of the board's"):
        submissions.write([drawn(STANDARD, task)], "me", tmp_path / "out")


def test_no_code_of_users_takes_the_name_of_a_kind_of_ours(tmp_path):
    """Though it says that it is the same class of the same module."""
    file = tmp_path / "mine.py"
    file.write_text(
        f"{_IMPORTS}\n\n@kind('attention_only')\nclass AttentionOnly(Architecture):\n"
        "    __module__ = 'memobench.models.transformer'\n"
    )
    ours = Architecture.get_kind("attention_only")
    with pytest.raises(UserError, match="name='attention_only' is that of memobench"):
        load_file(file)
    assert Architecture.get_kind("attention_only") is ours


def test_code_is_loaded_only_once_its_digest_is_listed(tmp_path, monkeypatch):
    """By tests, which a pull request runs; the list is no part of a submission."""
    file, ran = tmp_path / "own.py", tmp_path / "ran"
    file.write_text(OWN)
    with registries.restore():
        load_file(file)
        own = memobench.OwnTable(d_model=1)
        merged = tmp_path / "results"
        path = submissions.write([drawn(own, SET)], "me", merged / "submissions")
    (code,) = path.glob("*.py")
    code.write_text(f"{OWN}\nopen({str(ran)!r}, 'w').close()\n")
    monkeypatch.setattr(folders, "published", lambda: merged)
    listed = merged / "reviewed.txt"
    for text in ("", "# None yet.\n", f"{64 * '0'}  {code.name}\n"):
        listed.write_text(text)
        assert entries.submissions() == [path]
        assert not ran.exists()
    listed.write_text(f"# Read.\n{certificates.digest(code.read_bytes())}  {code.name}\n")
    assert entries.submissions() == [path]
    assert ran.exists()


def test_what_weights_know_is_not_taken_for_labels_in_the_code(tmp_path):
    """Of every last token the commonest answer, as weights of a table: three times chance."""
    file = tmp_path / "own.py"
    file.write_text(OWN)
    load_file(file)
    counts = np.zeros((16, 16))
    data = SET.sample()
    np.add.at(counts, (np.asarray(data.tokens_TxS[:, 1]), np.asarray(data.next_TxK[:, 0])), 1)
    made = certificates.make(SET, memobench.OwnTable(d_model=1), {"table": counts})
    (row,) = submissions.read(submissions.write([made], "me", tmp_path / "out")).rows
    assert row["known"] > 40


def test_an_own_architecture_of_several_files_is_refused(tmp_path, monkeypatch):
    """A reviewer would have the first of them only."""
    monkeypatch.syspath_prepend(tmp_path)
    head, module = OWN.split('@kind("own_table")')
    (tmp_path / "neighbouring_layers.py").write_text(head)
    kinds = head.split("class Table")[0] + "from neighbouring_layers import Table\n"
    (tmp_path / "split.py").write_text(f'{kinds}\n\n@kind("own_table"){module}')
    load_file(tmp_path / "split.py")
    made = drawn(memobench.OwnTable(d_model=1), families.task(256))
    with pytest.raises(
        UserError, match=r"^split\.py must have all that .* needs, got also neighbouring_layers\.py"
    ):
        submissions.write([made], "me", tmp_path / "out")


def test_an_own_architecture_of_a_cell_is_refused(tmp_path):
    """Nobody would have its code."""
    code = OWN.replace(
        "class OwnTable(Architecture):", "class OwnTable(Architecture):\n    version = '1'"
    )
    made = {"__name__": "cells"}
    exec(code, made)
    with pytest.raises(UserError, match="own_table must be defined in a file, got "):
        submissions.write([drawn(made["OwnTable"](d_model=1), SET)], "me", tmp_path / "out")


def test_where_all_weights_are_left_out_the_line_says_why(tmp_path, caplog):
    """Without the file of an own architecture, which then names `--plugin`."""
    file = tmp_path / "own.py"
    file.write_text(OWN)
    with registries.restore():
        load_file(file)
        own, method = memobench.OwnTable(d_model=1), Training(n_batches=8, epochs=1).exact()
        memobench.run([Run(task=SET, architecture=own, method=method)], tmp_path / "mine", False)
    line = ("submit", "--submitter=me", "--results=mine")
    done = command_line(*line, cwd=tmp_path)
    assert done.returncode == 1
    (said,) = done.stderr.strip().splitlines()
    assert "left out mine/weights/" in said
    assert "architecture='own_table' is unknown" in said
    assert "--plugin" in said
    copy = shutil.copy(file, tmp_path / "copy.py")
    done = command_line(*line, f"--plugin={copy}", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    # Without being named, what it was compared with is left out.
    memobench.run([Run(task=SET, architecture=STANDARD, method=method)], tmp_path / "mine", False)
    for named, packed in ((), "1 certificate in"), ((f"own_table,{STANDARD.name}",), "2 certif"):
        caplog.clear()
        more = [f"--architecture={name}" for name in named]
        done = command_line(*line, f"--plugin={copy}", "--output=of", *more, cwd=tmp_path)
        assert packed in done.stdout, done.stderr
        assert ("left out 1 certificate of memobench's own" in caplog.text) == (not named)


@pytest.mark.parametrize(
    ("name", "listed"), [(r"'\ud800'", [r"\ud800"]), ("1 / 0", [])], ids=["half", "none"]
)
def test_no_name_of_a_family_keeps_pages_from_being_written(tmp_path, caplog, name, listed):
    """Half a character is written as Python writes it; code that raises costs its entry."""
    file = tmp_path / "own.py"
    file.write_text(f"{OWN}\n    @property\n    def family(self):\n        return {name}\n")
    load_file(file)
    table = memobench.OwnTable(d_model=1)
    row = entries.made(board.run(table, 256))
    certified = [entries.counted(table), entries.counted()]
    leaderboard.write([], results.to_table([row]), tmp_path / "pages", certified)
    found = pd.read_csv(tmp_path / "pages" / "leaderboard.csv")
    own = found[found["architecture"] == "own_table"]
    assert sorted(set(own["family"])) == listed
    assert len(found) == len(own) + 1
    assert ("ZeroDivisionError" in caplog.text) == (not listed)


@pytest.mark.parametrize("best", [{"best_bits": 5.0}, {"size_bits": [[[9.0]], [[5.0, 1.0]]]}])
def test_of_searches_the_best_weights_are_submitted(best):
    """Those are kept; the bits of such a row are a mean over label tables."""
    low, high = submit._score({"bits": 4.5, "loss": 1.0}), submit._score({"bits": 6.0, "loss": 1.0})
    assert low < submit._score({"bits": 3.0, "loss": 1.0, **best}) < high
