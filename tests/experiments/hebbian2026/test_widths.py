"""The least width that knows all, and claims on ratios and exponents of weights."""

import dataclasses
import itertools
import math

import numpy as np
import pandas as pd
import pytest

from memobench import claims
from memobench.claims import Claim
from memobench.experiments.hebbian2026 import claims as widths
from memobench.experiments.hebbian2026 import widths as experiment
from memobench.experiments.hebbian2026.figure import Widths

SIZES = [(32, n) for n in (32, 64, 128, 256)] + [(64, 128), (64, 512)]


@dataclasses.dataclass(frozen=True)
class _Id:
    run_id: str


def _rows(group, width, tried, seeds=3, spread=0.0, sizes=SIZES):
    """Runs that know all from a width on, which differs between seeds."""
    rows = []
    for (d, n), seed in itertools.product(sizes, range(seeds)):
        threshold = width(d, n) * math.exp(spread * (seed - (seeds - 1) / 2))
        for m in tried(d, n):
            known = 1.0 if m >= threshold else 1 - 1 / n
            rows.append(
                {
                    "run_id": group,
                    "seed": seed,
                    "d_model": d,
                    "d_mlp": m,
                    "n_examples": n,
                    "n_params_memory": 3 * d * m,
                    "accuracy": known,
                }
            )
    return pd.DataFrame(rows)


def _all(d, n):
    return range(1, 400)


def _grid(d, n):
    return sorted({round(2 ** (k / 4)) for k in range(44)})


GROUPS = {name: (_Id(name),) for name in ("a", "b")}


@pytest.mark.parametrize("m", [2, 3, 17, 250])
def test_of_all_widths_the_least_is_found(m):
    found = widths.least_widths(_rows("a", lambda d, n: m, _all, sizes=[(32, 64)]))[32, 64]
    np.testing.assert_allclose(np.exp(found.log_S), m)
    assert (found.weights, found.is_complete) == (96, True)
    y_BX, seeds = widths.log_weights([found])
    assert seeds == 3
    assert np.exp(y_BX[0, 0]) == pytest.approx(96 * m)
    # Seeds agree, but widths are whole numbers.
    assert 0 < y_BX[1:].std() < 1 / m


def test_of_a_grid_it_is_the_mean_of_those_between():
    rows = _rows("a", lambda d, n: 20, lambda d, n: (4, 16, 25, 40), sizes=[(32, 64)])
    found = widths.least_widths(rows)[32, 64]
    np.testing.assert_allclose(np.exp(found.log_S), math.sqrt(17 * 25))


def test_changes_count_with_their_sign_and_what_is_beyond_the_grid_is_none():
    rows = _rows("a", lambda d, n: 3, lambda d, n: (2, 3, 4, 5, 6), sizes=[(32, 64)])
    rows.loc[rows["d_mlp"] == 4, "accuracy"] = 0.9
    found = widths.least_widths(rows)[32, 64]
    np.testing.assert_allclose(np.exp(found.log_S), 3 * 5 / 4)
    for missing in (rows["d_mlp"] == 2, rows["d_mlp"] > 2):
        cut = rows[~missing]
        assert not widths.least_widths(cut)[32, 64].is_complete


