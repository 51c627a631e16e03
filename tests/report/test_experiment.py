"""An experiment's page, its verdicts and its tables, of real runs."""

import csv
import dataclasses
import io
import re
import subprocess
import sys

import hypothesis
import numpy as np
import pandas as pd
import pytest
from hypothesis import strategies as st

import memobench
from memobench import claims
from memobench.analysis import seeds as analysis
from memobench.common.errors import UserError
from memobench.core.cells import cells
from memobench.core.run import Run
from memobench.experiment import Drawing, Experiment
from memobench.experiments.mahdavi2024.figure import Picture, Ranked
from memobench.experiments.mahdavi2024.own_methods import Annealing
from memobench.experiments.mahdavi2024.own_models import QueryAttention
from memobench.models.gpt import GPT
from memobench.report import experiment as page
from memobench.report import panels, tables, verdicts
from memobench.report.figure import Figure
from memobench.store import published
from memobench.tasks.labelled_contexts import LabelledContexts
from tests.small import markdown_rows


def test_the_report_writes_figure_tables_and_what_quick_has(measured, tmp_path):
    experiment, table = measured
    text = page.write(experiment, "quick", table, tmp_path)
    assert "13 of 13 runs are here, 1 diverged" in text
    assert "Of the largest preset `quick` has: nothing to speak of." in text
    assert (tmp_path / "test/tiny.md").read_text() == text
    assert (tmp_path / "test/tiny.png").read_bytes().startswith(b"\x89PNG")
    assert len(pd.read_csv(tmp_path / "test/tiny_runs.csv")) == 13
    assert "nothing to speak of" not in page.write(experiment, "full", table, tmp_path)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Torn(Figure):
    def draw(self, experiment, preset, table):
        return table["bit"]


def _torn_of_ours(figure):
    """The same, as if the code of its method were in memobench."""
    space = {}
    source = "def draw(self, experiment, preset, table):\n    return table['bit']"
    exec(compile(source, page.__file__, "exec"), space)
    return type("Torn", (type(figure),), {"draw": space["draw"]})(x="n_heads", hue="architecture")


def test_a_figure_that_raises_leaves_the_page_before_it_as_it_was(measured, tmp_path):
    experiment, table = measured
    torn = dataclasses.replace(experiment, figure=Torn(x="n_heads", hue="architecture"))
    # Nothing was there before.
    with pytest.raises(UserError, match=r"^KeyError: 'bit' \(.*test_experiment\.py, line \d+\)$"):
        page.write(torn, "quick", table, tmp_path)
    assert list(tmp_path.glob("test/*")) == []
    page.write(experiment, "quick", table, tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.glob("test/*")}
    assert len(before) == 4
    stays = f"{tmp_path / 'test/tiny.md'} and its figure stay as they were"
    with pytest.raises(UserError, match=rf"test_experiment\.py, line \d+\); {re.escape(stays)}$"):
        page.write(torn, "quick", table[:4], tmp_path)
    ours = dataclasses.replace(experiment, figure=_torn_of_ours(experiment.figure))
    with pytest.raises(KeyError, match="bit") as error:
        page.write(ours, "quick", table[:4], tmp_path)
    assert error.value.__notes__ == [f"No page was made; {stays}."]
    unfit = Figure(x="n_params", hue="status")
    with pytest.raises(UserError, match=rf"^figure: hue='status' .*; {re.escape(stays)}$"):
        page.write(dataclasses.replace(experiment, figure=unfit), "quick", table[:4], tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.glob("test/*")} == before


def test_a_preset_that_is_too_short_removes_the_figure_before_it(measured, tmp_path):
    experiment, table = measured
    page.write(experiment, "quick", table, tmp_path)
    page.write(dataclasses.replace(experiment, too_short=("quick",)), "quick", table, tmp_path)
    assert not (tmp_path / "test/tiny.png").exists()
    assert "there is none" in (tmp_path / "test/tiny.md").read_text()


def test_without_a_figure_there_is_a_page_without_one(measured, tmp_path):
    experiment, table = measured
    page.write(dataclasses.replace(experiment, figure=Drawing()), "quick", table, tmp_path)
    assert not (tmp_path / "test/tiny.png").exists()
    assert ".png" not in (tmp_path / "test/tiny.md").read_text()


