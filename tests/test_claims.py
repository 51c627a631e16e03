"""Verdicts on synthetic tables whose truth is known."""

import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from memobench import claims
from memobench.claims import FAILS, HOLDS, QUADRATIC, UNDECIDED, Claim, counts, statistics

N_HEADS = (1, 6, 11, 16, 21, 26, 31)
WIDTHS = range(3, 14)
VOCABULARY, EXAMPLES = 50, 2500


def row(accuracy, seed=0, **sizes):
    sizes = {"d_model": 10, "n_heads": 1, "d_mlp": 0, "steps": 100, **sizes}
    sizes = {"architecture": "attention_only", "d_head": sizes["d_model"], **sizes}
    n_params = 4 * sizes["d_model"] ** 2 * sizes["n_heads"] + sizes["d_mlp"]
    method = {"protocol": "exact", "heads": "compressed", "status": "ok", "seed": seed}
    measures = {"accuracy": accuracy, "accuracy_protocol": accuracy}
    task = {
        "task": "associations",
        "vocab_size": VOCABULARY,
        "n_examples": EXAMPLES,
        "context_length": 2,
    }
    task |= {"contexts": None, "n_classes": None, "residual": None}
    return {**task, "n_params": n_params, **method, **measures, **sizes}


def make(accuracy, points, noise=0.01, seeds=5, number=0):
    """A table of noisy runs; accuracy takes the sizes of a point, a dict."""
    random = np.random.default_rng(number)
    return pd.DataFrame(
        row(accuracy(point) + noise * random.normal(), seed, **point)
        for point in points
        for seed in range(seeds)
    )


def along(column, values, accuracy, **options):
    """A table over one column; accuracy takes its value."""
    points = [{column: value} for value in values]
    return make(lambda point: accuracy(point[column]), points, **options)


def widths_of_heads(values, accuracy, d_model=17, **options):
    """A table over the dimension of the heads; accuracy takes its value."""
    points = [{"d_head": value, "d_model": d_model} for value in values]
    return make(lambda point: accuracy(point["d_head"]), points, **options)


def heads_and_widths(accuracy, widths=(5, 10), **options):
    """A table over heads and widths; accuracy takes heads and width."""
    points = [{"d_model": d, "n_heads": h} for d in widths for h in N_HEADS]
    return make(lambda point: accuracy(point["n_heads"], point["d_model"]), points, **options)


def sets(column, values, accuracy, **options):
    """A table over one column for two sets; accuracy takes its value and the set's size."""
    points = [
        {column: value, "n_examples": n, "context_length": 8}
        for value in values
        for n in (200, 400)
    ]
    return make(lambda point: accuracy(point[column], point["n_examples"]), points, **options)


def families(difference, steps=(100,), **options):
    """Attention and MLP of two widths, sizes a percent apart; difference takes steps."""
    points = [
        {"architecture": name, "d_model": d, "n_params": size, "d_mlp": size, "steps": budget}
        for name, factor in (("attention_only", 1), ("mlp", 1.01))
        for d in (5, 10)
        for size in (int(factor * base) for base in (1000, 2000, 3000, 4000))
        for budget in steps
    ]

    def accuracy(point):
        gained = difference(point["steps"]) if point["architecture"] == "mlp" else 0
        return 0.1 + point["n_params"] / 8000 + gained

    return make(accuracy, points, **options)


def promised(factor):
    """Accuracy of a model that memorizes so many times Corollary 2."""

    def accuracy(n_heads, width):
        memorized = factor * (n_heads * width + width)
        return 1 / VOCABULARY + (1 - 1 / VOCABULARY) * memorized / EXAMPLES

    return accuracy


def bound(sizes):
    return sizes["n_heads"] * sizes["d_head"] + sizes["d_model"]


def quadratic(x):
    return 0.1 + 0.002 * x**2


def bend(x):
    return 0.1 + 0.05 * min(x, 8) + 0.005 * max(x - 8, 0)


