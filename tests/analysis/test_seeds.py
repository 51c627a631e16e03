"""What is derived from tables of runs: means over seeds, costs, floors, and what was published."""

import numpy as np
import pandas as pd
import pytest

import memobench
from memobench.analysis import seeds as analysis
from memobench.common.errors import UserError
from memobench.core.cells import cells
from memobench.core.run import Run
from memobench.models.transformer import AttentionOnly
from memobench.tasks.associations import Associations


def test_means_are_over_seeds_and_leave_diverged_runs_out(measured):
    _, table = measured
    summary = analysis.mean_over_seeds(table)
    assert len(summary) == 7
    assert summary["diverged"].sum() == 1
    one = summary[(summary["n_heads"] == 4) & (summary["protocol"] == "exact")].iloc[0]
    values = table[(table["n_heads"] == 4) & (table["protocol"] == "exact")]["accuracy"]
    assert one["seeds"] == 2
    np.testing.assert_allclose(one["accuracy"], values.mean())
    # Student's quantile with one degree of freedom.
    half = 12.7062 * values.std() / np.sqrt(2)
    np.testing.assert_allclose(one["accuracy_interval"], half, rtol=1e-4)


def test_a_run_that_two_folders_hold_counts_once(measured):
    _, table = measured
    once = analysis.mean_over_seeds(table)
    for again in (table, table.head(1)):
        found = analysis.mean_over_seeds(pd.concat([table, again]))
        pd.testing.assert_frame_equal(found, once)


def test_runs_of_kinds_that_are_not_loaded_are_not_taken_for_seeds(measured):
    """What tells them apart is in columns that are known to their kind's file alone."""
    _, table = measured
    others = table.assign(rank=2, run_id=table["run_id"].str[::-1])
    with pytest.raises(UserError, match=r"differ in nothing that is known here, .*--plugin=FILE"):
        analysis.mean_over_seeds(pd.concat([table.assign(rank=1), others]))
    with pytest.raises(UserError, match=r"'rank' does not tell .*, or its kind's file was not"):
        memobench.plot(table.assign(rank=1), x="rank")
    # The same run of two folders is one.
    assert len(analysis.mean_over_seeds(pd.concat([table, table]))) == len(
        analysis.mean_over_seeds(table)
    )


def test_published_is_compared_only_at_equal_steps(measured):
    experiment, table = measured
    table = table[table["status"] == "ok"]
    compared = analysis.compare_published(
        analysis.mean_over_seeds(table), experiment.published_table()
    ).set_index("n_heads")
    assert list(compared.index) == [1, 4]
    np.testing.assert_allclose(
        compared.loc[1, "difference"], compared.loc[1, "ours"] - 0.4, rtol=1e-6
    )
    assert np.isnan(compared.loc[4, "difference"])


def test_seconds_count_shared_packs_once(measured):
    _, table = measured
    table = table.assign(pack_size=4, run_seconds=2.0, compile_seconds=1.0)
    cost = analysis.cost(table)
    np.testing.assert_allclose(cost["run_s"].sum(), len(table) * 2 / 4)
    np.testing.assert_allclose(cost["compile_s"].sum(), len(table) / 4)


def test_floors_belong_to_their_task_and_width():
    task = Associations(vocab_size=4)
    row = {
        **cells(
            Run(
                task=task,
                architecture=AttentionOnly(d_model=3, d_head=2),
            )
        ),
        "n_examples": 16,
        "loss": 1.0,
    }
    encoder = {**row, "architecture": "sequence_encoder", "protocol": "optimal"}
    table = pd.DataFrame(
        [
            row,
            {**encoder, "loss": 0.25},
            {**encoder, "loss": 0.5},
            {**encoder, "loss": 0.1, "d_model": 4},
            {**encoder, "loss": 0.1, "task_seed": 1},
        ],
        index=[7, 1, 2, 3, 4],
    )
    known = analysis.add_theory(table)
    assert known.loc[7, ["floor", "promised", "t_eps"]].tolist() == [0.25, 5, 15]
