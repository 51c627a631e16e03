"""Reports and leaderboard on real runs, and the experiments' declarations."""

import csv
import dataclasses
import io
import subprocess
import sys

import hypothesis
import numpy as np
import pandas as pd
import pytest
from hypothesis import strategies as st

import memobench
from memobench import bisection, claims
from memobench.columns import number
from memobench.constructions.dana2025 import Dana2025
from memobench.experiment import Experiment
from memobench.experiments import EXPERIMENTS
from memobench.experiments.constructions import trained
from memobench.methods.annealing import Annealing
from memobench.methods.capacity import Capacity
from memobench.methods.construction import Construction
from memobench.methods.search import Search
from memobench.methods.training import Training
from memobench.models import base as models
from memobench.models.base import Architecture
from memobench.models.query_attention import QueryAttention
from memobench.models.transformer import AttentionOnly
from memobench.report import configurations, panels, tables, verdicts
from memobench.report import experiment as page
from memobench.report.exposure import Exposure
from memobench.report.figure import Figure
from memobench.report.groups import Groups
from memobench.report.saturation import Picture
from memobench.report.scaling import Scaling
from memobench.report.typical import Shapes, Typical
from memobench.runs import Run, cells
from memobench.spec import kind
from memobench.table import analysis, results
from memobench.table import rows as declared
from memobench.tasks.associations import Associations
from memobench.tasks.labelled_contexts import LabelledContexts
from tests.small import markdown_rows


@pytest.fixture(scope="module")
def measured():
    task = Associations(vocab_size=5)
    method = Training(batch_size=8, n_batches=8, epochs=16)
    wild = dataclasses.replace(method, learning_rate=1e30)

    def run(method, seed, **sizes):
        name = "mlp" if "d_mlp" in sizes else "attention_only"
        architecture = Architecture.named(name)(d_model=3, d_head=3, **sizes)
        return Run(task=task, architecture=architecture, method=method, seed=seed)

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


def test_devices_are_text_on_every_page_and_no_formula_in_any_table(measured, tmp_path):
    experiment, table = measured
    device = "<b>x</b> [a](http://b);=1+1"
    known = analysis.with_theory(table.assign(device=device))
    pages = [
        page.write(experiment, "quick", known, tmp_path),
        configurations.page(configurations.build(known)),
    ]
    for text in pages:
        lines = [line for line in text.splitlines() if "easured on:" in line]
        assert lines
        assert all(tables.text(device) in line for line in lines)
        assert device not in text
    for write in (tables.write_runs, tables.write_csv):
        write(known[["run_id", "learning_rate", "device", "loss"]], tmp_path / "x.csv")
        for separator in ",;":
            with open(tmp_path / "x.csv", newline="") as file:
                cells_of_all = [x for row in csv.reader(file, delimiter=separator) for x in row]
            assert not any(x.startswith(("=", "@", "+")) for x in cells_of_all)


SEPARATED = st.text(alphabet='=+-@;,|"\t\r\n a1', max_size=12)


@hypothesis.settings(max_examples=200, derandomize=True, database=None, deadline=None)
@hypothesis.given(st.lists(SEPARATED, min_size=1, max_size=3))
def test_no_text_becomes_a_formula_whatever_separates_cells(values):
    table = tables.csv_safe(pd.DataFrame({"n": 1, "x": values}))
    text = table.to_csv(index=False)
    cells_of_all = [x for row in csv.reader(io.StringIO(text, newline="")) for x in row]
    # Where others separate cells, lines are split whatever is quoted.
    for separator in ";\t|":
        cells_of_all += [cell for line in text.splitlines() for cell in line.split(separator)]
    assert not [x for x in cells_of_all if x.strip(' "').startswith(("=", "+", "-", "@"))]


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


def test_configurations_that_differ_look_different(measured, tmp_path):
    experiment, table = measured
    halved = {name: table[name] / 2 for name in ("learning_rate", "final_learning_rate")}
    doubled = pd.concat([table, table.assign(**halved)])
    listed = page.write(experiment, "quick", doubled, tmp_path).split("## All configurations")[1]
    header, _, *rows = [line for line in listed.splitlines() if line.startswith("|")]
    assert len(set(rows)) == len(rows) == 14
    assert "| learning_rate |" in header
    assert "final_learning_rate" not in header


