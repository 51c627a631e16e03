"""Against the papers' figures; minutes on two CPU cores, so `make test-slow` runs it."""

import pytest

import memobench
from memobench import analysis
from memobench.experiments import dana2025_heads


def _at_ten(exact):
    full = dana2025_heads.EXPERIMENT.presets["full"]
    return [
        run
        for run in full
        if run.architecture.d_model == 10
        and run.architecture.heads == "compressed"
        and run.method.steps == 4096
        and (run.method.protocol == "exact") == exact
    ]


@pytest.mark.slow
def test_each_number_of_heads_is_within_three_points_of_the_published_accuracy():
    table = memobench.run(_at_ten(exact=False))
    published = dana2025_heads.EXPERIMENT.published_table()
    compared = analysis.against_published(analysis.over_seeds(table), published)
    assert compared["n_heads"].tolist() == [1, 6, 11, 16, 21, 26, 31]
    assert compared["seeds"].tolist() == [5] * 7
    assert compared["difference"].abs().max() < 0.03


@pytest.mark.slow
def test_the_exact_gradient_memorizes_what_the_published_protocol_does_not():
    runs = [run for run in _at_ten(exact=True) if run.architecture.n_heads == 21]
    assert memobench.run(runs)["accuracy"].min() > 0.98
