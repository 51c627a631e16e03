import hashlib
import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from memobench.common.errors import UserError
from memobench.core.cells import cells
from memobench.core.run import Run
from memobench.core.spec import SPEC_VERSION
from memobench.models.transformer import AttentionOnly
from memobench.runtime import status, verify
from memobench.store import results, rows
from memobench.tasks.associations import Associations
from tests.small import PROVENANCE, reseal, resealed


def _id(name):
    return hashlib.sha256(name.encode()).hexdigest()[:16]


def _row(name, **changes):
    """A row of a run of its own, with numbers that could be measured."""
    run = Run(
        task=Associations(vocab_size=3), architecture=AttentionOnly(d_model=1, d_head=1, n_heads=1)
    )
    counts = {"n_params": 1, "n_params_memory": 1, "status": "ok"}
    measures = dict.fromkeys(rows.MEASURES, 0.5)
    return {**cells(run), **counts, **measures, "run_id": _id(name), **changes}


def test_what_is_written_is_read_with_its_provenance(tmp_path):
    results.write_shard(tmp_path, [_row("a"), _row("b", seed=2)], PROVENANCE)
    table = results.load_results(tmp_path).set_index("run_id")
    assert table.loc[_id("b"), "seed"] == 2
    assert set(table["device"]) == {PROVENANCE["device"]}
    assert len(list(tmp_path.iterdir())) == 1


def test_columns_that_a_shard_is_too_old_for_are_empty(tmp_path):
    results.write_shard(tmp_path, [_row("old")], PROVENANCE)
    assert results.load_results(tmp_path)["n_sequences"].isna().all()
    results.write_shard(tmp_path, [_row("young", n_sequences=5)], PROVENANCE)
    table = results.load_results(tmp_path).set_index("run_id")
    assert table["n_sequences"].dropna().to_dict() == {_id("young"): 5}


def test_a_diverged_run_is_kept_without_measures(tmp_path):
    nothing = dict.fromkeys(rows.MEASURES)
    results.write_shard(tmp_path, [_row("a", status="diverged", **nothing)], PROVENANCE)
    table = results.load_results(tmp_path)
    assert table.loc[0, "status"] == "diverged"
    assert table["accuracy"].isna().all()
    with pytest.raises(ValueError, match="not JSON compliant"):
        results.write_shard(tmp_path, [_row("b", loss=float("nan"))], PROVENANCE)


def test_nothing_measured_is_overwritten_and_no_run_is_there_twice(tmp_path, caplog):
    path = results.write_shard(tmp_path, [_row("a", loss=1.0)], PROVENANCE)
    before = path.read_bytes()
    results.write_shard(tmp_path, [_row("a", loss=2.0)], PROVENANCE)
    assert path.read_bytes() == before
    assert "was kept" in caplog.text
    results.write_shard(tmp_path, [_row("a", loss=3.0), _row("b")], PROVENANCE)
    assert sorted(results.load_results(tmp_path)["run_id"]) == sorted([_id("a"), _id("b")])


def test_a_file_by_the_name_of_other_runs_does_not_take_their_place(tmp_path):
    one = results.write_shard(tmp_path, [_row("a")], PROVENANCE)
    two = results.write_shard(tmp_path, [_row("b", seed=2)], PROVENANCE)
    two.write_bytes(one.read_bytes())
    again = results.write_shard(tmp_path, [_row("b", seed=2)], PROVENANCE)
    assert again not in (one, two)
    assert sorted(results.load_results(tmp_path)["run_id"]) == sorted([_id("a"), _id("b")])


