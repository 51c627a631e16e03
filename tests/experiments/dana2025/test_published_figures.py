"""Against the papers' figures; minutes on two CPU cores, so `make test-slow` runs it."""

import math

import pytest

import memobench
from memobench.analysis import seeds as analysis
from memobench.experiments import EXPERIMENTS
from memobench.experiments.dana2025.common import PUBLISHED


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("heads", {"d_model": [10], "n_heads": [1, 6, 11, 16, 21, 26, 31]}),
        ("head-dimension", {"d_head": [1, 5, 9, 10]}),
        ("embedding-dimension", {"d_model": [5, 10, 15]}),
        ("heads-deeper", {"d_model": [7], "n_heads": [5]}),
    ],
)
def test_means_are_within_three_points_of_the_published_accuracy(name, sizes):
    experiment = EXPERIMENTS[f"dana2025/{name}"]
    steps = experiment.published[0]["published_steps"]
    runs = [
        run
        for run in experiment.presets["full"]
        if run.method.protocol == "published"
        and run.method.steps == steps
        and all(getattr(run.architecture, size) in values for size, values in sizes.items())
    ]
    summary = analysis.mean_over_seeds(memobench.run(runs))
    compared = analysis.compare_published(summary, experiment.published_table())
    assert set(compared["seeds"]) == {5}
    assert len(compared) == math.prod(len(values) for values in sizes.values())
    assert compared["difference"].abs().max() < 0.03


@pytest.mark.slow
def test_the_exact_gradient_memorizes_what_the_published_protocol_does_not():
    runs = [
        run
        for run in EXPERIMENTS["dana2025/heads"].presets["full"]
        if (run.architecture.d_model, run.architecture.n_heads) == (10, 21)
        and run.architecture.heads == "compressed"
        and run.method == PUBLISHED.exact()
    ]
    assert len(runs) == 5
    assert memobench.run(runs)["accuracy"].min() > 0.98
