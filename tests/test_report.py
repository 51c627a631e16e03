"""Reports and leaderboard on real runs, and the experiments' declarations."""

import dataclasses
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

import memobench
from memobench import analysis, models, specs
from memobench.experiment import Experiment
from memobench.experiments import EXPERIMENTS
from memobench.report import accuracy, leaderboard, tables
from memobench.specs import Training


@pytest.fixture(scope="module")
def measured():
    task = specs.Task(vocab_size=5)
    method = Training(batch_size=8, n_batches=8, epochs=16)
    wild = dataclasses.replace(method, learning_rate=1e30)

    def run(method, seed, **sizes):
        name = "mlp" if "d_mlp" in sizes else "attention_only"
        architecture = specs.Architecture(name=name, d_model=3, d_head=3, **sizes)
        return specs.Run(task=task, architecture=architecture, method=method, seed=seed)

    runs = [
        run(m, seed, **sizes)
        for m in (method, method.exact())
        for sizes in ({"n_heads": 1}, {"n_heads": 4}, {"d_mlp": 6})
        for seed in range(2)
    ]
    runs.append(run(wild, 2, n_heads=1))
    experiment = Experiment(
        name="test/tiny",
        title="Tiny",
        presets={"quick": tuple(runs), "full": tuple(runs)},
        left_out="nothing to speak of",
        published=tuple(
            {
                "architecture": "attention_only",
                "n_heads": n_heads,
                "published": 0.4,
                "published_steps": steps,
            }
            for n_heads, steps in ((1, 128), (4, 99))
        ),
    )
    return experiment, memobench.run(runs, progress=False)


def test_the_report_writes_figure_tables_and_what_quick_leaves_out(measured, tmp_path):
    experiment, table = measured
    text = accuracy.write(experiment, "quick", table, tmp_path)
    assert "13 of 13 runs are here, 1 diverged" in text
    assert "nothing to speak of" in text
    assert (tmp_path / "test/tiny.md").read_text() == text
    assert (tmp_path / "test/tiny.png").read_bytes().startswith(b"\x89PNG")
    assert len(pd.read_csv(tmp_path / "test/tiny_runs.csv")) == 13
    assert "nothing to speak of" not in accuracy.write(experiment, "full", table, tmp_path)


def test_means_are_over_seeds_and_leave_diverged_runs_out(measured):
    _, table = measured
    summary = analysis.over_seeds(table)
    assert len(summary) == 7
    assert summary["diverged"].sum() == 1
    one = summary[(summary["n_heads"] == 4) & (summary["protocol"] == "exact")].iloc[0]
    values = table[(table["n_heads"] == 4) & (table["protocol"] == "exact")]["accuracy"]
    assert one["seeds"] == 2
    np.testing.assert_allclose(one["accuracy"], values.mean())
    # Student's quantile with one degree of freedom.
    half = 12.7062 * values.std() / np.sqrt(2)
    np.testing.assert_allclose(one["accuracy_interval"], half, rtol=1e-4)


def test_published_is_compared_only_at_equal_steps(measured):
    experiment, table = measured
    table = table[table["status"] == "ok"]
    compared = analysis.against_published(
        analysis.over_seeds(table), experiment.published_table()
    ).set_index("n_heads")
    assert list(compared.index) == [1, 4]
    np.testing.assert_allclose(
        compared.loc[1, "difference"], compared.loc[1, "ours"] - 0.4, rtol=1e-6
    )
    assert np.isnan(compared.loc[4, "difference"])


def test_an_experiment_without_published_numbers_has_a_report(measured, tmp_path):
    experiment, table = measured
    alone = dataclasses.replace(experiment, published=())
    assert "*(no rows)*" in accuracy.write(alone, "quick", table, tmp_path)


def test_the_leaderboard_ranks_within_sections(measured, tmp_path):
    _, table = measured
    text = leaderboard.write(table, tmp_path)
    assert text.count("\n## ") == 2
    board = pd.read_csv(tmp_path / "leaderboard.csv")
    for _, section in board.groupby("protocol"):
        assert section["bits per parameter"].dropna().is_monotonic_decreasing
    row = board[(board["n_heads"] == 4) & (board["protocol"] == "exact")].iloc[0]
    mine = table[(table["n_heads"] == 4) & (table["protocol"] == "exact")]
    expected = (mine["bits"] / mine["n_params"]).mean()
    np.testing.assert_allclose(row["bits per parameter"], expected, rtol=1e-4)


def test_a_saturated_model_is_marked():
    row = dict.fromkeys(analysis.CONFIGURATION, 0)
    rows = [
        {**row, "n_heads": i, "n_params": 10, "status": "ok", "bits": 1.0, "memorized": 1.0}
        | {"accuracy": value, "device": "d"}
        for i, value in enumerate([0.98, 1.0])
    ]
    board = leaderboard.build(pd.DataFrame(rows)).set_index("n_heads")
    assert board["saturated"].to_dict() == {0: "no", 1: "yes"}


def test_markdown_escapes_and_aligns():
    text = tables.markdown(pd.DataFrame({"a": ["x|y\nz"], "n": [1234], "x": [float("nan")]}), {})
    assert text.splitlines()[1:] == ["|:---|---:|---:|", "| x\\|y z | 1,234 | – |"]


@pytest.mark.parametrize("experiment", EXPERIMENTS.values(), ids=EXPERIMENTS.keys())
@pytest.mark.parametrize("preset", ["quick", "full"])
def test_every_experiment_is_well_declared(experiment, preset):
    runs = experiment.presets[preset]
    assert len({run.run_id for run in runs}) == len(runs) > 0
    assert {run.method.protocol for run in runs} == {"published", "exact"}
    assert len({run.seed for run in runs}) > 1
    for run in runs[:: max(1, len(runs) // 40)]:
        models.build(run)
    published = experiment.published_table()
    assert published["published"].between(0, 1).all()
    # Every published point belongs to a run of the full preset.
    sizes = [column for column in published.columns if not column.startswith("published")]
    ours = pd.DataFrame([specs.columns(run) for run in runs])[sizes].drop_duplicates()
    matched = published.merge(ours, on=sizes)
    assert len(matched) == len(published) if preset == "full" else len(matched) >= 6


def test_reports_load_without_jax():
    code = "import sys, memobench.report.accuracy, memobench.report.leaderboard as l; "
    code += "assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
