"""Designs after more steps: each is compared with itself."""

import math

import numpy as np
import pandas as pd
import pytest

from memobench.core.cells import cells
from memobench.experiments import EXPERIMENTS
from memobench.experiments.board import design, longer


@pytest.fixture(scope="module")
def table():
    """With more steps the MLP knows 1.3 times as much, attention alone 1.1 times that gain."""
    rows = []
    for run in longer.runs([512]):
        side, heads = run.architecture.side
        of_design = 1.2 if run.architecture.n_layers == 2 else 1.0
        bits = of_design * (0.8 if heads == "full" and side == design.ATTENTION else 1.0)
        if run.method.steps > 4096:
            bits *= 1.3 * (1.1 if side == design.ATTENTION else 1.0)
        bits *= {0.01: 0.5, 0.03: 1.0, 0.1: 0.8}[run.method.learning_rate]
        n, n_choices = run.task.n_examples, run.task.vocab_size
        loss = math.log(n_choices) - bits * 512 * math.log(2) / n
        rows.append(cells(run) | {"n_params": 512, "loss": loss, "status": "ok"})
    return pd.DataFrame(rows)


def test_runs_are_those_of_the_design_and_as_many_of_more_steps():
    runs = list(longer.runs([512]))
    steps = pd.Series([run.method.steps for run in runs]).value_counts()
    assert set(steps.index) == {4096, 16384}
    assert steps[4096] == steps[16384]
    shorter = {run for run in runs if run.method.steps == 4096}
    assert shorter <= set(EXPERIMENTS["board/design"].runs("quick"))


def test_each_design_is_compared_with_itself(table):
    found = longer.changes(table)
    assert longer.steps_of(found) == [4096, 16384]
    assert set(found.groupby("name").size()) == {12}
    change = np.exp(found[16384] - found[4096]).groupby(found["name"]).agg(["min", "max"])
    expected = {
        "attention alone / MLP": 1.1,
        "attention alone, wide heads / MLP": 1.1,
        "attention + MLP / MLP": 1.0,
        "MLP, bits per parameter": 1.3,
        "attention alone, bits per parameter": 1.43,
        "attention + MLP, bits per parameter": 1.3,
    }
    assert set(change.index) == set(expected)
    for name, factor in expected.items():
        np.testing.assert_allclose(change.loc[name], factor, rtol=1e-6)


def test_a_design_in_which_a_training_failed_is_left_out(table):
    fails = (table["steps"] == 16384) & (table["vocab_size"] == 24) & (table["n_layers"] == 1)
    fails &= (table["optimizer"] == "adam") & (table["task_seed"] == 1)
    fails &= table["architecture"] == "mlp"
    log_n = np.log(table["vocab_size"].astype(float))
    found = longer.changes(table.assign(loss=table["loss"].where(~fails, log_n)))
    assert set(found.groupby("name").size()) == {11}


def test_the_page_says_how_ratios_change(table, tmp_path):
    experiment = EXPERIMENTS["board/longer"]
    said = experiment.figure.answer(table)
    assert said.startswith("At 512 parameters, in 12 designs, attention alone holds 1.00 ")
    assert " times after 16,384, 1.10 " in said
    _, _, by_name, _ = experiment.figure.sections(table)
    assert by_name.count("\n") == 1 + 6
    figure = experiment.figure.draw(experiment, "quick", table)
    assert len(figure.axes) == len(design.COMPARED)
    figure.savefig(tmp_path / "longer.png")
    assert experiment.figure.sections(table[:0]) == []
    experiment.figure.draw(experiment, "quick", table[:0])
    # Of runs that are not all there yet.
    for some in (table[table["steps"] == 4096], table[table["steps"] == 16384]):
        assert experiment.figure.answer(some) == ""
        assert experiment.figure.sections(some) == []
        experiment.figure.draw(experiment, "quick", some)
    without = table[table["architecture"] == "mlp"]
    assert experiment.figure.answer(without) == ""
