"""Reports and leaderboard on real runs, and the experiments' declarations."""

import dataclasses
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

import memobench
from memobench import analysis, claims, models, specs
from memobench.experiment import Experiment, Figure, Picture
from memobench.experiments import EXPERIMENTS
from memobench.report import experiment as page
from memobench.report import leaderboard, tables, verdicts
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
        figure=Figure(x="n_params", hue="architecture"),
        claims=(
            claims.Claim(
                name="knows something",
                statement="Every model knows all.",
                source="tests",
                test=claims.every_run("accuracy", claims.measured, (0.99, 1)),
            ),
        ),
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
    text = page.write(experiment, "quick", table, tmp_path)
    assert "13 of 13 runs are here, 1 diverged" in text
    assert "nothing to speak of" in text
    assert (tmp_path / "test/tiny.md").read_text() == text
    assert (tmp_path / "test/tiny.png").read_bytes().startswith(b"\x89PNG")
    assert len(pd.read_csv(tmp_path / "test/tiny_runs.csv")) == 13
    assert "nothing to speak of" not in page.write(experiment, "full", table, tmp_path)


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
    assert "## Published" not in page.write(alone, "quick", table, tmp_path)


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
        | {"task": "associations", "method": "trained"}
        | {"accuracy": value, "device": "d"}
        for i, value in enumerate([0.98, 1.0])
    ]
    board = leaderboard.build(pd.DataFrame(rows)).set_index("n_heads")
    assert board["saturated"].to_dict() == {0: "no", 1: "yes"}


def test_only_trained_associations_compete(measured):
    _, table = measured
    others = [table.assign(task="distributions"), table.assign(method="optimised")]
    assert len(leaderboard.build(pd.concat([table, *others]))) == len(leaderboard.build(table))


def test_the_optimum_is_a_floor_beside_what_is_trained(measured):
    experiment, table = measured
    floor = table.assign(protocol="optimal", heads="compressed")
    labels = claims.VARIANTS["optimal", "compressed"]
    beside = claims.verdicts(experiment.claims, pd.concat([table, floor]))
    assert labels not in set(beside["variant"])
    assert set(claims.verdicts(experiment.claims, floor)["variant"]) == {labels}


def test_markdown_escapes_and_aligns():
    text = tables.markdown(pd.DataFrame({"a": ["x|y\nz"], "n": [1234], "x": [float("nan")]}), {})
    assert text.splitlines()[1:] == ["|:---|---:|---:|", "| x\\|y z | 1,234 | – |"]


def test_the_page_gives_every_verdict_and_what_twice_the_steps_change(measured, tmp_path):
    experiment, table = measured
    doubled = table.assign(steps=2 * table["steps"], accuracy=1.0, accuracy_protocol=1.0)
    text = page.write(experiment, "full", pd.concat([table, doubled], ignore_index=True), tmp_path)
    for word in ("## Verdicts", "becomes holds", "- **knows something**: Every model", "## Cost"):
        assert word in text
    found = pd.read_csv(tmp_path / "test/tiny_verdicts.csv")
    assert found["verdict"].tolist() == ["fails", "holds"] * 2
    everything = verdicts.write({experiment.name: (experiment, table)}, "full", tmp_path)
    assert (tmp_path / "VERDICTS.md").read_text() == everything
    assert "| test/tiny | knows something | fails (128) | fails (128) |" in everything


def test_steps_per_second_count_shared_packs_once(measured):
    _, table = measured
    table = table.assign(pack_size=4, run_seconds=2.0, compile_seconds=1.0)
    cost = analysis.cost(table)
    np.testing.assert_allclose(cost["run_s"].sum(), len(table) * 2 / 4)
    np.testing.assert_allclose(cost["compile_s"].sum(), len(table) / 4)
    np.testing.assert_allclose(cost["model-steps/s"], 4 * cost["steps"] / 2)