def test_of_runs_that_all_diverged_there_is_a_page_without_a_figure(measured, tmp_path):
    experiment, table = measured
    shown = dataclasses.replace(
        experiment, figure=Figure(x="n_heads", hue="architecture", y="known")
    )
    lost = table.assign(status="diverged").head(2)
    lost[["accuracy", "accuracy_protocol", "loss"]] = float("nan")
    text = page.write(shown, "quick", lost, tmp_path)
    assert "2 of 13 runs are here, 2 diverged" in text
    assert ".png" not in text
    assert not (tmp_path / "test/tiny.png").exists()


def test_a_page_that_cannot_be_written_is_one_line(measured, tmp_path):
    experiment, table = measured
    (tmp_path / "test").write_text("a file")
    with pytest.raises(UserError, match=r"tiny\.md cannot be written \(.*choose another folder"):
        page.write(experiment, "quick", table, tmp_path)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Percent(Figure):
    def draw(self, experiment, preset, table):
        table["accuracy"] *= 100
        return Figure.draw(self, experiment, preset, table)

    def sections(self, table):
        table["accuracy"] *= 100
        return []


def test_a_figure_that_writes_into_its_table_changes_nothing_else(measured, tmp_path):
    experiment, table = measured
    changing = dataclasses.replace(
        experiment, figure=Percent(x="n_heads", hue="architecture", y="bits")
    )
    assert page.write(changing, "quick", table, tmp_path) == page.write(
        dataclasses.replace(changing, figure=Figure(x="n_heads", hue="architecture", y="bits")),
        "quick",
        table,
        tmp_path,
    )


def test_a_figure_grows_with_a_long_legend(measured):
    experiment, table = measured
    shown = panels.Panels(x=("n_heads",), hue="name", y=("bits",))
    many = analysis.add_theory(table).assign(name=[f"{i}" for i in range(len(table))])
    heights = []
    more = [many.assign(name=f"{i} of " + many["name"]) for i in range(8)]
    for each in (many, pd.concat(more, ignore_index=True)):
        figure = shown.draw(experiment, "quick", each)
        figure.canvas.draw()
        heights.append(figure.axes[0].get_window_extent().height)
    assert heights[1] > 0.9 * heights[0]


def test_only_encoders_of_distributions_have_their_bound_in_a_figure_of_losses(measured):
    experiment, table = measured
    shown = Figure(x="d_model", hue="architecture", y="loss", bounds=False)
    figure = shown.draw(experiment, "quick", analysis.add_theory(table))
    assert not any("N − 1" in text.get_text() for text in figure.legends[0].get_texts())


def test_panels_may_have_one_x(measured):
    experiment, table = measured
    shown = panels.Panels(x=("n_heads",), hue="architecture", y=("bits",))
    figure = shown.draw(experiment, "quick", analysis.add_theory(table))
    assert len(figure.axes) == 1


def test_panels_draw_runs_without_a_value_of_hue(measured):
    experiment, table = measured
    shown = panels.Panels(x=("n_heads",), hue="rank", y=("bits",))
    some = table.assign(rank=[None, *[4.0] * (len(table) - 1)])
    figure = shown.draw(experiment, "quick", analysis.add_theory(some))
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["4.0", "none"]


def test_names_may_have_dots(measured, tmp_path):
    experiment, table = measured
    page.write(dataclasses.replace(experiment, name="test/v1.5"), "quick", table, tmp_path)
    endings = (".md", ".png", "_runs.csv", "_verdicts.csv")
    assert {x.name for x in tmp_path.glob("*/*")} == {f"v1.5{ending}" for ending in endings}


def test_a_page_of_rows_read_and_rows_just_measured_is_what_its_table_makes(measured, tmp_path):
    experiment, table = measured
    # What all rows leave out is None in rows just measured, and NaN in those read from a file.
    empty = [name for name in table if table[name].isna().all()]
    read = table.iloc[1::2].astype(dict.fromkeys(empty, float))
    mixed = pd.concat([table.iloc[::2].astype(dict.fromkeys(empty, object)), read]).copy()
    text = page.write(experiment, "quick", mixed.reset_index(drop=True), tmp_path)
    again = published.read(tmp_path / "test/tiny_runs.csv")
    assert page.page(experiment, "quick", analysis.add_theory(again))[0] == text


