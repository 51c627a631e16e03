"""Files that others changed: what is read is what was written, or one line names the file.

Random shards, random tables, random edits; of every class of edit many.
"""

import copy
import functools
import json
import os
import pathlib
import random
import tempfile

import pytest
from hypothesis import strategies as st

from memobench.common.errors import UserError
from memobench.core.cells import cells
from memobench.report import leaderboard
from memobench.runtime import leases, status, verify
from memobench.store import results, rows
from tests import small
from tests.drawn import JUNK, cases, drawn_runs
from tests.entries import three
from tests.runtime.test_verify import _constructed, _trained


@functools.cache
def folder():
    """For the files of this module, which go with hypothesis's own when the process ends."""
    return pathlib.Path(tempfile.mkdtemp(dir=os.environ["HYPOTHESIS_STORAGE_DIRECTORY"]))


@functools.cache
def texts():
    """Shards as they are written: of trained, constructed and searched runs."""
    searched = {**_trained(3), "method": "searched", "rate_factors": "0.5 1.0", "converged": True}
    searched["trials"] = [[16, 40, 1.0, 30, 29, 0.5], [16, 20, 1.0, 20, 20, None]]
    optimised = {**_trained(4), "start_losses": [0.5, 0.625], "gradient_norm": 1e-9}
    shards = [[_trained(), _trained(1, **dict.fromkeys(rows.MEASURES), status="diverged")]]
    shards += [[_constructed()], [searched, optimised]]
    return [results.write_shard(folder(), shard, small.PROVENANCE).read_text() for shard in shards]


# --- Edits -----------------------------------------------------------------------------------


def _bytes(draw, data):
    """A few bytes of a file flipped, taken out, put in, repeated or moved, or its end torn off."""
    i, j = sorted(draw(st.tuples(*2 * [st.integers(0, len(data))])))
    j = min(j, i + draw(st.integers(0, 40)))
    return draw(
        st.sampled_from(
            [
                data[:i],
                data[:i] + data[j:],
                data[:j] + data[i:],
                data[:i] + draw(st.binary(max_size=4)) + data[j:],
                data[:i]
                + bytes(x ^ draw(st.integers(1, 255)) for x in data[i : i + 1])
                + data[i + 1 :],
                data[j:] + data[:j],
            ]
        )
    )


def _places(value, path=()):
    """The path of every value inside of a JSON value."""
    for key in value if isinstance(value, dict) else range(len(value)):
        yield (*path, key)
        if isinstance(value[key], dict | list):
            yield from _places(value[key], (*path, key))


def _at(value, path):
    for key in path:
        value = value[key]
    return value


def _json(draw, shard):
    """A value of a shard replaced, deleted, retyped, repeated, renamed or swapped with another."""
    places = list(_places(shard))
    *path, key = places[draw(st.integers(0, len(places) - 1))]
    inside, value = _at(shard, path), _at(shard, (*path, key))
    edit = draw(st.sampled_from(["junk", "delete", "retype", "repeat", "swap", "rename", "nudge"]))
    if edit == "junk":
        # A copy: what is drawn next may edit it.
        inside[key] = copy.deepcopy(draw(st.sampled_from(JUNK) | st.text(max_size=5)))
    elif edit == "delete":
        del inside[key]
    elif edit == "retype":
        inside[key] = draw(st.sampled_from([str(value), [value], {"x": value}, None, value == 1]))
    elif edit == "repeat" and isinstance(inside, list):
        inside.insert(key, copy.deepcopy(value))
    elif edit == "swap":
        *other, name = places[draw(st.integers(0, len(places) - 1))]
        with_ = _at(shard, other)
        inside[key], with_[name] = copy.deepcopy(with_[name]), copy.deepcopy(value)
    elif edit == "rename" and isinstance(inside, dict):
        inside[draw(st.sampled_from([*rows.all_columns(), "floor", "x"]))] = inside.pop(key)
    elif edit == "nudge" and isinstance(value, float | int):
        # An integer may be too large to be a float, and stays one.
        steps = [1, -1] if isinstance(value, int) and abs(value) > 2**53 else [1, 0.1, -1, 1e-6]
        inside[key] = value + draw(st.sampled_from(steps))


@st.composite
def edited(draw, sealed):
    """The bytes of a shard before and after edits, with the digest of what it then holds or not."""
    text = draw(st.sampled_from(texts()))
    if not sealed and draw(st.booleans()):
        data = text.encode()
        for _ in range(draw(st.integers(1, 3))):
            data = _bytes(draw, data)
        return text, data
    shard = json.loads(text)
    for _ in range(draw(st.integers(1, 3))):
        _json(draw, shard)
    # Numbers of thousands of digits, and infinity, are written as Python writes them.
    changed = json.dumps(shard, indent=draw(st.sampled_from([None, 1])))
    return text, (small.resealed(changed) if sealed else changed).encode("utf-8", "replace")


