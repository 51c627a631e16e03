"""The largest set that a memory knows, by trainings on sets of several sizes."""

import math

import pandas as pd
import pytest

from memobench.claims import FAILS, HOLDS, UNDECIDED
from memobench.experiments.capacity.recall_scaling import EXPERIMENT, SUBJECTS, capacities

MODELS = sorted({run.architecture for run in EXPERIMENT.presets["small"]}, key=str)
WIDTHS = [model for model in MODELS if model.d_mlp == 2 * model.d_model]


def parameters(model):
    return 2 * model.d_model * (2 * model.n_heads * model.d_head + model.d_mlp)


def rows(n_known, models=WIDTHS):
    """Trainings of every model on every set; those of at most `n_known` facts are known to 99%."""
    return pd.DataFrame(
        [
            {
                **{
                    name: getattr(model, name) for name in ("d_model", "d_head", "n_heads", "d_mlp")
                },
                "n_params": parameters(model) + 1_000,
                "n_params_memory": parameters(model),
                "n_params_distinct": parameters(model),
                "seed": seed,
                "task_seed": seed,
                "learning_rate": rate,
                "n_subjects": s,
                "n_examples": s * s,
                "status": "ok",
                "accuracy_protocol": 0.5,
                "protocol": "published",
                "accuracy": 0.99 if rate == 0.01 and s * s <= n_known(model, seed) else 0.98,
            }
            for model in models
            for seed in range(3)
            for s in SUBJECTS[:20]
            for rate in (0.003, 0.01)
        ]
    )


def test_a_capacity_is_the_largest_set_known_at_any_rate():
    found = capacities(rows(lambda model, seed: 13 * model.d_model + seed))
    largest = [
        max(s * s for s in SUBJECTS if s * s <= 13 * d_model + seed)
        for d_model in (8, 11, 16)
        for seed in range(3)
    ]
    assert found.sort_values(["d_model", "seed"])["complete_99"].tolist() == largest
    assert not found["lower_bound"].any()


def test_a_gap_below_the_largest_set_does_not_matter():
    table = rows(lambda *_: 200)
    table.loc[table["n_subjects"] == 12, "accuracy"] = 0.5
    assert set(capacities(table)["complete_99"]) == {14**2}


def test_sets_that_were_too_small_are_lower_bounds():
    found = capacities(rows(lambda model, _: math.inf if model.d_model == 16 else 100))
    of_width = found.groupby("d_model")["lower_bound"].all()
    assert of_width.to_dict() == {8: False, 11: False, 16: True}


@pytest.mark.parametrize("seed", range(3))
def test_models_that_do_not_know_the_least_set_have_no_capacity(seed):
    found = capacities(rows(lambda model, at: 0 if (model.d_model, at) == (8, seed) else 100))
    assert set(found["d_model"]) == {11, 16}


def test_diverged_trainings_know_nothing():
    table = rows(lambda *_: 150)
    table.loc[table["n_subjects"] == 12, "status"] = "diverged"
    assert set(capacities(table)["complete_99"]) == {11**2}


@pytest.mark.parametrize(
    ("density", "power", "growth", "value"),
    [
        (0.21, 1, HOLDS, FAILS),
        (0.15, 1, UNDECIDED, HOLDS),
        (0.19, 1, UNDECIDED, UNDECIDED),
        (0.15, 0.5, FAILS, HOLDS),
    ],
)
def test_growth_and_density_of_synthetic_capacities(density, power, growth, value):
    def known(model, seed):
        # A tenth more, half a step of the grid, and up to 5% more or less.
        size = parameters(model)
        line = 1.1 * density * 1500 * (size / 1500) ** power
        return line * (1 + 0.05 * math.sin(7 * size + 3 * seed))

    found = [claim.test(rows(known, MODELS)) for claim in EXPERIMENT.claims]
    assert [each.verdict for each in found] == [growth, value], found