def test_devices_are_text_on_the_page_and_no_formula_in_any_table(measured, tmp_path):
    experiment, table = measured
    device = "<b>x</b> [a](http://b)"
    known = analysis.add_theory(table.assign(device=device))
    text = page.write(experiment, "quick", known, tmp_path)
    lines = [line for line in text.splitlines() if "easured on:" in line]
    assert lines
    assert all(tables.text(device) in line for line in lines)
    assert device not in text
    for write in (tables.write_runs, tables.write_csv):
        formulas = known.assign(device=f"{device};=1+1")
        write(formulas[["run_id", "learning_rate", "device", "loss"]], tmp_path / "x.csv")
        for separator in ",;":
            with open(tmp_path / "x.csv", newline="") as file:
                cells_of_all = [x for row in csv.reader(file, delimiter=separator) for x in row]
            assert not any(x.startswith(("=", "@", "+")) for x in cells_of_all)


class _Unwritable:
    def __str__(self):
        raise RuntimeError


@pytest.mark.parametrize("write", [tables.write_runs, tables.write_csv])
def test_a_table_is_written_whole_or_not_at_all(tmp_path, write):
    path = tmp_path / "x.csv"
    write(pd.DataFrame({"who": ["a"]}), path)
    with pytest.raises(RuntimeError):
        write(pd.DataFrame({"who": ["b", _Unwritable()]}), path)
    assert path.read_text() == "who\na\n"


SEPARATED = st.text(alphabet='=+-@;,|"\t\r\n a1', max_size=12)


@hypothesis.settings(max_examples=200, derandomize=True, database=None, deadline=None)
@hypothesis.given(st.lists(SEPARATED, min_size=1, max_size=3))
def test_no_text_becomes_a_formula_whatever_separates_cells(values):
    table = tables.make_csv_safe(pd.DataFrame({"n": 1, "x": values}))
    text = table.to_csv(index=False)
    cells_of_all = [x for row in csv.reader(io.StringIO(text, newline="")) for x in row]
    # Where others separate cells, lines are split whatever is quoted.
    for separator in ";\t|":
        cells_of_all += [cell for line in text.splitlines() for cell in line.split(separator)]
    assert not [x for x in cells_of_all if x.strip(' "').startswith(("=", "+", "-", "@"))]


def test_configurations_that_differ_look_different(measured, tmp_path):
    experiment, table = measured
    halved = {name: table[name] / 2 for name in ("learning_rate", "final_learning_rate")}
    doubled = pd.concat([table, table.assign(**halved)])
    listed = page.write(experiment, "quick", doubled, tmp_path).split("## All configurations")[1]
    header, _, *rows = [line for line in listed.splitlines() if line.startswith("|")]
    assert len(set(rows)) == len(rows) == 14
    assert "| learning_rate |" in header
    assert "final_learning_rate" not in header


def test_many_configurations_are_left_to_the_table_of_runs(measured, tmp_path, monkeypatch):
    monkeypatch.setattr(page, "MOST_LISTED", 3)
    experiment, table = measured
    text = page.write(experiment, "quick", table, tmp_path)
    listed = text.split("## All configurations\n\n")[1]
    assert (
        listed == "7 are too many to list: [tiny_runs.csv](tiny_runs.csv) has the runs of each.\n"
    )
    assert (tmp_path / "test/tiny_runs.csv").exists()


def test_claims_that_do_not_fit_the_runs_are_undecided_on_the_page(measured, tmp_path):
    experiment, table = measured
    other = table.assign(optimizer="muon", learning_rate=0.5)
    muon = pd.concat([table, other], ignore_index=True)
    unfit = {
        "of one optimiser": (claims.linear_in_heads(), "learning_rate, optimizer, "),
        "of a column": (lambda runs: runs["depth"], "its test reads 'depth', which these runs"),
    }
    mine = tuple(
        claims.Claim(name=name, statement="", source="", test=test)
        for name, (test, _) in unfit.items()
    )
    both = dataclasses.replace(experiment, claims=mine)
    text = page.write(both, "quick", muon, tmp_path)
    for row in markdown_rows(text.split("## Verdicts")[1].split("\n## ")[0]):
        assert row["verdict"] == "undecided"
        assert unfit[row["claim"]][1] in row["evidence"]
    assert (tmp_path / "test/tiny.png").exists()
    assert "| optimizer |" in text.split("## All configurations")[1]


