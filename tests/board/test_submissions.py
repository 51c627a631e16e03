"""Submissions: folders of weights that are believed for nothing but what they know."""

import dataclasses
import json
import logging
import os
import pathlib
import shutil

import numpy as np
import pytest

import memobench
from memobench import certificates
from memobench.board import copies, families, peak, submissions
from memobench.board import table as board
from memobench.certificates import counting
from memobench.common.errors import UserError
from memobench.core.run import Run
from memobench.methods.training import Training
from memobench.models.transformer import MLP, AttentionOnly
from memobench.numerics import precision
from memobench.report import leaderboard
from tests.certificates.test_certificates import HALF, drawn
from tests.command_line import command_line

# Of a budget of the board.
SET = families.task(256)
STANDARD = AttentionOnly(d_model=3, d_head=3, n_heads=4, heads="full")
HEADS = AttentionOnly(d_model=2, d_head=2, n_heads=12, heads="full")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A submission of two certificates."""
    folder = tmp_path_factory.mktemp("submissions")
    found = [drawn(STANDARD, SET), drawn(HEADS, SET, first=7)]
    return submissions.write(found, "Zoe & Co.", folder, "by chance")


@pytest.fixture
def copied(made, tmp_path):
    return shutil.copytree(made, tmp_path / made.name)


def refused(path):
    """What `read` says of a folder that it refuses: one short line that names it."""
    with pytest.raises(UserError) as error:
        submissions.read(path)
    line = str(error.value)
    assert path.name in line
    assert line.isprintable()
    assert len(line) < 1000
    return line


def _with_head(folder, change):
    """The folder whose header says something else, under the name of that."""
    head = json.loads((folder / "submission.json").read_text())
    change(head)
    (folder / "submission.json").write_text(json.dumps(head))
    named = isinstance(head.get("submitter"), str)
    return folder.rename(folder.with_name(submissions._name(head))) if named else folder


def test_what_is_written_is_read_and_counted(made):
    found = submissions.read(made)
    assert (found.submitter, found.note) == ("Zoe & Co.", "by chance")
    assert found.name == made.name
    assert made.name.startswith("zoe-co-")
    done = command_line("check-submission", str(made), cwd=made.parent)
    assert f"{made}: note: by chance" in done.stdout, done.stderr
    for row in found.rows:
        assert row == memobench.certify(made / row["file"])
    assert (
        submissions.write(
            [certificates.load(made / row["file"]) for row in found.rows[::-1]],
            found.submitter,
            made.parent,
            found.note,
        )
        == made
    )
    assert submissions.load_folder(made.parent) == [found]


def test_equal_weights_count_once_whoever_has_them(made, tmp_path, caplog):
    """Whatever part of the set they are said to be for; a submitter's own may be of several."""
    again = [drawn(HEADS, SET, by="Amy", seed=3), drawn(STANDARD, SET, of_weights=3)]
    other = submissions.write(again, "Amy", tmp_path)
    found = [submissions.read(path) for path in (made, other)]
    for order in (found, found[::-1]):
        table = submissions.table(order)
        assert sorted(table["submitter"]) == ["Amy", "Amy", "Zoe & Co."]
        assert set(table["source"]) == {made.name, other.name}
        assert "it computes what amy-" in caplog.messages[-1]
    mine = submissions.read(submissions.write([drawn(HEADS, SET, first=9)], "Zoe & Co.", tmp_path))
    assert len(submissions.table([found[0], mine])) == 3
    ours = [(tmp_path / "ours", x) for x in again]
    assert submissions.table([found[1]], ours).empty
    assert submissions.table([]).empty


NEURONS = MLP(d_model=3, d_head=3, d_mlp=17, heads="full")
WIDER = NEURONS.replace(d_mlp=18)


def _with_dead_neuron(params):
    pads = {"in": ((0, 1), (0, 0)), "in_bias": (0, 1), "out": ((0, 0), (0, 1))}
    pads = {f"layer0_mlp_{name}": pad for name, pad in pads.items()}
    return {name: np.pad(x, pads[name]) if name in pads else x for name, x in params.items()}


def _reordered(params):
    turned = {
        "layer0_mlp_in": lambda x: x[::-1],
        "layer0_mlp_in_bias": lambda x: x[::-1],
        "layer0_mlp_out": lambda x: x[:, ::-1],
    }
    return {name: turned.get(name, lambda x: x)(x) for name, x in params.items()}


def _changed(name, change):
    return lambda params: {**params, name: change(params[name])}


