"""Verdicts on claims: of which variant, at which steps, and what missing runs do to them."""

import dataclasses

import numpy as np
import pandas as pd
import pytest

from memobench import claims
from memobench.claims import FAILS, HOLDS, UNDECIDED, Claim
from memobench.common.errors import UserError
from memobench.experiments import EXPERIMENTS
from memobench.experiments.dana2025 import family_claims
from tests.synthetic import N_HEADS, along, families, heads_and_widths

CLAIMS = [
    Claim(name="linear", statement="", source="", test=claims.linear_in_heads()),
    Claim(
        name="most",
        statement="",
        source="",
        test=claims.restrict(
            claims.every_run("y", claims.compared_accuracy, (0.8, 1.1)), n_heads=31
        ),
    ),
    Claim(
        name="gains",
        statement="",
        source="",
        test=family_claims.gains_more_from_steps("mlp", "attention_only"),
        across_steps=True,
    ),
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
    for method in ("trained", "searched", "checked", "capacity"):
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


@pytest.mark.parametrize(
    ("test", "said"),
    [
        (lambda table: True, "its test must return a Finding .*, got True"),
        (
            lambda table: claims.Finding("maybe", ""),
            "its test must return a Finding .*, got Finding",
        ),
    ],
)
def test_a_test_that_finds_nothing_is_named(test, said):
    claim = claims.Claim(name="mine", statement="It is.", source="nobody", test=test)
    with pytest.raises(UserError, match=f"^claim 'mine': {said}"):
        claims.verdicts([claim], three_budgets())


@pytest.mark.parametrize("verdict", [HOLDS, FAILS, UNDECIDED])
def test_a_claim_that_was_made_for_another_design_is_not_tested_there(verdict):
    """It has its statistic and no verdict, unless these runs are of that design.

    No number of seeds would decide it.
    """
    about = {"name": "mine", "statement": "", "source": ""}
    found = claims.Finding(verdict, "slope 3", 3.0, 2.0, 4.0, needed="9 seeds")
    elsewhere = Claim(**about, test=lambda table: found, made_for="large models")
    small = Claim(
        **about,
        test=lambda table: found,
        made_for="large models",
        covers=lambda table: table["steps"].min() > 100,
    )
    table = three_budgets()
    row = claims.verdicts([elsewhere], table).iloc[0]
    assert row["verdict"] == claims.NOT_TESTED
    assert (row["estimate"], row["low"]) == (3.0, 2.0)
    assert row["evidence"] == "slope 3; the claim is of large models"
    by_steps = claims.verdicts([small], table).set_index("steps")
    assert by_steps.loc[100, "verdict"] == claims.NOT_TESTED
    assert by_steps.loc[200, ["verdict", "evidence"]].tolist() == [verdict, "slope 3; 9 seeds"]


def test_a_claim_that_covers_a_design_names_it():
    with pytest.raises(UserError, match="covers must come with made_for, got none"):
        Claim(name="mine", statement="", source="", test=print, covers=lambda table: True)


def test_a_test_that_raises_leaves_its_claim_undecided():
    claim = claims.Claim(name="mine", statement="", source="", test=lambda table: 1 + None)
    found = claims.verdicts([claim], three_budgets())
    assert set(found["verdict"]) == {UNDECIDED}
    assert found["evidence"].str.startswith("its test raises TypeError: unsupported").all()


def _declared_in(module, test):
    space = {"__name__": module, "Claim": Claim, "test": test}
    exec("claim = Claim(name='mine', statement='', source='', test=test)", space)
    return space["claim"]


@pytest.mark.parametrize(
    ("test", "kind"),
    [(lambda table: 1 + None, TypeError), (lambda table: table["acuracy"], KeyError)],
)
@pytest.mark.parametrize("change", [lambda claim: claim, claims.use_all_examples])
def test_a_bug_in_a_claim_of_ours_is_raised_and_named(test, kind, change):
    a_file = _declared_in("memobench.core.plugins./home/me/memobench/experiments/mine%2Epy", test)
    table = three_budgets()
    assert set(claims.verdicts([change(a_file)], table)["verdict"]) == {UNDECIDED}
    ours = _declared_in("memobench.experiments.dana2025.heads", test)
    with pytest.raises(kind) as error:
        claims.verdicts([change(ours)], table)
    assert error.value.__notes__ == [
        f"The test of the claim {change(ours).name!r} of memobench.experiments.dana2025.heads "
        "raised it."
    ]


def test_a_claim_of_ours_that_does_not_fit_the_runs_is_undecided():
    def test(table):
        raise UserError("these runs have several optimisers")

    found = claims.verdicts([_declared_in("memobench.experiments.mine", test)], three_budgets())
    assert set(found["verdict"]) == {UNDECIDED}
    assert set(found["evidence"]) == {"these runs have several optimisers"}


def test_all_claims_of_ours_are_declared_in_their_experiments():
    modules = {x.declared_in for y in EXPERIMENTS.values() for x in y.claims}
    assert modules
    assert all(name.startswith("memobench.experiments.") for name in modules)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"architecture": "attention"}, "architecture='attention'; there are ['attention_only']"),
        ({"heads": "full", "steps": (1, 2)}, "steps=(1, 2); there are [300]"),
        ({"steps": 200, "n_heads": range(2, 6)}, "n_heads=range(2, 6); there are [1, 6, 11, "),
    ],
)
def test_a_claim_on_rows_that_are_not_there_is_undecided_and_names_those_that_are(values, said):
    test = claims.restrict(lambda table: claims.Finding(FAILS, "of nothing"), **values)
    assert test(three_budgets()).evidence.startswith(f"no run has {said}")
    claim = Claim(name="mine", statement="", source="", test=test)
    found = claims.verdicts([claim], three_budgets())
    assert set(found["verdict"]) == {UNDECIDED}
    # A sweep of which no such run is done yet.
    table = _named(three_budgets())
    found = claims.verdicts([claim], table[table["steps"] > 300], table)
    assert set(found["verdict"]) == {UNDECIDED}