SPOILED = {
    "torn": lambda text: text[: len(text) // 2],
    "empty": lambda text: "",
    "foreign": lambda text: '{"hello": 1}',
    "a list": lambda text: "[1]",
    "other schema": lambda text: text.replace('"schema": 2', '"schema": 99'),
    "schema of another kind": lambda text: text.replace('"schema": 2', '"schema": [2]'),
    "no digest": lambda text: text.replace('"digest"', '"hash"'),
    "said to need no digest": lambda text: text.replace('"schema": 2', '"schema": 1'),
    "lacks a column": lambda text: text.replace('"accuracy"', '"acuracy"'),
    "odd status": lambda text: text.replace('"ok"', '"fine"'),
    "rows of numbers": lambda text: _changed(text, rows=[1]),
    "no rows": lambda text: _changed(text, rows={}),
    "no provenance": lambda text: _changed(text, provenance=[]),
    "deeply nested": lambda text: "[" * 100_000,
    "nested within": lambda text: _cell(text, "accuracy", [[[[[[[[[]]]]]]]]]),
    "not a number": lambda text: text.replace('"accuracy": 0.5', '"accuracy": NaN'),
    "a number beyond all": lambda text: text.replace('"accuracy": 0.5', '"accuracy": 1e999'),
    "400 digits": lambda text: text.replace('"accuracy": 0.5', f'"accuracy": {"7" * 400}'),
    "more than all": lambda text: text.replace('"accuracy": 0.5', '"accuracy": 7.0'),
    "a fraction of a head": lambda text: text.replace('"n_heads": 1', '"n_heads": 1.5'),
    "a word for a number": lambda text: text.replace('"accuracy": 0.5', '"accuracy": "high"'),
    "a cell twice": lambda text: text.replace('"accuracy": 0.5', '"accuracy": 1, "accuracy": 0.5'),
    "a row twice": lambda text: _changed(text, rows=2 * json.loads(text)["rows"]),
    "a list as id": lambda text: _cell(text, "run_id", ["a"]),
    "half a character as id": lambda text: _cell(text, "run_id", "\ud800"),
    "half a character of no column": lambda text: _cell(text, "mine", ["\udfff"]),
    "a list as rates": lambda text: _cell(text, "rate_factors", [1.0]),
    "no device": lambda text: text.replace('"device"', '"divice"'),
    "device none": lambda text: _provenance(text, device=None),
    "device of others": lambda text: _provenance(text, device=["GPU"]),
    "specs to come": lambda text: _provenance(text, spec_version=SPEC_VERSION + 1),
    "specs of no number": lambda text: _provenance(text, spec_version="2"),
    "specs of no version": lambda text: text.replace('"spec_version"', '"spec"'),
    "a measure as provenance": lambda text: _provenance(text, accuracy=1.0),
    "a bound as provenance": lambda text: _provenance(text, floor=1.0),
    "a date as measure": lambda text: _cell(text, "date", PROVENANCE["date"]),
    "not text": lambda text: text.replace("0.1.0", "\udcff"),
}


def _changed(text, **fields):
    return json.dumps({**json.loads(text), **fields})


def _provenance(text, **changes):
    return _changed(text, provenance={**json.loads(text)["provenance"], **changes})


def _cell(text, name, value):
    first, *others = json.loads(text)["rows"]
    return _changed(text, rows=[{**first, name: value}, *others])


@pytest.mark.parametrize("spoil", SPOILED.values(), ids=SPOILED.keys())
def test_a_spoiled_file_is_named_and_skipped(tmp_path, caplog, spoil):
    """Also where its digest is that of what it holds now."""
    results.write_shard(tmp_path, [_row("good")], PROVENANCE)
    path = results.write_shard(tmp_path, [_row("bad")], PROVENANCE)
    spoiled = spoil(path.read_text())
    assert spoiled != path.read_text()
    for text in (spoiled, resealed(spoiled)):
        caplog.clear()
        path.write_text(text, errors="surrogateescape")
        table = results.load_results(tmp_path)
        assert table["run_id"].tolist() == [_id("good")]
        (line,) = [record.getMessage() for record in caplog.records]
        assert path.name in line
        is_of_others = ". Update memobench" in line or ". Train its runs again" in line
        assert line.endswith("; move or delete it, and its runs are trained again") != is_of_others
        assert line.isprintable()
        assert len(line) < 500 + len(str(path))


@pytest.mark.parametrize(
    "error", [RecursionError("deep"), MemoryError("full"), TypeError("\ud800\n")]
)
def test_whatever_one_file_raises_the_others_are_read(tmp_path, caplog, monkeypatch, error):
    results.write_shard(tmp_path, [_row("good")], PROVENANCE)
    path = results.write_shard(tmp_path, [_row("bad")], PROVENANCE)
    read_shard = results.read_shard

    def failing(file, *more, **named):
        if file == path:
            raise error
        return read_shard(file, *more, **named)

    monkeypatch.setattr(results, "read_shard", failing)
    assert set(results.load_rows(tmp_path)) == {_id("good")}
    (line,) = [record.getMessage() for record in caplog.records]
    (verified,) = [x for x in verify.verify(tmp_path).errors if "none of its rows is read" in x]
    for each in (line, verified):
        assert f"{path.name}: {type(error).__name__}: " in each
        assert each.isprintable()


def test_any_change_of_what_was_written_is_refused(tmp_path):
    path = results.write_shard(tmp_path, [_row("a"), _row("b", loss=0.25)], PROVENANCE)
    whole, text = results.read_shard(path), path.read_text()
    for change in (
        lambda x: x["rows"].pop(),
        lambda x: x["rows"].reverse(),
        lambda x: x["rows"][0].update(loss=0.25),
        lambda x: x["rows"][0].update(note="mine"),
        lambda x: x["provenance"].update(device="GPU"),
        lambda x: x["provenance"].pop("commit"),
    ):
        shard = json.loads(text)
        change(shard)
        path.write_text(json.dumps(shard))
        with pytest.raises(UserError, match="it was changed after it was written"):
            results.read_shard(path)
    # Another spelling of the same is none.
    path.write_text(json.dumps(json.loads(text), sort_keys=True, indent=4, ensure_ascii=False))
    assert results.read_shard(path) == whole


@pytest.mark.parametrize("name", ["schema", "spec_version"])
def test_a_shard_of_an_earlier_version_is_named_as_too_old_and_skipped(tmp_path, caplog, name):
    results.write_shard(tmp_path, [_row("good")], PROVENANCE)
    path = results.write_shard(tmp_path, [_row("old")], PROVENANCE)
    shard = json.loads(path.read_text())
    if name == "schema":
        del shard["digest"]
        old = json.dumps({**shard, "schema": 1})
    else:
        shard["provenance"]["spec_version"] = 1
        old = resealed(json.dumps(shard))
    path.write_text(old)
    reader = results.Reader(tmp_path)
    for _ in range(2):
        assert set(reader.rows()) == {_id("good")}
    said = f"{name} must be 2, got 1, which is too old. Train its runs again"
    (line,) = [record.getMessage() for record in caplog.records]
    assert line == f"skipped {path}: {said}"
    assert f"{path.name}: {said}; none of its rows is read" in verify.verify(tmp_path).errors


@pytest.mark.parametrize("name", ["pipe", "socket", "link to a pipe", "huge", "loop", "\udcff\n"])
def test_what_is_no_regular_file_keeps_nobody_waiting(tmp_path, caplog, name):
    folder = tmp_path / "runs"
    folder.mkdir()
    results.write_shard(folder, [_row("good")], PROVENANCE)
    path = folder / f"{name}.json"
    with socket.socket(socket.AF_UNIX) as unix:
        if name == "socket":
            unix.bind(str(path))
        elif name == "link to a pipe":
            os.mkfifo(tmp_path / "pipe")
            path.symlink_to(tmp_path / "pipe")
        elif name == "huge":
            path.touch()
            os.truncate(path, 2**31)
        elif name == "loop":
            path.symlink_to(path)
        else:
            (os.mkfifo if name == "pipe" else pathlib.Path.touch)(path)
    for _ in range(2):
        assert results.load_results(folder)["run_id"].tolist() == [_id("good")]
    (error,) = [x for x in verify.verify(folder).errors if "none of its rows is read" in x]
    for line in (error, *(record.getMessage() for record in caplog.records)):
        assert line.isprintable()
    assert f"{folder}: 1 runs are done" in status.text(folder)


def test_a_link_to_a_shard_is_read(tmp_path):
    for name in ("there", "here"):
        (tmp_path / name).mkdir()
    path = results.write_shard(tmp_path / "there", [_row("a")], PROVENANCE)
    (tmp_path / "here" / path.name).symlink_to(path)
    assert results.load_results(tmp_path / "here")["run_id"].tolist() == [_id("a")]


@pytest.mark.parametrize("spoil", ["torn", "other schema"])
def test_runs_of_a_spoiled_shard_can_be_measured_again(tmp_path, spoil):
    path = results.write_shard(tmp_path, [_row("a")], PROVENANCE)
    path.write_text(resealed(SPOILED[spoil](path.read_text())))
    spoiled = path.read_bytes()
    for _ in range(2):
        results.write_shard(tmp_path, [_row("a", loss=2.0)], PROVENANCE)
    assert results.load_results(tmp_path)["loss"].tolist() == [2.0]
    assert path.read_bytes() == spoiled
    assert len(list(tmp_path.iterdir())) == 2


def test_a_file_system_without_hard_links_serves_too(tmp_path, monkeypatch):
    def no_links(*_):
        raise PermissionError("no hard links here")

    monkeypatch.setattr(os, "link", no_links)
    for _ in range(2):
        results.write_shard(tmp_path, [_row("a")], PROVENANCE)
    assert results.load_results(tmp_path)["run_id"].tolist() == [_id("a")]
    assert len(list(tmp_path.iterdir())) == 1


def test_a_folder_without_results_says_so(tmp_path, caplog):
    table = results.load_results(tmp_path)
    assert table.empty
    assert "run_id" in table
    assert f"{tmp_path} holds no results; first: memobench run" in caplog.text


def test_binary_and_folders_are_skipped_too(tmp_path, caplog):
    (tmp_path / "x.json").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "folder").mkdir()
    assert results.load_results(tmp_path).empty
    assert "x.json" in caplog.text
    assert "folder" in caplog.text