@pytest.mark.parametrize(
    ("change", "architecture"),
    [
        (_changed("unembedding", lambda x: 1.0001 * x), NEURONS),
        (_changed("unembedding", lambda x: 3 * x), NEURONS),
        (_changed("unembedding", lambda x: x + 1), NEURONS),
        (
            lambda params: {name: precision.round_to(x, "bfloat16") for name, x in params.items()},
            NEURONS,
        ),
        (_reordered, NEURONS),
        (_with_dead_neuron, WIDER),
    ],
    ids=["scaled", "scaled threefold", "shifted", "rounded", "reordered", "wider"],
)
def test_what_computes_the_same_is_a_copy(change, architecture):
    """On whichever part of the set, but not on another set."""
    path, mine = pathlib.Path("original"), drawn(NEURONS, SET, of_weights=1)
    copy = certificates.make(SET, architecture, change(mine.params), first=9)
    assert certificates.encode(copy) != certificates.encode(mine)
    assert copies.find_original(copy, [(path, mine)]) == path
    elsewhere = certificates.make(SET.replace(seed=1), architecture, copy.params)
    assert copies.find_original(elsewhere, [(path, mine)]) is None


@pytest.mark.parametrize(
    "change",
    [
        _changed("unembedding", np.negative),
        _changed("unembedding", lambda x: x[::-1]),
        _changed("token_embedding", lambda x: x[::-1]),
        _changed("layer0_mlp_out", np.zeros_like),
        lambda params: drawn(NEURONS, SET, of_weights=2).params,
    ],
)
def test_what_computes_something_else_is_no_copy(change):
    mine = drawn(NEURONS, SET, of_weights=1)
    other = certificates.make(SET, NEURONS, change(mine.params))
    assert copies.find_original(other, [(pathlib.Path("original"), mine)]) is None


@pytest.mark.parametrize(("budget", "set_of"), [(256, families.task), (512, peak.task)])
def test_copies_of_published_weights_are_refused_and_on_no_board(tmp_path, caplog, budget, set_of):
    """On the same set, and on the largest of a peak, of which that is a part."""
    path, first = copies.load_published({families.task(budget, seed) for seed in range(40)})[0]
    params = _changed("unembedding", lambda x: np.float32(1.0001) * x)(first.params)
    task = set_of(budget, first.task.seed)
    copy = certificates.make(task, first.architecture, params, first=first.first)
    folder = submissions.write([copy], "Copycat", tmp_path / "submissions")
    done = command_line("check-submission", str(folder), cwd=tmp_path)
    assert done.returncode == 1
    assert f"got the function of {path}, up to scale. Leave it out." in done.stderr
    assert leaderboard.load_submitted(tmp_path) == []
    assert f"it computes what {path} does" in caplog.text


CODE = "code-0123456789abcdef.py"
TAMPERED = {
    "another version": (lambda h: h.update(submission=1), "submission=1 is not 2"),
    "true for 2": (lambda h: h.update(submission=True), "submission=True is not 2"),
    "no submitter": (lambda h: h.pop("submitter"), "submitter is missing"),
    "no certificates": (lambda h: h.update(certificates=[]), "a sorted list of 1 to"),
    "one of them twice": (lambda h: h["certificates"].append(h["certificates"][0]), "sorted list"),
    "one outside": (
        lambda h: h.update(certificates=["../a-0123456789abcdef.safetensors"]),
        "names of certificates",
    ),
    "one without a digest": (
        lambda h: h.update(certificates=["weights.safetensors"]),
        "names of certificates",
    ),
    "one that is not there": (
        lambda h: h["certificates"].append("x-0123456789abcdef.safetensors"),
        "cannot be read: No such file",
    ),
    "one not listed": (lambda h: h["certificates"].pop(), "is not listed in submission.json"),
    # Numbers without weights, which version 1 believed if they agreed with each other.
    "rows": (lambda h: h.update(rows=[{"bits": 1e6}]), "the field 'rows' is unknown"),
    "no code": (lambda h: h.pop("code"), "code is missing"),
    "code outside": (lambda h: h.update(code={"../a.py": 64 * "0"}), "names of Python files"),
    "code without a digest": (lambda h: h.update(code={CODE: "0"}), "the SHA-256 of each"),
    "code that is not there": (lambda h: h.update(code={CODE: 64 * "0"}), f"{CODE} cannot be read"),
}


@pytest.mark.parametrize(("change", "said"), TAMPERED.values(), ids=TAMPERED.keys())
def test_what_was_tampered_with_is_refused_in_one_line(copied, change, said):
    assert said in refused(_with_head(copied, change))