def test_a_claim_that_compares_variants_names_none():
    with pytest.raises(UserError, match="variants must be empty with across_variants"):
        dataclasses.replace(CLAIMS[0], variants=("a",), across_variants=True)


@pytest.mark.parametrize("variants", ["exact", ["exact"], (1,)])
def test_a_claims_variants_are_a_tuple_of_labels(variants):
    said = r"^claim 'linear': variants must be a tuple of labels, such as \('exact',\), got .*$"
    with pytest.raises(UserError, match=said):
        dataclasses.replace(CLAIMS[0], variants=variants)


def test_a_claim_on_a_variant_that_is_not_there_is_undecided_and_names_those_that_are():
    table, labels = _named(three_budgets()), list(claims.VARIANTS.values())
    mistyped = dataclasses.replace(CLAIMS[0], variants=("exactly",))
    (found,) = claims.verdicts([mistyped], table).itertuples()
    assert (found.variant, found.steps, found.verdict) == ("exactly", 100, UNDECIDED)
    assert found.evidence == f"no run is of this variant; there are: {'; '.join(labels)}"
    # A sweep of which no run of the variant is done yet.
    claim = dataclasses.replace(CLAIMS[0], variants=tuple(labels[2:]))
    (found,) = claims.verdicts([claim], table[table["heads"] != "full"], table).itertuples()
    assert (found.variant, found.verdict) == (labels[2], UNDECIDED)
    assert found.evidence.startswith("35 runs are missing")
    assert claims.verdicts([mistyped], table[:0]).empty


def test_over_all_examples_a_claim_is_of_final_weights_and_the_published_protocol_alone():
    found = claims.verdicts([claims.use_all_examples(CLAIMS[0])], three_budgets())
    # Draws lie on a curve, examples, 0.5 of them for all numbers of heads, on none.
    assert found["variant"].tolist() == [next(iter(claims.VARIANTS.values()))]
    assert found["verdict"].tolist() == [UNDECIDED]
    known = three_budgets().assign(accuracy=lambda table: 0.02 * table["n_heads"])
    found = claims.verdicts([claims.use_all_examples(CLAIMS[0])], known)
    assert found["verdict"].tolist() == [HOLDS]


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
    same = claims.verdicts(CLAIMS[:1], pd.concat([table, others]), table)
    pd.testing.assert_frame_equal(same, claims.verdicts(CLAIMS[:1], table, table))


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


def test_a_test_that_writes_into_its_table_changes_no_other():
    def halve(table):
        table["accuracy"] /= 2
        return claims.Finding(HOLDS, "")

    table = _named(families(lambda steps: steps / 1000, steps=(100, 200)))
    halving = Claim(name="halves", statement="", source="", test=halve, across_steps=True)
    alone, beside = (claims.verdicts(x, table) for x in (CLAIMS[2:], [halving, *CLAIMS[2:]]))
    assert beside["evidence"].iloc[-1] == alone["evidence"].iloc[-1]


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
