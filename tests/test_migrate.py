"""Results of version 1 of the specs become results of this version."""

import json
import logging
import pathlib

import pytest

import memobench
from memobench.cli import main as cli
from memobench.common.errors import UserError
from memobench.constructions.dana2025 import Dana2025
from memobench.core.cells import cells, from_cells
from memobench.core.spec import SPEC_VERSION
from memobench.experiments import EXPERIMENTS
from memobench.runtime import verify
from memobench.store import results, rows
from memobench.table import migrate
from tests import small

# Spec columns as version 1 wrote them: one row of every task, architecture and method that its
# experiments had, and some with options that none of them had. What was empty is left out.
OLD = json.loads((pathlib.Path(__file__).parent / "version_1.json").read_text())
PROVENANCE = {**small.PROVENANCE, "spec_version": 1}


@pytest.mark.parametrize("old", OLD, ids=lambda row: row["run_id"])
def test_a_row_of_version_1_becomes_the_row_of_its_run(old):
    measured = {"accuracy": 0.25, "loss": 1.5, "trials": [[1, 2]], "of_later": "kept"}
    new = migrate.migrate_row({**old, **measured})
    run = from_cells(new)
    assert new == {**cells(run), **measured}
    assert run.run_id != old["run_id"]
    renamed = {"heads", "solve", "activation", "run_id", "method", "start"}
    assert all(new[name] == value for name, value in old.items() if name not in renamed)
    # Through a table, where what is empty is NaN and whole numbers are floats.
    numbers = {name: float(x) if type(x) is int else x for name, x in old.items()}
    empty = dict.fromkeys(migrate.COLUMNS, float("nan"))
    assert migrate.migrate_row({**empty, **numbers}) == cells(run)


def test_experiments_mean_the_models_that_they_meant():
    known = {
        run.run_id for x in EXPERIMENTS.values() for runs in x.presets.values() for run in runs
    }
    # The last six were of no experiment, and the board no longer searches.
    of_board = [old["method"] == "searched" and old["task"] == "associations" for old in OLD]
    expected = [not searched and i < len(OLD) - 6 for i, searched in enumerate(of_board)]
    assert [migrate.migrate_row(old)["run_id"] in known for old in OLD] == expected
    assert sum(expected) > 20


def test_what_meant_nothing_is_gone_and_what_was_implied_is_there():
    def of(**wanted):
        found = [row for row in OLD if wanted.items() <= row.items()]
        return from_cells(migrate.migrate_row(found[-1]))

    started = of(start="dana2025 n_aimed=2 solve=least_squares scale=8 weights=int8").method
    aimed = {"n_aimed": 2, "solve": "least_squares", "scale": 8.0, "weights": "int8"}
    assert (started.start, started.trained) == (Dana2025(**aimed), "read_out")
    assert of(task="factual_recall").task.n_noise == 16
    assert of(architecture="mlp", d_mlp=0).architecture.activation == "gelu"
    # No neurons have it.
    assert of(architecture="gpt", activation="silu").architecture.activation == "gelu"
    assert of(protocol="annealed").method == memobench.Annealing(stop_early=False)
    assert of(protocol="annealed").architecture.residual is False


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"d_model": 11}, "run_id='.*' is not that of its columns in version 1"),
        ({"run_id": None}, "run_id=None is not that of its columns"),
        ({"task": "poems"}, "run_id="),
        ({"start": 7}, "start=7 is not a construction"),
    ],
)
def test_a_row_of_no_run_is_refused(changes, said):
    with pytest.raises(UserError, match=said) as error:
        migrate.migrate_row({**OLD[0], **changes})
    assert "\n" not in str(error.value)


def _measured(old, **changes):
    counts = dict.fromkeys(rows.COUNTS, 100)
    return {**old, **counts, **dict.fromkeys(rows.MEASURES, 0.5), "status": "ok", **changes}


def test_a_folder_is_migrated_beside_itself(tmp_path, caplog):
    first = results.write_shard(tmp_path, [_measured(x) for x in OLD[:3]], PROVENANCE)
    second = results.write_shard(tmp_path, [_measured(OLD[3], loss=0.125)], PROVENANCE)
    before = {path: path.read_bytes() for path in (first, second)}
    assert results.load_results(tmp_path).empty
    assert [record.getMessage() for record in caplog.records] == [
        f"{tmp_path} holds 2 shards of an earlier version, whose runs have other ids; "
        f"memobench migrate {tmp_path} rewrites them"
    ]
    assert any("memobench migrate" in line for line in verify.verify(tmp_path).errors)

    assert migrate.migrate_folder(tmp_path) == migrate.Report(shards=2, runs=4, errors=())
    assert {path: path.read_bytes() for path in before} == before
    caplog.clear()
    loaded = results.load_rows(tmp_path)
    assert not caplog.records
    expected = [migrate.migrate_row(_measured(old)) for old in OLD[:3]]
    expected += [migrate.migrate_row(_measured(OLD[3], loss=0.125))]
    version = {**PROVENANCE, "spec_version": SPEC_VERSION}
    assert loaded == {row["run_id"]: {**row, **version} for row in expected}
    assert not any("migrate" in line for line in verify.verify(tmp_path).errors)

    assert migrate.migrate_folder(tmp_path).shards == 0
    assert len(results.shard_paths(tmp_path)) == 4
    # One more is named, and only that.
    results.write_shard(tmp_path, [_measured(OLD[4])], PROVENANCE)
    with caplog.at_level(logging.WARNING):
        assert len(results.load_results(tmp_path)) == 4
    assert "holds 1 shard of an earlier version" in caplog.text


def test_rows_that_have_no_run_are_named_and_the_others_kept(tmp_path, capsys):
    wrong = _measured({**OLD[1], "d_model": 7})
    path = results.write_shard(tmp_path, [_measured(OLD[0]), wrong], PROVENANCE)
    (tmp_path / "torn.json").write_text("{")
    command, arguments = cli.parse(["memobench", "migrate", str(tmp_path)])
    with pytest.raises(UserError, match=r"2 of .* were not rewritten; each is named above"):
        command.run(arguments)
    said = capsys.readouterr().out
    assert f"{path.name}, row 2 ({OLD[1]['run_id']}): run_id=" in said
    assert "torn.json: is not JSON" in said
    assert "1 runs of 1 shards were rewritten" in said
    kept = migrate.migrate_row(OLD[0])["run_id"]
    assert list(results.load_rows(tmp_path)) == [kept]


def test_only_folders_are_migrated(tmp_path):
    with pytest.raises(UserError, match="is not a folder; name one of shards"):
        migrate.migrate_folder(tmp_path / "none")
    command, arguments = cli.parse(["memobench", "migrate", "a", "b"])
    with pytest.raises(UserError, match="migrate takes one folder, got a b"):
        command.run(arguments)
