"""Annealed runs go on from any checkpoint, in whatever pack, and after any kill."""

import gc
import logging
import math
import os

import jax
import numpy as np
import pytest

import memobench
from memobench.core import module as models
from memobench.engine import loop
from memobench.planner import packing
from memobench.runtime import checkpoints, progress, sweep, worker
from tests import small
from tests.experiments.mahdavi2024.annealing.runs import (
    FILLING,
    MIX,
    assert_close,
    assert_identical,
    pack_of,
    part_of,
    run_of,
)
from tests.stopping import Memory, Stop, stopping_after


def _resumed(pack, kept):
    counted = []
    memory = Memory(kept)
    result = small.train(pack, counted.append, memory)
    assert sorted(memory.loaded) == sorted(run.run_id for run in pack.runs)
    return result, sum(counted)


@pytest.mark.parametrize("slots", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_a_stopped_pack_resumes_with_the_same_bits(slots):
    pack = pack_of(MIX, slots)
    whole = small.train(pack)
    n_rounds = 7 if slots == 2 else 6
    for rounds_done in range(1, n_rounds):
        memory = Memory()
        with pytest.raises(Stop):
            small.train(pack, stopping_after(rounds_done), memory)
        steps_done = sum(int(arrays["step"]) for arrays in memory.kept.values())
        assert steps_done > 0
        result, steps = _resumed(pack, memory.kept)
        assert_identical(result, whole)
        assert steps == 120 - steps_done


def test_a_killed_pack_resumes_from_any_checkpoint(monkeypatch, mixed):
    monkeypatch.setattr(loop, "SECONDS_BETWEEN_CHECKPOINTS", 0)
    monkeypatch.setattr(loop, "SHARE_OF_CHECKPOINTS", math.inf)
    memory = Memory()
    assert_identical(small.train(pack_of(MIX), checkpoints=memory), mixed)
    # Every run is saved while it trains, and what is done is saved once.
    finished = [kept for kept in memory.saves if all(x["done"] for x in kept.values())]
    assert len(memory.saves) == 2 + 2 + 2 * 3 + 2
    assert len(finished) >= 1
    # Killed in the midst of saving: runs are of different rounds.
    for kept in memory.saves[1::3]:
        result, _ = _resumed(pack_of(MIX), kept)
        assert_close(result, mixed)
    result, steps = _resumed(pack_of(MIX), memory.kept)
    assert_identical(result, mixed)
    assert steps == 0


def test_between_times_only_what_is_done_is_saved():
    memory = Memory()
    small.train(pack_of(MIX), checkpoints=memory)
    assert all(arrays["done"] for arrays in memory.kept.values())
    assert len(memory.saves) == len(memory.kept) == len(MIX)


def test_a_checkpoint_serves_whatever_pack_the_run_comes_to_be_in(mixed):
    memory = Memory()
    with pytest.raises(Stop):
        small.train(pack_of(MIX), stopping_after(3), memory)
    for i, run in enumerate(MIX[:2]):
        saved = {name: x.shape for name, x in memory.kept[run.run_id].items()}
        alone = {".variables" + jax.tree_util.keystr(path): x.shape for path, x in _leaves(run)}
        assert alone.items() <= saved.items()
        result, steps = _resumed(packing.make_pack([run]), memory.kept)
        assert_close(result, part_of(mixed, i))
        assert steps == max(0, run.method.steps - 30)


def _leaves(run):
    shapes = models.shapes(run.module(), 0)
    return jax.tree_util.tree_flatten_with_path(shapes)[0]


def test_a_run_that_diverges_late_keeps_its_best_weights():
    tame, wild = run_of(5, steps=60), run_of(5, steps=60, learning_rate=1e30)
    memory = Memory()
    with pytest.raises(Stop):
        small.train(pack_of([tame, FILLING]), stopping_after(1), memory)
    as_if_its_own = {wild.run_id: memory.kept[tame.run_id]}
    result = small.train(pack_of([wild, FILLING]), checkpoints=Memory(as_if_its_own))
    certificate = result.columns[0]
    first, *others = certificate["curve_loss"]
    assert first == result.loss_R[0]
    assert others == [None]
    assert (certificate["best_step"], certificate["stopped_at"]) == (10, 20)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(result.variables["params"]))
    assert worker.rows_of(pack_of([wild, FILLING]), result)[0]["status"] == "ok"


