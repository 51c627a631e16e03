"""Every test that a claim may have, on tables whose truth is known."""

import numpy as np
import pandas as pd
import pytest
import scipy.stats

from memobench import claims
from memobench.analysis import statistics
from memobench.claims import FAILS, HOLDS, UNDECIDED, counts, evidence
from memobench.experiments.dana2025 import family_claims, growth_claims
from memobench.experiments.mahdavi2024 import claims as mahdavi2024_claims
from tests.synthetic import (
    WIDTHS,
    along,
    bound,
    families,
    heads_and_widths,
    promised,
    quadratic,
    sets,
    widths_of_heads,
)


def bend(x):
    return 0.1 + 0.05 * min(x, 8) + 0.005 * max(x - 8, 0)


XS = (2, 5, 8, 11, 14, 17)
TESTS = {
    "linear": claims.linear_in_heads(),
    "power": growth_claims.power_law(*growth_claims.QUADRATIC),
    "jump": growth_claims.jump_at_full_width(),
    "broken": growth_claims.broken_line("n_heads", at=8),
    "slopes": growth_claims.exponent_of_slopes(),
    "better": family_claims.better_at_equal_parameters("mlp", "attention_only"),
    "bound slope": growth_claims.slope_over_bound(7, 9),
    "bound": claims.above_bound(bound, "Corollary 2"),
    "gains": family_claims.gains_more_from_steps("mlp", "attention_only"),
    "equal slopes": growth_claims.equal_slopes("d_model"),
    "never falls": mahdavi2024_claims.never_falls("n_heads"),
    "levels off": mahdavi2024_claims.levels_off("d_head", at="context_length"),
    "on average": mahdavi2024_claims.on_average(
        "accuracy", lambda table: table["accuracy"], (0.5, np.inf), ["n_heads"]
    ),
    "every run": claims.every_run(
        "accuracy",
        lambda table: table["accuracy"],
        (0.2, 0.4),
        where=lambda table: table["n_heads"] > 10,
    ),
}
EDGE = {"noise": 0.02}
CASES = [
    # test, table, verdict, words of the evidence
    ("linear", heads_and_widths(lambda h, d: 0.05 + 0.02 * h), HOLDS, "holds for 2 of 2 widths"),
    (
        "linear",
        heads_and_widths(lambda h, d: 0.02 * h if d == 5 else 0.9 - 0.9 * np.exp(-h / 10)),
        FAILS,
        "holds for 1 of 2 widths, fails for 1; d = 10: slope ratio",
    ),
    ("linear", heads_and_widths(lambda h, d: 2.5e-5 * h**3), FAILS, "slope ratio inf"),
    ("linear", heads_and_widths(lambda h, d: 0.9 - 0.02 * h), FAILS, "slope ratio 0 [0, 0]"),
    (
        "linear",
        heads_and_widths(lambda h, d: 0.1 + 0.001 * h, **EDGE),
        UNDECIDED,
        "undecided for 2",
    ),
    ("linear", heads_and_widths(lambda h, d: 0.96), UNDECIDED, "too few points"),
    ("power", widths_of_heads(XS, quadratic), HOLDS, "quadratic 0"),
    ("power", widths_of_heads(XS, lambda x: 0.1 + 0.04 * x), FAILS, "linear 0"),
    ("power", widths_of_heads(XS, lambda x: 0.7 - 0.002 * x**2), FAILS, "exponent 0"),
    ("power", widths_of_heads(XS, lambda x: 0.1 + 0.0001 * x**2, **EDGE), UNDECIDED, "exponent"),
    ("power", widths_of_heads(XS[:3], quadratic), UNDECIDED, "too few points"),
    ("jump", widths_of_heads(XS, lambda x: quadratic(x) + 0.1 * (x == 17)), HOLDS, "power law"),
    ("jump", widths_of_heads(XS, quadratic), FAILS, "at d_head = 17"),
    ("jump", widths_of_heads(XS[1:], lambda x: quadratic(x) + 0.2 * (x == 17)), HOLDS, "parabola"),
    (
        "jump",
        widths_of_heads(XS, lambda x: quadratic(x) + 0.04 * (x == 17)),
        UNDECIDED,
        "measured",
    ),
    ("jump", widths_of_heads(XS[2:], quadratic), UNDECIDED, "too few points"),
    ("broken", along("n_heads", XS, bend), HOLDS, "slope after over before"),
    ("broken", along("n_heads", XS, lambda x: bend(x - 5)), FAILS, "break 13"),
    ("broken", along("n_heads", XS, lambda x: 0.1 + 0.04 * x), FAILS, "at most 0.5"),
    ("broken", along("n_heads", XS, lambda x: bend(x) / 10, **EDGE), UNDECIDED, "break"),
    ("broken", along("n_heads", XS[2:], bend), UNDECIDED, "too few points"),
    ("slopes", heads_and_widths(lambda h, d: 4e-5 * h * d**2.5, WIDTHS), HOLDS, "leave-one-out"),
    ("slopes", heads_and_widths(lambda h, d: 2e-3 * h * d, WIDTHS), FAILS, "AICc"),
    ("slopes", heads_and_widths(lambda h, d: 1e-4 * h * d**2, WIDTHS), UNDECIDED, "exponent 1.9"),
    (
        "slopes",
        heads_and_widths(lambda h, d: 1e-4 * h * d**2),
        UNDECIDED,
        "too few points: 2 widths",
    ),
    ("better", families(lambda steps: 0.1), HOLDS, "of 4 sizes mlp is above at 4, below at 0"),
    ("better", families(lambda steps: -0.1), FAILS, "of 4 sizes mlp is above at 0, below at 4"),
    ("better", families(lambda steps: 0.0), UNDECIDED, "mean difference"),
    ("better", families(lambda steps: 0.1).assign(accuracy=0.995), UNDECIDED, "not saturated"),
    ("bound slope", heads_and_widths(promised(8), [5, 6], noise=0.005), HOLDS, "slope over d_h"),
    (
        "bound slope",
        heads_and_widths(promised(4), [5, 6], noise=0.005),
        FAILS,
        "slope over d_h 3.9",
    ),
    ("bound slope", heads_and_widths(promised(9), [5, 6], noise=0.005), UNDECIDED, "7 to 9"),
    ("bound", heads_and_widths(promised(5), noise=0.001), HOLDS, "the worst of 14 configurations"),
    ("bound", heads_and_widths(promised(0.5), noise=0.001), FAILS, "Corollary 2 promises"),
    ("bound", heads_and_widths(promised(1.0), noise=0.001), UNDECIDED, "at least 1"),
    ("never falls", sets("n_heads", XS, lambda x, n: 0.1 + 0.03 * x), HOLDS, "holds for 2 of 2"),
    ("never falls", sets("n_heads", XS, lambda x, n: 0.9 - 0.03 * x), FAILS, "n_examples = 200"),
    (
        "never falls",
        sets("n_heads", XS, lambda x, n: 0.1 + 0.03 * x - (0.2 * (x == 11) if n == 400 else 0)),
        FAILS,
        "n_examples = 400: least step, at n_heads = 11, -0.1",
    ),
    ("never falls", sets("n_heads", XS, lambda x, n: 0.5), FAILS, "gain from"),
    ("never falls", sets("n_heads", XS, lambda x, n: 0.5 + 0.002 * x, **EDGE), UNDECIDED, "gain"),
    ("never falls", sets("n_heads", XS, lambda x, n: 0.97), UNDECIDED, "too few points"),
    (
        "levels off",
        sets("d_head", XS, lambda x, n: 0.1 + 0.05 * min(x, 8), noise=0.003),
        HOLDS,
        "holds for 2 of 2",
    ),
    (
        "levels off",
        sets("d_head", XS, lambda x, n: 0.1 + 0.05 * x),
        FAILS,
        "gained up to d_head = 8",
    ),
    ("levels off", sets("d_head", XS, lambda x, n: 0.9 - 0.05 * x), FAILS, "inf"),
    (
        "levels off",
        sets("d_head", XS, lambda x, n: 0.1 + 0.01 * min(x, 9), **EDGE),
        UNDECIDED,
        "gain after over before",
    ),
    ("on average", along("n_heads", XS, lambda x: 0.6), HOLDS, "means 0.6"),
    ("on average", along("n_heads", XS, lambda x: 0.6 - 0.2 * (x == 8)), FAILS, "(n_heads = 8)"),
    ("on average", along("n_heads", XS, lambda x: 0.505), UNDECIDED, "means 0.5"),
    ("levels off", sets("d_head", XS[2:], lambda x, n: 0.1 * n), UNDECIDED, "on both sides"),
    ("gains", families(lambda steps: steps / 1000, steps=(100, 200)), HOLDS, "100 to 200 steps"),
    ("gains", families(lambda steps: -steps / 1000, steps=(100, 200)), FAILS, "mlp gains -0."),
    ("gains", families(lambda steps: 0.1, steps=(100, 200)), UNDECIDED, "difference of gains"),
    (
        "equal slopes",
        heads_and_widths(lambda h, d: 0.02 * h + d / 100),
        HOLDS,
        "d_model = 10 over 5",
    ),
    ("equal slopes", heads_and_widths(lambda h, d: 0.002 * h * d), FAILS, "ratio of slopes 1.9"),
    (
        "equal slopes",
        heads_and_widths(lambda h, d: 0.002 * h * (2.5 + d / 2), noise=0.02),
        UNDECIDED,
        "ratio of slopes 1.",
    ),
    # A line through the point at which the curve of d = 10 has bent would be half as steep.
    (
        "equal slopes",
        heads_and_widths(lambda h, d: min(0.02 * h + 0.6 * (d == 10), 0.97), noise=0.002),
        HOLDS,
        "of H = 1, 6, 11, 16: 0.02",
    ),
    ("equal slopes", heads_and_widths(lambda h, d: 0.02 * h, widths=(5,)), UNDECIDED, "too few"),
    ("every run", heads_and_widths(lambda h, d: 0.1 + h / 250, noise=0), FAILS, "20 of 50"),
    ("every run", heads_and_widths(lambda h, d: 0.2 + h / 250, noise=0), HOLDS, "50 of 50"),
    ("every run", along("n_heads", [2, 5], lambda x: 0.3), UNDECIDED, "too few points"),
    ("gains", families(lambda steps: 0.1, steps=(100, 300)), UNDECIDED, "has 100, 300"),
    ("gains", families(lambda steps: 0.1, steps=(100, 200, 400)), UNDECIDED, "100, 200, 400"),
]


