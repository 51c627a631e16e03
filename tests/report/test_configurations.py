"""The page of all configurations: ranks within sections, and marks."""

import numpy as np
import pandas as pd

from memobench.methods.training import Training
from memobench.report import configurations
from memobench.store import rows as declared


def written(table, folder):
    """The page of all configurations, and what its CSV says."""
    configurations.write(configurations.build(table), folder)
    text = (folder / "CONFIGURATIONS.md").read_text("utf-8")
    return text, pd.read_csv(folder / "configurations.csv")


def test_all_configurations_are_ranked_within_sections(measured, tmp_path):
    _, table = measured
    text, board = written(table, tmp_path)
    assert text.count("\n## ") == 2
    for _, section in board.groupby("protocol"):
        assert section["bits per parameter"].dropna().is_monotonic_decreasing
    row = board[(board["n_heads"] == 4) & (board["protocol"] == "exact")].iloc[0]
    mine = table[(table["n_heads"] == 4) & (table["protocol"] == "exact")]
    expected = (mine["bits"] / mine["n_params"]).mean()
    np.testing.assert_allclose(row["bits per parameter"], expected, rtol=1e-4)


def test_a_saturated_model_is_marked():
    row = dict.fromkeys(declared.configuration(), 0) | Training().exact().cells()
    rows = [
        {**row, "n_heads": i, "n_params": 10, "status": "ok", "bits": 1.0, "memorized": 1.0}
        | {"task": "associations", "method": "trained", "n_aimed": None, "promises": None}
        | {"theorem": None}
        | {"accuracy": value, "device": "d"}
        for i, value in enumerate([0.98, 1.0])
    ]
    board = configurations.build(pd.DataFrame(rows)).set_index("n_heads")
    assert board["saturated"].to_dict() == {0: "no", 1: "yes"}


def test_runs_of_unknown_kinds_are_left_out_in_one_line(measured, caplog):
    _, table = measured
    foreign = table[table["protocol"] == "exact"].assign(optimizer="of_a_plugin")
    board = configurations.build(pd.concat([table, foreign]))
    assert len(board) == len(configurations.build(table))
    (line,) = [record.getMessage() for record in caplog.records]
    count = f"{len(foreign[foreign['task'] == 'associations'])} runs"
    assert line.startswith(f"left out of all configurations: {count}: optimizer='of_a_plugin' is")


def test_only_trained_associations_compete(measured):
    _, table = measured
    others = [table.assign(task="distributions"), table.assign(method="optimised")]
    assert len(configurations.build(pd.concat([table, *others]))) == len(
        configurations.build(table)
    )