XS = (2, 5, 8, 11, 14, 17)
TESTS = {
    "linear": claims.linear_in_heads(),
    "power": claims.power_law(*QUADRATIC),
    "jump": claims.jump_at_full_width(),
    "broken": claims.broken_line("n_heads", at=8),
    "slopes": claims.exponent_of_slopes(),
    "better": claims.better_at_equal_parameters(),
    "bound slope": claims.slope_over_bound(7, 9),
    "bound": claims.above_bound(bound, "Corollary 2"),
    "gains": claims.gains_more_from_steps(),
    "equal slopes": claims.equal_slopes("d_model"),
    "never falls": claims.never_falls("n_heads"),
    "levels off": claims.levels_off("d_head", at="context_length"),
    "on average": claims.on_average(
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
    decided = claims.decide(finding.low, finding.high, (-np.inf, np.inf)) == HOLDS
    assert decided or verdict == UNDECIDED
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
            claims.better_at_equal_parameters(group=None),
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
    best, coefficients, rss = claims.profile(x, y, claims.power, np.arange(1, 601) / 100)
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
    assert claims.power_law(*QUADRATIC)(table).verdict == FAILS
    assert claims.power_law(*QUADRATIC, narrow=True)(table).verdict == HOLDS


def test_without_heads_of_full_width_no_jump_is_judged():
    table = widths_of_heads(XS, lambda x: quadratic(x) + 0.1 * (x == 17), d_model=20)
    assert TESTS["jump"](table).evidence.endswith("no unsaturated run with d_h = d")


def test_saturation_is_no_break_no_exponent_and_no_jump():
    table = along("d_model", range(5, 16), lambda x: min(1, 0.3 + 0.14 * (x - 5)))
    assert "not well within" in claims.broken_line("d_model", at=10)(table).evidence
    above = along("d_model", range(5, 16), lambda x: 0.1 * (x - 4) if x < 10 else 0.6 + (x == 10))
    assert claims.broken_line("d_model", at=10)(above).verdict == HOLDS
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
    assert claims.better_at_equal_parameters()(table).verdict == FAILS
    assert claims.better_at_equal_parameters(group=None)(table).verdict == HOLDS


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


CONSTANT = claims.constant("d² / N", quotient, (1.8, 2.2), "d_model", ["d_head", "n_params"])
EXPONENT = claims.exponent(
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


def facts(least, seeds=5, n_examples=60):
    """Memories of 100 to 800 parameters, of which a seed's knows 99% from `least` of it on."""
    return pd.DataFrame(
        {
            **row(1.0 if size >= least(seed) else 0.9, seed, n_examples=n_examples),
            "n_params_memory": size,
        }
        for seed in range(seeds)
        for size in (100, 200, 400, 800)
    )


def test_the_smallest_memory_that_knows_nearly_all_is_the_densest():
    test = claims.densest((0.12, 0.1875))
    finding = test(facts(lambda seed: 400))
    # Equal seeds show no spread.
    assert (finding.verdict, finding.estimate) == (UNDECIDED, 60 / 400)
    assert "facts per parameter 0.15, of memories with 400, 400, 400, 400, 400" in finding.evidence
    wide = claims.densest((0.05, 0.4))
    assert wide(facts(lambda seed: 200 if seed == 0 else 400)).verdict == HOLDS
    assert claims.densest((0.5, 1))(facts(lambda seed: 200 if seed else 400)).verdict == FAILS
    mixed = test(facts(lambda seed: 200 if seed == 0 else 400))
    assert mixed.verdict == UNDECIDED
    assert mixed.estimate == pytest.approx((0.3 + 4 * 0.15) / 5)
    assert mixed.low < mixed.estimate < mixed.high
    # Neither 98.9% nor a run that diverged is nearly all.
    table = facts(lambda seed: 400)
    near = table.assign(accuracy=table["accuracy"].where(table["n_params_memory"] != 200, 0.989))
    assert test(near).estimate == 0.15
    wild = table.assign(
        accuracy=1.0, status=np.where(table["n_params_memory"] < 400, "diverged", "ok")
    )
    assert test(wild).estimate == 0.15
    nothing = test(facts(lambda seed: 10**6))
    assert (nothing.verdict, "too few points" in nothing.evidence) == (UNDECIDED, True)
    assert test(facts(lambda seed: 400, seeds=1)).verdict == UNDECIDED


CLAIMS = [
    Claim(name="linear", statement="", source="", test=TESTS["linear"]),
    Claim(
        name="most",
        statement="",
        source="",
        test=claims.only(claims.every_run("y", claims.measured, (0.8, 1.1)), n_heads=31),
    ),
    Claim(name="gains", statement="", source="", test=TESTS["gains"], across_steps=True),
]


def three_budgets():
    straight, curved = (
        along("n_heads", N_HEADS, curve) for curve in (lambda x: 0.02 * x, lambda x: 0.001 * x**2)
    )
    published = curved.assign(protocol="published", accuracy=0.5, steps=400)
    full = curved.assign(heads="full", steps=300)
    return pd.concat(
        [full, curved.assign(steps=200), straight, published], ignore_index=True
    ).assign(architecture="attention_only")


def test_runs_that_train_other_weights_are_variants_of_their_own():
    table = three_budgets().iloc[:1]
    parts = (None, "read_out", "all_but_attention", "memory")
    for method in ("trained", "searched"):
        rows = (table.assign(method=method, trained=name) for name in parts)
        labels = [claims.variant(row).item() for row in rows]
        assert len(set(labels)) == len(labels)


def test_verdicts_are_one_row_per_claim_variant_and_steps():
    a, b, c = claims.VARIANTS.values()
    found = claims.verdicts(CLAIMS, three_budgets())
    columns = ["claim", "variant", "steps", "verdict", "doubling"]
    assert [tuple(found_row) for found_row in found[columns].to_numpy()] == [
        ("linear", a, 400, FAILS, "not run"),
        ("linear", b, 100, HOLDS, "becomes fails"),
        ("linear", b, 200, FAILS, ""),
        ("linear", c, 300, FAILS, "not run"),
        ("most", a, 400, HOLDS, "not run"),
        ("most", b, 100, FAILS, "becomes holds"),
        ("most", b, 200, HOLDS, ""),
        ("most", c, 300, HOLDS, "not run"),
        *(
            ("gains", label, steps, UNDECIDED, "")
            for label, steps in ((a, 400), (b, 100), (c, 300))
        ),
    ]
    assert claims.verdicts(CLAIMS, three_budgets()[:0]).empty


def test_the_same_verdict_after_doubling_is_said():
    table = along("n_heads", N_HEADS, lambda x: 0.02 * x)
    found = claims.verdicts(CLAIMS[:1], pd.concat([table, table.assign(steps=200)]))
    assert found["doubling"].tolist() == ["same verdict", ""]


def _named(table):
    return table.assign(run_id=[f"{i:016x}" for i in range(len(table))])


def test_claims_are_decided_on_the_runs_that_are_wanted_alone():
    table = _named(along("n_heads", N_HEADS, lambda x: 0.02 * x))
    (whole,) = claims.verdicts(CLAIMS[:1], table, table).itertuples()
    assert whole.verdict == HOLDS
    (partial,) = claims.verdicts(CLAIMS[:1], table[table["n_heads"] > 6], table).itertuples()
    assert partial.verdict == UNDECIDED
    told = "10 runs are missing, of 2 configurations (seeds 0, 1, 2, 3, 4)"
    assert partial.evidence == told
    (fewer,) = claims.verdicts(CLAIMS[:1], table[table["seed"] < 3], table).itertuples()
    assert fewer.verdict == UNDECIDED
    assert "14 runs are missing, of 7 configurations (seeds 3, 4)" in fewer.evidence
    (one,) = claims.verdicts(CLAIMS[:1], table.iloc[1:], table).itertuples()
    assert one.evidence == "1 run is missing, of 1 configuration (seed 0)"
    # Runs of nobody's asking decide nothing.
    others = table.assign(accuracy=0.5, run_id=[f"{i:016x}" for i in range(100, 135)])
    (same,) = claims.verdicts(CLAIMS[:1], pd.concat([table, others]), table).itertuples()
    assert same == whole


@pytest.mark.parametrize("column", ["learning_rate", "activation", "score_scale", "positions"])
def test_a_claim_is_undecided_while_one_of_several_options_is_missing(column):
    """Of 450 runs with three rates a table of 270 once decided otherwise, without a word."""
    table = along("n_heads", N_HEADS, lambda x: 0.02 * x)
    both = _named(pd.concat([table.assign(**{column: "a"}), table.assign(**{column: "b"})]))
    (found,) = claims.verdicts(CLAIMS[:1], both[both[column] == "a"], both).itertuples()
    assert found.verdict == UNDECIDED
    assert f"of {len(N_HEADS)} configurations" in found.evidence


def test_a_claim_across_steps_needs_all_of_them():
    table = _named(families(lambda steps: steps / 1000, steps=(100, 200)))
    across = CLAIMS[2:]
    assert set(claims.verdicts(across, table, table)["verdict"]) == {HOLDS}
    (found,) = claims.verdicts(across, table[table["steps"] == 100], table).itertuples()
    assert found.evidence.startswith("80 runs are missing, of 16 configurations")


def test_the_order_of_rows_does_not_matter():
    table = three_budgets()
    shuffled = table.sample(frac=1, random_state=0)
    pd.testing.assert_frame_equal(claims.verdicts(CLAIMS, table), claims.verdicts(CLAIMS, shuffled))


def test_diverged_runs_count_for_nothing_but_are_told():
    table = heads_and_widths(lambda h, d: 0.02 * h)
    diverged = table.assign(accuracy=np.nan, accuracy_protocol=np.nan, status="diverged")[:3]
    (whole,) = (finding for *_, finding in claims.findings(CLAIMS[:1], table))
    (some,) = (finding for *_, finding in claims.findings(CLAIMS[:1], pd.concat([diverged, table])))
    assert (some.estimate, some.low, some.high) == (whole.estimate, whole.low, whole.high)
    assert some.evidence == f"{whole.evidence}; 3 of 73 runs diverged"


def test_configurations_are_never_mixed():
    table = heads_and_widths(lambda h, d: 0.02 * h)
    with pytest.raises(ValueError, match="differ in d_model, d_head, n_params; choose"):
        TESTS["broken"](table)
    assert claims.only(TESTS["broken"], d_model=5)(table).verdict == FAILS
    assert claims.only(TESTS["linear"], d_model=(5, 10))(table).verdict == HOLDS
    assert claims.only(TESTS["linear"], architecture="mlp")(table).verdict == UNDECIDED


def test_a_claim_of_several_groups_needs_all_of_them():
    assert claims.every([HOLDS, HOLDS]) == HOLDS
    assert claims.every([HOLDS, UNDECIDED]) == UNDECIDED
    assert claims.every([HOLDS, UNDECIDED, FAILS]) == FAILS
    assert claims.every([]) == UNDECIDED


def test_aicc_of_exact_and_of_too_few_points():
    assert claims.aicc(0.0, 10, 3) < claims.aicc(0.0, 10, 4)
    assert np.isnan(claims.aicc(1.0, 4, 3))


def test_claims_start_no_device():
    code = "import memobench.claims; from jax._src import xla_bridge as x; assert not x._backends"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_architectures_without_kinds_of_heads_have_variants_of_their_own():
    table = three_budgets().iloc[:1]

    def label(**changes):
        return claims.variant(table.assign(**changes)).item()

    assert label(heads=None) == "exact"
    assert label(heads=np.nan, protocol="passes") == "passes"
    assert label(protocol="passes", heads="full") == "passes, full"
    assert label(method="optimised", heads=None) == claims.OPTIMUM
    for solve in ("exact", None):
        assert label(method="constructed", solve=solve) == claims.CONSTRUCTED
    assert label(method="constructed", solve="least_squares") == claims.NEAREST
    # Whoever reads a table may lack the files that define its kinds.
    assert label(task="theirs", architecture="theirs", method="theirs", protocol="q") == "q"
