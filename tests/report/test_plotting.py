"""memobench.plot draws any table of results, and nothing that cannot be."""

import dataclasses
import pathlib

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes

import memobench
from memobench.analysis import seeds as analysis
from memobench.common.errors import UserError
from memobench.experiments import EXPERIMENTS
from memobench.report.drawing import arms, possible_range


@pytest.fixture(scope="module")
def heads():
    return memobench.published("dana2025/heads", "paper")


@pytest.fixture(scope="module")
def typical():
    return memobench.published("board/typical")


def _drawn(axes):
    """x, y, and both ends of the interval of every point, line by line."""
    for bar in axes.containers:
        x, y = bar.lines[0].get_data()
        ends = [segment[:, 1] for lines in bar.lines[2] for segment in lines.get_segments()]
        yield bar.get_label(), np.asarray(x), np.asarray(y), np.array(ends)


def test_means_and_intervals_are_those_over_seeds(heads):
    axes = memobench.plot(heads, x="n_heads", hue="d_model")
    assert isinstance(axes, Axes)
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("heads H", "accuracy")
    summary = analysis.mean_over_seeds(heads).set_index(["d_model", "n_heads"]).sort_index()
    lines = {label: rest for label, *rest in _drawn(axes)}
    assert lines.keys() == {f"width d = {d}" for d in set(heads["d_model"])}
    for d in set(heads["d_model"]):
        x, y, ends = (values.astype(float) for values in lines[f"width d = {d}"])
        mean, half = (
            summary.loc[d].loc[x, name].to_numpy(float)
            for name in ("accuracy", "accuracy_interval")
        )
        np.testing.assert_allclose(y, mean)
        np.testing.assert_allclose(ends[:, 0], np.clip(y - half, 0, 1))
        np.testing.assert_allclose(ends[:, 1], np.clip(y + half, 0, 1))


def test_a_table_of_means_has_the_intervals_that_are_drawn(heads, typical):
    for table, y in ((heads, "accuracy"), (typical, "bits_per_parameter")):
        means = memobench.summarize(table, y)
        of_points = [
            (value, *sorted(end))
            for _, _, values, ends in _drawn(memobench.plot(table, y, hue="family"))
            for value, end in zip(values, ends, strict=True)
        ]
        of_rows = means[[y, f"{y}_low", f"{y}_high"]].to_numpy()
        np.testing.assert_allclose(sorted(of_rows.tolist()), sorted(of_points))
    alone = memobench.summarize(heads[heads["seed"] == 0], "accuracy")
    assert alone[["accuracy_low", "accuracy_high"]].isna().all(axis=None)
    assert alone["accuracy"].notna().all()


def test_a_column_of_the_users_own_is_taken_as_it_is():
    heads = memobench.published("dana2025/heads")
    own = heads.assign(bits_per_parameter=heads["bits"] / 7)
    found = memobench.summarize(own, "bits_per_parameter")
    total = memobench.summarize(own, "bits")
    np.testing.assert_allclose(found["bits_per_parameter"], total["bits"] / 7)


def test_published_capacities_have_the_intervals_of_their_tables(typical):
    axes = memobench.plot(typical, "bits_per_parameter", hue="family")
    points = list(_drawn(axes))
    assert sum(len(y) for _, _, y, _ in points) == len(typical)
    assert all((ends[:, 1] > ends[:, 0]).all() for _, _, _, ends in points)
    assert axes.get_xscale() == "log"


def test_what_was_memorized_is_drawn_per_parameter_at_the_best_rate():
    table = memobench.published("capacity/bits-steps", "full")
    experiment = EXPERIMENTS["capacity/bits-steps"]
    (axes,) = experiment.figure.draw(experiment, "full", table).axes
    per_parameter = table.assign(y=table["bits"] / table["n_params"])
    means = per_parameter.groupby(["n_params", "steps", "learning_rate"])["y"].mean()
    best = means.groupby(["n_params", "steps"]).max()
    lines = {label: (x, y) for label, x, y, _ in _drawn(axes)}
    assert len(lines) == table["n_params"].nunique() == 2
    for n_params in set(table["n_params"]):
        x, y = lines[f"parameters = {n_params:,}"]
        np.testing.assert_allclose(y.astype(float), best[n_params].loc[x].astype(float))