def test_no_file_can_be_changed_added_renamed_or_linked(copied):
    assert len(submissions.read(copied).rows) == 2
    first, second = sorted(copied.glob("*.safetensors"))
    before = first.read_bytes()
    first.write_bytes(certificates.encode(drawn(HEADS, SET, of_weights=5)))
    assert "its name is not that of its content" in refused(copied)
    first.write_bytes(before)
    (copied / "notes.txt").write_text("")
    assert "notes.txt is not listed" in refused(copied)
    (copied / "notes.txt").unlink()
    shutil.move(second, copied.parent / second.name)
    second.symlink_to(copied.parent / second.name)
    assert "cannot be read" in refused(copied)
    second.unlink()
    shutil.move(copied.parent / second.name, second)
    submissions.read(copied)
    assert "changed or renamed" in refused(copied.rename(copied.with_name("mine")))


def test_a_certificate_with_half_a_character_costs_its_submission_alone(made, tmp_path, caplog):
    good = shutil.copytree(made, tmp_path / made.name)
    bad = shutil.copytree(made, tmp_path / "bad")
    name = f"mlp-{certificates.digest(HALF)[:16]}.safetensors"
    (bad / name).write_bytes(HALF)
    bad = _with_head(bad, lambda head: head.update(certificates=[name]))
    for path in bad.glob("*-*.safetensors"):
        if path.name != name:
            path.unlink()
    assert f"{name}: is not UTF-8" in refused(bad)
    assert [x.name for x in submissions.load_folder(tmp_path)] == [good.name]
    assert f"skipped {bad}" in caplog.text


def test_what_is_no_submission_is_named_and_skipped(made, tmp_path, caplog):
    good = shutil.copytree(made, tmp_path / made.name)
    (tmp_path / "link").symlink_to(good)
    (tmp_path / "file.json").write_text("{}")
    (tmp_path / "empty").mkdir()
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe" / "submission.json")
    with caplog.at_level(logging.WARNING):
        found = submissions.load_folder(tmp_path)
    assert [submission.name for submission in found] == [made.name]
    assert all(name in caplog.text for name in ("link", "file.json", "empty", "pipe"))
    assert submissions.load_folder(tmp_path / "none") == []


@pytest.mark.parametrize(
    "name",
    [
        *("", " ", "<b>me</b>", "<script>alert(1)</script>", "=1+1", "+1", "-1", "@SUM(A1)"),
        *("a\nb", "a\tb", "a\x00b", "a\x1b[31mb", "a\u202eb", "a\u2066b", "a\u200bb", "a\ud800b"),
        *("x" * 81, "x" * 1_000_000, "../../etc/passwd", "/etc/passwd", "..", "a\\b", "C:\\a"),
        *("[me](javascript:alert(1))", "a|b", "`a`", "$x$", "memobench", "MemoBench", "…", 7, None),
        *(["me"], True, "me ", " me", "Ann  Lee", "me-", "me\n"),
        # What is invisible, and what looks like the letters of another name.
        *("Ann\u3164", "A\u115fda", "\u2800Ada", "Ada\U000e0100", "Ada\u00ad", "Ada\u00a0B"),
        *("m\u0435", "\u0406nge", "\uff4de", "mem\u0585bench", "\u03b3\u03bf\u03c5", "y\u00f3u"),
        *("Zo\u00eb", "\u5c71\u7530", "\u0418\u0432\u0430\u043d"),
        # What reads as the project's name, with more around it, or as the reader's.
        *("The memobench team", "memo-bench", "m.e.m.o bench", "Mem0bench", "rnemobench"),
        *("mernobench", "M&emo_Bench", "you", "You", "Y.O.U.", "y0u"),
        # A cell of its own where semicolons separate cells.
        *("Ada;=1+1;x", "Ada; Lovelace"),
    ],
)
def test_a_hostile_name_is_refused_and_writes_nothing(copied, tmp_path, name):
    inside = tmp_path / "inside"
    with pytest.raises(UserError) as error:
        submissions.write([drawn(STANDARD, SET)], name, inside)
    assert "submitter" in str(error.value)
    assert str(error.value).isprintable()
    assert not inside.exists()
    (copied / "submission.json").write_text(
        json.dumps(json.loads((copied / "submission.json").read_text()) | {"submitter": name})
    )
    said = "is not UTF-8" if name == "a\ud800b" else "submitter"
    assert said in refused(copied)


@pytest.mark.parametrize(
    "name",
    [
        *("Y", "O Neil-Smith, 3rd", "a_b", "A. B. Chen & Co.", "7", "Rembrandt", "bench 3"),
        *("Young Youssef", "thank you", "Mnemosyne", "x" * 80),
    ],
)
def test_plain_names_stay_in_their_folder(name, tmp_path):
    path = submissions.write([drawn(STANDARD, SET)], name, tmp_path)
    assert path.parent == tmp_path
    assert path.name.isascii()
    head = json.loads((path / "submission.json").read_text())
    assert head["submitter"] == name