def _interrupting_after(monkeypatch, rounds):
    """Ctrl-C after so many rounds of a sweep; returns the model-steps that were counted."""
    counted, steps_done = [], progress.Progress.add_steps

    def count(bar, pack, steps):
        counted.append(steps)
        if len(counted) == rounds:
            raise KeyboardInterrupt
        steps_done(bar, pack, steps)

    monkeypatch.setattr(progress.Progress, "add_steps", count)
    return counted


MEASURED = ["run_id", "status", "accuracy", "loss", "bits", "memorized", "stopped_at", "best_step"]


def test_an_interrupted_sweep_resumes_where_it_was(tmp_path, monkeypatch, mixed):
    folder = tmp_path / ".checkpoints"
    counted = _interrupting_after(monkeypatch, rounds=3)
    said = r"0 of 3 runs are saved in .*, 3 more as far as they .* same command resumes"
    with pytest.raises(sweep.Interrupted, match=said):
        memobench.run(MIX, results=tmp_path, progress=False)
    assert sum(counted) == 30 + 30 + 20
    assert not list(tmp_path.glob("*.json"))
    assert sorted(path.stem for path in folder.iterdir()) == sorted(run.run_id for run in MIX)
    for path in folder.iterdir():
        with np.load(path, allow_pickle=False) as arrays:
            assert int(arrays["arrays/step"]) in (20, 30)
            assert all(x.dtype != object for x in arrays.values())

    counted = _interrupting_after(monkeypatch, rounds=None)
    table = memobench.run(MIX, results=tmp_path, progress=False)
    assert sum(counted) == 120 - 20 - 30 - 30
    assert list(folder.iterdir()) == []
    assert len(list(tmp_path.glob("*.json"))) == 1
    whole = memobench.run(MIX, progress=False)
    assert table[MEASURED].to_dict("list") == whole[MEASURED].to_dict("list")
    assert table["curve_loss"].tolist() == whole["curve_loss"].tolist()
    np.testing.assert_allclose(table["loss"], mixed.loss_R, atol=1e-5)
    again = memobench.run(MIX, results=tmp_path, progress=False)
    assert again[MEASURED].to_dict("list") == table[MEASURED].to_dict("list")


def test_a_sweep_without_a_folder_keeps_no_checkpoints(monkeypatch):
    monkeypatch.setattr(checkpoints.Folder, "save", _fail)
    _interrupting_after(monkeypatch, rounds=2)
    with pytest.raises(sweep.Interrupted, match="nothing was saved"):
        memobench.run(MIX, progress=False)


def _fail(*_):
    raise AssertionError("nothing may be saved here")


def _empty(_):
    return b""