def test_a_file_that_cannot_be_read_is_named_once(tmp_path, caplog):
    (tmp_path / "linked.json").symlink_to(tmp_path / "elsewhere")
    reader = results.Reader(tmp_path)
    for _ in range(3):
        assert reader.rows() == {}
    assert caplog.text.count("linked.json: No such file") == 1
    results.write_shard(tmp_path, [_row("a")], PROVENANCE).rename(tmp_path / "elsewhere")
    assert len(reader.rows()) == 1


def test_a_reader_reads_what_comes_and_what_could_not_be_read_once(tmp_path, monkeypatch):
    reader = results.Reader(tmp_path)
    assert reader.rows() == {}
    results.write_shard(tmp_path, [_row("a")], PROVENANCE)
    read_shard = results.read_shard

    def stale(path):
        raise OSError(116, "Stale file handle")

    monkeypatch.setattr(results, "read_shard", stale)
    assert reader.rows() == {}
    monkeypatch.setattr(results, "read_shard", read_shard)
    assert set(reader.rows()) == {_id("a")}
    # A copy that grows: torn, then whole.
    path = results.write_shard(tmp_path, [_row("b")], PROVENANCE)
    whole = path.read_text()
    path.write_text(whole[:50])
    assert set(reader.rows()) == {_id("a")}
    path.write_text(whole)
    assert set(reader.rows()) == {_id("a"), _id("b")}
    assert set(results.Reader(tmp_path, since=reader.newest + 1).rows()) == set()
    # One that has its size from the beginning.
    path = results.write_shard(tmp_path, [_row("c")], PROVENANCE)
    whole = path.read_text()
    path.write_text(" " * len(whole))
    os.utime(path, ns=(1, 1))
    assert set(reader.rows()) == {_id("a"), _id("b")}
    path.write_text(whole)
    assert set(reader.rows()) == {_id("a"), _id("b"), _id("c")}


