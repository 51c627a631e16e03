"""What checkpoints say of time and devices; what they hold is tested with the methods."""

import numpy as np

from memobench.runtime import checkpoints


def test_what_earlier_processes_trained_counts_once(tmp_path):
    """However often a checkpoint is read again by the process that wrote it."""
    folder = checkpoints.Folder(tmp_path)
    # Of a version that did not say how long.
    folder.save("old", {"x": np.arange(3)})
    folder.save("done", {"x": np.arange(3), "seconds": np.float64(100)})
    timed = checkpoints.Timed(folder, "a CPU", 2)
    assert timed.load("none") is None
    assert timed.load("old").keys() == {"x"}
    assert timed.earlier == 0
    np.testing.assert_array_equal(timed.load("done")["x"], np.arange(3))
    assert timed.earlier == 100
    timed.save("done", {"x": np.arange(4)})
    assert timed.load("done").keys() == {"x"}
    assert timed.earlier == 100
    later = checkpoints.Timed(folder, "a CPU", 1)
    later.load("done")
    assert later.earlier > 100


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
    assert [timed.earlier for timed in parts] == [40.0, 20.0]


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
