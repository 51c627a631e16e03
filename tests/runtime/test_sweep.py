import dataclasses
import gc
import json
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

import memobench
from memobench.common.errors import RunsFailed, UserError
from memobench.constructions import making
from memobench.constructions.dana2025 import Dana2025
from memobench.core import columns
from memobench.core.cells import from_cells
from memobench.experiments.mahdavi2024.own_methods import Annealing
from memobench.experiments.mahdavi2024.own_models import QueryAttention
from memobench.methods import training
from memobench.methods.training import Training
from memobench.models.linear_memory import LinearMemory
from memobench.models.sequence_encoder import SequenceEncoder
from memobench.models.transformer import AttentionOnly
from memobench.planner import packing
from memobench.runtime import (
    checkpoints,
    leases,
    local,
    provenance,
    status,
    sweep,
    verify,
    worker,
)
from memobench.runtime.leases import Leases
from memobench.runtime.sweep import Interrupted, TimeUp
from memobench.store import results
from memobench.tasks.associations import Associations
from memobench.tasks.labelled_contexts import LabelledContexts
from tests import small
from tests.drawn import assert_one_line

SHORT = Training(batch_size=8, n_batches=4, epochs=2)


def test_only_what_went_on_elsewhere_says_so(make_run, tmp_path):
    """A run of a pack that began with it has the device that trained it alone."""
    method = dataclasses.replace(SHORT, epochs=100)
    runs = [make_run(seed=seed, method=method) for seed in range(2)]
    folder = worker.Workspace(tmp_path, results.Reader(tmp_path), Leases(tmp_path)).checkpoints
    _stop_early(runs[0], checkpoints.Timed(folder, "a GPU", 1))
    table = memobench.run(runs, tmp_path, progress=False).set_index("run_id")
    here = provenance.device_name(jax.devices()[0])
    assert table.loc[runs[0].run_id, "device"] == f"a GPU, then {here}"
    assert table.loc[runs[1].run_id, "device"] == here
    assert len(results.shard_paths(tmp_path)) == 2
    assert set(table["pack_size"]) == {2}


def test_a_checkpoint_and_a_lease_of_what_is_done_go(make_run, tmp_path, monkeypatch):
    """As of a worker that was killed between writing the row and that."""
    method = dataclasses.replace(SHORT, epochs=100)
    runs = [make_run(seed=seed, method=method) for seed in range(2)]
    memobench.run(runs[:1], tmp_path, progress=False)
    folder = worker.Workspace(tmp_path, results.Reader(tmp_path), Leases(tmp_path)).checkpoints
    _stop_early(runs[0], checkpoints.Timed(folder, "a GPU", 1))
    assert folder.run_ids() == {runs[0].run_id}

    def die():
        lease = tmp_path / ".leases" / "dead.json"
        lease.parent.mkdir(exist_ok=True)
        content = {"run_ids": [runs[0].run_id], "pid": 2**22 + 1, "beats": 1, "about": {}}
        lease.write_text(json.dumps({**leases._identify(), **content}))
        assert "died: " in status.text(tmp_path)

    die()
    memobench.run(runs[:1], tmp_path, progress=False)
    assert folder.run_ids() == set()
    assert "died" not in status.text(tmp_path)
    # And while others train.
    train = Training.train
    monkeypatch.setattr(Training, "train", lambda *x, **more: die() or train(*x, **more))
    memobench.run(runs, tmp_path, progress=False)
    assert "died" not in status.text(tmp_path)


def _stop_early(run, saved):
    """Trains a run for some steps, and saves it."""

    def stop(_):
        raise InterruptedError

    with pytest.raises(InterruptedError):
        run.method.train(packing.make_pack([run]), stop, saved)


def _runs(make_run, seeds=3):
    return [make_run(n_heads=h, seed=seed, method=SHORT) for h in (1, 3) for seed in range(seeds)]


def _fail(*_):
    raise AssertionError("nothing may train here")


def test_a_second_sweep_trains_nothing(make_run, tmp_path, monkeypatch):
    runs = _runs(make_run)
    first = memobench.run(runs, results=tmp_path, progress=False)
    monkeypatch.setattr(local.Threads, "start", _fail)
    again = memobench.run(runs, results=tmp_path, progress=False)
    assert again["run_id"].tolist() == first["run_id"].tolist() == [run.run_id for run in runs]
    assert again["accuracy"].tolist() == first["accuracy"].tolist()
    assert memobench.plan(runs, done=again["run_id"]) == []
    packs = memobench.plan(runs)
    assert tuple(pack.seconds for pack in packs) == sweep.predict(packs).seconds