def test_verdicts_say_why_claims_are_undecided(measured, tmp_path):
    experiment, table = measured
    page.write(experiment, "quick", table[1:], tmp_path)
    assert "undecided: runs missing (128)" in verdicts.write(tmp_path)


def test_a_page_without_a_hue_claims_or_published_numbers(measured, tmp_path):
    """As of the floors of a sweep that has just begun."""
    experiment, table = measured
    named = dataclasses.replace(experiment.figure, hue="activation")
    alone = dataclasses.replace(experiment, figure=named, published=(), claims=())
    assert "## Published" not in page.write(alone, "quick", table, tmp_path)
    assert (tmp_path / "test/tiny.png").exists()


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
    table = (
        pd.DataFrame(rows, columns=["claim", "variant", "steps", "verdict"])
        .assign(
            evidence="",
            estimate=[0.5, np.nan],
            low=[0.25, np.nan],
            high=[0.75, np.nan],
            claimed=[0.6, 1],
            least=[0.2, np.nan],
        )
        .assign(most=1.0, seeds=3)
    )
    silent = {("mine/silent", "full"): table[:0]}
    # The quick preset's are left out where a larger one has the claim and the variant.
    quick = pd.concat([table.assign(claim=["c", "a"]), table[1:].assign(variant=labels[2])])
    text = verdicts.page({("x/e", "full"): table, ("x/e", "quick"): quick, **silent})
    shown = markdown_rows(text)
    found = [(row["preset"], row["claim"]) for row in shown]
    assert found == [("quick", "c"), ("quick", "a"), ("full", "b"), ("full", "a")]
    assert not shown[1][labels[1]]
    shown = shown[1:]
    assert shown[1][labels[0]] == "holds, 0.5 [0.25, 0.75] against 0.6 (0.2 to 1): -0.1 (4)"
    assert shown[2][labels[1]] == "fails (2)"
    # Without a statistic it is left out where another preset has one.
    lacking = table.assign(verdict="undecided", low=np.nan, evidence="too few points; and more")
    text = verdicts.page({("x/e", "full"): table, ("x/e", "part"): lacking})
    (part,) = (row for row in markdown_rows(text) if row["preset"] == "part")
    assert part[labels[1]] == "undecided: too few points (2)"
    # One whose experiments decide nothing has no section.
    assert "mine" not in text
    assert "preset |" not in verdicts.page({("x/e", "full"): table})


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
        if classes or not architecture.residual
    ]
    table = memobench.run(runs, progress=False)
    known = analysis.add_theory(table)
    assert known["promised"].tolist() == [1 * 2 + 1] * 8 + [2 * 2 + 1] * 4
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
        of_full="nothing",
        figure=Ranked(x="n_heads", hue="n_examples", y="known"),
    )
    text = page.write(experiment, "quick", classifiers, tmp_path)
    assert "8 of 8 runs are here" in text
    # Ranks are of interest where residuals are compared: of two heads over three tokens each.
    ranks = text.partition("## Ranks")[2].partition("## Cost")[0]
    assert "| shared | 10 | True | 1 | 5 | 4 | 5 |" in ranks
    pictured = dataclasses.replace(experiment, figure=Picture())
    page.write(pictured, "quick", classifiers, tmp_path)
    assert (tmp_path / "test/labelled.png").read_bytes().startswith(b"\x89PNG")


def test_experiments_and_reports_load_without_matplotlib_and_start_no_device():
    names = ("experiment", "verdicts", "leaderboard", "html")
    names += ("capacity_summary", "figure", "panels")
    modules = ", ".join(f"memobench.report.{x}" for x in names)
    # Modules need no import of their own.
    code = "import memobench\nmemobench.board, memobench.claims.restrict, memobench.grid\n"
    code += f"import sys, memobench.experiments, {modules}\n"
    code += "from jax._src import xla_bridge as x\n"
    code += "assert not x._backends and not {'matplotlib', 'seaborn'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_figure_names_variants_and_steps_only_where_they_differ(measured):
    experiment, table = measured

    def words(table):
        figure = experiment.figure.draw(experiment, "quick", table)
        titles = [axis.get_title() for axis in figure.axes]
        return titles, [text.get_text() for text in figure.legends[0].get_texts()]

    titles, keys = words(table[table["protocol"] == "exact"])
    assert titles == ["exact gradient"]
    assert not [key for key in keys if "steps" in key and "published" not in key]
    doubled = pd.concat([table, table.assign(steps=2 * table["steps"])], ignore_index=True)
    titles, keys = words(doubled)
    assert [title[:4] for title in titles] == ["(a) ", "(b) "]
    assert {"(a), (b) 128 steps", "(a), (b) 256 steps"} <= set(keys)


