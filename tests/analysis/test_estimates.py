"""Statistics of capacities: intervals by simulated coverage, grids of rates, trials, ranks."""

import collections
import itertools
from typing import Any

import numpy as np
import pandas as pd
import pytest

import memobench
from memobench.analysis import statistics
from memobench.analysis.statistics import holm
from memobench.board import capacity_summary, families
from memobench.methods import thresholds
from tests.coverage import failing_rate

REPETITIONS = 300
# Of 300 intervals that cover 95%, fewer than this share once in 4,000 sets.
LEAST = 0.91


def covered(intervals, truth):
    return np.mean([low <= truth <= high for _, low, high in intervals])


@pytest.mark.parametrize(("tables", "inits"), [(6, 1), (12, 2), (24, 1)])
@pytest.mark.parametrize("between", [0.01, 0.06])
def test_the_interval_of_tables_and_starts_covers(tables, inits, between):
    """Whichever of the two levels spreads more."""
    random = np.random.default_rng(tables)

    def one():
        of_tables = between * random.normal(size=(tables, 1))
        return statistics.estimate_mean(
            1000 * (1 + of_tables + 0.04 * random.normal(size=(tables, inits)))
        )

    assert covered([one() for _ in range(REPETITIONS)], 1000) >= LEAST


def test_equal_tables_have_no_interval():
    """All knew the whole set, or nothing: that says nothing of how they spread."""
    value, low, high = statistics.estimate_mean(np.full((4, 2), 36.0))
    assert value == 36
    assert np.isnan([low, high]).all()


@pytest.mark.parametrize("share", [0.05, 0.2])
def test_the_interval_covers_where_some_initial_weights_fail(share):
    """As those of the board do, which then takes several for each table."""
    assert failing_rate(12, 8, share, REPETITIONS) >= 0.88


@pytest.mark.parametrize(("tables", "inits"), [(6, 1), (12, 2), (24, 1)])
def test_the_interval_of_a_ratio_covers(tables, inits):
    """Of what two architectures know of the same label tables, at every number of steps."""
    random, mean_K = np.random.default_rng(tables), np.array([0.6, 0.9, 1.0])

    def one():
        of_tables = 0.05 * random.normal(size=(1, tables, 1))
        found = []
        for share in (0.7, 1.0):
            own = 0.04 * random.normal(size=(3, tables, inits))
            bits_KxTxS = 500 * share * mean_K[:, None, None] * (1 + of_tables + own)
            sizes = {"tables": tables, "inits": inits, "n_params": 250, "rung_steps": [16, 64, 256]}
            found.append({**sizes, "rung_bits": bits_KxTxS.reshape(3, -1).tolist()})
        return capacity_summary.ratio(*found)

    ratios = [one() for _ in range(REPETITIONS)]
    for k in range(3):
        assert covered([each[k][1] for each in ratios], 0.7) >= LEAST


@pytest.mark.parametrize(("tables", "inits"), [(6, 1), (12, 2), (24, 1)])
def test_the_interval_of_the_gain_covers(tables, inits):
    """Of trainings on the same tables, whose luck both rungs share."""
    random, mean_K = np.random.default_rng(tables), np.array([700.0, 900.0, 1000.0])

    def one():
        shared = 0.05 * random.normal(size=(1, tables, 1))
        own = 0.03 * random.normal(size=(3, tables, inits))
        return statistics.estimate_gain(mean_K[:, None, None] * (1 + shared + own))

    assert covered([one() for _ in range(REPETITIONS)], 1000 / 900) >= LEAST


def trials_of(threshold, width, random, n_trials=32, rounds=4, possible=None, known=(), top=1.0):
    """Trials chosen round by round, their outcomes drawn from a logistic curve up to `top`."""
    possible = possible or thresholds.threshold_range(
        threshold * random.uniform(0.7, 1.3), 512, 0.0
    )
    trials = []
    for _ in range(rounds):
        for n in thresholds.next_sizes([*known, *trials], possible, n_trials // rounds, 512):
            share = top / (1 + np.exp((np.log(n) - np.log(threshold)) / width))
            trials.append(thresholds.Trial(n, bool(random.random() < share)))
    return trials, possible


@pytest.mark.parametrize(
    ("threshold", "width"),
    [
        *((132, 0.25), (196, 0.05)),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in ((60, 0.15), (132, 0.02))),
    ],
)
def test_the_threshold_that_half_know_is_found_without_bias(threshold, width):
    """A largest set found by any trial is biased upward; half of them is not."""
    random = np.random.default_rng(threshold)
    found = [thresholds.fit_half_known(*trials_of(threshold, width, random)) for _ in range(120)]
    assert covered(found, threshold) >= 0.86
    error = np.log([estimate.value for estimate in found]) - np.log(threshold)
    assert abs(error.mean()) <= 0.03 + width / 6