def test_a_larger_sweep_trains_only_what_is_missing(make_run, tmp_path, monkeypatch):
    runs = _runs(make_run)
    memobench.run(runs[::2], results=tmp_path, progress=False)
    trained, train_pack = [], Training.train

    def train(method, pack, *more):
        trained.extend(run.run_id for run in pack.runs)
        return train_pack(method, pack, *more)

    monkeypatch.setattr(Training, "train", train)
    table = memobench.run(runs + runs, results=tmp_path, progress=False)
    assert len(table) == len(runs)
    assert sorted(trained) == sorted(run.run_id for run in runs[1::2])


def test_the_rows_are_those_of_training_alone(make_run):
    run = make_run(n_heads=3, seed=1, method=SHORT)
    table = memobench.run(_runs(make_run), progress=False).set_index("run_id")
    alone = training.train_one(run)
    row = table.loc[run.run_id]
    np.testing.assert_allclose(row["loss"], alone.loss_R[0], atol=1e-5)
    np.testing.assert_allclose(row["accuracy"], alone.accuracy_R[0], atol=1e-6)
    expected = (row["accuracy"] - 1 / 7) / (1 - 1 / 7) * 49
    np.testing.assert_allclose(row["memorized"], expected, atol=1e-3)
    np.testing.assert_allclose(
        row["bits"], max(0, 49 * np.log2(7) - 49 * row["loss"] / np.log(2)), rtol=1e-4
    )
    assert row["steps"] == 8
    assert row["n_params"] == 2 * 7 * 4 + 2 * 4 + 4 * 3 * 16
    assert row["jax"] == jax.__version__
    assert row["device"]
    assert row["instruction_set"] == provenance.instruction_set()


@pytest.mark.parametrize(
    ("xla_flags", "expected"),
    [
        ("", "AVX512"),
        ("--xla_cpu_max_isa=avx2 --xla_other=1", "AVX2"),
        ("--xla_cpu_max_isa=AVX2 --xla_cpu_max_isa=SSE4_2", "SSE4_2"),
        ("--xla_cpu_max_isa=AMX", "AVX512"),
        ("--xla_cpu_max_isa=of_another_world", "AVX512"),
    ],
)
def test_the_instruction_set_is_the_best_that_xla_may_use(monkeypatch, xla_flags, expected):
    monkeypatch.setenv("XLA_FLAGS", xla_flags)
    monkeypatch.setattr(provenance, "_cpu", {"flags": "fpu avx512f sse4_2 fma avx avx2"}.get)
    assert provenance.instruction_set() == expected
    # Other machines have other words for what they can do.
    monkeypatch.setattr(provenance, "_cpu", lambda _: "")
    monkeypatch.setattr(provenance.platform, "machine", lambda: "arm64")
    assert provenance.instruction_set() == "arm64"


def test_a_diverged_run_is_recorded(make_run, tmp_path):
    wild = dataclasses.replace(SHORT, learning_rate=1e30)
    runs = [make_run(method=wild), make_run(method=SHORT)]
    memobench.run(runs, results=tmp_path, progress=False)
    table = memobench.load_results(tmp_path).set_index("run_id")
    assert table.loc[runs[0].run_id, "status"] == "diverged"
    assert np.isnan(table.loc[runs[0].run_id, "accuracy"])
    assert table.loc[runs[1].run_id, "status"] == "ok"


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("host"),
        jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory"),
        jax.errors.JaxRuntimeError(
            "INTERNAL: Failed to load in-memory CUBIN: CUDA_ERROR_OUT_OF_MEMORY: out of memory"
        ),
    ],
    ids=["host", "device", "driver"],
)
def test_a_pack_that_does_not_fit_is_halved_and_says_so(make_run, caplog, error):
    runs = [make_run(seed=seed, method=SHORT) for seed in range(5)]

    def train(pack):
        if len(pack.runs) > 2:
            raise error
        return small.train(pack)

    done = list(worker.train_within_memory(packing.make_pack(runs), train))
    assert sorted(run.seed for pack, _ in done for run in pack.runs) == [0, 1, 2, 3, 4]
    assert max(len(pack.runs) for pack, _ in done) == 2
    told = "5 runs, 5 models at a time, did not fit in memory; trying 3 and 2, 3 at a time"
    assert told in caplog.text