def test_runs_without_a_hue_are_drawn_where_they_are_alone(measured, tmp_path):
    """As the floors of a sweep that has just begun."""
    experiment, table = measured
    named = dataclasses.replace(experiment.figure, hue="activation")
    alone = dataclasses.replace(experiment, figure=named, published=(), claims=())
    page.write(alone, "quick", table, tmp_path)
    assert (tmp_path / "test/tiny.png").exists()


def test_an_experiment_without_published_numbers_has_a_report(measured, tmp_path):
    experiment, table = measured
    alone = dataclasses.replace(experiment, published=())
    assert "## Published" not in page.write(alone, "quick", table, tmp_path)


def _written(table, folder):
    """The page of all configurations, and what its CSV says."""
    configurations.write(configurations.build(table), folder)
    text = (folder / "CONFIGURATIONS.md").read_text("utf-8")
    return text, pd.read_csv(folder / "configurations.csv")


def test_all_configurations_are_ranked_within_sections(measured, tmp_path):
    _, table = measured
    text, board = _written(table, tmp_path)
    assert text.count("\n## ") == 2
    for _, section in board.groupby("protocol"):
        assert section["bits per parameter"].dropna().is_monotonic_decreasing
    row = board[(board["n_heads"] == 4) & (board["protocol"] == "exact")].iloc[0]
    mine = table[(table["n_heads"] == 4) & (table["protocol"] == "exact")]
    expected = (mine["bits"] / mine["n_params"]).mean()
    np.testing.assert_allclose(row["bits per parameter"], expected, rtol=1e-4)


def test_a_saturated_model_is_marked():
    row = dict.fromkeys(declared.configuration(), 0)
    rows = [
        {**row, "n_heads": i, "n_params": 10, "status": "ok", "bits": 1.0, "memorized": 1.0}
        | {"task": "associations", "method": "trained", "n_aimed": None, "promises": None}
        | {"theorem": None}
        | {"accuracy": value, "device": "d"}
        for i, value in enumerate([0.98, 1.0])
    ]
    board = configurations.build(pd.DataFrame(rows)).set_index("n_heads")
    assert board["saturated"].to_dict() == {0: "no", 1: "yes"}


def test_only_trained_associations_compete(measured):
    _, table = measured
    others = [table.assign(task="distributions"), table.assign(method="optimised")]
    assert len(configurations.build(pd.concat([table, *others]))) == len(
        configurations.build(table)
    )


def test_curves_are_the_means_of_trained_configurations(measured):
    _, table = measured
    curves = configurations.curves(configurations.build(table))
    # Two protocols, three sizes each; what diverged has no accuracy and is no point.
    assert curves.groupby("group").size().tolist() == [3, 3]
    assert {group.partition(": ")[0] for group in curves["group"]} == {
        "25 associations, N = 5, S = 2"
    }
    lines = {"attention_only, compressed heads, d = 3", "mlp, compressed heads, d = 3"}
    assert set(curves["line"]) == lines
    point = curves[
        curves["group"].str.contains("all examples")
        & (curves["line"] == "mlp, compressed heads, d = 3")
    ]
    mine = table[(table["architecture"] == "mlp") & (table["protocol"] == "exact")]
    assert point["n_params"].tolist() == [mine["n_params"].iloc[0]]
    np.testing.assert_allclose(point["accuracy"], mine["accuracy"].mean())
    half = 12.7062 * mine["accuracy"].std() / np.sqrt(2)
    np.testing.assert_allclose(point["interval"], half, rtol=1e-4)


def test_the_optimum_is_a_floor_beside_what_is_trained(measured):
    experiment, table = measured
    floor = table.assign(method="optimised", protocol="optimal", heads=None)
    labels = claims.OPTIMUM
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
    everything = verdicts.write(tmp_path)
    assert (tmp_path / "VERDICTS.md").read_text() == everything
    assert (
        "| test/tiny | knows something | fails (128) → holds (256) | fails (128) → hol"
        in everything
    )