# The middle of each learning rate's curve, the share of trainings that it comes up to, and how
# often the truth must be in the interval: less where some initial weights fail at any size.
RATES = {
    "one best": ({1.0: 60.0, 3.0: 110.0, 9.0: 80.0}, 1.0, 0.88),
    "all equal": ({0.3: 110.0, 1.0: 110.0, 3.0: 110.0, 9.0: 110.0}, 1.0, 0.88),
    "all near": ({1.0: 100.0, 3.0: 110.0, 9.0: 107.0}, 1.0, 0.88),
    "some weights fail": ({1.0: 70.0, 3.0: 110.0, 9.0: 60.0}, 0.8, 0.8),
}


@pytest.mark.parametrize(
    ("n_pilots", "n_trials"), [(12, 16), pytest.param(24, 32, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(("threshold_F", "top", "least"), RATES.values(), ids=RATES)
def test_the_threshold_at_the_rate_that_pilots_chose(threshold_F, top, least, n_pilots, n_trials):
    """Without bias, as the pilots themselves, of which the luckiest rate is the best, have it."""
    random, width, found = np.random.default_rng(5), 0.15, []
    for _ in range(60):
        possible = thresholds.threshold_range(110 * random.uniform(0.7, 1.3), 512, 0.0)
        pilots = {
            f: trials_of(threshold, width, random, n_pilots, 2, possible, top=top)[0]
            for f, threshold in threshold_F.items()
        }
        sizes = {x: thresholds.fit_half_known(of, possible).value for x, of in pilots.items()}
        best = thresholds.best_factor(sizes)
        trials, _ = trials_of(
            threshold_F[best], width, random, n_trials, 4, possible, pilots[best], top
        )
        # At which half of the trainings know all, of which some never do.
        truth = threshold_F[best] * np.exp(width * np.log(2 * top - 1))
        found.append(np.log(thresholds.fit_half_known(trials, possible)) - np.log(truth))
    assert covered([thresholds.Estimate(*each) for each in found], 0.0) >= least
    if top == 1:
        assert abs(np.mean([error for error, *_ in found])) <= 0.03


@pytest.mark.parametrize(("all_know", "is_open"), [(True, True), (False, False)])
def test_what_half_of_them_know_of_a_whole_set_has_no_high_end(all_know, is_open):
    row: Any = memobench.published("board/typical").to_dict("records")[0]
    n = int(row["n_examples"])
    trials = [[n // 2, 1], [n - 1, 1], [n, 1], [n, 0], [n, int(all_know)]]
    found: Any = capacity_summary.estimate_half_known(row | {"complete_trials": trials})
    assert found.value < n
    assert np.isinf(found.high) == is_open


def test_trials_close_in_on_the_threshold():
    trials, possible = trials_of(150, 0.03, np.random.default_rng(0))
    first, last = ([t.n_examples for t in part] for part in (trials[:8], trials[-8:]))
    assert np.std(np.log(last)) < np.std(np.log(first)) / 3
    assert all(possible[0] * 0.5 <= n <= possible[1] * 2 for n in first + last)


def test_grids_grow_until_the_best_has_neighbours():
    """Whatever the best factor is, a grid reaches it or ends where it may not grow further."""
    for best, most in itertools.product((-4, -1, 0, 1, 2, 5), (2, 3, 4, 9)):
        factors, bits = [1.0, 3.0], {}
        while True:
            bits |= {f: -abs(np.log(f) / np.log(3) - best) for f in factors if f not in bits}
            grown = thresholds.extend_grid(factors, bits, 3.0, most)
            if grown == factors:
                break
            assert len(grown) == len(factors) + 1
            factors = grown
        found = max(factors, key=bits.get)
        inside = found not in (factors[0], factors[-1])
        assert len(factors) == most or inside
        assert len(factors) <= max(most, 2)


def test_what_is_not_all_tried_grows_no_further():
    assert thresholds.extend_grid([1.0, 3.0], {1.0: 5.0}, 3.0, 9) == [1.0, 3.0]


def test_holm_keeps_the_chance_of_any_error():
    random = np.random.default_rng(2)
    wrong = [any(holm(random.random(15))) for _ in range(2000)]
    assert 0.035 <= np.mean(wrong) <= 0.065
    assert holm([0.001, 0.5, 0.004]) == [True, False, True]


def entries(known):
    found = pd.DataFrame({"entry": list(known), "bits_T": list(known.values())})
    return capacity_summary.rank_entries(found.assign(model=None))


def test_ranks_of_entries_that_cannot_be_told_apart_share_a_range():
    random = np.random.default_rng(3)
    noise = 0.02 * random.normal(size=(3, 24))
    ranked = entries({"low": 1 + noise[0], "high": 2 + noise[1], "as high": 2 + noise[2]})
    ranges = {row["entry"]: (row["rank_low"], row["rank_high"]) for _, row in ranked.iterrows()}
    assert ranges == {"high": (1, 2), "as high": (1, 2), "low": (3, 3)}


def test_a_true_rank_is_in_its_range():
    """For all entries of a board at once, in at least 95% of boards."""
    random = np.random.default_rng(4)
    mean_E = np.array([1.0, 1.01, 1.02, 1.2, 1.5])
    right = 0
    for _ in range(200):
        # Some of a table's luck is shared by all entries.
        shared_T = 0.03 * random.normal(size=16)
        ranked = entries(
            {e: m + shared_T + 0.05 * random.normal(size=16) for e, m in enumerate(mean_E)}
        )
        place = {e: 5 - e for e in range(5)}
        right += all(
            row["rank_low"] <= place[row["entry"]] <= row["rank_high"]
            for _, row in ranked.iterrows()
        )
    assert right / 200 >= 0.92


@pytest.mark.parametrize("tables", [(8,) * 8, (8, 8, 8, 8, 24, 24, 24, 24)])
def test_rare_failures_that_few_tables_lack_tell_no_equal_entries_apart(tables):
    """Of every second entry one training in ten knows a quarter less; Student's alone errs."""
    random, wrong = np.random.default_rng(5), collections.Counter()
    for _ in range(150):
        known = {
            e: 1 + 0.02 * random.normal(size=n) - 0.25 * (e % 2) * ((random.random(n) < 0.1) - 0.1)
            for e, n in enumerate(tables)
        }
        pairs = list(itertools.combinations(known.values(), 2))
        wrong["ranks"] += entries(known)["rank_low"].max() > 1
        alone = [
            capacity_summary.p_value_of_equal(*pair, 0.0, paired=len(pair[0]) == len(pair[1]))
            for pair in pairs
        ]
        wrong["Student's"] += any(holm(alone))
    assert wrong["ranks"] / 150 <= 0.06
    assert wrong["Student's"] / 150 >= 0.12


def test_what_others_entries_lose_tells_nothing_of_ours():
    random = np.random.default_rng(6)
    found = pd.DataFrame(
        {
            "entry": ["high", "low", "broken"],
            "by": ["memobench", "memobench", "you"],
            "model": [memobench.MLP(d_model=2, d_head=2, d_mlp=2)] * 3,
            "bits_T": [x + 0.02 * random.normal(size=8) for x in (2.0, 1.8, 1.5)],
        }
    )
    found.loc[2, "bits_T"][0] = 0.0
    ranked = capacity_summary.rank_entries(found)
    assert ranked["rank_high"].tolist()[0] == 1
    failing = capacity_summary.rank_entries(found.assign(by="memobench"))
    assert failing["rank_high"].tolist()[0] > 1
    # Nor do models of another depth.
    found["model"] = [*found["model"][:2], found["model"][2].replace(n_layers=2)]
    deeper = capacity_summary.rank_entries(found.assign(by="memobench"))
    assert [x.set_index("entry")["rank_low"]["low"] for x in (failing, deeper)] == [1, 2]


def grown(random, mean_of, tables=24):
    """Runs of one family at six budgets, whose label tables know so many bits and vary by 3%.

    mean_of: of parameters, and whether the set is all pairs of its tokens, which alternates.
    """
    return pd.DataFrame(
        {"method": "capacity", "status": "ok", "protocol": "exact", "architecture": "mine"}
        | {"n_layers": 1, "n_params": n, "tables": tables, "inits": 1}
        | {"vocab_size": families.VOCAB_SIZES[n], "n_examples": n}
        | {
            "rung_bits": [
                list(
                    mean_of(n, n == families.VOCAB_SIZES[n] ** 2)
                    * (1 + 0.03 * random.normal(size=tables))
                )
            ]
        }
        for n in (256, 512, 1024, 2048, 4096, 8192)
    )


def rejected(law):
    return law["p_value"] < capacity_summary.REJECTED


def test_the_intervals_of_a_power_law_cover_its_numbers_and_it_is_seldom_rejected():
    random = np.random.default_rng(5)
    laws = [
        capacity_summary.power_laws(
            grown(random, lambda n, full: 2 * n**1.1 * (0.9 if full else 1))
        ).iloc[0]
        for _ in range(REPETITIONS)
    ]
    for name, true in (("exponent", 1.1), ("all_pairs", 0.9)):
        columns = [name, f"{name}_low", f"{name}_high"]
        assert covered([tuple(law[columns]) for law in laws if not rejected(law)], true) >= LEAST
    assert np.mean([rejected(law) for law in laws]) <= 0.1


def test_what_is_no_power_law_is_seen_and_three_budgets_have_none():
    random = np.random.default_rng(6)
    bent = grown(random, lambda n, full: 2.0 * n * (1.3 if n == 512 else 1.0))
    law = capacity_summary.power_laws(bent).iloc[0]
    assert law["p_value"] < 1e-6
    # It is off by more than its numbers spread.
    assert np.isnan(law["exponent_low"])
    assert capacity_summary.power_laws(bent[:3]).empty
    assert capacity_summary.power_laws(bent.assign(protocol="published")).empty


def test_a_power_law_of_sets_of_one_share_of_all_pairs_has_no_factor():
    law = capacity_summary.power_laws(grown(np.random.default_rng(7), lambda n, full: n)[::2]).iloc[
        0
    ]
    assert "all_pairs" not in law
    np.testing.assert_allclose(np.array(law["bits"]), law["n_params"], rtol=0.03)
