"""Measures of a user's own: in rows, tables, reports and checks of the tasks that have them."""

import functools
import types

import numpy as np
import pytest

import memobench
from memobench.common.errors import UserError
from memobench.constructions.dana2025 import Dana2025
from memobench.core import spec
from memobench.core.columns import float_between
from memobench.core.run import Run
from memobench.experiments.mahdavi2024.own_methods import Annealing
from memobench.experiments.mahdavi2024.own_models import QueryAttention
from memobench.methods import bisection
from memobench.methods.optimum import Optimum
from memobench.methods.search import Search
from memobench.methods.training import Training
from memobench.models.transformer import AttentionOnly
from memobench.numerics import metrics
from memobench.report import experiment as page
from memobench.report.figure import Figure
from memobench.runtime import verify
from memobench.store import measures, results
from memobench.tasks.associations import Associations
from memobench.tasks.bijection import Bijection
from memobench.tasks.labelled_contexts import LabelledContexts
from tests import small

TASK = Associations(vocab_size=4)
METHOD = Training(batch_size=8, n_batches=4, epochs=2)


def heads(n_heads=1, d_model=2):
    return AttentionOnly(d_model=d_model, d_head=2, n_heads=n_heads, heads="full")


@pytest.fixture(autouse=True)
def _two_measures(monkeypatch):
    """No measures but two."""
    monkeypatch.setattr(measures, "_MEASURES", {})

    @measures.measure(
        "share of examples known", Associations, LabelledContexts, domain=float_between(0, 1)
    )
    def share_known(task, data, output_TxC):
        return task.judge(data, output_TxC)[1].mean()

    @measures.measure("largest logit", Associations, unit="nats", over_seeds="none")
    def largest_logit(task, data, output_TxC):
        assert output_TxC.shape == (task.n_examples, task.vocab_size)
        return np.float32(output_TxC.max())


def _runs(method=METHOD, seeds=2):
    sizes = (heads(), heads(n_heads=3, d_model=3))
    return [
        Run(task=TASK.replace(seed=seed), architecture=x, method=method, seed=seed)
        for x in sizes
        for seed in range(seeds)
    ]


def test_a_measure_is_that_of_the_final_weights_whatever_made_them():
    labelled = [
        LabelledContexts(n_examples=20, context_length=length, input_dim=4, n_classes=5)
        for length in (2, 3)
    ]
    runs = [
        *_runs(),
        _runs(Optimum(starts=2, adam_steps=5, polished=1, steps=5))[0],
        Run(task=TASK, architecture=heads(6, 4), method=Dana2025()),
        # Of two lengths: one pack pads the shorter.
        *(
            Run(
                task=task,
                architecture=QueryAttention(d_model=4, d_head=4, n_heads=2),
                method=Annealing(batch_size=8, steps=20, evaluate_every=10),
            )
            for task in labelled
        ),
    ]
    table = memobench.run(runs, progress=False)
    assert len(table) == len(runs)
    np.testing.assert_allclose(table["share_known"], table["accuracy"], atol=1e-6)
    assert table["largest_logit"].isna().tolist() == (table["task"] != "associations").tolist()


def test_searches_and_other_tasks_have_none(tmp_path):
    search = Search(training=METHOD.exact(), sizes=1, doublings=0)
    task = Associations(vocab_size=4, n_sequences=6)
    other = Run(task=Bijection(vocab_size=4), architecture=_one_token(), method=METHOD)
    runs = [Run(task=task, architecture=heads(), method=search), other]
    memobench.run(runs, tmp_path, progress=False)
    for row in results.load_rows(tmp_path).values():
        assert not {"share_known", "largest_logit"} & row.keys()


def _one_token():
    return memobench.LinearMemory(d_model=3)


def test_a_measure_is_reported_and_verified(tmp_path):
    folder = tmp_path / "runs"
    runs = _runs()
    table = memobench.run(runs, folder, progress=False)
    text = page.write(small.experiment("test/own", runs), "quick", table, tmp_path)
    header = next(
        line for line in text.split("## All configurations")[1].splitlines() if "|" in line
    )
    assert "| share_known | share_known_interval |" in header
    # No mean was asked for.
    assert "largest_logit" not in header
    assert "largest_logit" in (tmp_path / "test/own_runs.csv").read_text().splitlines()[0]
    assert verify.verify(folder).errors == ()

    (shard,) = folder.glob("*.json")
    small.reseal(shard, lambda x: x["rows"][0].update(share_known=1.5))
    (error,) = verify.verify(folder).errors
    assert "share_known=1.5, not a number from 0 to 1" in error


@pytest.mark.parametrize("measure", ["bits", "memorized", "share_known"])
def test_a_figure_has_a_measure_along_its_axis(measure):
    runs = _runs()
    table = memobench.run(runs, progress=False)
    drawing = Figure(x="n_params", hue="architecture", y=measure, bounds=False)
    figure = drawing.draw(small.experiment("test/own", runs), "quick", table)
    (axis,) = figure.axes
    (line,) = (line for line in axis.lines if line.get_marker() == "o")
    drawn = np.sort(np.asarray(line.get_ydata(), float))
    np.testing.assert_allclose(
        drawn, np.sort(table.groupby("n_params")[measure].mean().to_numpy(float))
    )