@pytest.mark.parametrize(
    ("changes", "is_read"),
    [
        ({}, False),
        ({"architecture": "of_another_plugin"}, True),
        ({"architecture_code": "code-0123456789ab"}, True),
    ],
)
def test_fields_of_kinds_that_are_not_here_may_hold_other_values(
    tmp_path, caplog, changes, is_read
):
    """Of a plugin that is not loaded, or of a kind that was edited since."""
    row = _row("a", heads=17, **changes)
    path = results.write_shard(tmp_path, [_row("a")], PROVENANCE)
    reseal(path, lambda shard: shard["rows"][0].update(row))
    assert (len(results.Reader(tmp_path).rows()) == 1) == is_read
    assert ("row 1 has heads=17, not" in caplog.text) != is_read


def test_a_shard_that_one_thread_reads_is_seen_by_others(tmp_path, monkeypatch):
    results.write_shard(tmp_path, [_row("a")], PROVENANCE)
    reader, reading = results.Reader(tmp_path), threading.Event()
    read_shard = results.read_shard

    def slow(path):
        reading.set()
        time.sleep(0.1)
        return read_shard(path)

    monkeypatch.setattr(results, "read_shard", slow)
    other = threading.Thread(target=reader.rows)
    other.start()
    reading.wait()
    assert set(reader.rows()) == {_id("a")}
    other.join()


