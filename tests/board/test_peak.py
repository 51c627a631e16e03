"""Capacity over set sizes: the interval covers the true most, and tables are the same for all."""

import numpy as np
import pandas as pd
import pytest

import memobench
from memobench.board import peak
from memobench.common.errors import UserError
from memobench.core.cells import from_cells
from memobench.core.run import Run
from memobench.experiments import EXPERIMENTS
from memobench.experiments.board import certified
from memobench.experiments.board.peak import format_peaks, main_shapes, select_drawn
from memobench.methods.peak import Peak
from memobench.methods.thresholds import Estimate
from memobench.methods.training import Training
from memobench.models.modern import Modern
from memobench.models.transformer import MLP, AttentionOnly
from memobench.report import peak_answer
from memobench.store.published import published
from memobench.store.rows import parse_list
from memobench.tasks.associations import Associations

# Means over set sizes: no peak, a broad one, a sharp one.
CURVES = {
    "flat": [2.5] * 8,
    "broad": [1.87, 2.1, 2.3, 2.41, 2.45, 2.43, 2.38, 2.3],
    "sharp": [1.87, 2.19, 2.5, 2.7, 2.6, 2.5, 2.4, 2.3],
}


# What learning rates add to that: little between the best ones, much at the edge.
RATES = [-0.06, 0.0, -0.02, -0.4]


def drawn(rng, curve, n_tables, spread, shared=0.3):
    """value_JxRxT whose deviations are partly the tables' own."""
    mean_JxRx1 = np.array(curve)[:, None, None] + np.array(RATES)[None, :, None]
    own = rng.normal(size=(len(curve), len(RATES), n_tables)) * np.sqrt(1 - shared)
    return mean_JxRx1 + spread * (own + rng.normal(size=n_tables) * np.sqrt(shared))


@pytest.mark.parametrize("curve", CURVES)
@pytest.mark.parametrize("n_tables", [4, 6, 12, 24])
@pytest.mark.parametrize("spread", [0.08, 0.2])
@pytest.mark.parametrize("jointly", [False, True])
def test_the_interval_covers_the_most_of_the_true_means(curve, n_tables, spread, jointly):
    rng, truth = np.random.default_rng(0), max(CURVES[curve])
    found = [
        peak.peak(drawn(rng, CURVES[curve], n_tables, spread), jointly).estimate for _ in range(600)
    ]
    value, low, high = np.array(found).T
    # 0.93 is 95% less twice the error of 600 cases.
    assert ((low <= truth) & (truth <= high)).mean() >= 0.93
    assert value.mean() <= truth + 0.01


@pytest.mark.parametrize("curve", CURVES)
def test_the_interval_of_a_ratio_covers_that_of_the_true_peaks(curve):
    rng, covered = np.random.default_rng(1), []
    truth = max(CURVES[curve]) / max(CURVES["broad"])
    for _ in range(600):
        both = (drawn(rng, CURVES[x], 12, 0.1) for x in (curve, "broad"))
        _, low, high = peak.ratio(*(peak.peak(value_JxRxT).estimate for value_JxRxT in both))
        covered.append(low <= truth <= high)
    assert np.mean(covered) >= 0.93


def test_a_table_does_not_count_where_it_chose_the_setting():
    """What one table alone makes a size and a rate look best with does not enter the estimate."""
    value_JxRxT = np.ones((3, 2, 4))
    value_JxRxT[2, 1, 1] = 100.0
    found = peak.peak(value_JxRxT)
    assert found.estimate.value == pytest.approx(1.0)
    assert found.estimate.high > 1.0


def test_the_rate_may_be_the_best_over_all_sizes_or_at_one():
    """The second rate knows most of one size, and little of the others."""
    value_JxR = np.array([[1.0, 0.2], [2.0, 2.5], [1.5, 0.2]])
    value_JxRxT = np.repeat(value_JxR[..., None], 4, axis=-1)
    over_all, together = peak.peak(value_JxRxT), peak.peak(value_JxRxT, jointly=True)
    assert (over_all.size, over_all.rate, over_all.estimate.value) == (1, 0, 2.0)
    assert (together.size, together.rate, together.estimate.value) == (1, 1, 2.5)
    assert over_all.estimate.high == together.estimate.high == 2.5


@pytest.mark.parametrize(
    ("shape", "said"), [((2, 1, 8), "3 set sizes"), ((3, 1, 3), "4 label tables")]
)
def test_too_little_for_a_peak_is_refused(shape, said):
    with pytest.raises(UserError, match=f"{said}, got"):
        peak.peak(np.ones(shape))


def test_ratios_need_no_equal_intervals():
    over = peak.ratio(Estimate(2.0, 1.8, 2.0), Estimate(1.0, 1.0, 1.25))
    assert over.value == pytest.approx(2.0)
    assert over.high == pytest.approx(2.0)
    assert over.low < 1.6 + 0.01


METHOD = Peak(
    training=Training(n_batches=8, epochs=4, learning_rate=0.01).exact(),
    shares=(0.125, 0.375, 1.0),
    rate_factors=(1.0, 3.0),
    tables=4,
)
SHAPES = (
    AttentionOnly(d_model=3, d_head=1, n_heads=6, heads="full"),
    AttentionOnly(d_model=3, d_head=3, n_heads=2, heads="full"),
    MLP(d_model=3, d_head=3, d_mlp=8, heads="full"),
)


@pytest.fixture(scope="module")
def table():
    task = Associations(vocab_size=8, n_sequences=64)
    runs = [Run(task=task, architecture=shape, method=METHOD) for shape in SHAPES]
    return memobench.run(runs, progress=False)