def assert_line(line):
    assert "\n" not in line
    assert line.isprintable()
    assert len(line) < 1000


# --- Shards ----------------------------------------------------------------------------------


@cases(200, st.deferred(lambda: edited(sealed=False)))
def test_an_edited_shard_is_refused_in_one_line_or_holds_the_same(made):
    text, data = made
    path = folder() / "edited"
    path.write_bytes(data)
    try:
        rows, provenance = results.read_shard(path)
    except UserError as error:
        assert_line(str(error))
    else:
        assert (
            results.digest({"provenance": provenance, "rows": rows}) == json.loads(text)["digest"]
        )


@cases(80, st.deferred(lambda: edited(sealed=True)))
def test_a_shard_that_was_sealed_again_is_refused_in_one_line_or_holds_what_columns_may(made):
    _, data = made
    path = folder() / "edited"
    path.write_bytes(data)
    try:
        read, provenance = results.read_shard(path)
    except UserError as error:
        assert_line(str(error))
        return
    table = results.to_table([{**provenance, **row} for row in read])
    assert table["run_id"].tolist() == [row["run_id"] for row in read]
    for name, column in rows.all_columns().items():
        for value in [row.get(name) for row in read] if name not in rows.PROVENANCE else []:
            assert value is None or column.domain.holds(value)
    for name in rows.measures():
        given = [row.get(name) for row in read]
        assert table[name].tolist() == pytest.approx(
            [float("nan") if x is None else x for x in given], nan_ok=True
        )


@cases(20, st.deferred(lambda: edited(sealed=True)))
def test_no_edit_ends_verify_or_a_reader_otherwise_than_in_lines(made):
    _, data = made
    with tempfile.TemporaryDirectory(dir=folder()) as name:
        pathlib.Path(name, "edited.json").write_bytes(data)
        found = verify.verify(name)
        for line in (*found.errors, *found.notes):
            assert_line(line)
        assert len(results.load_results(name)) <= 2
        assert "runs are done" in status.text(name)


@cases(5, st.data())
def test_a_board_of_edited_rows_is_drawn_or_refused_in_one_line(data):
    shard = json.loads(board_text())
    for _ in range(data.draw(st.integers(1, 2))):
        _json(data.draw, shard["rows"][data.draw(st.integers(0, len(shard["rows"]) - 1))])
    with tempfile.TemporaryDirectory(dir=folder()) as name:
        text = small.resealed(json.dumps(shard))
        pathlib.Path(name, "edited.json").write_text(text, "utf-8", "replace")
        try:
            leaderboard.write([], results.load_results(name), pathlib.Path(name, "pages"))
        except UserError as error:
            assert_line(str(error))


@functools.cache
def board_text():
    """A shard of runs of the standard board."""
    made = [{k: x for k, x in row.items() if k not in rows.PROVENANCE} for row in three()]
    with tempfile.TemporaryDirectory(dir=folder()) as name:
        return results.write_shard(pathlib.Path(name), made, small.PROVENANCE).read_text()


@cases(24, st.lists(drawn_runs(), min_size=1, max_size=3, unique_by=lambda run: run.run_id))
def test_what_is_written_of_any_run_is_read_to_the_last_bit(runs):
    chance = random.Random(runs[0].run_id)
    made = []
    for run in runs:
        counts = dict.fromkeys(rows.COUNTS, chance.randrange(2**40))
        measured = {name: chance.random() for name in rows.MEASURES}
        made.append({**cells(run), **counts, "status": "ok", **measured})
    with tempfile.TemporaryDirectory(dir=folder()) as name:
        path = results.write_shard(name, made, small.PROVENANCE)
        assert results.read_shard(path) == (made, small.PROVENANCE)
        assert list(results.load_rows(name).values()) == [{**small.PROVENANCE, **x} for x in made]


# --- Leases ------------------------------------------------------------------------------------


@cases(80, st.data())
def test_no_lease_that_somebody_wrote_ends_a_driver(data):
    with tempfile.TemporaryDirectory(dir=folder()) as name:
        told = {
            **{"host": "h", "boot": "b", "pids": "p", "pid": 1, "started": "1", "beats": 1},
            "run_ids": ["a"],
            "about": {"kind": "pack", "sweep": "s", "pack": "p", "done": 1, "steps": 2},
        }
        for _ in range(data.draw(st.integers(1, 2))):
            _json(data.draw, told)
        path = pathlib.Path(name, ".leases", "other.json")
        path.parent.mkdir()
        path.write_text(json.dumps(told), "utf-8", "replace")
        seen = leases.Leases(name)
        assert all(isinstance(run_id, str) for run_id in seen.leased_ids())
        for line in status.text(name).splitlines():
            assert_line(line)