def test_floors_belong_to_their_task_and_width():
    task = specs.Task(vocab_size=4)
    row = {
        **specs.columns(
            specs.Run(
                task=task,
                architecture=specs.Architecture(name="attention_only", d_model=3, d_head=2),
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
    known = analysis.with_theory(table)
    assert known.loc[7, ["floor", "promised", "t_eps"]].tolist() == [0.25, 5, 15]


def _fake(run):
    """A row as if the run had been made: what a report needs, without the training."""
    module = models.build(run)
    n_params, n_params_memory = models.count_parameters(module, run.task.context_length)
    accuracy = min(1.0, 0.05 + n_params_memory / 20_000 + 0.01 * run.seed)
    meaningful = run.task.name != "distributions"
    n_heads = run.architecture.n_heads
    return {
        **specs.columns(run),
        "n_params": n_params,
        "n_params_memory": n_params_memory,
        "status": "ok",
        "accuracy": accuracy if meaningful else np.nan,
        "accuracy_protocol": accuracy if meaningful else np.nan,
        "memorized": np.nan,
        "bits": np.nan,
        "loss": 2 - accuracy,
        "curve_steps": [1],
        "curve_accuracy": [0.0],
        "curve_loss": [1.0],
        "stopped_at": None,
        "stream_ranks": [4] * run.architecture.n_layers,
        "attention_rank": None if run.architecture.residual is None else 5,
        "saturated": 0.6,
        "examples_by_serving_heads": [3] + [1] * n_heads,
        "largest_attention": np.full((n_heads, 4), 0.5).tolist(),
        "device": "none",
        "pack_size": 1,
        "compile_seconds": 1.0,
        "run_seconds": 1.0,
    }


every_experiment = pytest.mark.parametrize(
    "experiment", EXPERIMENTS.values(), ids=EXPERIMENTS.keys()
)


@every_experiment
def test_every_experiment_has_a_report(experiment, tmp_path):
    table = pd.DataFrame([_fake(run) for run in experiment.presets["quick"]])
    text = page.write(experiment, "quick", table, tmp_path)
    found = pd.read_csv(f"{tmp_path / experiment.name}_verdicts.csv")
    tested = experiment.claims_of("quick")
    assert set(found["claim"]) == {claim.name for claim in tested}
    assert all(claim.statement in text for claim in tested)
    assert ("too short to decide any claim" in text) == (not tested)
    assert (tmp_path / f"{experiment.name}.png").stat().st_size > 20_000


@every_experiment
@pytest.mark.parametrize("preset", ["quick", "full"])
def test_every_experiment_is_well_declared(experiment, preset):
    runs = experiment.presets[preset]
    assert len({run.run_id for run in runs}) == len(runs) > 0
    for run in runs[:: max(1, len(runs) // 40)]:
        models.build(run)
    names = [claim.name for claim in experiment.claims]
    assert len(set(names)) == len(names) > 0
    table = pd.DataFrame([specs.columns(run) for run in runs])
    trained = table[table["method"] == "trained"]
    if not trained.empty:
        assert trained["seed"].nunique() >= claims.MIN_SEEDS
    # How long an annealing takes depends on the number of examples.
    trained = trained[trained["protocol"] != "annealed"]
    if not trained.empty:
        assert set(trained["protocol"]) <= {"published", "exact"}
        # Every conclusion is repeated with twice the steps.
        budgets = trained.groupby(["protocol", "heads"])["steps"].agg(["min", "max", "nunique"])
        assert (budgets["max"] == 2 * budgets["min"]).all()
        assert (budgets["nunique"] == 2).all()
    if preset == "full" and "published" in set(table["protocol"]):
        assert set(claims.variant(table)) == set(list(claims.VARIANTS.values())[:3])
    published = experiment.published_table()
    assert published["published"].between(0, 1).all()
    if preset == "full":  # Every published point belongs to a run of the full preset.
        sizes = [column for column in published.columns if column != "published"]
        named = table.rename(columns={"steps": "published_steps"})
        assert len(published.merge(named[sizes].drop_duplicates(), on=sizes)) == len(published)


def test_labelled_contexts_are_counted_in_examples(tmp_path):
    architectures = [
        specs.Architecture(
            name="query_attention", d_model=4, d_head=4, n_heads=h, heads="full", residual=residual
        )
        for h, residual in ((1, None), (2, True))
    ]
    runs = [
        specs.Run(
            task=specs.LabelledContexts(
                n_examples=n, context_length=3, input_dim=4, n_classes=classes, seed=seed
            ),
            architecture=architecture,
            method=specs.Annealing(batch_size=8, steps=20, evaluate_every=10),
            seed=seed,
        )
        for architecture in architectures
        for n in (10, 20)
        for classes in (3, None)
        for seed in range(2)
    ]
    table = memobench.run(runs, progress=False)
    known = analysis.with_theory(table)
    assert known["promised"].tolist() == [1 * 2 + 1] * 8 + [2 * 2 + 1] * 8
    np.testing.assert_allclose(known["load"], known["n_examples"] / known["promised"])
    np.testing.assert_allclose(
        analysis.chance(table), [run.task.chance for run in runs], rtol=1e-12
    )
    assert set(analysis.chance(table)) == {1 / 3, 0.1}
    memorized = table["n_examples"] * (table["accuracy"] - analysis.chance(table))
    np.testing.assert_allclose(table["memorized"], memorized / (1 - analysis.chance(table)))
    assert table["bits"].isna().eq(table["n_classes"].isna()).all()
    classifiers = table[table["n_classes"].notna()].reset_index(drop=True)
    experiment = Experiment(
        name="test/labelled",
        title="Labelled",
        presets={"quick": tuple(run for run in runs if run.task.n_classes)},
        left_out="nothing",
        figure=Figure(x="n_heads", hue="n_examples", y="known"),
    )
    text = page.write(experiment, "quick", classifiers, tmp_path)
    assert "8 of 8 runs are here" in text
    # Ranks are of interest where residuals are compared: of two heads over three tokens each.
    ranks = text.partition("## Ranks")[2].partition("## Cost")[0]
    assert "| shared | 10 | True | 1 | 5 | 4 | 5 |" in ranks
    pictured = dataclasses.replace(experiment, figure=Picture())
    page.write(pictured, "quick", classifiers, tmp_path)
    assert (tmp_path / "test/labelled.png").read_bytes().startswith(b"\x89PNG")
    # Nothing but associations competes on the leaderboard.
    assert leaderboard.build(table).empty


def test_reports_load_without_jax():
    modules = ", ".join(f"memobench.report.{x}" for x in ("experiment", "verdicts", "leaderboard"))
    code = f"import sys, {modules}; assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