def test_an_entry_is_an_architecture_with_all_its_sizes(table):
    found = peak.peaks(table)
    assert len(found) == 3
    for row in found.to_dict("records"):
        assert row["sizes"] == [8, 24, 64]
        assert row["bits_low"] <= row["bits"] <= row["bits_high"]
        assert row["n_examples"] in row["sizes"]
        assert row["learning_rate"] in (0.01, 0.03)
        assert 0 <= row["known"] <= 1
        # Of eight associations there are no more than 24 bits.
        assert row["means"][0] <= 8 * 3 / row["n_params"] + 1e-6
    assert found["bits"].is_monotonic_decreasing
    # None of the three sets is as large as their budget.
    assert found["of_budget"].isna().all()
    assert set(format_peaks(peak_answer.name_peaks(table)).iloc[:, -1]) == {"–"}
    assert peak.peaks(table[:0]).empty
    assert peak.peaks(table.assign(method="capacity")).empty
    with pytest.raises(UserError, match=r"must have \(3, 2, 4\) numbers"):
        peak.peaks(table.assign(size_known="[[[1]]]"))


def test_the_best_model_of_a_grid_is_trained_again_and_certified(table, tmp_path):
    row = table.to_dict("records")[0]
    bits_JxRxT = np.array(parse_list(row["size_bits"]))
    (found,) = certified.certify_peak(row, tmp_path)
    assert found["of"] == certified.PEAK
    first, *_ = certified.best_of_grid(from_cells(row), row)
    assert bits_JxRxT[[8, 24, 64].index(first.n_examples)].max() == bits_JxRxT.max()
    # Alone it rounds differently, and may end elsewhere.
    assert found["bits"] == pytest.approx(bits_JxRxT.max(), rel=0.1)
    assert (tmp_path / found["file"]).exists()
    assert "## At the peak" in certified.page(pd.DataFrame([found]))


def test_the_page_says_attention_over_mlp_at_the_peak(table, tmp_path):
    experiment = EXPERIMENTS["board/peak"]
    said = experiment.figure.answer(table)
    assert (
        "times the bits of their best GELU MLP, each at its best size of set. With wide heads"
        in said
    )
    found = peak.peaks(table)
    assert (found["rank_low"] <= found.index + 1).all()
    assert (found.index + 1 <= found["rank_high"]).all()
    sections = experiment.figure.sections(table)
    assert sections[-1].count("\n") == 4
    figure = experiment.figure.draw(experiment, "quick", table)
    (axis,) = figure.axes
    assert len(axis.containers) == 3
    figure.savefig(tmp_path / "peak.png")
    assert not experiment.figure.sections(pd.DataFrame(table[:0]))


def test_other_families_have_their_names_and_no_ratio(tmp_path):
    """Which compares attention alone and MLP by their main forms."""
    task = Associations(vocab_size=8, n_sequences=64)
    run = Run(
        task=task, architecture=Modern(d_model=4, d_head=4, n_heads=1, d_mlp=2), method=METHOD
    )
    table = memobench.run([run], progress=False)
    experiment = EXPERIMENTS["board/peak"]
    page = "\n".join(experiment.figure.sections(table))
    assert "| SwiGLU block (" in page
    assert "times the bits" not in page
    experiment.figure.draw(experiment, "entries", table).savefig(tmp_path / "peak.png")


def test_the_best_setting_is_marked_at_the_edge_of_those_tried(table):
    found = peak_answer.name_peaks(table)
    # The middle one of three set sizes has none beyond it; each of two rates is an edge.
    assert (found["edge_of_sizes"] == (found["n_examples"] != 24)).all()
    assert found["edge_of_rates"].all()
    inner = found.assign(edge_of_sizes=False, edge_of_rates=False)
    assert format_peaks(found)["learning rate"].str.endswith(" (edge)").all()
    assert not format_peaks(inner).map(lambda text: "(edge)" in text).to_numpy().any()


def test_at_most_as_many_families_are_drawn_as_can_be_told_apart():
    names = [f"family {i}" for i in range(9)]
    rows = [
        {"budget": budget, "name": name, "bits": float(i)}
        for budget in (256, 512)
        for i, name in enumerate(names)
        # The best one lacks a budget.
        if budget == 256 or i < 8
    ]
    drawn = select_drawn(pd.DataFrame(rows))
    assert {*drawn["name"]} == {*names[2:8]}


def test_panels_are_in_rows_of_three():
    found = published("board/peak", "large")
    experiment = EXPERIMENTS["board/peak"]
    figure = experiment.figure.draw(experiment, "large", found)
    places = [axis.get_subplotspec() for axis in figure.axes]
    assert len(places) == 6
    assert {place.colspan.start for place in places} == {0, 1, 2}
    # Labels at the left and at the bottom only.
    labelled = [axis.get_subplotspec() for axis in figure.axes if axis.get_ylabel()]
    assert {place.colspan.start for place in labelled} == {0}


def test_every_size_of_the_board_is_a_set_of_pairs():
    for preset, runs in EXPERIMENTS["board/peak"].presets.items():
        for run in runs:
            sizes = run.method.sizes(run)
            assert 0 < sizes[0]
            assert sizes[-1] <= run.task.vocab_size**2
            assert len(sizes) in (5, 6), preset


def test_a_budget_without_searched_shapes_is_one_line():
    with pytest.raises(UserError, match="budget=300 has no searched shapes"):
        list(main_shapes(300))