def _truncated(content):
    return content[: len(content) // 2]


def _without_its_end(content):
    return content[:-1]


def _flipped(content):
    # The first array's data, after its header of 128 bytes.
    place = content.index(b"\x93NUMPY") + 130
    return content[:place] + bytes([content[place] ^ 255]) + content[place + 1 :]


def _encrypted(content):
    # A bit of the flags in the directory at the file's end.
    place = content.index(b"PK\x01\x02") + 8
    return content[:place] + bytes([content[place] | 1]) + content[place + 1 :]


def _compressed_otherwise(content):
    place = content.index(b"PK\x01\x02") + 10
    return content[:place] + bytes([99]) + content[place + 1 :]


def _foreign(_):
    return b'{"schema": 1}'


@pytest.mark.parametrize(
    "spoil",
    [
        *(_empty, _truncated, _without_its_end, _flipped),
        *(_encrypted, _compressed_otherwise, _foreign),
    ],
)
def test_a_spoiled_checkpoint_is_named_and_its_run_starts_anew(tmp_path, caplog, mixed, spoil):
    memory, folder = Memory(), checkpoints.Folder(tmp_path / "here")
    with pytest.raises(Stop):
        small.train(pack_of(MIX), stopping_after(2), memory)
    for run_id, arrays in memory.kept.items():
        folder.save(run_id, arrays)
    path = tmp_path / "here" / f"{MIX[1].run_id}.npz"
    path.write_bytes(spoil(path.read_bytes()))
    counted = []
    with caplog.at_level(logging.WARNING, "memobench"):
        result = small.train(pack_of(MIX), counted.append, folder)
    (record,) = caplog.records
    assert str(path) in record.getMessage()
    assert "its run starts anew" in record.getMessage()
    assert sum(counted) == 20 + 60
    assert_close(result, mixed)
    # A file that was left open would warn once nothing holds its error, here or in the next test.
    gc.collect(1)  # What is older than this test is most of all, and takes long.


@pytest.mark.parametrize(
    "wrong",
    [
        {"curve": np.zeros((2, 3))},
        {"curve": np.array([[10, 1.0, 0.5], [20, 1.0, 1.5]])},
        {"curve": np.array([[10, 1.0, 0.5]])},
        {".best.loss": np.float32(-1)},
        {".best.accuracy": np.float32(np.nan)},
        {".best.step": np.int32(30)},
        {"done": np.array(True), "curve": np.zeros((0, 3))},
    ],
)
def test_evaluations_that_cannot_be_are_told_and_left(caplog, wrong):
    memory = Memory()
    with pytest.raises(Stop):
        small.train(pack_of(MIX), stopping_after(2), memory)
    kept = memory.kept | {MIX[1].run_id: memory.kept[MIX[1].run_id] | wrong}
    assert int(kept[MIX[1].run_id]["step"]) == 20
    policy = MIX[1].method.policy(pack_of(MIX), Memory(kept))
    assert [job.step for job in policy.all] == [20, 0, 20]
    assert f"the checkpoint of run {MIX[1].run_id} is of another version" in caplog.text


def test_a_folder_of_checkpoints_gives_back_what_it_was_given(tmp_path):
    folder = checkpoints.Folder(tmp_path / "a" / "b")
    assert folder.load("x") is None
    assert not (tmp_path / "a").exists()
    arrays = {"step": np.array(3), ".params['a']": np.ones((2, 0, 3), np.float32)}
    folder.save("x", {"step": np.array(2)})
    folder.save("x", arrays)
    loaded = folder.load("x")
    assert loaded.keys() == arrays.keys()
    for name, x in arrays.items():
        np.testing.assert_array_equal(loaded[name], x)
        assert loaded[name].dtype == x.dtype
    folder.save("y", arrays)
    folder.discard(["x", "never there"])
    assert [path.name for path in (tmp_path / "a" / "b").iterdir()] == ["y.npz"]


def test_a_save_that_fails_warns_and_leaves_what_was_there(tmp_path, monkeypatch, caplog):
    folder = checkpoints.Folder(tmp_path)
    folder.save("x", {"step": np.array(2)})

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    folder.save("x", {"step": np.array(3)})
    assert "no checkpoint of run x: [Errno 28] No space left" in caplog.text
    assert [path.name for path in tmp_path.iterdir()] == ["x.npz"]
    assert folder.load("x")["step"] == 2


def test_objects_are_refused(tmp_path):
    folder = checkpoints.Folder(tmp_path)
    with pytest.raises(ValueError, match="allow_pickle"):
        folder.save("x", {"step": np.array([None])})
    assert list(tmp_path.iterdir()) == []
