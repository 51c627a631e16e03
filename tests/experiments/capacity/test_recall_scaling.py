"""The largest set that a memory knows, by trainings on sets of several sizes."""

import math

import pandas as pd
import pytest

from memobench.claims import FAILS, HOLDS, UNDECIDED
from memobench.core.cells import cells
from memobench.experiments.capacity.factual_recall import RATES
from memobench.experiments.capacity.recall_scaling import EXPERIMENT, SUBJECTS, capacities


def parameters(row):
    return 2 * row["d_model"] * (2 * row["n_heads"] * row["d_head"] + row["d_mlp"])


SMALL = pd.DataFrame([cells(run) for run in EXPERIMENT.presets["small"]])
# Larger sets have more tokens to embed.
EMBEDDED = SMALL["vocab_size"] * SMALL["d_model"]
SMALL = SMALL.assign(
    n_params_memory=parameters(SMALL), n_params=EMBEDDED, n_params_distinct=EMBEDDED
)
# One model of each width.
WIDTHS = SMALL[SMALL["d_mlp"] == 2 * SMALL["d_model"]]


def rows(n_known, runs=WIDTHS):
    """The runs, of which those of at most `n_known` facts are known to 99%."""
    facts = [n_known(row) for row in runs.to_dict("records")]
    accuracy = (runs["n_examples"] <= facts).map({True: 0.99, False: 0.98})
    return runs.assign(status="ok", accuracy=accuracy, accuracy_protocol=0.5)


def after(s):
    return SUBJECTS[SUBJECTS.index(s) + 1]


def test_a_capacity_is_between_the_largest_set_known_and_the_next():
    found = capacities(rows(lambda row: 10 * row["d_model"] + row["seed"]))
    largest = [
        max(s for s in SUBJECTS if s * s <= 10 * d_model + seed)
        for d_model in (11, 16)
        for seed in range(3)
    ]
    assert found.sort_values(["d_model", "seed"])["complete_99"].tolist() == [
        s * after(s) for s in largest
    ]
    assert not found["lower_bound"].any()


def test_the_best_learning_rate_counts():
    worse = rows(lambda _: 100).assign(learning_rate=3e-3)
    found = capacities(pd.concat([rows(lambda _: 150), worse], ignore_index=True))
    assert set(found["complete_99"]) == {12 * 13}


def test_a_gap_below_the_largest_set_does_not_matter():
    table = rows(lambda _: 200)
    table.loc[table["n_subjects"] == 12, "accuracy"] = 0.5
    assert set(capacities(table)["complete_99"]) == {14 * 16}


def test_sets_that_were_too_small_are_lower_bounds():
    found = capacities(rows(lambda row: math.inf if row["d_model"] == 16 else 100))
    of_width = found.groupby("d_model")["lower_bound"].all()
    assert of_width.to_dict() == {8: False, 11: False, 16: True}


@pytest.mark.parametrize("seed", range(3))
def test_models_that_do_not_know_the_least_set_have_no_capacity(seed):
    found = capacities(rows(lambda x: 0 if (x["d_model"], x["seed"]) == (8, seed) else 100))
    assert set(found["d_model"]) == {11, 16}


def test_diverged_trainings_know_nothing():
    table = rows(lambda _: 150)
    table.loc[table["n_subjects"] == 12, "status"] = "diverged"
    assert set(capacities(table)["complete_99"]) == {11 * 12}


@pytest.mark.parametrize(
    ("density", "power", "growth", "value"),
    [
        (0.15, 1, UNDECIDED, HOLDS),
        (0.19, 1, UNDECIDED, UNDECIDED),
        (0.24, 1, HOLDS, FAILS),
        (0.09, 1, UNDECIDED, FAILS),
        (0.15, 0.5, FAILS, HOLDS),
    ],
)
def test_growth_and_density_of_synthetic_capacities(density, power, growth, value):
    def known(row):
        # Up to 5% more or less.
        size = parameters(row)
        line = density * 1500 * (size / 1500) ** power
        return line * (1 + 0.05 * math.sin(7 * size + 3 * row["seed"]))

    at_one_rate = rows(known, SMALL)
    table = pd.concat([at_one_rate.assign(learning_rate=rate) for rate in RATES], ignore_index=True)
    found = [claim.test(table) for claim in EXPERIMENT.claims]
    assert [each.verdict for each in found] == [growth, value], found
    # Another rate may find larger sets.
    found = [claim.test(at_one_rate) for claim in EXPERIMENT.claims]
    assert [each.verdict for each in found] == [UNDECIDED, UNDECIDED], found
    assert all("1 of 3 learning rates" in each.evidence for each in found)