def test_verdicts_of_all_presets_are_on_one_page():
    labels = list(claims.VARIANTS.values())
    rows = [("b", labels[0], 4, "holds"), ("a", labels[1], 2, "fails")]
    table = pd.DataFrame(rows, columns=["claim", "variant", "steps", "verdict"])
    silent = {("mine/silent", "full"): table[:0]}
    text = verdicts.page({("x/e", "full"): table, ("x/e", "quick"): table[1:], **silent})
    shown = markdown_rows(text)
    found = [(row["preset"], row["claim"]) for row in shown]
    assert found == [("quick", "a"), ("full", "b"), ("full", "a")]
    assert shown[1][labels[0]] == "holds (4)"
    # One whose experiments decide nothing has no section.
    assert "mine" not in text
    assert "preset |" not in verdicts.page({("x/e", "full"): table})


def test_steps_per_second_count_shared_packs_once(measured):
    _, table = measured
    table = table.assign(pack_size=4, run_seconds=2.0, compile_seconds=1.0)
    cost = analysis.cost(table)
    np.testing.assert_allclose(cost["run_s"].sum(), len(table) * 2 / 4)
    np.testing.assert_allclose(cost["compile_s"].sum(), len(table) / 4)
    np.testing.assert_allclose(cost["model-steps/s"], 4 * cost["steps"] / 2)


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
    known = analysis.with_theory(table)
    assert known.loc[7, ["floor", "promised", "t_eps"]].tolist() == [0.25, 5, 15]


def _fake(run):
    """A row as if the run had been made: what a report needs, without the training."""
    module = run.module()
    n_params, n_params_memory = models.count_parameters(module, run.task.context_length)
    accuracy = min(1.0, 0.05 + n_params_memory / 20_000 + 0.01 * run.seed)
    meaningful = run.task.name != "distributions"
    sizes = cells(run)
    n_heads = sizes["n_heads"]
    # Facts are counted only where all of them occur equally often.
    counted = sizes["vocab_size"] and meaningful and sizes["zipf_exponent"] is None
    known = min(run.task.n_examples, n_params_memory) / 3 if counted else np.nan
    return {
        **sizes,
        "n_params": n_params,
        "n_params_memory": n_params_memory,
        "n_params_active": n_params,
        "status": "ok",
        "accuracy": accuracy if meaningful else np.nan,
        "accuracy_protocol": accuracy if meaningful else np.nan,
        "memorized": known,
        "bits": 5 * known if run.task.name != "bijection" else np.nan,
        # No encoder's floor is above what it bounds.
        "loss": 0.1 if run.architecture.name == "sequence_encoder" else 2 - accuracy,
        "curve_steps": [1],
        "curve_accuracy": [0.0],
        "curve_loss": [1.0],
        "stopped_at": None,
        "stream_ranks": [4] * sizes["n_layers"],
        "attention_rank": None if sizes["residual"] is None else 1,
        "saturated": 0.6,
        "examples_by_serving_heads": [3] + [1] * n_heads,
        "largest_attention": np.full((n_heads, 4), 0.5).tolist(),
        "device": "none",
        "pack_size": 1,
        "compile_seconds": 1.0,
        "run_seconds": 1.0,
        **{"memobench": "0", "commit": "none", "date": "2026-01-01"},
        **(_certificate(sizes) if run.method.protocol == "constructed" else {}),
        **(_found(run) if isinstance(run.method, Search) else {}),
        **(_models(run, n_params) if isinstance(run.method, Capacity) else {}),
    }