def test_a_figure_of_a_column_that_is_not_there_is_one_line_before_anything_trains(measured):
    with pytest.raises(UserError, match=r"^figure: hue='architectur' is not a column; did you"):
        Figure(x="n_params", hue="architectur")
    with pytest.raises(
        UserError, match=r"'no_such_column' is not a column; docs/columns.md has all$"
    ):
        Figure(x="no_such_column", hue="d_model")
    experiment, table = measured
    of_no_mean = Figure(x="status", hue="architecture")
    with pytest.raises(UserError, match=r"^figure: x='status' is not a column"):
        of_no_mean.draw(experiment, "quick", table)


def test_panels_split_only_where_one_architecture_has_several_forms_of_heads():
    sizes = {"d_model": 4, "n_heads": 2}
    narrow = memobench.AttentionOnly(**sizes, d_head=2, heads="full")
    compressed, wide = narrow.replace(heads="compressed"), narrow.replace(d_head=4)
    wide_too = wide.replace(heads="compressed")
    others = [memobench.MLP(d_model=4, d_head=4, d_mlp=8), GPT(**sizes, d_head=2)]
    task = memobench.Associations(vocab_size=4, n_sequences=4)
    method = memobench.Training(protocol="exact", epochs=2, batch_size=None)
    every = (narrow, compressed, wide, wide_too, *others)
    runs = [Run(task=task, architecture=x, method=method) for x in every]
    counted = {"n_params": 60, "n_params_memory": 50, "status": "ok"}
    measured = {"accuracy": 0.5, "accuracy_protocol": 0.5, "loss": 1.0}
    table = pd.DataFrame([cells(run) | counted | measured for run in runs])

    def titles(*architectures):
        experiment = Experiment(
            name="test/panels",
            title="Panels",
            presets={"quick": tuple(runs)},
            of_full="nothing",
            figure=Figure(x="n_params", hue="architecture", bounds=False),
        )
        rows = table.iloc[[every.index(x) for x in architectures]].reset_index(drop=True)
        return [axis.get_title() for axis in experiment.figure.draw(experiment, "quick", rows).axes]

    assert titles(narrow, *others) == ["exact gradient"]
    assert titles(narrow, wide_too) == ["exact gradient"]
    assert titles(wide_too) == ["exact gradient"]
    assert titles(compressed) == ["exact gradient, compressed heads"]
    assert [title[:3] for title in titles(narrow, compressed)] == ["(b)", "(c)"]
    # The two parameterisations of one size are two models.
    assert [title[:3] for title in titles(wide, wide_too)] == ["(b)", "(c)"]


def test_a_claim_counts_once_under_each_variant_however_many_presets_and_steps_decide_it():
    row = {"claim": "a", "variant": "b", "least": 1.0, "most": np.inf, "seeds": 9}
    sure = row | {"verdict": "holds", "estimate": 2.0, "low": 1.9, "high": 2.1, "steps": 8}
    fewer = sure | {"verdict": "undecided", "low": 0.9, "steps": 4}
    elsewhere = sure | {"claim": "c", "verdict": claims.NOT_TESTED}
    no_interval = sure | {"claim": "d", "low": "", "high": ""}
    two, quick = pd.DataFrame([sure, fewer]), pd.DataFrame([sure, elsewhere, no_interval])
    presets = {("x/e", "full"): two, ("x/e", "paper"): two[1:], ("x/e", "quick"): quick}
    counted = verdicts.count_standing(presets)
    assert "1 verdicts have intervals; 1 are decided by them, and 1 stand after" in counted
    undecided = pd.DataFrame([fewer | {"variant": "e"}])
    counted = verdicts.count_standing({**presets, ("x/f", "full"): undecided})
    assert "2 verdicts have intervals; 1 are decided by them" in counted
    assert not verdicts.count_standing({("x/f", "full"): undecided})