def test_a_run_that_does_not_fit_alone_is_lost_and_costs_no_other(make_run, tmp_path, monkeypatch):
    runs = [make_run(seed=seed, method=SHORT) for seed in range(4)]
    train_pack = Training.train

    def train(method, pack, on_steps, checkpoints=None):
        if runs[2] in pack.runs:
            raise MemoryError
        return train_pack(method, pack, on_steps, checkpoints)

    monkeypatch.setattr(Training, "train", train)
    told = rf"\(run {runs[2].run_id}\) does not fit in memory even alone; .*\(see nvidia-smi\)"
    with pytest.raises(RunsFailed, match=f"1 of 4 runs .*{told}"):
        memobench.run(runs, results=tmp_path, progress=False)
    with pytest.raises(RunsFailed, match=told):
        memobench.run(runs, progress=False)
    assert len(memobench.load_results(tmp_path)) == 3
    (log,) = (tmp_path / ".logs").iterdir()
    assert "DoesNotFit" in log.read_text()
    monkeypatch.undo()
    assert len(memobench.run(runs, results=tmp_path, progress=False)) == 4


def test_what_another_with_more_memory_trains_is_not_lost(make_run, tmp_path, monkeypatch):
    runs = [make_run(seed=seed, method=SHORT) for seed in range(3)]
    ours, others = tmp_path / "ours", tmp_path / "others"
    memobench.run(runs[1:2], results=others, progress=False)
    (shard,) = others.glob("*.json")
    train_pack = Training.train

    def train(method, pack, on_steps, checkpoints=None):
        if runs[1] in pack.runs:
            if len(pack.runs) == 1:
                shutil.copy(shard, ours)
            raise MemoryError
        return train_pack(method, pack, on_steps, checkpoints)

    monkeypatch.setattr(Training, "train", train)
    table = memobench.run(runs, results=ours, progress=False)
    assert table["run_id"].tolist() == [run.run_id for run in runs]


def test_what_cannot_be_made_is_lost_and_costs_no_other(make_run, tmp_path, monkeypatch):
    def refused(pack, on_steps):
        raise UserError("no scale works")

    monkeypatch.setattr(local, "n_workers", lambda: 1)
    monkeypatch.setattr(making, "construct_pack", refused)
    broken = dataclasses.replace(make_run(d_model=6, d_head=6), method=Dana2025(n_aimed=18))
    runs = [broken, make_run(method=SHORT), make_run(seed=1, method=SHORT)]
    with pytest.raises(RunsFailed, match=r"1 of 3 runs .*1 run: no scale works"):
        memobench.run(runs, results=tmp_path, progress=False)
    assert set(memobench.load_results(tmp_path)["run_id"]) == {run.run_id for run in runs[1:]}


def test_what_no_reader_accepts_is_not_written_and_not_made_again(make_run, tmp_path, monkeypatch):
    made, rows_of = [], worker.rows_of

    def wrong(pack, result):
        made.append(pack)
        return [{**row, "loss": -1.0} for row in rows_of(pack, result)]

    monkeypatch.setattr(worker, "rows_of", wrong)
    with pytest.raises(
        RunsFailed, match=r"1 of 1 runs .* has loss=-1.0, not a number >= .*; report it"
    ):
        memobench.run([make_run(method=SHORT)], results=tmp_path, progress=False)
    assert len(made) == 1
    assert not results.shard_paths(tmp_path)


def test_workers_are_told_of_measures_and_of_shards_whatever_their_dates(
    make_run, tmp_path, monkeypatch
):
    """A shard of a clock that runs ahead would hide all that follow."""
    memobench.run([make_run()], results=tmp_path, progress=False)
    (path,) = results.shard_paths(tmp_path)
    os.utime(path, (2e9, 2e9))
    told = []

    def tell(work, modules):
        told.append((work.args[1], modules))
        raise KeyboardInterrupt

    monkeypatch.setattr(sweep.launch, "make_portable", tell)
    monkeypatch.setattr(sweep.measures, "modules", lambda: ["mine"])
    with pytest.raises(Interrupted):
        memobench.run([make_run(seed=1)], results=tmp_path, progress=False, processes=1)
    ((since, modules),) = told
    assert 0 < since < time.time()
    assert modules == ["mine"]


def test_a_field_may_be_a_tuple_whose_domain_takes_a_list(tmp_path):
    def canonical(value):
        return tuple(value) if isinstance(value, list | tuple) else None

    @memobench.kind("of_widths")
    class OfWidths(AttentionOnly):
        widths: tuple = columns.declare(
            columns.Domain("a tuple", canonical), "w", column="all_widths"
        )

    run = memobench.Run(
        task=Associations(vocab_size=5),
        architecture=OfWidths(d_model=2, d_head=2, n_heads=1, widths=(3, 4)),
        method=SHORT,
    )
    for _ in range(2):
        table = memobench.run([run], results=tmp_path, progress=False)
        assert table["all_widths"].tolist() == [(3, 4)]
    (row,) = results.load_rows(tmp_path).values()
    assert from_cells(row) == run
    found = verify.verify(tmp_path)
    assert (found.errors, found.runs) == ((), 1)


def test_a_value_that_files_keep_otherwise_is_not_written_and_not_made_again(tmp_path):
    """A tuple is a list in a file, which its domain must take, too."""

    @memobench.kind("of_widths")
    class OfWidths(AttentionOnly):
        widths: tuple = columns.declare(
            columns.value_where("a tuple", lambda x: isinstance(x, tuple)), "w", column="all_widths"
        )

    run = memobench.Run(
        task=Associations(vocab_size=5),
        architecture=OfWidths(d_model=2, d_head=2, n_heads=1, widths=(3, 4)),
        method=SHORT,
    )
    with pytest.raises(RunsFailed, match=r"1 of 1 runs .* has all_widths=\[3, 4\], not a tuple"):
        memobench.run([run], results=tmp_path, progress=False)
    assert not results.shard_paths(tmp_path)


def test_weights_of_a_run_that_another_has_finished_stay(make_run, tmp_path):
    runs = [make_run(seed=seed, method=SHORT) for seed in range(2)]
    workspace = worker.Workspace(tmp_path, results.Reader(tmp_path), Leases(tmp_path), "sweep")
    first, both = packing.make_pack(runs[:1]), packing.make_pack(runs)
    result = small.train(first)
    worker._write(workspace, first, result, lambda text: None)
    kept = results.weights_path(tmp_path, runs[0].run_id).read_bytes()
    other = small.train(both)
    moved = jax.tree.map(lambda x: x + 1e-6, other.variables)
    worker._write(workspace, both, dataclasses.replace(other, variables=moved), lambda text: None)
    assert results.weights_path(tmp_path, runs[0].run_id).read_bytes() == kept
    found = verify.verify(tmp_path)
    assert (found.runs, found.errors) == (2, ())


def test_the_commit_is_that_of_the_checkout_alone(tmp_path, monkeypatch):
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    inside = tmp_path / "lib"
    inside.mkdir()
    monkeypatch.setattr(provenance.folders, "CHECKOUT", inside)
    assert provenance.read_commit.__wrapped__() is None


def test_the_commit_is_told_of_a_checkout_of_another_user_too(tmp_path, monkeypatch, caplog):
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=b"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "c"], check=True)
    monkeypatch.setattr(provenance.folders, "CHECKOUT", tmp_path)
    # As if it were: git has this for its own tests.
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    done = subprocess.run([*git, "describe", "--always"], capture_output=True, text=True)
    assert "dubious ownership" in done.stderr
    assert re.fullmatch("[0-9a-f]{7}", provenance.read_commit.__wrapped__())
    assert caplog.text == ""
    (tmp_path / ".git" / "HEAD").unlink()
    assert provenance.read_commit.__wrapped__() is None
    assert "rows will name no commit, for git says: fatal: not a git repo" in caplog.text


def test_a_log_takes_text_of_any_kind(tmp_path):
    """In a path that is no UTF-8, say; the error that it tells of must not become another."""
    worker._note(tmp_path / ".logs" / "a.log", "File '\udcff.py': 2 \u00d7 2")
    text = (tmp_path / ".logs" / "a.log").read_text("utf-8")
    assert text.endswith("File '\\udcff.py': 2 \u00d7 2\n")


@pytest.mark.parametrize("kept", [True, False], ids=["in a folder", "nowhere"])
@pytest.mark.parametrize("error", [RuntimeError("a broken\ndevice"), IndexError(), TimeoutError()])
def test_an_unexpected_error_costs_its_pack_alone(make_run, tmp_path, monkeypatch, error, kept):
    runs = [make_run(seed=seed, method=SHORT) for seed in range(3)]
    packs = [packing.make_pack(each) for each in (runs[:1], runs[1:])]
    train_pack, trained = Training.train, []

    def train(method, pack, on_steps, checkpoints=None):
        if pack == packs[0]:
            raise error
        trained.extend(run.seed for run in pack.runs)
        return train_pack(method, pack, on_steps, checkpoints)

    monkeypatch.setattr(Training, "train", train)
    monkeypatch.setattr(packing, "plan", lambda runs, *_: packs if runs else [])
    monkeypatch.setattr(local, "n_workers", lambda: 1)
    with pytest.raises(RunsFailed) as told:
        memobench.run(runs, results=tmp_path if kept else None, progress=False)
    assert_one_line(told.value, "1 of 3 runs could not be trained (1 run: ")
    # With the line that raised it, here and not in memobench.
    what = " ".join(str(error).split())
    line = train.__code__.co_firstlineno + 2
    said = f"{type(error).__name__}{what and ': '}{what} ({__file__}, line {line})"
    assert said in str(told.value)
    assert trained == [1, 2]
    if kept:
        done = memobench.load_results(tmp_path)["run_id"]
        assert set(done) == {run.run_id for run in runs[1:]}
        assert not list((tmp_path / ".leases").iterdir())
        logs = "".join(path.read_text() for path in (tmp_path / ".logs").iterdir())
        assert "Traceback" in logs


def test_a_folder_that_fails_during_the_sweep_is_one_line(make_run, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match=r"No space left on device.*same command resumes"):
        memobench.run([make_run(method=SHORT)], results=tmp_path, progress=False)
    assert all(path.name in (".leases", ".logs", "weights") for path in tmp_path.iterdir())


def test_a_mistake_is_found_before_anything_trains(make_run, tmp_path, monkeypatch):
    monkeypatch.setattr(local.Threads, "start", _fail)
    good = make_run()
    bad = [
        dataclasses.replace(good, architecture=LinearMemory(d_model=4)),
        dataclasses.replace(good, architecture=QueryAttention(d_model=4, d_head=4)),
        dataclasses.replace(good, method=dataclasses.replace(SHORT, start=Dana2025())),
        dataclasses.replace(
            good,
            architecture=SequenceEncoder(d_model=4),
            method=dataclasses.replace(SHORT, trained="all_but_attention"),
        ),
    ]
    for run in bad:
        with pytest.raises(UserError):
            memobench.run([good, run], results=tmp_path, progress=False)


@pytest.mark.parametrize("ask", [memobench.plan, memobench.run])
def test_what_is_no_list_of_runs_is_refused_in_one_line(ask, make_run):
    for given in (make_run(), [make_run().run_id], None):
        with pytest.raises(UserError, match="must be a list of runs, got ") as error:
            ask(given)
        assert_one_line(error.value, "runs must be ")


SWEEP = """
import signal, sys, memobench
# A test run in the background of a shell has interrupts ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
from memobench.runtime.sweep import Interrupted
runs = [
    memobench.Run(
        task=memobench.Associations(vocab_size=7),
        architecture=memobench.AttentionOnly(d_model=3, d_head=3, n_heads=2),
        method=memobench.Training(batch_size=8, n_batches=n, epochs=epochs),
    )
    for n, epochs in ((4, 1), (64, 10**6))
]
print("ready", flush=True)
try:
    memobench.run(runs, results=sys.argv[1], progress=False)
except Interrupted as error:
    sys.exit(f"said: {error}")
"""


def _start(folder):
    process = subprocess.Popen(
        [sys.executable, "-c", SWEEP, str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    deadline = time.monotonic() + 120
    while not list(folder.glob("*.json")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return process


@pytest.mark.parametrize(
    ("number", "times"),
    # An interrupt in this process is tested below.
    [pytest.param(signal.SIGINT, 1, marks=pytest.mark.slow), (signal.SIGTERM, 3)],
)
def test_ctrl_c_and_sigterm_say_what_is_saved_and_how_to_resume(tmp_path, number, times):
    process = _start(tmp_path)
    for _ in range(times):
        process.send_signal(number)
        # Soon: once all is saved a signal has its usual effect.
        time.sleep(0.01 * (times > 1))
    try:
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert "said: interrupted: 1 of 2 runs are saved in" in errors
    assert "the same command resumes" in errors
    assert errors.count("stopping: packs save where they are") == 1
    # Python itself prints what it ignores in a callback, where the signal may have come.
    assert errors.count("Traceback") == errors.count("Exception ignored in")
    assert len(memobench.load_results(tmp_path)) == 1


def test_ctrl_c_within_a_callback_is_not_lost(make_run, tmp_path, monkeypatch):
    """Python ignores what a callback of its garbage collector raises; JAX has one."""
    armed, ignored = [], []

    def collected(phase, info):
        if armed:
            armed.clear()
            signal.raise_signal(signal.SIGINT)

    def ended(self):
        armed.append(True)
        gc.collect()
        return []

    monkeypatch.setattr(sys, "unraisablehook", ignored.append)
    monkeypatch.setattr(local.Threads, "pop_ended", ended)
    endless = make_run(method=dataclasses.replace(SHORT, epochs=10**6))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    on_sigterm = signal.getsignal(signal.SIGTERM)
    gc.callbacks.append(collected)
    try:
        with pytest.raises(Interrupted, match="0 of 1 runs are saved"):
            memobench.run([endless], results=tmp_path, progress=False)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert signal.getsignal(signal.SIGTERM) is on_sigterm
    finally:
        gc.callbacks.remove(collected)
        signal.signal(signal.SIGINT, before)
    assert ignored == []


def test_a_sweep_whose_time_is_up_stops_and_goes_on(make_run, tmp_path):
    wanted = [make_run(method=dataclasses.replace(SHORT, epochs=n)) for n in (1, 10**6)]
    with pytest.raises(TimeUp, match=r"the time is up: \d of 2 runs are saved .* same command"):
        memobench.run(wanted, results=tmp_path, progress=False, seconds=0)
    done = memobench.run(wanted[:1], results=tmp_path, progress=False, seconds=3600)
    assert done["status"].tolist() == ["ok"]
    # What is done takes no time.
    memobench.run(wanted[:1], results=tmp_path, progress=False, seconds=0)


def test_what_ends_with_the_time_is_returned(make_run, monkeypatch):
    """All is done by the first look at what ended, after the time is up."""
    wait = local.Threads.wait
    monkeypatch.setattr(local.Threads, "wait", lambda self, seconds: wait(self, 600))
    table = memobench.run([make_run(method=SHORT)], progress=False, seconds=0)
    assert table["status"].tolist() == ["ok"]


@pytest.mark.parametrize(
    "task",
    [
        Associations(vocab_size=4),
        pytest.param(LabelledContexts(n_examples=6), marks=pytest.mark.slow),
    ],
)
def test_settings_of_the_caller_change_nothing(task):
    """Neither precision nor random numbers follow them."""
    architecture = AttentionOnly(d_model=2, d_head=2)
    method = SHORT
    if isinstance(task, LabelledContexts):
        architecture = QueryAttention(d_model=2, d_head=2)
        method = Annealing(batch_size=3, steps=4, evaluate_every=2)
    runs = [memobench.Run(task=task, architecture=architecture, method=method)]
    single = memobench.run(runs, progress=False)
    with (
        jax.enable_x64(True),
        jax.default_prng_impl("rbg"),
        jax.threefry_partitionable(False),
        jax.numpy_dtype_promotion("strict"),
    ):
        n_packs = len(memobench.plan(runs))
        memobench.check(architecture, task)
        double = memobench.run(runs, progress=False)
    assert n_packs == 1
    assert double["loss"].tolist() == single["loss"].tolist()
    assert double["curve_loss"].tolist() == single["curve_loss"].tolist()


def test_random_numbers_of_another_offset_are_refused(make_run):
    jax.config.update("jax_random_seed_offset", 7)
    try:
        with pytest.raises(UserError, match=r"^JAX_RANDOM_SEED_OFFSET must be 0, got 7; unset it$"):
            memobench.run([make_run()], progress=False)
    finally:
        jax.config.update("jax_random_seed_offset", 0)


@pytest.mark.filterwarnings("ignore:.*fork")
def test_a_process_that_was_forked_after_jax_began_says_so_and_does_not_hang(make_run):
    jax.devices()
    with multiprocessing.get_context("fork").Pool(1) as pool:
        forked = pool.apply_async(memobench.run, ([make_run(method=SHORT)],))
        with pytest.raises(UserError, match=r"must be spawned, .*get_context\('spawn'\)$"):
            forked.get(timeout=60)
