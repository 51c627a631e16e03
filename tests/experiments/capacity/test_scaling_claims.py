"""Constants, exponents and densities of capacities, on synthetic searches."""

import numpy as np
import pandas as pd
import pytest

from memobench.claims import FAILS, HOLDS, UNDECIDED
from memobench.experiments.capacity import scaling_claims
from tests.synthetic import row


def searched(values, found, seeds=5, noise=0.02, **columns):
    """Searches over widths: `found` of a width, with seeds that deviate evenly around it."""
    deviations = np.linspace(-noise, noise, seeds)
    rows = [
        {
            **row(0.5, seed, d_model=d, steps=100),
            "complete_99": found(d) * (1 + deviation),
            "lower_bound": False,
            **columns,
        }
        for d in values
        for seed, deviation in enumerate(deviations)
    ]
    return pd.DataFrame(rows)


def quotient(table):
    return table["d_model"] ** 2 / table["complete_99"]


CONSTANT = scaling_claims.constant(
    "d² / N", quotient, (1.8, 2.2), "d_model", ["d_head", "n_params"]
)
EXPONENT = scaling_claims.exponent(
    "exponent",
    lambda at: at["d_model"],
    lambda table: table["complete_99"],
    (1.8, 2.2),
    ["d_model", "d_head", "n_params"],
)


@pytest.mark.parametrize(
    ("test", "found", "verdict"),
    [
        (CONSTANT, lambda d: d**2 / 2, HOLDS),
        (CONSTANT, lambda d: d**2 / 3, FAILS),
        (CONSTANT, lambda d: d**2 / 2.2, UNDECIDED),
        (EXPONENT, lambda d: 3 * d**2, HOLDS),
        (EXPONENT, lambda d: 3 * d, FAILS),
        (EXPONENT, lambda d: 3 * d**2.2, UNDECIDED),
    ],
)
def test_constants_and_exponents_of_widths(test, found, verdict):
    widths = (8, 16, 32, 64)
    table = searched(widths, found)
    finding = test(table)
    assert finding.verdict == verdict, finding.evidence
    assert finding.low < finding.estimate < finding.high
    # Searches whose set was too small say nothing, whatever they found.
    bounds = searched((128, 256), lambda d: 1.0, lower_bound=True)
    beside = test(pd.concat([table, bounds], ignore_index=True))
    assert (beside.estimate, beside.evidence) == (finding.estimate, finding.evidence)
    nothing = test(bounds)
    assert (nothing.verdict, "too few points" in nothing.evidence) == (UNDECIDED, True)


def test_the_evidence_of_a_constant_names_its_sizes():
    evidence = CONSTANT(searched((8, 16), lambda d: d**2 / 2, noise=0)).evidence
    assert "means 2 (d_model = 8), 2 (d_model = 16)" in evidence
    both = [searched((8,), lambda d: d**2 / 2, noise=0, d_head=d_head) for d_head in (2, 4)]
    evidence = CONSTANT(pd.concat(both, ignore_index=True)).evidence
    assert "means 2 (d_model = 8, d_head = 2), 2 (d_model = 8, d_head = 4)" in evidence


def test_searches_that_agree_differ_by_a_fact_at_most():
    table = searched((8, 16), lambda d: d**2 / 2, noise=0)
    assert CONSTANT(table).verdict == UNDECIDED
    by_fact = scaling_claims.constant(
        "d² / N",
        quotient,
        (1.8, 2.2),
        "d_model",
        ["d_head", "n_params"],
        step=lambda table: quotient(table) / table["complete_99"],
    )
    assert by_fact(table).verdict == HOLDS


def exchanged(by_attention, by_mlp, noise):
    """Facts known by heads and neurons, so many by each of their parameters."""
    random = np.random.default_rng(0)
    rates = {"learning_rate": 0.01, "final_learning_rate": 0.001}
    rows = [
        row(0.5, seed, n_heads=h, d_mlp=m) for h in (1, 2, 4) for m in (0, 8) for seed in range(5)
    ]
    return pd.DataFrame(
        {
            **each,
            **rates,
            "n_params_memory": each["n_params"],
            "n_examples": 10**6,
            "memorized": by_attention * 400 * each["n_heads"]
            + by_mlp * 20 * each["d_mlp"]
            + random.normal(scale=noise),
        }
        for each in rows
    )


def test_parameters_of_attention_are_exchanged_for_those_of_mlps():
    found = scaling_claims.exchange((0.2, 0.3))(exchanged(0.5, 2.0, noise=1.0))
    assert found.verdict == HOLDS
    assert found.estimate == pytest.approx(0.25, rel=0.05)
    # Where neurons may add nothing, attention may be worth any number of them.
    found = scaling_claims.exchange((0.2, 0.3))(exchanged(0.5, 0.02, noise=10.0))
    assert (found.verdict, found.high) == (FAILS, np.inf)
    assert found.low > 1


def trained(bits, seeds=5, noise=0.002):
    """Trainings of two learning rates, of which the larger knows a tenth less."""
    random = np.random.default_rng(0)
    rows = [
        {
            **row(0.5, seed, steps=steps),
            "epochs": steps,
            "learning_rate": rate,
            "final_learning_rate": rate / 20,
            "bits": bits(steps) * (1 - (rate > 0.1) / 10) * (1 + noise * random.normal()),
        }
        for steps in (128, 512, 2048, 8192, 32_768)
        for rate in (0.1, 0.3)
        for seed in range(seeds)
    ]
    return pd.DataFrame(rows)


LIMIT = scaling_claims.limit("bits", lambda rows: rows["bits"], (9.0, np.inf))


@pytest.mark.parametrize(
    ("bits", "truth", "verdict"),
    [
        (lambda steps: 10 - 40 * steps**-0.5, 10, HOLDS),
        (lambda steps: 8 - 40 * steps**-0.5, 8, FAILS),
        (lambda steps: 9 - 40 * steps**-0.5, 9, UNDECIDED),
        # Each fourfold adds as much: nothing says where that ends.
        (lambda steps: 2 + np.log10(steps), np.inf, UNDECIDED),
        # What was reached needs no limit.
        (lambda steps: 7 + np.log10(steps), np.inf, HOLDS),
    ],
)
def test_limits_of_steps(bits, truth, verdict):
    finding = LIMIT(trained(bits))
    assert finding.verdict == verdict, finding.evidence
    assert finding.low <= truth <= finding.high
    assert "after 32,768 steps" in finding.evidence


def test_a_limit_needs_five_numbers_of_steps():
    table = trained(lambda steps: 10 - 40 * steps**-0.5)
    finding = LIMIT(table[table["steps"] > 128])
    assert (finding.verdict, "too few points" in finding.evidence) == (UNDECIDED, True)


def test_there_is_no_limit_of_what_falls():
    finding = LIMIT(trained(lambda steps: 10 - steps / 32_768))
    assert (finding.verdict, np.isnan(finding.low)) == (UNDECIDED, True)
    assert "fewer than the" in finding.evidence