def _models(run, n_params):
    """Models of a Capacity that know more with more steps and vary a little."""
    method = run.method
    bits_KxM = n_params + np.arange(method.rungs)[:, None] + np.arange(method.lanes) % 3
    return {
        "rung_steps": method.ladder,
        "rung_rates": [0.01] * method.rungs,
        "rung_bits": bits_KxM.tolist(),
        "rung_known": (bits_KxM // 8).tolist(),
        "complete_trials": [[9 + i % 7, int(i % 7 < 3)] for i in range(method.threshold_trials)],
        "pilot_trials": [[3.0, 11, 1]] * method.trial_pilots if method.trial_pilots else None,
        "trial_rate": 0.03 if method.trial_pilots else None,
        "edge_of_rates": False,
        "best_bits": float(bits_KxM.max()),
        "best_complete": 11,
    }


def _certificate(sizes):
    """What constructed weights say."""
    promises = None
    if sizes["task"] == "associations":
        promises = int(Construction.named(sizes["theorem"]).bound.value(sizes))
    return {**_CERTIFICATE, "promises": promises}


def _found(run):
    """A search that ended after one doubling, which gained little."""
    n, steps = run.task.n_examples, run.method.steps
    trials = [
        bisection.Trial(steps * times, size, 1.0, known, known, 1.0)
        for times in (1, 2)
        for size, known in ((n, n // 3 + times), (n // 4, n // 4), (n // 4 + 1, n // 8))
    ]
    return {**bisection.columns(n, trials, 2), "n_params_distinct": 1}


_CERTIFICATE = {
    **{"feature_rank": 1, "condition": 1e3, "fit_error": 1e-9, "aimed_accuracy": 1.0},
    **{"aimed_loss": 0.0, "margin": 0.1, "gamma": 0.0, "encoder_loss": 0.1},
    **{"largest_weight": 2.0, "stored_bits": 64.0, "basis_condition": 1.0, "seconds": 1.0},
    **{"scale_used": None},
}


every_experiment = pytest.mark.parametrize(
    "experiment", EXPERIMENTS.values(), ids=EXPERIMENTS.keys()
)


@every_experiment
def test_every_experiment_has_a_report(experiment, tmp_path):
    # Fields of users' kinds are columns too, and pandas warns of tables in more than 100 pieces.
    fields = {f"mine_{i}": number("mine", default=0.0) for i in range(60)}
    annotations = {"__annotations__": dict.fromkeys(fields, float)}
    kind("mine")(type("Mine", (Architecture,), {**fields, **annotations}))
    table = results.to_table([_fake(run) for run in experiment.presets["quick"]])
    text = page.write(experiment, "quick", table, tmp_path)
    found = pd.read_csv(f"{tmp_path / experiment.name}_verdicts.csv")
    tested = experiment.claims_of("quick")
    assert set(found["claim"]) == {claim.name for claim in tested}
    assert all(claim.statement in text for claim in tested)
    short = bool(experiment.claims) and not tested
    assert ("too short to decide any claim" in text) == short
    assert ("## Capacities" in text) == (table["method"] == "searched").any()
    sections = experiment.figure.sections(analysis.with_theory(table))
    assert ("## Attention over MLP" in text) == isinstance(experiment.figure, Exposure)
    assert all(section in text for section in sections)
    picture = tmp_path / f"{experiment.name}.png"
    assert picture.exists() == ("quick" not in experiment.too_short)
    assert not picture.exists() or picture.stat().st_size > 20_000


@pytest.mark.parametrize(
    ("experiment", "preset"),
    [
        pytest.param(found, preset, id=f"{preset}-{name}")
        for name, found in EXPERIMENTS.items()
        for preset in found.presets
        if preset in ("quick", "full")
    ],
)
def test_every_experiment_is_well_declared(experiment, preset):
    runs = experiment.presets[preset]
    assert len({run.run_id for run in runs}) == len(runs) > 0
    for run in runs[:: max(1, len(runs) // 40)]:
        run.module()
    names = [claim.name for claim in experiment.claims]
    assert len(set(names)) == len(names)
    # The board measures, whatever was said; others without claims draw what was found elsewhere.
    figure = experiment.figure
    measures = isinstance(figure, (Shapes, Typical))
    assert names or measures or (isinstance(figure, Scaling) and figure.guides)
    table = pd.DataFrame([cells(run) for run in runs])
    trained = table[table["method"] == "trained"]
    if not trained.empty:
        assert trained["seed"].nunique() >= claims.MIN_SEEDS
    # How long an annealing takes depends on the number of examples.
    trained = trained[trained["protocol"] != "annealed"]
    # What training adds to a construction is compared at equal steps.
    compares = (table["method"] == "constructed").any()
    # Capacities are compared at the steps of their sources.
    compares |= isinstance(experiment.figure, (Exposure, Groups, Scaling, Typical))
    if not trained.empty and not compares:
        assert set(trained["protocol"]) <= {"published", "exact"}
        # Every conclusion is repeated with twice the steps.
        budgets = trained.groupby(["protocol", "heads"])["steps"].agg(["min", "max", "nunique"])
        assert (budgets["max"] == 2 * budgets["min"]).all()
        assert (budgets["nunique"] == 2).all()
    if preset == "full" and "published" in set(table["protocol"]) and not compares:
        assert set(claims.variant(table)) == set(claims.VARIANTS.values())
    published = experiment.published_table()
    assert published["published"].between(0, 1).all()
    if preset == "full":  # Every published point belongs to a run of the full preset.
        sizes = [column for column in published.columns if column != "published"]
        named = table.rename(columns={"steps": "published_steps"})
        assert len(published.merge(named[sizes].drop_duplicates(), on=sizes)) == len(published)


def test_labelled_contexts_are_counted_in_examples(tmp_path):
    architectures = [
        QueryAttention(d_model=4, d_head=4, n_heads=h, residual=residual)
        for h, residual in ((1, False), (2, True))
    ]
    runs = [
        Run(
            task=LabelledContexts(
                n_examples=n, context_length=3, input_dim=4, n_classes=classes, seed=seed
            ),
            architecture=architecture,
            method=Annealing(batch_size=8, steps=20, evaluate_every=10),
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
    # Nothing but associations competes.
    assert configurations.build(table).empty


def test_experiments_and_reports_load_without_matplotlib_and_start_no_device():
    names = ("experiment", "verdicts", "leaderboard", "configurations", "html", "latex")
    names += ("exposure", "scaling", "typical", "figure", "panels", "saturation")
    modules = ", ".join(f"memobench.report.{x}" for x in names)
    code = f"import sys, memobench.experiments, {modules}\n"
    code += "from jax._src import xla_bridge as x\n"
    code += "assert not x._backends and not {'matplotlib', 'seaborn'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


# The pages of constructions, from real runs of small stand-ins.


def _rows_of(text, section):
    """The table of a section of a page, every cell a text."""
    within = text.partition(f"## {section}\n")[2].partition("\n## ")[0]
    lines = [x.strip("|").split("|") for x in within.splitlines() if x.startswith("|")]
    head, _, *rows = [[cell.strip() for cell in line] for line in lines]
    return pd.DataFrame(rows, columns=head)


def _pictured(shown, known):
    titled = dataclasses.replace(EXPERIMENTS["constructions/load"], title="A title")
    figure = shown.draw(titled, "quick", known)
    assert figure.get_suptitle() == "A title"
    return figure


def _axes(figure, shape):
    axes = np.array(figure.axes).reshape(shape)
    assert all(axis.get_xlabel() for axis in axes[-1])
    assert all(axis.get_ylabel() for axis in axes[:, 0])
    return axes


def _legend(figure):
    (legend,) = figure.legends
    return [text.get_text() for text in legend.get_texts()]


ATTENTION = AttentionOnly(d_model=4, d_head=4, n_heads=3, heads="full")  # 16 are promised.


@pytest.fixture(scope="module")
def loads():
    """A construction at half, all and twice what is promised, in three precisions."""
    runs = [
        Run(
            task=Associations(vocab_size=9, n_sequences=n, seed=seed),
            architecture=ATTENTION,
            method=Dana2025(
                solve="exact" if n <= 16 else "least_squares",
                weights=weights,
            ),
            seed=seed,
        )
        for n in (8, 16, 32)
        for weights in ("float64", "int8", "int4")
        for seed in (2, 3)
    ]
    experiment = dataclasses.replace(
        EXPERIMENTS["constructions/load"],
        presets={"quick": tuple(runs), "full": tuple(runs)},
    )
    return experiment, memobench.run(runs, progress=False)


def test_the_page_of_loads_tells_what_survives(loads, tmp_path):
    experiment, table = loads
    text = page.write(experiment, "quick", table, tmp_path)
    assert "18 of 18 runs are here, 0 diverged" in text
    assert (tmp_path / "constructions/load.png").read_bytes().startswith(b"\x89PNG")
    assert "## Memorized over proven" not in text
    survived = _rows_of(text, "Bits that survive").set_index("weights")
    for weights, bits in (("float64", 64), ("int8", 9), ("int4", 5)):
        row = survived.loc[weights]
        mine = table[table["weights"] == weights]
        each = (mine["bits"] / mine["n_params"]).groupby(mine["n_examples"]).mean()
        best = each.idxmax()
        assert float(row["stored bits"]) == bits
        assert float(row["bits per parameter"]) == pytest.approx(each.max(), abs=6e-4)
        assert float(row["of what is stored"]) == pytest.approx(each.max() / bits, abs=6e-5)
        assert float(row["at load"]) == best / 16
        there = mine[mine["n_examples"] == best]["accuracy"].mean()
        assert float(row["accuracy there"]) == pytest.approx(there, abs=6e-4)
    certified = _rows_of(text, "Certificates")
    assert len(certified) == 9
    assert set(certified["seeds"]) == {"2"}
    for _, row in certified.iterrows():
        mine = table[
            (table["n_examples"] == int(row["n_examples"])) & (table["weights"] == row["weights"])
        ]
        assert row["aimed"] == row["n_examples"]
        assert float(row["accuracy"]) == pytest.approx(mine["aimed_accuracy"].min(), abs=6e-5)
        assert float(row["margin"]) == pytest.approx(mine["margin"].min(), rel=1e-4)
        for name in ("condition", "fit_error", "largest_weight"):
            assert float(row[name]) == pytest.approx(mine[name].max(), rel=1e-4)
    bounds = _rows_of(text, "Bounds").set_index("theorem")
    ratio = table["memorized"] / 16
    dana = bounds.loc["Dana 2025: H·d_h + d"]
    assert dana["runs"] == "18"
    assert float(dana["least"]) == pytest.approx(ratio.min(), abs=6e-4)
    assert float(dana["most"]) == pytest.approx(ratio.max(), abs=6e-4)
    assert float(bounds.loc["counting bits", "most"]) < 1
    # At half the load all is known, whatever else: a claim about twice the load alone is tested.
    (claim,) = experiment.claims
    verdict = _rows_of(text, "Verdicts").iloc[0]
    assert verdict["claim"] == claim.name
    assert verdict["variant"] == claims.NEAREST
    assert "2 of 2 runs" in verdict["evidence"]


def test_the_figure_of_loads_has_a_line_for_each_precision(loads):
    experiment, table = loads
    known = analysis.with_theory(table)
    figure = _pictured(experiment.figure, known)
    axes = _axes(figure, (2, 1))
    assert axes[0, 0].get_title() == "Dana 2025"
    assert axes[0, 0].get_ylabel() == "accuracy"
    assert axes[1, 0].get_ylabel() == "bits per parameter"
    assert axes[1, 0].get_xlabel() == "T over the promised number"
    assert _legend(figure) == ["float64", "int8", "int4"]
    accuracy = known.groupby(["weights", "load"])["accuracy"].mean()
    drawn = [container.lines[0].get_xydata() for container in axes[0, 0].containers]
    assert len(drawn) == 3
    for (weights, expected), points in zip(accuracy.groupby(level="weights"), drawn, strict=True):
        assert weights in ("float64", "int4", "int8")
        np.testing.assert_allclose(points[:, 0], [0.5, 1, 2])
        np.testing.assert_allclose(points[:, 1], expected)


def test_the_page_of_promises_tells_the_worst_of_all_seeds(loads, tmp_path):
    experiment, table = loads
    # Claims are decided on the runs that are wanted.
    stored = table["weights"].replace({"int8": "float32"})
    table = table.assign(weights=stored)[stored != "int4"]
    there = tuple(x for x in experiment.runs("quick") if x.run_id in set(table["run_id"]))
    promised = dataclasses.replace(EXPERIMENTS["constructions/promised"], presets={"quick": there})
    text = page.write(promised, "quick", table, tmp_path)
    verdicts = _rows_of(text, "Verdicts").set_index("claim")
    assert "4 of 4 runs" in verdicts.loc["all known in float64", "evidence"]
    assert "4 of 4 runs" in verdicts.loc["one more is not solvable", "evidence"]
    assert "no run that the claim speaks of" in verdicts.loc["as near as the encoder", "evidence"]
    figure = _pictured(promised.figure, analysis.with_theory(table))
    axes = _axes(figure, (3, 2))
    assert [axis.get_title() for axis in axes[0]] == ["float64", "float32"]
    names = ["condition number", "largest weight", "least margin / largest output"]
    assert [axis.get_ylabel() for axis in axes[:, 0]] == names
    # Margins of what is lost in float32 are below zero.
    assert [axis.get_yscale() for axis in axes[:, 0]] == ["log", "log", "symlog"]
    assert _legend(figure) == ["Dana 2025"]
    # Points of single runs, no means of them.
    assert [len(line.get_xdata()) for line in axes[0, 0].lines] == [6]


@pytest.fixture(scope="module")
def against_training():
    """Seven ways to the weights of a width and a number of heads."""
    wanted = tuple(
        trained.runs(
            6,
            [dataclasses.replace(ATTENTION, d_model=2, d_head=2, n_heads=h) for h in (2, 4)],
            Training(batch_size=16, n_batches=16, epochs=4),
            seeds=1,
        )
    )
    experiment = dataclasses.replace(
        EXPERIMENTS["constructions/trained"], presets={"quick": wanted, "full": wanted}
    )
    return experiment, memobench.run(wanted, progress=False)


def test_the_page_compares_constructions_with_training(against_training, tmp_path):
    experiment, table = against_training
    text = page.write(experiment, "quick", table, tmp_path)
    assert "14 of 14 runs are here" in text
    assert "## Bits that survive" not in text
    compared = _rows_of(text, "Memorized over proven").set_index("n_heads")
    assert compared["promised"].tolist() == ["6", "10"]
    assert list(compared)[-7:] == list(claims.MADE)
    labels = panels.made(table)
    ratio = {heads: {} for heads in (2, 4)}
    for n_heads, of_heads in ratio.items():
        for made in claims.MADE:
            (row,) = table[(table["n_heads"] == n_heads) & (labels == made)]["memorized"]
            of_heads[made] = row / (2 * n_heads + 2)
            shown = float(compared.loc[str(n_heads), made])
            assert shown == pytest.approx(of_heads[made], abs=6e-3)
    share = np.mean([x[claims.NEAREST] / x[claims.EXACT] for x in ratio.values()])
    assert f"{claims.NEAREST} {share:.0%}" in text
    # Only what was constructed has certificates: exact for the promised number, and for all pairs.
    certified = _rows_of(text, "Certificates")
    assert certified[["n_heads", "aimed", "solve"]].to_numpy().tolist() == [
        [heads, aimed, solve]
        for heads, aimed, solve in (
            ("2", "6", "exact"),
            ("4", "10", "exact"),
            ("2", "36", "least_squares"),
            ("4", "36", "least_squares"),
        )
    ]
    assert (certified["accuracy"].astype(float)[:2] == 1).all()


def test_the_figure_marks_what_is_proven(against_training):
    experiment, table = against_training
    shown = dataclasses.replace(experiment.figure, x=("n_heads", "d_model"))
    known = analysis.with_theory(table)
    figure = _pictured(shown, known)
    axes = _axes(figure, (1, 2))
    assert [axis.get_xlabel() for axis in axes[0]] == ["heads H", "width d"]
    assert [axis.get_title() for axis in axes[0]] == ["d = 2", "H = 2"]
    assert axes[0, 0].get_ylabel() == "memorized associations"
    assert _legend(figure) == [*claims.MADE, "proven"]
    proven = [line for line in axes[0, 0].lines if line.get_linestyle() == "--"]
    assert [line.get_xydata().tolist() for line in proven] == [[[2, 6], [4, 10]]]


def test_constructions_have_sections_among_all_configurations(against_training, loads, tmp_path):
    table = pd.concat([against_training[1], loads[1]], ignore_index=True)
    text, board = _written(table, tmp_path)
    sections = text.split("\n## ")[1:]
    told = [section.partition("\n")[0].partition(": ")[2] for section in sections]
    # By least squares on all pairs of N = 5, and exactly at the promised 16; nothing else competes.
    assert sorted(x for x in told if x.startswith("constructed")) == [
        "constructed exactly",
        "constructed, by least squares",
    ]
    assert sum("starting from the construction dana2025" in x for x in told) == 2
    assert sum("read_out only" in x for x in told) == 1
    assert sum("all_but_attention only" in x for x in told) == 1
    sizes = board["n_heads"] * board["d_head"] + board["d_model"]
    np.testing.assert_array_equal(board["proven"], sizes)
    np.testing.assert_allclose(board["memorized / proven"], board["memorized"] / sizes, rtol=1e-4)
    assert set(board["method"]) == {"trained", "constructed"}
    (section,) = [x for x in sections if x.startswith("16 associations, N = 9, S = 2")]
    shown = _rows_of(f"## {section}".replace("## ", "## x\n", 1), "x").set_index("weights")
    assert set(shown.index) == {"float64", "int8", "int4"}
    mine = table[(table["n_examples"] == 16) & (table["weights"] == "float64")]
    assert float(shown.loc["float64", "proven"]) == 16
    ratio = mine["memorized"].mean() / 16
    assert float(shown.loc["float64", "memorized / proven"]) == pytest.approx(ratio, abs=6e-3)
    assert shown.loc["float64", "saturated"] == "yes"