@pytest.mark.parametrize(("name", "table", "verdict", "words"), CASES)
def test_each_test_reaches_each_verdict_for_its_reason(name, table, verdict, words):
    finding = TESTS[name](table)
    assert (finding.verdict, words in finding.evidence) == (verdict, True), finding.evidence
    assert "\n" not in finding.evidence
    decided = evidence.decide(finding.low, finding.high, (-np.inf, np.inf)) == HOLDS
    # Of every run a share is told, and no mean has an interval.
    assert decided or verdict == UNDECIDED or name == "every run"
    assert all(fit.x.shape == fit.y.shape and np.isfinite(fit.y).all() for fit in finding.fits)


@pytest.mark.parametrize("name", [name for name in TESTS if name != "every run"])
def test_two_seeds_leave_undecided_what_five_decide(name):
    _, table, *_ = next(case for case in CASES if case[0] == name and case[2] != UNDECIDED)
    finding = TESTS[name](table[table["seed"] < 2])
    assert finding.verdict == UNDECIDED
    assert finding.evidence.startswith("2 seeds; at least 3 are needed")
    assert np.isfinite(finding.estimate)
    assert np.isnan([finding.low, finding.high]).all()


@pytest.mark.parametrize("name", TESTS)
@pytest.mark.parametrize(
    "spoil",
    [
        lambda table: table[:0],
        lambda table: table[:5],
        lambda table: table.assign(accuracy=np.nan, status="diverged"),
        lambda table: table.assign(accuracy=0.3),
        lambda table: table.assign(accuracy=1.0),
        lambda table: table.assign(accuracy=0.0),
    ],
)
def test_degenerate_tables_give_a_verdict_and_no_warning(name, spoil):
    for _, table, *_ in (case for case in CASES if case[0] == name):
        assert TESTS[name](spoil(table)).verdict in (HOLDS, FAILS, UNDECIDED)