@pytest.mark.parametrize(("factor", "verdict"), [(4, claims.HOLDS), (20, claims.FAILS)])
def test_a_ratio_is_found_at_every_size(factor, verdict):
    of = {"a": lambda d, n: n * factor / 8, "b": lambda d, n: n / 8}
    table = pd.concat([_rows(name, width, _grid, spread=0.1) for name, width in of.items()])
    found = widths.ratio(GROUPS, "a", "b", (3, 5))(table)
    assert found.verdict == verdict
    assert found.estimate == pytest.approx(factor, rel=0.15)
    assert found.low < found.estimate < found.high
    assert found.evidence.count("(d = ") == len(SIZES)
    alone = table[(table["run_id"] == "a") | (table["n_examples"] > 9999)]
    assert widths.ratio(GROUPS, "a", "b", (3, 5))(alone).verdict == claims.UNDECIDED


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_the_exponent_in_f_log_f_is_found(power):
    def width(d, n):
        return 6 / d * (n * math.log(n)) ** power * (200 if power < 1 else 1)

    table = _rows("a", width, lambda d, n: [round(1.05**k) for k in range(20, 260)], spread=0.05)
    table = table.drop_duplicates(["seed", "d_model", "n_examples", "d_mlp"])
    found = widths.exponent(GROUPS, "a", (0.9, 1.1))(table)
    assert found.estimate == pytest.approx(power, abs=0.06)
    assert found.verdict == (claims.HOLDS if power == 1 else claims.FAILS)
    two = table[(table["d_model"] == 32) & (table["n_examples"] < 128)]
    assert widths.exponent(GROUPS, "a", (0.9, 1.1))(two).verdict == claims.UNDECIDED


def test_the_figure_and_its_table_have_every_size():
    known = _rows("a", lambda d, n: n / 8, _grid)
    beyond = _rows("b", lambda d, n: math.inf, _grid)
    table = pd.concat([known, beyond])
    drawing = Widths(groups=GROUPS)
    figure = drawing.draw(experiment.EXPERIMENT, "quick", table)
    assert [axis.get_title() for axis in figure.axes] == ["d = 32", "d = 64"]
    text = drawing.sections(table)[-1]
    assert len(text.splitlines()) == 2 + 2 * len(SIZES)
    assert text.count("| not all with ") == len(SIZES)


def test_of_an_interrupted_sweep_every_width_counts_its_own_runs():
    rows = _rows("a", lambda d, n: 1, lambda d, n: (2, 3, 4), sizes=[(32, 64)])
    found = widths.least_widths(rows.drop(rows.index[1]))[32, 64]
    assert found.known_share == 1
    assert found.runs == found.successes
    assert sum(found.runs) == len(rows) - 1


def test_every_way_tries_widths_on_both_sides_of_its_estimate():
    for way in experiment.WAYS:
        tried = way.widths(64, 256)
        assert tried == sorted(set(tried))
        assert tried[0] < way.estimate(64, 256) < tried[-1]
    # Where no width is estimated to do, none is tried.
    assert experiment.PRODUCTS.widths(64, 2048) == experiment.KERNEL.widths(64, 2048) == []


def test_widths_of_the_experiment_are_those_of_the_guides():
    for way in (experiment.FITTED, experiment.RANDOM, experiment.PRODUCTS, experiment.KERNEL):
        for d, n in ((32, 64), (64, 128), (64, 512)):
            m = round(way.estimate(d, n))
            sizes = {"d_model": d, "d_mlp": m, "vocab_size": n}
            assert way.method.bound.value(sizes) == pytest.approx(n, rel=0.05)


def test_a_claim_across_variants_sees_all_of_them():
    seen = []

    def test(table):
        seen.append(len(table))
        return claims.Finding(claims.HOLDS, "")

    method = {"status": "ok", "task": "bijection", "architecture": "mlp_memory"}
    rows = [
        {**method, "run_id": "a", "method": "constructed", "solve": "exact", "steps": 1, "seed": 0},
        {**method, "run_id": "b", "method": "trained", "trained": "memory", "steps": 9, "seed": 0},
    ]
    table = pd.DataFrame(rows)
    claim = Claim(name="x", statement="", source="", test=test, across_steps=True)
    assert len(list(claims.findings([claim], table))) == len(set(claims.variant(table))) == 2
    together = dataclasses.replace(claim, across_variants=True)
    ((_, label, steps, _),) = claims.findings([together], table)
    assert (label, steps, seen) == ("together", 1, [1, 1, 2])
    wanted = pd.concat([table, table[1:].assign(run_id="c", seed=1)])
    ((_, _, _, finding),) = claims.findings([together], table, wanted)
    assert finding.verdict == claims.UNDECIDED