@pytest.mark.parametrize(
    "name",
    [
        *("json.py", "conftest.py", "test_own.py", "jax.py", "memobench.py", "setup.py", "own.py"),
        *("code-0123456789ABCDEF.py", "code-0123456789abcdef.pth", "code-0123456789abcdef.py\n"),
    ],
)
def test_code_has_a_name_that_nothing_imports(copied, name):
    assert "code=" in refused(_with_head(copied, lambda head: head.update(code={name: 64 * "0"})))


@pytest.mark.parametrize("note", ["", "<b>", "=cmd|' /C calc'!A0", "a\x00", "x" * 1001, 7])
def test_hostile_notes_are_refused(copied, note):
    assert "note=" in refused(_with_head(copied, lambda head: head.update(note=note)))


@pytest.mark.parametrize(
    ("certificate", "said"),
    [
        (drawn(), "its task must be one of the board's"),
        (drawn(STANDARD, SET.replace(seed=96)), "task_seed must be one of the 96 label tables"),
        (drawn(STANDARD.replace(n_heads=9), SET), "n_params must be within 5%"),
    ],
)
def test_weights_without_a_place_on_the_board_are_refused_before_they_run(
    tmp_path, monkeypatch, certificate, said
):
    """A few kilobytes may name a task of gigabytes."""
    with pytest.raises(UserError, match=said):
        submissions.write([certificate], "me", tmp_path)
    monkeypatch.setattr(counting, "count", lambda *_: 1 / 0)
    with monkeypatch.context() as others:
        others.setattr(submissions, "_require_place", lambda certificate: None)
        path = submissions.write([certificate], "me", tmp_path)
    assert said in refused(path)
    done = command_line("check-submission", str(path), cwd=tmp_path)
    assert done.returncode == 1
    (line,) = done.stderr.strip().splitlines()
    assert path.name in line
    assert said in line


def test_the_best_weights_of_runs_are_submitted_and_checked(tmp_path, caplog):
    method = Training(n_batches=8, epochs=2).exact()
    runs = [
        Run(task=families.task(256, seed), architecture=architecture, method=method, seed=seed)
        for architecture in (STANDARD, STANDARD.replace(n_heads=6, d_head=2))
        for seed in (0, 1)
    ]
    # Weights of another set, and of a label table that nobody counts, have no place.
    runs += [
        dataclasses.replace(runs[0], task=families.task(256, board.LABEL_TABLES[256]), seed=seed)
        for seed in (0, 1)
    ]
    folder = tmp_path / "shards"
    memobench.run(runs, results=folder, progress=False)
    line = ("submit", "--submitter=Zoe", f"--results={folder}")
    done = command_line(*line, "--architecture=attention_only", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (path,) = (tmp_path / "runs" / "submissions").iterdir()
    assert str(path.relative_to(tmp_path)) in done.stdout
    found = submissions.read(path)
    table = memobench.load_results(folder)
    table = table[table["task_seed"] == table["seed"]]
    # One line for all that break the same rule.
    (message,) = caplog.messages
    assert message.startswith(f"left out {folder}/weights/")
    said = " and 1 more: weights of attention_only: task_seed must be one of the 96 label tables"
    assert said in message
    best = table.groupby("n_heads")["bits"].max()
    for row in found.rows:
        assert row["bits"] == pytest.approx(best[row["n_heads"]], rel=1e-3, abs=1e-3)
    # One that cannot be read is left out and named, and the others are submitted.
    broken = next((folder / "weights").iterdir())
    broken.write_bytes(b"?")
    whole = [path for path in (folder / "weights").iterdir() if path != broken]
    for output, names in (("again", []), ("named", [broken, *whole])):
        caplog.clear()
        again = command_line(*line, f"--output={output}", *map(str, names), cwd=tmp_path)
        assert again.returncode == 0
        assert f"left out {broken}" in caplog.text
        assert list((tmp_path / output / "submissions").iterdir())
    none = command_line(*line, "--architecture=mlp", "--output=none", cwd=tmp_path)
    assert none.returncode == 1
    assert (
        "keeps no weights of architecture mlp of any run that have a place on the board"
        in none.stderr
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["submit"], "--submitter='Your Name'"),
        (["submit", "--submitter=me", "dana2025/head", "--results=."], "did you mean dana2025/hea"),
        (["submit", "--submitter=me", "x.safetensors"], "x.safetensors: cannot be read"),
        (["check-submission"], "name a folder: memobench check-submission FOLDER"),
        (["check-submision"], "did you mean check-submission"),
        (["check-submission", "none"], "none: is not a folder"),
    ],
)
def test_a_mistake_gets_a_clear_line_and_no_traceback(arguments, said, tmp_path):
    done = command_line(*arguments, cwd=tmp_path)
    assert done.returncode == 1
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []
