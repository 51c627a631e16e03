import os

import pytest

import memobench
from memobench.common.errors import UserError
from memobench.constructions import making
from memobench.constructions.dana2025 import Dana2025
from memobench.core.run import Run
from memobench.methods.optimum import Optimum
from memobench.methods.training import Training
from memobench.models.sequence_encoder import SequenceEncoder
from memobench.numerics import metrics, precision
from memobench.runtime import verify
from memobench.store import results, rows
from tests import constructed
from tests.command_line import command_line
from tests.small import PROVENANCE, reseal
from tests.store.test_rows import HEADS, TASK, _row, _trained_row


def _bare(row):
    """As a shard has it, its provenance beside it."""
    return {name: value for name, value in row.items() if name not in PROVENANCE}


def _trained(seed=0, **changes):
    row = _bare(_trained_row(seed))
    return {**row, "accuracy_protocol": row["accuracy"], **changes}


def _constructed(seed=0, **changes):
    method = Dana2025(solve="least_squares")
    run = Run(task=TASK, architecture=HEADS, method=method, seed=seed)
    measures = {name: _trained()[name] for name in rows.MEASURES}
    certificate = {
        "stored_bits": precision.BITS_PER_WEIGHT[run.method.weights],
        "promises": making.promises(run),
        "aimed_accuracy": measures["accuracy"],
        "aimed_loss": measures["loss"],
    }
    return {**_bare(_row(run, **measures, **certificate)), **changes}


def _write(folder, *rows, **provenance):
    return results.write_shard(folder, rows, {**PROVENANCE, "commit": "0123abc", **provenance})


def _notes(found):
    """All but that these rows, which are made up, have no weights."""
    return [line for line in found.notes if "without weights" not in line]


def _only(lines):
    assert len(lines) == 1, lines
    assert lines[0].isprintable()
    return lines[0]


def test_a_sound_folder_has_no_errors_and_stays_as_it_is(tmp_path):
    paths = [_write(tmp_path, _trained(), _trained(1)), _write(tmp_path, _constructed())]
    before = [path.read_bytes() for path in paths]
    found = verify.verify(tmp_path)
    assert (found.errors, _notes(found)) == ((), [])
    assert found.summary == (
        "2 shards, 3 runs, 0 errors, 1 note; nothing could check the measures of 2 runs, "
        "--recompute checks those of 1"
    )
    assert [path.read_bytes() for path in paths] == before
    assert len(list(tmp_path.iterdir())) == 2


def test_what_systems_and_editors_add_is_no_fault(tmp_path):
    """Their files beside shards, and a mark of UTF-8 before one."""
    path = _write(tmp_path, _trained())
    path.write_text(path.read_text(), "utf-8-sig")
    for name in ("Thumbs.db", "desktop.ini", ".DS_Store", f"._{path.name}"):
        (tmp_path / name).write_bytes(b"\xd0\xcf\x11\xe0")
    (tmp_path / "lost+found").mkdir()
    found = verify.verify(tmp_path)
    assert (found.errors, _notes(found)) == ((), [])
    assert len(results.load_results(tmp_path)) == 1


def test_what_is_no_whole_shard_is_named_and_the_others_are_read(tmp_path):
    path = _write(tmp_path, _trained())
    path.write_text(path.read_text()[:-9])
    _write(tmp_path, _trained(1))
    found = verify.verify(tmp_path)
    assert path.name in _only(found.errors)
    assert found.summary.startswith("1 shard, 1 run, ")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"run_id": "0" * 16}, "run_id='0000000000000000' is not that of such a run"),
        ({"task_seed": 7}, "run_id="),
        ({"d_model": 3}, "run_id="),
        ({"heads": "full", "activation": "relu"}, "activation='relu' is not that of such a run"),
        ({"n_params": 5}, "of such a model, got 5"),
        ({"bits": 1e6}, "beyond a proven limit (counting bits"),
    ],
    ids=lambda x: "-".join(x) if isinstance(x, dict) else None,
)
def test_a_wrong_row_is_told_with_its_file_and_place(tmp_path, changes, told):
    path = _write(tmp_path, _trained(), _trained(1, **changes))
    errors = verify.verify(tmp_path).errors
    assert any(told in error for error in errors), errors
    assert all(error.startswith(f"{path.name}, row 2") for error in errors)
    assert all(error.isprintable() for error in errors)


def test_a_value_that_no_column_holds_is_told_with_its_row(tmp_path):
    path = _write(tmp_path, _trained(), _trained(1, learning_rate="high"))
    error = _only(verify.verify(tmp_path).errors)
    assert error.startswith(f"{path.name}: row 2 has learning_rate='high', not a number")


def test_no_error_hides_another(tmp_path):
    _write(tmp_path, _trained(bits=1e6, n_params=5), _trained(1, d_model=3), jax="0.1")
    _write(tmp_path, _trained(2), jax=None)
    (tmp_path / "notes.txt").write_text("hello")
    assert len(verify.verify(tmp_path).errors) == 5


@pytest.mark.parametrize("value", [{}, None, -1, "x", True, 1e300, [None]], ids=repr)
def test_no_nonsense_in_a_column_stops_the_others(tmp_path, monkeypatch, value):
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    for i, name in enumerate(sorted({*_trained(), *_constructed(), "trials", "sizes"})):
        row = _constructed(i) if i % 2 else _trained(i)
        _write(tmp_path, {**row, name: value, "run_id": row["run_id"]})
    found = verify.verify(tmp_path)
    n_files = len(list(tmp_path.iterdir()))
    assert n_files > 70
    assert found.errors
    if value == {}:
        # No column but the id, which was kept, may be an object.
        assert len({error.split(".json")[0] for error in found.errors}) == n_files - 1


def test_rows_older_than_a_column_are_sound(tmp_path):
    row = _trained()
    del row["n_params_distinct"], row["degrees_of_freedom"], row["trained"], row["n_subjects"]
    _write(tmp_path, row)
    assert verify.verify(tmp_path).errors == ()


def test_a_run_that_is_there_twice_counts_once(tmp_path):
    _write(tmp_path, _trained(), _trained(1))
    _write(tmp_path, _trained())
    found = verify.verify(tmp_path)
    assert (found.errors, found.runs, _notes(found)) == ((), 2, [])


@pytest.mark.parametrize("constructed", [False, True])
@pytest.mark.parametrize("apart", [0, 1e-6, 1e-2])
def test_two_rows_of_a_construction_differ_by_no_more_than_rounding(tmp_path, constructed, apart):
    loss = 2.0 * (1 - apart)
    other = _bare(_trained_row(loss=loss)) | {"accuracy_protocol": 0.25}
    if constructed:
        changed = {name: other[name] for name in rows.MEASURES}
        other = _constructed(**changed, aimed_loss=loss)
    first = _write(tmp_path, _constructed() if constructed else _trained(), _trained(1))
    second = _write(tmp_path, other)
    found = verify.verify(tmp_path)
    if apart < 1e-4:
        assert (found.errors, _notes(found)) == ((), [])
        return
    if constructed:
        assert "which is more than rounding" in _only(found.errors)
        assert all(path.name in found.errors[0] for path in (first, second))
    else:
        (note,) = _notes(found)
        assert found.errors == ()
        assert note.startswith("1 run with rows that differ by more than rounding")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"device": None}, "lacks device"),
        ({"jax": "new"}, "jax='new', not a version"),
        ({"instruction_set": "fast!"}, "instruction_set='fast!', not an instruction set"),
        ({"date": "2026-01-31"}, "date='2026-01-31', not a UTC date"),
        ({"spec_version": 99}, "spec_version must be 2, got 99. Update memobench"),
    ],
)
def test_provenance_that_is_missing_or_odd_is_an_error(tmp_path, changes, told):
    path = _write(tmp_path, _trained(), _trained(1), **changes)
    error = _only(verify.verify(tmp_path).errors)
    assert error.startswith(path.name)
    assert told in error


def test_constructed_weights_are_made_again_and_compared(tmp_path):
    run = Run(task=TASK, architecture=HEADS, method=Dana2025(n_aimed=4))
    memobench.run([run], tmp_path, progress=False)
    assert verify.verify(tmp_path, recompute=True).errors == ()
    (path,) = tmp_path.glob("*.json")
    n, chance = TASK.n_predicted, TASK.chance

    def better(shard):
        """All that any other column determines fits."""
        (row,) = shard["rows"]
        row["accuracy"] += 1 / n
        row["memorized"] = metrics.correct_for_chance(row["accuracy"], n, chance)
        row["accuracy_protocol"], row["curve_accuracy"] = row["accuracy"], [row["accuracy"]]

    reseal(path, better)
    assert verify.verify(tmp_path).errors == ()
    accuracy, *_ = verify.verify(tmp_path, recompute=True).errors
    assert accuracy.startswith(f"{path.name}, row 1 ({run.run_id}): accuracy=")
    assert "weights that were made again have" in accuracy


def test_weights_that_cannot_be_made_are_no_error_where_their_row_says_so(tmp_path, monkeypatch):
    """One that no scale of its features serves, beside one that can be made."""
    lost, fine = (constructed.run_of(method={"scale": scale}) for scale in (1e-9, None))
    table = memobench.run([lost, fine], tmp_path, progress=False)
    assert table["status"].tolist() == ["diverged", "ok"]
    assert verify.verify(tmp_path, recompute=True).errors == ()

    def refused(run):
        raise UserError("its features lose rank")

    monkeypatch.setattr(making, "construct", refused)
    (error,) = verify.verify(tmp_path, recompute=True).errors
    assert f"({fine.run_id}): status=" in error


def test_weights_of_a_run_that_diverged_may_be_finite(tmp_path):
    """Its loss overflowed: it has no measures to be compared with theirs."""
    method = Training(n_batches=1, epochs=1).exact()
    memobench.run([Run(task=TASK, architecture=HEADS, method=method)], tmp_path, progress=False)
    (path,) = results.shard_paths(tmp_path)
    nothing = dict.fromkeys(rows.MEASURES) | {"status": "diverged"}
    reseal(path, lambda shard: shard["rows"][0].update(nothing))
    assert verify.verify(tmp_path, recompute=True).errors == ()


@pytest.mark.parametrize("agreeing", [True, False])
def test_a_run_below_the_floor_of_another_shard_is_an_error(tmp_path, agreeing):
    """If the search for the encoder certifies it: a single start that found it proves nothing."""
    encoder = SequenceEncoder(d_model=HEADS.d_model)
    search = Run(task=TASK, architecture=encoder, method=Optimum(starts=16))
    below = _trained(1)
    floor = below["loss"] + 1e-3
    measures = {name: below[name] for name in rows.MEASURES} | {"loss": floor}
    measures["bits"] = metrics.memorized_bits(floor, TASK.n_examples, TASK.n_choices)
    losses = [floor, floor if agreeing else floor + 1e-3, floor + 0.1]
    found = {"gradient_norm": 1e-9, "start_losses": losses}
    columns = {**_bare(_row(search, **measures, **found)), "accuracy_protocol": below["accuracy"]}
    _write(tmp_path, columns)
    path = _write(tmp_path, _trained(0, loss=floor, bits=measures["bits"]), below)
    errors = verify.verify(tmp_path).errors
    if agreeing:
        error = _only(errors)
        assert error.startswith(f"{path.name}, row 2 ({below['run_id']}): beyond a proven limit")
        assert "floor of the best sequence encoder" in error
    else:
        assert errors == ()


def test_several_commits_and_devices_are_notes(tmp_path):
    _write(tmp_path, _trained(), commit=None)
    _write(tmp_path, _trained(1), _trained(2), commit="4567def+", device="NVIDIA H200")
    found = verify.verify(tmp_path)
    assert found.errors == ()
    commits, devices, changed = _notes(found)
    assert "2 values of commit: 4567def+ (2 runs), None (1 runs)" in commits
    assert "NVIDIA H200 (2 runs)" in devices
    assert "2 runs by code that differed from its commit" in changed


def test_what_cannot_be_derived_here_is_a_note(tmp_path):
    row = _trained(architecture="theirs", of_theirs=1)
    _write(tmp_path, row)
    found = verify.verify(tmp_path)
    assert found.errors == ()
    unchecked = _only(found.notes)
    assert unchecked.startswith("1 run not checked, as architecture='theirs' is unknown")
    assert unchecked.endswith(f": {row['run_id']}")


def test_working_files_are_passed_over(tmp_path):
    _write(tmp_path, _trained())
    (tmp_path / ".checkpoints").mkdir()
    (tmp_path / ".fresh.tmp").write_text("half")
    found = verify.verify(tmp_path)
    assert (found.errors, _notes(found)) == ((), [])


@pytest.mark.parametrize("name", ["none", ""])
def test_no_folder_is_one_line(tmp_path, monkeypatch, name):
    """Nor is an empty name, as of a shell's variable without a value, the working directory."""
    monkeypatch.chdir(tmp_path)
    for check in (verify.verify, results.load_results):
        with pytest.raises(UserError, match=f"'{name}' is not a folder"):
            check(name)


def test_the_command_tells_all_and_fails(tmp_path):
    (tmp_path / "foreign.json").write_text("{}")
    done = command_line("verify", str(tmp_path), cwd=tmp_path)
    assert done.returncode == 1
    assert done.stdout.splitlines() == [
        "error: foreign.json: not a memobench shard; none of its rows is read",
        "0 shards, 0 runs, 1 error, 0 notes; nothing could check the measures of 0 runs, "
        "--recompute checks those of 0",
    ]
    assert done.stderr == f"memobench: {tmp_path} is not sound; every error is named above\n"
