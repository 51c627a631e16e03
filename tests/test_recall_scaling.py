"""The largest set that a memory knows, by trainings on sets of several sizes."""

import math

import pandas as pd
import pytest

from memobench.claims import FAILS, HOLDS, UNDECIDED
from memobench.experiments.capacity.recall_scaling import EXPERIMENT, capacities

SUBJECTS = tuple(range(9, 25))


def rows(n_known, widths=(8, 11, 16), seeds=3):
    """Trainings of every width on every set, of which one of `n_known` facts is known by 99%."""
    models = {
        run.architecture.d_model: run.architecture
        for run in EXPERIMENT.presets["quick"]
        if run.architecture.d_mlp == run.architecture.d_model
    }
    return pd.DataFrame(
        [
            {
                "d_model": d_model,
                "d_head": models[d_model].d_head,
                "n_heads": models[d_model].n_heads,
                "d_mlp": d_model,
                "n_params": 1_000 * d_model,
                "n_params_memory": 40 * d_model,
                "n_params_distinct": 40 * d_model,
                "seed": seed,
                "task_seed": seed,
                "learning_rate": rate,
                "n_subjects": s,
                "n_examples": s * s,
                "status": "ok",
                "accuracy_protocol": 0.5,
                "accuracy": 0.99 if rate == 0.01 and s * s <= n_known(d_model, seed) else 0.98,
            }
            for d_model in widths
            for seed in range(seeds)
            for s in SUBJECTS
            for rate in (0.003, 0.01)
        ]
    )


def parameters(d_model):
    model = rows(lambda *_: 0, (d_model,), 1).iloc[0]
    return 2 * d_model * (2 * model["n_heads"] * model["d_head"] + model["d_mlp"])


def test_a_capacity_is_the_largest_set_known_at_any_rate():
    found = capacities(rows(lambda d_model, seed: 13 * d_model + seed))
    largest = [
        max(s * s for s in SUBJECTS if s * s <= 13 * d + seed)
        for d in (8, 11, 16)
        for seed in range(3)
    ]
    assert found.sort_values(["d_model", "seed"])["complete_99"].tolist() == largest
    assert not found["lower_bound"].any()


def test_a_gap_below_the_largest_set_does_not_matter():
    table = rows(lambda *_: 200)
    table.loc[table["n_subjects"] == 12, "accuracy"] = 0.5
    assert set(capacities(table)["complete_99"]) == {14 * 14}


def test_sets_that_were_too_small_are_lower_bounds():
    found = capacities(rows(lambda d_model, _: math.inf if d_model == 16 else 100))
    assert found.groupby("d_model")["lower_bound"].all().to_dict() == {
        **{8: False, 11: False},
        16: True,
    }


@pytest.mark.parametrize("seed_that_fails", range(3))
def test_models_that_do_not_know_the_least_set_have_no_capacity(seed_that_fails):
    known = capacities(
        rows(lambda d_model, seed: 0 if (d_model, seed) == (8, seed_that_fails) else 100)
    )
    assert set(known["d_model"]) == {11, 16}


def test_diverged_trainings_know_nothing():
    table = rows(lambda *_: 150)
    table.loc[table["n_subjects"] == 12, "status"] = "diverged"
    assert set(capacities(table)["complete_99"]) == {11 * 11}


@pytest.mark.parametrize(("density", "verdict"), [(0.15, HOLDS), (0.1, FAILS), (0.19, UNDECIDED)])
def test_the_density_of_the_line_is_found(density, verdict):
    _, claim = EXPERIMENT.claims
    # Half of the grid's step is added, so that the largest set below is there on average.
    table = rows(
        lambda d_model, seed: density * (1.02 + 0.1 * seed) * parameters(d_model), (11, 16)
    )
    assert claim.test(table).verdict == verdict
