"""Which trials a search makes and what it finds, against oracles that train nothing."""

import dataclasses
import json
import math
from typing import NamedTuple

import numpy as np
import pytest

from memobench.methods import bisection
from memobench.methods.bisection import Proposal, Trial
from memobench.methods.search import Search
from memobench.methods.training import Training

STEPS = 4
TRAINING = Training(n_batches=STEPS, epochs=1).exact()


def _search(**fields):
    return Search(training=TRAINING, **fields)


def _trial(proposal, known, loss=1.0):
    return Trial(*proposal, known, known, loss)


class Monotone:
    """Sets up to c_100 are known whole, up to c_99 all but one in a hundred, others to a share.

    Capacities grow with the steps, by `growth` per doubling, and are had at the rate `works` alone.
    """

    def __init__(self, c_99, c_100, growth=1.0, works=None, known=0.5):
        self.c_99, self.c_100, self.growth, self.works = c_99, c_100, growth, works
        self.known = known

    def capacities(self, steps):
        grown = self.growth ** math.log2(steps / STEPS)
        return int(self.c_99 * grown), int(self.c_100 * grown)

    def __call__(self, proposal):
        n, (c_99, c_100) = proposal.n_examples, self.capacities(proposal.steps)
        if self.works not in (None, proposal.factor):
            return _trial(proposal, 0, math.inf)
        if n <= c_100:
            return _trial(proposal, n)
        if n <= c_99:
            # Known to 99%, but for sets too small for that.
            return _trial(proposal, n - n // 100 if n >= 100 else n)
        return _trial(proposal, int(min(n * 0.98 - 1e-6, self.known * c_99)))


def _rounds(search, n_examples, oracle, history=()):
    """All trials of a search and its rounds of proposals; sane at every step."""
    trials, rounds = list(history), []
    while proposals := bisection.next_trials(search, n_examples, trials):
        assert proposals == bisection.next_trials(search, n_examples, tuple(trials))
        _check_round(search, n_examples, trials, proposals)
        rounds.append(proposals)
        trials += [oracle(proposal) for proposal in proposals]
        assert len(rounds) <= _most_rounds(search, n_examples), "does not end"
    return trials, rounds


def _check_round(search, n_examples, trials, proposals):
    assert len(proposals) == len(set(proposals)) <= search.lanes
    assert len({proposal.steps for proposal in proposals}) == 1
    asked = {(proposal.n_examples, proposal.factor) for proposal in proposals}
    sizes = {n for n, _ in asked}
    assert sizes <= set(range(1, n_examples + 1))
    assert asked == {(n, factor) for n in sizes for factor in search.rate_factors}
    # Every size is new at this budget; what repeats fills lanes of this round only.
    done = {trial[:3] for trial in trials}
    assert not done & set(proposals)


def _most_rounds(search, n_examples):
    """Of a budget: rounds that halve the brackets of both targets until one is a single example."""
    return (search.doublings + 1) * (2 * math.ceil(math.log2(n_examples + 1)) + 4)


def _within(search, low):
    return max(1, int(search.resolution * low))


SEEDS = range(40)


def _random_search(random):
    factors = tuple(float(x) for x in random.choice([0.1, 0.3, 1, 3, 10], random.integers(1, 4)))
    return _search(
        sizes=int(random.integers(1, 6)),
        resolution=float(random.choice([1e-6, 0.02, 0.1, 0.5])),
        doublings=int(random.integers(0, 4)),
        rate_factors=tuple(dict.fromkeys(factors)),
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_a_monotone_capacity_is_found(seed):
    random = np.random.default_rng(seed)
    search = _random_search(random)
    n_examples = int(random.integers(1, 3000))
    c_99 = int(random.integers(0, max(1, int(0.98 * n_examples))))
    # Below a hundred, 99% are all.
    c_100 = int(random.integers(min(c_99, 99), c_99 + 1)) if random.integers(2) else c_99
    oracle = Monotone(
        c_99,
        c_100,
        growth=float(random.choice([1, 1.005, 1.05, 1.4])),
        works=random.choice(search.rate_factors),
    )
    trials, rounds = _rounds(search, n_examples, oracle)
    found = bisection.columns(n_examples, trials, 2)
    json.dumps(found, allow_nan=False)
    budgets = [proposals[0].steps for proposals in rounds]
    assert budgets == sorted(budgets)
    assert set(budgets) == {STEPS * 2**i for i in range(len(set(budgets)))}
    assert found["final_steps"] == budgets[-1] <= STEPS * 2**search.doublings
    reached = oracle.capacities(found["final_steps"])
    if found["lower_bound"]:
        assert reached[0] >= n_examples
        return
    for target, c in zip((99, 100), reached, strict=True):
        low, high = found[f"complete_{target}"], found[f"incomplete_{target}"]
        assert low <= c < high
        assert high - low <= _within(search, low)
    assert found["rate_factor"] == (oracle.works if found["complete_99"] else None)
    if search.doublings == 0:
        assert found["gain"] is None
    out_of_budget = found["final_steps"] == STEPS * 2**search.doublings
    assert found["converged"] or out_of_budget


@pytest.mark.parametrize("seed", SEEDS)
def test_noise_ends_too(seed):
    random = np.random.default_rng(seed)
    search = _random_search(random)
    n_examples = int(random.integers(1, 1000))

    def oracle(proposal):
        n = proposal.n_examples
        known = n if random.random() < 0.5 else int(random.integers(0, n + 1))
        loss = float(random.choice([1.0, math.nan, math.inf]))
        # The whole is memorized only now and then, which ends a search.
        return _trial(proposal, min(known, int(0.9 * n)) if n == n_examples else known, loss)

    trials, _ = _rounds(search, n_examples, oracle)
    found = bisection.columns(n_examples, trials, 2)
    json.dumps(found, allow_nan=False)
    for target in (99, 100):
        low, high = found[f"complete_{target}"], found[f"incomplete_{target}"]
        assert 0 <= low < high <= n_examples
        assert high - low <= _within(search, low)
        share = target / 100
        passed = [t for t in trials if t.n_examples == low and t.known >= share * low - 1e-9]
        assert low == 0 or passed


@pytest.mark.parametrize("sizes", range(1, 9))
def test_every_lane_narrows_the_bracket_of_both_targets(sizes):
    search = _search(sizes=sizes, resolution=1e-9, doublings=0)
    _, rounds = _rounds(search, 4000, Monotone(1234, 1234))
    # Lanes repeat others only where the bracket has no more sizes inside.
    for proposals in rounds[1:-1]:
        assert len({proposal.n_examples for proposal in proposals}) == sizes
    # The first round leaves a share of 1/sizes, each later one of 1/(sizes + 1).
    assert len(rounds) <= 2 + math.ceil(math.log(4000 / sizes) / math.log(sizes + 1))


def test_what_memorizes_everything_is_a_lower_bound_at_once():
    search = _search(sizes=3, rate_factors=(0.3, 1.0))
    trials, rounds = _rounds(search, 50, lambda p: _trial(p, p.n_examples))
    assert len(rounds) == 1
    assert bisection.columns(50, trials, 2) == {
        **{"complete_99": 50, "complete_100": 50, "incomplete_99": 51, "incomplete_100": 51},
        **{"best_accuracy": 1.0, "rate_factor": 0.3, "final_steps": STEPS, "gain": None},
        **{"previous_99": None, "previous_known": None, "previous_bits": None},
        **{"converged": False, "lower_bound": True, "trials": [list(x) for x in trials]},
    }


def test_99_of_100_used_up_are_a_lower_bound_and_98_are_not():
    search = _search(sizes=1, doublings=0)
    (proposal,) = bisection.next_trials(search, 100, [])
    for known, ends in ((99, True), (98, False)):
        trials = [_trial(proposal, known)]
        assert (bisection.next_trials(search, 100, trials) == []) == ends
        assert bisection.columns(100, trials, 2)["lower_bound"] == ends
    # To 99% only: of the complete set nothing is known above.
    found = bisection.columns(100, [_trial(proposal, 99)], 2)
    assert (found["complete_99"], found["complete_100"]) == (100, 0)
    assert (found["incomplete_99"], found["incomplete_100"]) == (101, 100)


@pytest.mark.parametrize("doublings", [0, 1, 3])
def test_what_knows_nothing_has_no_capacity(doublings):
    search = _search(sizes=2, doublings=doublings)
    trials, _ = _rounds(search, 64, lambda p: _trial(p, 0, math.nan))
    found = bisection.columns(64, trials, 2)
    for target in (99, 100):
        assert (found[f"complete_{target}"], found[f"incomplete_{target}"]) == (0, 1)
    assert found["best_accuracy"] == 0
    assert found["rate_factor"] is None
    assert not found["lower_bound"]
    # Twice nothing is nothing: one doubling says so.
    assert found["final_steps"] == STEPS * min(2, 2**doublings)
    assert found["gain"] == (0 if doublings else None)
    assert found["converged"] == (doublings > 0)
    accuracy, loss = bisection.best_of_whole(trials, 64)
    assert accuracy == 0
    assert math.isnan(loss)


@pytest.mark.parametrize(
    ("growth", "doublings", "budgets", "converged"),
    [(1.0, 3, 2, True), (1.005, 3, 2, True), (1.2, 3, 4, False), (1.2, 1, 2, False)],
)
def test_steps_are_doubled_while_that_gains(growth, doublings, budgets, converged):
    search = _search(sizes=3, doublings=doublings, resolution=1e-6)
    oracle = Monotone(1000, 1000, growth)
    trials, _ = _rounds(search, 5000, oracle)
    found = bisection.columns(5000, trials, 2)
    assert {trial.steps for trial in trials} == {STEPS * 2**i for i in range(budgets)}
    assert found["converged"] == converged
    last, before = (oracle.capacities(STEPS * 2**i)[0] for i in (budgets - 1, budgets - 2))
    assert found["complete_99"] == last
    # Of the overfull set half as much is known, rounded down.
    ratios = last / before, int(last / 2) / int(before / 2)
    assert found["gain"] == pytest.approx(max(ratios) - 1)


def test_a_gain_in_what_is_known_of_the_whole_goes_on():
    """The largest complete set stays, but of the overfull set ever more is known."""
    search = _search(sizes=2, doublings=2)

    def oracle(proposal):
        n, times = proposal.n_examples, proposal.steps // STEPS
        return _trial(proposal, n if n <= 20 else min(n // 2, 20 + 4 * times))

    found = bisection.columns(400, _rounds(search, 400, oracle)[0], 2)
    assert found["complete_99"] == 20
    assert found["final_steps"] == 4 * STEPS
    assert found["gain"] == pytest.approx((20 + 16) / (20 + 8) - 1)
    assert not found["converged"]


def test_the_gain_of_the_last_doubling_by_hand():
    trials = [
        Trial(4, 100, 1.0, 50, 50, 2.0),
        Trial(4, 40, 1.0, 40, 40, 0.1),
        Trial(4, 41, 1.0, 30, 30, 0.5),
        # Twice the steps: a tenth more complete, 4% more known.
        Trial(8, 100, 1.0, 52, 52, 1.9),
        Trial(8, 44, 1.0, 44, 44, 0.1),
        Trial(8, 45, 1.0, 30, 30, 0.5),
        # Four times: nothing more, and fewer known of all than before.
        Trial(16, 100, 1.0, 51, 51, 1.8),
        Trial(16, 45, 1.0, 44, 44, 0.1),
    ]
    search = _search(sizes=1, doublings=2)
    told = [bisection.columns(100, trials[:n], 2) for n in (3, 6, 8)]
    assert [found["gain"] for found in told] == [None, pytest.approx(0.1), pytest.approx(0.0)]
    assert [found["converged"] for found in told] == [False, False, True]
    # Before the last doubling there were all budgets before it.
    assert [found["previous_99"] for found in told] == [None, 40, 44]
    assert [found["previous_known"] for found in told] == [None, 50, 52]
    assert bisection.next_trials(search, 100, trials[:3])[0].steps == 8
    assert bisection.next_trials(search, 100, trials[:6])[0].steps == 16
    assert bisection.next_trials(search, 100, trials) == []


def test_a_gain_from_nothing_is_no_number_and_no_convergence():
    trials = [Trial(4, 10, 1.0, 0, 0, 2.0), Trial(8, 10, 1.0, 3, 3, 1.0)]
    found = bisection.columns(10, trials, 2)
    assert found["gain"] is None
    assert not found["converged"]


@pytest.mark.parametrize("works", [0.1, 1.0, 10.0])
def test_the_only_rate_that_works_is_reported(works):
    search = _search(sizes=2, rate_factors=(0.1, 1.0, 10.0), doublings=1)
    trials, _ = _rounds(search, 300, Monotone(77, 60, works=works))
    found = bisection.columns(300, trials, 2)
    assert found["rate_factor"] == works
    assert found["complete_99"] <= 77 < found["incomplete_99"]
    # A diverged learning rate leaves no mark on the whole.
    accuracy, loss = bisection.best_of_whole(trials, 300)
    assert accuracy == int(77 / 2) / 300
    assert loss == 1.0
    told = [row for row in found["trials"] if row[2] != works]
    assert told
    assert all(row[-1] is None for row in told)


@pytest.mark.parametrize("seed", range(5))
def test_a_search_goes_on_where_it_was(seed):
    random = np.random.default_rng(seed)
    search = _search(sizes=3, rate_factors=(0.5, 1.0), doublings=2)
    oracle = Monotone(int(random.integers(1, 400)), 1, growth=1.1)
    whole, rounds = _rounds(search, 500, oracle)
    ends = np.cumsum([len(set(proposals)) for proposals in rounds])
    for i, end in enumerate(ends):
        again, later = _rounds(search, 500, oracle, whole[:end])
        assert again == whole
        assert later == rounds[i + 1 :]


class Found(NamedTuple):
    complete_99: int
    complete_100: int
    incomplete_99: int
    incomplete_100: int
    best_accuracy: float
    rate_factor: float
    final_steps: int
    previous_99: int
    previous_known: int
    previous_bits: float
    gain: float
    converged: bool
    lower_bound: bool


def test_columns_by_hand():
    trials = [
        Trial(4, 200, 1.0, 100, 90, 3.0),
        Trial(4, 200, 3.0, 110, 80, math.nan),
        Trial(4, 100, 1.0, 99, 99, 0.2),
        Trial(4, 100, 3.0, 100, 100, 0.1),
        Trial(4, 150, 1.0, 140, 120, 1.0),
        Trial(4, 150, 3.0, 0, 0, math.inf),
        # What fewer steps knew stays known; what they did not is forgotten.
        Trial(8, 200, 1.0, 120, 120, 2.5),
        Trial(8, 200, 3.0, 121, 60, 2.75),
        Trial(8, 150, 1.0, 149, 100, 0.5),
        Trial(8, 150, 3.0, 100, 100, 0.7),
        Trial(8, 152, 1.0, 100, 100, 0.7),
        Trial(8, 152, 3.0, 148, 100, 0.7),
    ]
    found = bisection.columns(200, trials, 64)
    assert found.keys() == Search.columns_of_rows().keys()
    told = found.pop("trials")
    assert Found(**found) == Found(
        complete_99=150,
        complete_100=100,
        incomplete_99=152,
        incomplete_100=150,
        best_accuracy=121 / 200,
        rate_factor=1.0,
        final_steps=8,
        previous_99=100,
        previous_known=110,
        # Of the least loss with fewer steps, 3 nats of ln 64.
        previous_bits=pytest.approx(200 * (6 - 3 / math.log(2))),
        gain=pytest.approx(150 / 100 - 1),
        converged=False,
        lower_bound=False,
    )
    assert told[0] == [4, 200, 1.0, 100, 90, 3.0]
    assert [row[-1] for row in told[1:6]] == [None, 0.2, 0.1, 1.0, None]
    # Each by its own best rate: known by the second, the loss by the first.
    assert bisection.best_of_whole(trials, 200) == (121 / 200, 2.5)
    # With the first steps: what diverged has no loss, and 100 examples were known by both rates.
    assert bisection.best_of_whole(trials[:6], 200) == (110 / 200, 3.0)
    before = bisection.columns(200, trials[:6], 8)
    assert (before["complete_99"], before["incomplete_99"]) == (100, 150)
    assert before["rate_factor"] == 1.0
    # The set of 100 is known and that of 150 is not, by either target: what is between is split.
    search = _search(sizes=2, rate_factors=(1.0, 3.0))
    assert bisection.next_trials(search, 200, trials[:6]) == [
        Proposal(4, n, factor) for n in (116, 133) for factor in (1.0, 3.0)
    ]


def test_more_steps_first_try_the_whole_and_a_little_more():
    search = _search(sizes=4, resolution=0.02, doublings=1)
    trials = [Trial(4, 1000, 1.0, 300, 300, 2.0), Trial(4, 100, 1.0, 100, 100, 0.0)]
    trials.append(Trial(4, 102, 1.0, 50, 50, 0.0))
    sizes = [proposal.n_examples for proposal in bisection.next_trials(search, 1000, trials)]
    # One hundredth is two examples; each step ahead four times as far.
    assert sizes == [1000, 102, 108, 132]
    sizes = [
        proposal.n_examples
        for proposal in bisection.next_trials(search, 1000, [*trials, Trial(8, 1000, 1.0, 1, 1, 2)])
    ]
    assert sizes[:2] == [102, 108]


@pytest.mark.parametrize("n_examples", [1, 2, 3])
@pytest.mark.parametrize("sizes", [1, 2, 5])
@pytest.mark.parametrize("true", [0, 1, 2])
def test_the_smallest_sets(n_examples, sizes, true):
    search = _search(sizes=sizes, doublings=1)
    trials, _ = _rounds(search, n_examples, Monotone(true, true, known=0))
    found = bisection.columns(n_examples, trials, 2)
    assert found["complete_99"] == min(true, n_examples)
    assert found["incomplete_99"] == found["complete_99"] + 1
    assert found["lower_bound"] == (true >= n_examples)


def test_lanes_are_sizes_times_rates():
    search = _search(sizes=3, rate_factors=(0.3, 1.0, 3.0))
    assert search.lanes == 9
    assert dataclasses.replace(search, sizes=1).lanes == 3
