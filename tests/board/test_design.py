"""Attention over MLP over designs: effects are found where they are, and intervals cover them."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest

from memobench.common.errors import UserError
from memobench.core.cells import cells
from memobench.experiments import EXPERIMENTS
from memobench.experiments.board import design

CHOICES = [*design.CHOICES]


@pytest.mark.parametrize("budget", design.VOCAB_SIZES)
def test_levels_of_any_two_choices_meet_equally_often(budget):
    found = pd.DataFrame([vars(each) for each in design.designs(budget)])
    assert len(found) == 36
    found["zipf_exponent"] = found["zipf_exponent"].fillna(0)
    for pair in itertools.combinations(CHOICES, 2):
        counts = found.groupby(list(pair)).size()
        assert len(counts) == math.prod(found[x].nunique() for x in pair)
        assert counts.nunique() == 1


@pytest.mark.parametrize("budget", design.VOCAB_SIZES)
def test_sets_have_no_more_than_all_contexts(budget):
    for of in design.designs(budget):
        n_contexts = of.vocab_size**of.context_length
        assert all(of.task(of.n_sequences(x)).n_sequences <= n_contexts for x in of.loads)
        few = of.n_sequences(max(design.LOADS)) > n_contexts
        assert few == (of.vocab_size == design.VOCAB_SIZES[budget][0] and of.context_length == 2)
        assert of.zipf_exponent or max(of.loads) == (5 if few else 7)


def test_models_have_as_many_parameters_as_the_budget():
    """Except wide heads, which are few and large."""
    for budget, runs in ((512, design.runs([512])), (1024, design.runs([1024]))):
        for run in {(r.architecture, r.task.vocab_size, r.task.context_length): r for r in runs}:
            architecture, vocab_size, context_length = run
            module = architecture.module_for(
                design.Associations(
                    vocab_size=vocab_size, context_length=context_length, n_sequences=9
                )
            )
            n_params, _ = design.models.count_parameters(module, context_length)
            wide = architecture.side == (design.ATTENTION, "full")
            assert abs(n_params / budget - 1) < (0.13 if wide else 0.06), architecture


def make_rows(known_of):
    """Rows of all runs at 512 parameters that know bits per parameter as a function says."""
    rows = []
    for run in design.runs([512]):
        n = run.task.n_examples
        n_choices = run.task.vocab_size
        n_params = 512
        lost = math.log(n_choices) - known_of(run) * n_params * math.log(2) / n
        rows.append(cells(run) | {"n_params": n_params, "loss": lost, "status": "ok"})
    return pd.DataFrame(rows)


def known(run):
    """Attention alone knows 1.1 times as much as an MLP, in two layers 1.1 * 1.2 times."""
    side, heads = run.architecture.side
    bits = {0.01: 1.0, 0.03: 1.5, 0.1: 1.2}[run.method.learning_rate]
    if side == design.ATTENTION:
        bits *= (1.1 if heads == "narrow" else 0.8) * (1.2 if run.architecture.n_layers == 2 else 1)
    return bits


def is_both(run):
    return run.architecture.side[0] == design.BOTH


@pytest.fixture(scope="module")
def table():
    return make_rows(known)


def test_effects_are_those_that_the_runs_have(table):
    found = design.effects(design.ratios(table), "attention alone")
    by_level = {(row.choice, row.level): row.ratio for row in found.itertuples()}
    assert by_level["n_layers", 1] == pytest.approx(1.1)
    assert by_level["n_layers", 2] == pytest.approx(1.1 * 1.2)
    assert by_level["all designs", ""] == pytest.approx(1.1 * math.sqrt(1.2))
    for choice, level in set(by_level) - {("n_layers", 1), ("n_layers", 2)}:
        assert by_level[choice, level] == pytest.approx(1.1 * math.sqrt(1.2)), choice
    wide = design.effects(design.ratios(table), "attention alone, wide heads")
    assert wide["ratio"].iloc[0] == pytest.approx(0.8 * math.sqrt(1.2))


def test_intervals_cover_the_ratio_and_equal_levels_are_rarely_told_apart():
    choices = pd.DataFrame([vars(each) for each in design.designs(512)]).fillna(
        {"zipf_exponent": 0}
    )
    rng, covered, rejected = np.random.default_rng(0), [], []
    effect = 0.1 * (choices["n_layers"] == 2)
    for _ in range(300):
        log_ratio = choices.assign(x=effect + rng.normal(size=len(choices)) * 0.1)
        found = design.effects(log_ratio, "x")
        row = found[(found["choice"] == "n_layers") & (found["level"] == 2)].iloc[0]
        covered.append(row["ratio_low"] <= math.exp(0.1) <= row["ratio_high"])
        rejected.append(found.loc[found["choice"] == "steps", "p_value"].iloc[0] < 0.05)
    assert np.mean(covered) >= 0.925
    assert np.mean(rejected) <= 0.08


def test_intervals_of_single_designs_cover_their_ratio_on_average():
    """Some trainings vary three times as much as others."""
    rng, covered = np.random.default_rng(0), []
    scale_C = np.where(np.arange(36) % 3, 0.03, 0.09)
    for _ in range(200):
        table_CxT = scale_C[:, None] * rng.normal(size=(36, design.TABLES))
        log_ratio = pd.DataFrame(
            {
                "attention alone": table_CxT.mean(axis=1),
                "noise": table_CxT.var(axis=1, ddof=1) / design.TABLES,
            }
        )
        found = design.estimate_designs(log_ratio)
        covered.append((found["low"] <= 1) & (found["high"] >= 1))
    assert 0.92 <= np.mean(covered) <= 0.98
    failed = log_ratio.assign(**{"attention alone": np.nan, "noise": np.nan})
    assert design.estimate_designs(failed)["low"].isna().all()


def test_the_page_says_which_choices_matter():
    """Layers do, for attention alone, beside noise that no two designs share."""
    noise = {}

    def of(run):
        key = (run.task.vocab_size, run.task.context_length, run.task.zipf_exponent)
        key += (run.method.steps, run.method.optimizer, run.architecture.n_layers)
        drawn = noise.setdefault(key, np.random.default_rng(len(noise)).normal() / 50)
        return known(run) * (math.exp(drawn) if run.architecture.side[0] == design.MLP else 1)

    by_budget = design.split_budgets(design.ratios(make_rows(of)))
    said, _, shown = design._tell_choices(by_budget).partition("\n\n")
    assert said.startswith("Of 18 tests (6 choices, 1 budget, 3 ratios) 2 find unequal ")
    _, _, narrow, wide = shown.split("\n")
    assert narrow.startswith("| 512 | layers | attention alone / MLP | 1.1")
    assert wide.startswith("| 512 | layers | attention alone, wide heads / MLP | 0.8")


def test_a_label_table_does_not_choose_the_setting_in_which_it_counts():
    rows = pd.DataFrame(
        {"setting": setting, "task_seed": k, "bits_per_parameter": x}
        for setting, by_table in enumerate(((1.0, 5.0), (2.0, 2.0)))
        for k, x in enumerate(by_table)
    )
    # Table 1 looks best in the first setting, where table 0 counts; table 0 in the second.
    assert list(design.best_known(rows)) == [1.0, 2.0]
    assert list(design.best_known(rows, all_choose=True)) == [1.0, 5.0]


def test_designs_in_which_a_training_failed_do_not_count(table):
    mlp = table["architecture"] == "mlp"
    first = design.designs(512)[0]
    of_first = (table["vocab_size"] == first.vocab_size) & (table["context_length"] == 2)
    of_first &= (table["n_layers"] == 1) & (table["optimizer"] == "adam")
    failed = of_first & mlp & (table["task_seed"] == 1)
    known_nothing = table["loss"].where(~failed, np.log(table["vocab_size"].astype(float)))
    found = design.ratios(table.assign(loss=known_nothing))
    assert found[list(design.COMPARED)].isna().any(axis=1).sum() == 1
    assert design.effects(found, "attention alone")["designs"].iloc[0] == 35
    shown = design.tabulate(design.split_budgets(found))
    assert "| 512 | 1.20 [1.20, 1.20] in 35 | 0.88 [0.88, 0.88] in 35 | " in shown


def test_designs_without_all_their_label_tables_do_not_count(table):
    whole = design.ratios(table)
    one = table[table["task_seed"] == 0]
    assert design.ratios(one).empty
    assert EXPERIMENTS["board/design"].figure.answer(one) == ""
    first = table.index[table["task_seed"] == 1][:1]
    part = design.ratios(table.drop(first))
    assert len(part) == len(whole) - 1
    assert part["attention alone"].notna().all()


def test_single_designs_have_the_ratio_of_each_label_table(table):
    rows = design.ratios(table).iloc[:2].copy()
    assert (
        rows["by_table"].iloc[0] == [pytest.approx(math.exp(rows["attention alone"].iloc[0]))] * 2
    )
    rows["by_table"] = [[1.1, 1.3]] * 2
    rows.loc[rows.index[1], "attention alone"] = math.nan
    shown = design._format_designs({512: rows})
    assert shown["attention alone / MLP"].tolist() == ["1.10 [1.10, 1.10]", "–"]
    assert shown["by table"].tolist() == 2 * ["1.10, 1.30"]
    assert shown.iloc[0, :7].tolist() == ["512", 24, 2, 256, 1, "Adam", "equal"]


def test_a_training_that_diverged_knows_nothing_and_others_are_left_out(table):
    rows = table.head(9).copy()
    rows.loc[rows.index[:2], ["status", "loss"]] = ["diverged", math.nan]
    assert list(design.known_bits(rows)["bits_per_parameter"][:3]) == [0, 0, pytest.approx(1.5)]
    assert design.ratios(rows).empty
    assert design.ratios(table.assign(method="capacity")).empty


def test_the_page_says_where_the_largest_set_is_the_best(table):
    log_n = np.log(table["vocab_size"].astype(float))
    more = 1 + table["n_examples"] / 1000 * (table["architecture"] == "mlp")
    said = design._tell_largest(table.assign(loss=log_n - (log_n - table["loss"]) * more))
    assert said.startswith("The largest set of a design, of 5 or 7 bits a parameter, is ")
    assert " 18 (MLP) and 18 (attention + MLP) of the 18 designs of equal frequencies" in said
    smaller = table[design.known_bits(table)["load"] < 5]
    assert design._tell_largest(smaller).startswith("The largest set of a design, of 3.5 ")


def test_under_zipfs_law_one_size_of_set_counts(table):
    is_zipf = table["zipf_exponent"].notna()
    load = design.known_bits(table)["load"]
    assert set(load[is_zipf]) == {1.75, 2.5, design.ZIPF_LOAD}
    assert set(load[~is_zipf]) == set(design.LOADS)
    # Of others attention alone may know anything.
    log_n = np.log(table["vocab_size"].astype(float))
    more = 1 + (is_zipf & (load != design.ZIPF_LOAD) & (table["architecture"] == "attention_only"))
    changed = table.assign(loss=log_n - (log_n - table["loss"]) * more)
    pd.testing.assert_frame_equal(design.ratios(changed), design.ratios(table))
    assert len(design.ratios(table, 2.5)) == 18


def test_only_one_of_two_widths_may_count(table):
    """With 24 tokens, models of one layer have 5 or 6 dimensions."""
    log_n = np.log(table["vocab_size"].astype(float))
    narrower = (table["vocab_size"] == 24) & (table["d_model"] == 5) & (table["n_layers"] == 1)
    more = 1 + 0.2 * (narrower & (table["architecture"] == "attention_only"))
    changed = table.assign(loss=log_n - (log_n - table["loss"]) * more)
    lower, upper, both = (
        design.ratios(changed, widths=x).set_index(CHOICES)["attention alone"]
        for x in design.WIDTHS
    )
    is_changed = lower.index.isin([24], level="vocab_size") & lower.index.isin(
        [1], level="n_layers"
    )
    np.testing.assert_allclose(lower - upper, np.where(is_changed, math.log(1.2), 0), atol=1e-6)
    np.testing.assert_allclose(both, lower, atol=1e-6)


def test_designs_of_unlike_label_tables_are_refused_or_told(table):
    is_mlp = table["architecture"] == "mlp"
    others = table.assign(task_seed=table["task_seed"] + 5 * is_mlp)
    with pytest.raises(UserError, match="must be trained on the same label tables, got "):
        design.ratios(others)
    lacking = table[~(is_mlp & (table["task_seed"] == 1) & (table["vocab_size"] == 24))]
    sections = EXPERIMENTS["board/design"].figure.sections(lacking)
    assert any(" left out, of which runs are missing." in x for x in sections)


def test_the_page_says_the_ratio_over_designs(table, tmp_path):
    experiment = EXPERIMENTS["board/design"]
    assert "over 36 designs, attention alone holds 1.20" in experiment.figure.answer(table)
    said = design.headline(table)
    assert said.startswith(
        "In 36 other designs at 512 attention alone averages 1.20 times a GELU MLP's ("
    )
    assert " widths 1.20; singly 1.10 to 1.32, spread 10%, chance 0%), " in said
    assert said.endswith(", above attention alone nowhere.")
    ahead = design.headline(make_rows(lambda run: known(run) * (1.5 if is_both(run) else 1)))
    assert "above" not in ahead
    *_, by_load, _, _, by_width, _, _, by_tables, _, _, single = experiment.figure.sections(table)
    assert single.count("\n") == 1 + 36
    assert by_load.count("\n") == 1 + len(design.LOADS)
    assert by_width.count("\n") == 1 + len(design.WIDTHS)
    assert by_tables.count("\n") == 1 + 2
    figure = experiment.figure.draw(experiment, "quick", table)
    assert len(figure.axes[0].containers) == 2 * len(design.COMPARED)
    figure.savefig(tmp_path / "design.png")
    assert len(experiment.figure.sections(table[:0])) == 1
    experiment.figure.draw(experiment, "quick", table[:0])