def test_it_draws_into_axes_and_is_saved(heads, tmp_path: pathlib.Path):
    axes = memobench.plot(heads, x="n_heads", hue="d_model")
    assert memobench.plot(heads, "bits", axis=axes) is axes
    axes.figure.savefig(tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"y": "acuracy"}, "'acuracy' is not a column here; did you mean accuracy?"),
        ({"x": "seed"}, "'seed' does not tell configurations apart"),
        ({"hue": "accuracy"}, "'accuracy' does not tell configurations apart"),
        ({"y": "device"}, "no row has numbers in 'device'"),
        ({"y": "complete_99"}, "no row has numbers in 'complete_99'"),
    ],
)
def test_a_column_that_is_none_is_one_line(heads, columns, said):
    for function in (memobench.plot, memobench.summarize):
        with pytest.raises(UserError) as error:
            function(heads, **columns)
        assert said in str(error.value)
        assert "\n" not in str(error.value)


def test_means_begin_with_the_columns_that_a_plot_would_have(heads):
    means = memobench.summarize(heads, "accuracy", x="d_head", hue="d_model")
    assert list(means)[:2] == ["d_head", "d_model"]
    others = memobench.summarize(heads, "accuracy")
    np.testing.assert_array_equal(means["accuracy"], others["accuracy"])
    assert set(means) == {"d_head", "d_model", *others}


def test_intervals_end_at_what_is_possible():
    mean, half = [0.1, 0.5, 0.9, 1.0], [0.3, 0.3, 0.3, np.nan]
    down, up = arms(mean, half, 0, 1)
    np.testing.assert_allclose(down, [0.1, 0.3, 0.3, 0])
    np.testing.assert_allclose(up, [0.3, 0.3, 0.1, 0])


@pytest.mark.parametrize(
    ("column", "least"),
    [
        *[("bits", 0), ("bits_per_parameter", 0), ("accuracy", 0), ("known", 0)],
        *[("memorized", -np.inf), ("margin", -np.inf)],
    ],
)
def test_what_may_be_negative_has_no_arm_that_ends_at_zero(heads, column, least):
    assert possible_range(column, heads.assign(n_examples=4))[0] == least


def test_figures_have_a_line_for_every_number_of_steps(heads):
    experiment = EXPERIMENTS["dana2025/heads"]
    tables = [
        heads.assign(
            steps=n * heads["steps"],
            epochs=n * heads["epochs"],
            run_id=[f"{n}{run_id[1:]}" for run_id in heads["run_id"]],
        )
        for n in (1, 2, 4)
    ]
    figure = experiment.figure.draw(experiment, "paper", pd.concat(tables))
    n_widths = heads["d_model"].nunique()
    assert sum(len(axes.containers) for axes in figure.axes) == 3 * n_widths
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert sum(text.endswith(" steps") and text[0].isdigit() for text in texts) == 3


@pytest.mark.parametrize(
    ("changes", "are_drawn"), [({}, True), ({"y": "bits"}, False), ({"x": "n_params"}, False)]
)
def test_fits_are_drawn_on_the_axes_that_they_are_of(heads, changes, are_drawn):
    experiment = EXPERIMENTS["dana2025/heads"]
    shown = dataclasses.replace(experiment.figure, **changes)
    figure = shown.draw(experiment, "paper", heads)
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert any(text.startswith("fitted ") for text in texts) == are_drawn


def test_what_is_promised_has_a_line_for_each_hue_that_it_depends_on(heads):
    experiment = EXPERIMENTS["dana2025/heads"]
    shown = dataclasses.replace(experiment.figure, y="known")
    figure = shown.draw(experiment, "paper", heads)
    lines = [x for axes in figure.axes for x in axes.lines if x.get_linestyle() == "-."]
    assert len(lines) == heads["d_model"].nunique()
    known = analysis.add_theory(heads)
    for line, (_, rows) in zip(lines, known.groupby("d_model"), strict=True):
        most = heads["n_examples"].max()
        assert max(line.get_ydata()) == min(rows["promised"].max(), most)
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert "proven" in texts or "Dana 2025" in texts