@pytest.mark.parametrize("measure", ["largest_logit", "share"])
def test_a_measure_without_a_mean_is_not_drawn(measure):
    with pytest.raises(UserError, match=f"figure: y='{measure}' is not a measure"):
        Figure(x="n_params", hue="architecture", y=measure)


@pytest.mark.parametrize(
    ("arguments", "options", "said"),
    [
        (("half",), {}, "measure: no tasks are given"),
        ((Associations,), {}, "measure: meaning=.* is not a text"),
        (("half", TASK), {}, "measure: .* is not a class of tasks"),
        (("half", "associations"), {}, "measure: 'associations' is not a class of tasks"),
        (
            ("half", Associations),
            {"domain": (0, 1)},
            r"measure: domain=\(0, 1\) is not a Domain; give",
        ),
    ],
)
def test_a_measure_of_no_tasks_is_refused(arguments, options, said):
    with pytest.raises(UserError, match=said):
        measures.measure(*arguments, **options)


def _one(task, data, output_TxC):
    return 1.0


@pytest.mark.parametrize(
    ("value", "options", "said"),
    [
        (_one, {"digits": "x"}, "column _one: digits='x' is not an integer >= 0; give one"),
        (_one, {"over_seeds": "median"}, "column _one: over_seeds='median' is not one of same"),
        (functools.partial(_one), {}, "measure: functools.partial.* has no name; wrap it"),
    ],
)
def test_a_measure_that_no_column_could_hold_is_refused(value, options, said):
    with pytest.raises(UserError, match=said):
        measures.measure("one", Associations, **options)(value)
    assert "_one" not in measures.registered_measures()


@pytest.mark.parametrize("name", ["known", "bits_per_parameter", "accuracy_interval"])
def test_a_measure_may_not_have_the_name_of_a_column_that_pages_make(name):
    named = types.FunctionType(_one.__code__, {}, name)
    with pytest.raises(UserError, match=f"measure '{name}' has the name of a column that figures"):
        measures.measure("one", Associations)(named)


def test_a_measure_that_raises_costs_nothing(tmp_path, caplog):
    """Not on initial weights, where it is found before anything trains."""
    broken = [True]

    @measures.measure("nothing", Associations)
    def ratio(task, data, output_TxC):
        if broken[0]:
            return 1 / 0
        return np.nan

    with pytest.raises(UserError, match=r"^measure ratio raises ZeroDivisionError: .*; fix it"):
        memobench.run(_runs(), tmp_path, progress=False)
    assert not list(tmp_path.glob("*.json"))
    broken.clear()
    broken.append(False)
    table = memobench.run(_runs(), tmp_path, progress=False)
    assert (table["status"] == "ok").all()
    assert "a measure stays empty: ratio=nan is not" in caplog.text


@pytest.mark.parametrize("value", ["high", None, np.zeros(3)])
def test_a_measure_of_no_number_is_told_before_training(tmp_path, value):
    @measures.measure("nothing", Associations)
    def odd(task, data, output_TxC):
        return value

    with pytest.raises(UserError, match=r"^measure odd gives .*, not a number; return one"):
        memobench.run(_runs(), tmp_path, progress=False)
    assert not list(tmp_path.glob("*.json"))


def test_a_value_that_the_column_forbids_is_told_and_costs_no_other(caplog):
    @measures.measure("one", Associations)
    def other(task, data, output_TxC):
        return 1.0

    @measures.measure("half of nothing", Associations, domain=float_between(0, 1))
    def half(task, data, output_TxC):
        return -0.5

    found = measures.values(TASK, TASK.sample(), np.zeros((16, 4)))
    assert found["other"] == 1.0
    assert "half" not in found
    assert "half=-0.5 is not a number from 0 to 1" in caplog.text


def test_where_no_task_has_any_nothing_is_evaluated_twice(monkeypatch):
    monkeypatch.setattr(measures, "_MEASURES", {})
    spec.REGISTERED.append("")
    monkeypatch.setattr(measures, "of_weights", None)
    table = memobench.run(_runs(seeds=1), progress=False)
    assert (table["status"] == "ok").all()
    assert "share_known" not in table


@pytest.mark.parametrize("choices", [2, 8, 50])
def test_bits_have_one_convention(choices):
    """What training, searches and checks say of one loss is the same number."""
    loss, n_examples = 0.1, 40
    bits = metrics.memorized_bits(loss, n_examples, choices)
    assert bits == pytest.approx(n_examples * (np.log(choices) - loss) / np.log(2))
    trials = [bisection.Trial(steps, n_examples, 1.0, 30, 30, loss) for steps in (1, 2)]
    found = bisection.columns(n_examples, trials, choices)
    assert found["previous_bits"] == pytest.approx(bits, rel=1e-12)


def test_scalars_have_no_bits():
    assert np.isnan(metrics.memorized_bits(0.1, 40, None))
