"""Files of checkpoints, and what they say of time and devices.

What they hold is tested with the methods.
"""

import io
import logging
import os

import jax.numpy as jnp
import numpy as np
import pytest

from memobench.core.checkpoints import resume
from memobench.runtime import checkpoints

ARRAYS = {"step": np.array(3), ".params['a']": np.ones((2, 0, 3), np.float32)}


def _written(save, *given, **arrays):
    file = io.BytesIO()
    save(file, *given, **arrays)
    return file.getvalue()


FOREIGN = {
    "objects": _written(np.savez, step=np.array([None])),
    "an array that is no archive": _written(np.save, np.zeros(3)),
    "a pickle": b"cos\nabort\n(tR.",
    "nothing": b"",
}


def _skipped(caplog, folder):
    with caplog.at_level(logging.WARNING, "memobench"):
        assert folder.load("x") is None
    (record,) = caplog.records
    assert f"skipped {folder.folder / 'x.npz'}: " in record.getMessage()
    assert "; its run starts anew" in record.getMessage()
    # What is there then is replaced.
    folder.save("x", ARRAYS)
    assert folder.load("x").keys() == ARRAYS.keys()


@pytest.mark.parametrize("data", FOREIGN.values(), ids=FOREIGN)
def test_a_file_that_memobench_did_not_write_is_skipped(tmp_path, caplog, data):
    (tmp_path / "x.npz").write_bytes(data)
    _skipped(caplog, checkpoints.Folder(tmp_path))


@pytest.mark.parametrize(
    "put",
    [
        os.mkfifo,
        lambda path: path.symlink_to("/dev/zero"),
        lambda path: path.symlink_to(path),
    ],
    ids=["a pipe", "a device", "a circle"],
)
def test_what_is_no_file_of_a_checkpoint_is_not_waited_for(tmp_path, caplog, put):
    put(tmp_path / "x.npz")
    _skipped(caplog, checkpoints.Folder(tmp_path))


def test_a_checkpoint_beyond_all_memory_is_not_a_run_that_does_not_fit(
    tmp_path, caplog, monkeypatch
):
    def read(*_):
        raise MemoryError

    folder = checkpoints.Folder(tmp_path)
    folder.save("x", ARRAYS)
    with monkeypatch.context() as patched:
        patched.setattr(checkpoints.strict_json, "contents", read)
        with caplog.at_level(logging.WARNING, "memobench"):
            assert folder.load("x") is None
    assert "skipped" in caplog.text


_TIMES = {"seconds": np.array(100.0), "devices": np.array(["a CPU"])}


@pytest.mark.parametrize(
    "name", ["seconds", "devices", "arrays/x", "file", "allow_pickle", "arrays"]
)
def test_arrays_of_a_run_may_have_any_names(tmp_path, name):
    timed = checkpoints.Timed(checkpoints.Folder(tmp_path), "a CPU", 1)
    timed.save("x", {name: np.arange(3)})
    later = checkpoints.Timed(checkpoints.Folder(tmp_path), "a GPU", 1)
    ((found, array),) = later.load("x").items()
    assert found == name
    np.testing.assert_array_equal(array, np.arange(3))
    assert 0 < later.earlier_seconds < 100
    assert later.earlier_devices("x") == ("a CPU",)


def test_an_optimiser_may_keep_its_state_in_bfloat16(tmp_path):
    """A type that NumPy's files do not know."""
    folder = checkpoints.Folder(tmp_path)
    saved = {"mu": jnp.ones((2, 3), jnp.bfloat16), "u@bfloat16": jnp.ones(1, jnp.uint16)}
    folder.save("x", {name: np.asarray(x) for name, x in saved.items()})
    loaded = folder.load("x")
    assert {name: x.dtype for name, x in loaded.items()} == {
        name: x.dtype for name, x in saved.items()
    }
    np.testing.assert_array_equal(loaded["mu"], saved["mu"])


def test_what_earlier_processes_trained_counts_once(tmp_path):
    """However often a checkpoint is read again by the process that wrote it."""
    folder = checkpoints.Folder(tmp_path)
    folder.save("done", {**_TIMES, "arrays/x": np.arange(3)})
    timed = checkpoints.Timed(folder, "a CPU", 2)
    assert timed.load("none") is None
    assert timed.earlier_seconds == 0
    np.testing.assert_array_equal(timed.load("done")["x"], np.arange(3))
    assert timed.earlier_seconds == 100
    timed.save("done", {"x": np.arange(4)})
    assert timed.load("done").keys() == {"x"}
    assert timed.earlier_seconds == 100
    later = checkpoints.Timed(folder, "a CPU", 1)
    later.load("done")
    assert later.earlier_seconds > 100


def test_the_time_of_a_pack_is_divided_among_its_runs(tmp_path, monkeypatch):
    """What is left of it may go on as several, which together are no longer than it was."""
    now = [0.0]
    monkeypatch.setattr(checkpoints.time, "perf_counter", lambda: now[0])
    folder = checkpoints.Folder(tmp_path)
    timed = checkpoints.Timed(folder, "a GPU", 3)
    now[0] = 60.0
    for run_id in "abc":
        timed.save(run_id, {"x": np.arange(3)})
    parts = [checkpoints.Timed(folder, "a CPU", len(part)) for part in ("ab", "c")]
    for part, timed in zip(("ab", "c"), parts, strict=True):
        for run_id in part:
            timed.load(run_id)
    assert [timed.earlier_seconds for timed in parts] == [40.0, 20.0]


def test_a_run_that_went_on_elsewhere_names_all_its_devices(tmp_path):
    """Each once, the last that trained it last."""
    folder = checkpoints.Folder(tmp_path)
    for device in ("a GPU", "a CPU", "a CPU", "a GPU", "another"):
        timed = checkpoints.Timed(folder, device, 1)
        timed.load("begun")
        timed.save("begun", {"x": np.arange(3)})
    last = checkpoints.Timed(folder, "another", 1)
    assert last.load("begun").keys() == {"x"}
    assert last.earlier_devices("begun") == ("a CPU", "a GPU")
    assert last.earlier_devices("fresh") == ()


def test_arrays_as_an_earlier_version_kept_them_are_told_and_left(tmp_path, caplog):
    folder = checkpoints.Folder(tmp_path)
    folder.save("x", ARRAYS)
    timed = checkpoints.Timed(folder, "a CPU", 1)
    assert timed.load("x") is None
    assert "the checkpoint of run x is of another version; it starts anew" in caplog.text
    assert (timed.earlier_seconds, timed.earlier_devices("x")) == (0, ())


def test_of_a_rejected_checkpoint_neither_time_nor_device_counts(tmp_path):
    folder = checkpoints.Folder(tmp_path)
    checkpoints.Timed(folder, "a GPU", 1).save("x", {"y": np.arange(3)})
    timed = checkpoints.Timed(folder, "a CPU", 1)
    assert resume(timed, "x", lambda arrays: arrays, lambda found: {}) is None
    assert (timed.earlier_seconds, timed.earlier_devices("x")) == (0, ())
    # Until the run is saved again the file is there.
    assert folder.run_ids() == {"x"}
    timed.save("x", {"y": np.arange(4)})
    later = checkpoints.Timed(folder, "a CPU", 1)
    later.load("x")
    assert later.earlier_devices("x") == ()