@pytest.mark.parametrize(
    ("test", "table", "estimate"),
    [
        (TESTS["linear"], heads_and_widths(lambda h, d: 0.02 * h, noise=0), 1),
        (TESTS["power"], widths_of_heads(XS, quadratic, noise=0), 2),
        (TESTS["jump"], widths_of_heads(XS, lambda x: quadratic(x) + x // 17 / 10, noise=0), 0.1),
        (TESTS["broken"], along("n_heads", XS, bend, noise=0), 8),
        (TESTS["slopes"], heads_and_widths(lambda h, d: 4e-5 * h * d**2.5, WIDTHS, noise=0), 2.5),
        (TESTS["better"], families(lambda steps: 0.1, noise=0), 0.1),
        (
            family_claims.better_at_equal_parameters("mlp", "attention_only", group=None),
            families(lambda steps: 0.1, noise=0),
            0.1,
        ),
        (TESTS["bound slope"], heads_and_widths(promised(8), [5], noise=0), 8),
        (TESTS["bound"], heads_and_widths(promised(1.5), noise=0), 1.5),
        (TESTS["gains"], families(lambda steps: steps / 1000, (100, 200), noise=0), 0.1),
    ],
)
def test_exact_data_holds_with_a_narrow_interval_of_some_width(test, table, estimate):
    finding = test(table)
    assert finding.verdict == HOLDS, finding.evidence
    np.testing.assert_allclose([finding.estimate, finding.low, finding.high], estimate, rtol=0.05)
    # An exponent and a break are looked for on a grid.
    assert finding.low < finding.high or test in (TESTS["power"], TESTS["broken"], TESTS["slopes"])


@pytest.mark.parametrize("name", [name for name in TESTS if name != "every run"])
def test_equal_runs_without_a_least_step_decide_nothing(name, monkeypatch):
    monkeypatch.setattr(statistics, "one_example", lambda table: 0.0)
    monkeypatch.setattr(counts, "one_example", lambda table: 0.0)
    _, table, *_ = next(case for case in CASES if case[0] == name and case[2] != UNDECIDED)
    first = table[table["seed"] == 0]
    finding = TESTS[name](pd.concat([first.assign(seed=seed) for seed in range(5)]))
    assert finding.verdict == UNDECIDED
    assert finding.evidence.startswith("one seed, or equal runs, which show no spread; at least 3")


def test_profile_finds_the_nonlinear_parameter_of_every_row():
    x = np.arange(1.0, 9)
    y = np.stack([2 + 3 * x**1.5, 1 - x**0.5])
    best, coefficients, rss = statistics.profile(x, y, statistics.power, np.arange(1, 601) / 100)
    np.testing.assert_allclose(best, [1.5, 0.5])
    np.testing.assert_allclose(coefficients, [[2, 3], [1, -1]], rtol=1e-9)
    assert (rss < 1e-9).all()


def test_slopes_are_those_of_unsaturated_points():
    table = heads_and_widths(lambda h, d: min(0.04 * h, 1.0) if d == 5 else 1.0, noise=0)
    found = claims.slopes_in_heads(table).set_index("d_model")
    assert found.loc[5, "n_points"] == 6
    assert found.loc[5, "slope"] == pytest.approx(0.04, rel=0.05)
    assert found.loc[10, "n_points"] == 1
    assert np.isnan(found.loc[10, "slope"])


def test_a_power_law_of_narrow_heads_leaves_out_those_of_full_width():
    table = widths_of_heads(XS, lambda x: quadratic(x) + 0.3 * (x == 17))
    assert growth_claims.power_law(*growth_claims.QUADRATIC)(table).verdict == FAILS
    assert growth_claims.power_law(*growth_claims.QUADRATIC, narrow=True)(table).verdict == HOLDS


def test_without_heads_of_full_width_no_jump_is_judged():
    table = widths_of_heads(XS, lambda x: quadratic(x) + 0.1 * (x == 17), d_model=20)
    assert TESTS["jump"](table).evidence.endswith("no unsaturated run with d_h = d")


def test_saturation_is_no_break_no_exponent_and_no_jump():
    table = along("d_model", range(5, 16), lambda x: min(1, 0.3 + 0.14 * (x - 5)))
    assert "not well within" in growth_claims.broken_line("d_model", at=10)(table).evidence
    above = along("d_model", range(5, 16), lambda x: 0.1 * (x - 4) if x < 10 else 0.6 + (x == 10))
    assert growth_claims.broken_line("d_model", at=10)(above).verdict == HOLDS
    clipped = widths_of_heads(range(1, 11), lambda x: min(1, 0.02 * x**2), d_model=10)
    assert TESTS["power"](clipped).verdict == HOLDS
    assert TESTS["jump"](clipped).verdict == UNDECIDED


def test_who_knows_all_gains_nothing_and_is_not_counted():
    table = families(lambda steps: steps / 1000, steps=(100, 200))
    known = table.assign(d_model=20, d_head=20, accuracy=1.0, accuracy_protocol=1.0)
    with_known = TESTS["gains"](pd.concat([table, known], ignore_index=True))
    np.testing.assert_allclose(with_known.estimate, TESTS["gains"](table).estimate)


def test_sizes_of_a_pair_may_differ_by_biases():
    table = families(lambda steps: 0.1)
    mlp = table["architecture"] == "mlp"
    table.loc[mlp, "n_params"] = (table.loc[mlp, "n_params"] * 1.05).astype(int)
    assert "of 4 sizes" in TESTS["better"](table).evidence


def test_envelopes_take_the_best_width_of_each_family():
    # At d = 5 attention wins; the MLP's other width makes up for it.
    table = families(lambda steps: 0.1)
    loses = (table["architecture"] == "mlp") & (table["d_model"] == 5)
    table["accuracy"] -= np.where(loses, 0.2, 0.0)
    assert family_claims.better_at_equal_parameters("mlp", "attention_only")(table).verdict == FAILS
    assert (
        family_claims.better_at_equal_parameters("mlp", "attention_only", group=None)(table).verdict
        == HOLDS
    )


def test_configurations_are_never_mixed():
    table = heads_and_widths(lambda h, d: 0.02 * h)
    claim = claims.Claim(name="mine", statement="", source="", test=TESTS["broken"])
    (found,) = claims.verdicts([claim], table).itertuples()
    assert found.verdict == UNDECIDED
    assert "differ in d_model, d_head, n_params; " in found.evidence
    assert "claims.restrict(test, d_model=" in found.evidence
    assert claims.restrict(TESTS["broken"], d_model=5)(table).verdict == FAILS
    assert claims.restrict(TESTS["linear"], d_model=(5, 10))(table).verdict == HOLDS
    assert claims.restrict(TESTS["linear"], architecture="mlp")(table).verdict == UNDECIDED


def test_a_claim_of_several_groups_needs_all_of_them():
    assert evidence.combine_verdicts([HOLDS, HOLDS]) == HOLDS
    assert evidence.combine_verdicts([HOLDS, UNDECIDED]) == UNDECIDED
    assert evidence.combine_verdicts([HOLDS, UNDECIDED, FAILS]) == FAILS
    assert evidence.combine_verdicts([]) == UNDECIDED


def test_aicc_of_exact_and_of_too_few_points():
    assert statistics.aicc(0.0, 10, 3) < statistics.aicc(0.0, 10, 4)
    assert np.isnan(statistics.aicc(1.0, 4, 3))


@pytest.mark.parametrize("n", [3, 10])
def test_of_many_that_are_true_hardly_any_fails(n):
    """With every truth at the edge of its region, where one interval in forty lies outside."""
    random, seeds, failed = np.random.default_rng(0), 5, 0
    for _ in range(400):
        values_BX = statistics.replicates(random.normal(size=(seeds, n)))
        among = {
            i: evidence.statistic_of("mean", values_BX[:, i], (0.0, np.inf), seeds)
            for i in range(n)
        }
        failed += evidence.conclude_groups(among, "d_model", "").verdict == FAILS
    assert failed <= 400 * 0.025 + 3 * np.sqrt(400 * 0.025)


def test_p_values_of_verdicts_are_those_of_students_test():
    random = np.random.default_rng(0)
    for n in (3, 5, 20):
        for shift in (-1.0, 0.5, 3.0):
            values = random.normal(shift, size=n)
            tested = scipy.stats.ttest_1samp(values, 0)
            low, high = tested.confidence_interval(0.95)
            for region in ((0.0, np.inf), (-np.inf, 0.0), (0.0, 1e9)):
                found = evidence.p_value(values.mean(), low, high, region, n)
                if evidence.decide(low, high, region) == UNDECIDED:
                    assert np.isnan(found)
                else:
                    assert found == pytest.approx(tested.pvalue)
                    assert found <= 0.05


def test_of_a_verdict_inside_a_region_the_nearer_edge_counts():
    near = evidence.p_value(1.0, 0.8, 1.2, (0.8, 9.0), 5)
    assert near == pytest.approx(0.05)
    assert evidence.p_value(1.0, 0.8, 1.2, (-9.0, 1.2), 5) == pytest.approx(0.05)
    assert evidence.p_value(1.0, 1.0, 1.0, (0.5, 2.0), 5) == 0
    # Without an interval, and of too few seeds, nothing is decided by one.
    for numbers in ((1.0, np.nan, np.nan, (0.5, 2.0), 5), (1.0, 0.9, 1.1, (0.5, 2.0), 2)):
        assert np.isnan(evidence.p_value(*numbers))