@pytest.mark.parametrize(
    ("name", "fix"), [("none", "first: memobench run EXPERIMENT"), ("file", "it is a file; name a")]
)
def test_a_missing_folder_is_one_line(name, fix, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=f"/{name}' is not a folder; {fix}"):
        results.load_results(tmp_path / name)
    with pytest.raises(UserError, match="results='' is not a folder"):
        results.load_results("")


def test_a_file_that_was_being_read_as_ctrl_c_came_is_read_again(tmp_path, monkeypatch):
    results.write_shard(tmp_path, [_row("a"), _row("b")], PROVENANCE)
    reader, shared = results.Reader(tmp_path), results._intern
    calls = []

    def interrupted(row):
        calls.append(row)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return shared(row)

    monkeypatch.setattr(results, "_intern", interrupted)
    with pytest.raises(KeyboardInterrupt):
        reader.rows()
    assert set(reader.rows()) == {_id("a"), _id("b")}


def test_the_folder_around_that_of_shards_is_not_taken_for_it(tmp_path):
    (tmp_path / "shards").mkdir()
    (tmp_path / "VERDICTS.md").touch()
    results.write_shard(tmp_path / "shards", [_row("a")], PROVENANCE)
    with pytest.raises(UserError, match=r"holds no shards; did you mean '.*shards'\?$"):
        results.load_results(tmp_path)
    assert len(results.load_results(tmp_path / "shards")) == 1


def test_an_unwritable_folder_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="output='' is not a folder; name one"):
        results.check_writable("", "output")
    with pytest.raises(UserError, match="file' is a file; name a folder"):
        results.check_writable(tmp_path / "file")
    with pytest.raises(UserError, match="cannot be written"):
        results.check_writable(tmp_path / "file" / "below")


WRITER = """
import sys
sys.path.insert(0, sys.argv[2])
from memobench.store import results
from tests.store.test_results import PROVENANCE, _row
print("ready", flush=True)
for i in range(10**6):
    rows = [_row(f"{i}-{j}", pad="x" * 1000) for j in range(20)]
    results.write_shard(sys.argv[1], rows, PROVENANCE)
"""


def test_a_writer_killed_at_any_moment_leaves_only_whole_shards(tmp_path, caplog):
    root = str(pathlib.Path(__file__).parents[2])
    chance = random.Random(0)
    for attempt in range(2):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        command = [sys.executable, "-c", WRITER, str(folder), root]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "ready\n"
            time.sleep(chance.uniform(0, 0.1))
            writer.send_signal(signal.SIGKILL)
        table = results.load_results(folder)
        assert len(table) == 20 * len(list(folder.glob("[!.]*")))
        assert table["run_id"].is_unique
    assert "skipped" not in caplog.text
