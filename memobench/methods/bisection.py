"""Bisection: the trials by which a search finds a capacity. Pure functions; no files.

How much an architecture memorizes at one size, from one initialisation and by one way of training:

(a) `complete_99`, `complete_100`: the largest set of which at least 99% and all is memorized;
(b) `memorized`: the most associations, beyond guessing, of a set too large to be memorized;
(c) `bits`: T log2 N minus the negative log-likelihood in bits, at least 0, of that set.

A trial trains one model on the first so many examples of a task. It has memorized what it knows at
the best of its checks, for then there are weights that do; so (a) and (b) are the best of all
trials, and (c), of the weights in the end, that of least loss. A set too large is the task's whole;
one that is memorized to 99% does not count as too large, and all three are lower bounds. Below 100
examples 99% of a set are all of it.

A search stops at its first doubling that gains little, and the best of many tries is above their
mean: both make what is found depend a little on how often was tried.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from memobench.methods.thresholds import is_complete
from memobench.numerics.metrics import NEARLY, memorized_bits

# A capacity that gains less than this share from twice the steps counts as converged.
GAIN = 0.02
# At these accuracies a set counts as memorized completely.
TARGETS = (NEARLY, 1.0)


class Trial(NamedTuple):
    """One model trained on the first `n_examples` for `steps`, its learning rate times `factor`.

    Attributes:
      known: examples known at the best check.
      last_known: examples known by the final weights.
      loss: of these, mean in nats, not finite where training diverged.
    """

    steps: int
    n_examples: int
    factor: float
    known: int
    last_known: int
    loss: float


class Rules(Protocol):
    """The fields of a `Search` that decide its trials."""

    steps: int
    sizes: int
    doublings: int
    resolution: float
    rate_factors: tuple[float, ...]


class Proposal(NamedTuple):
    """A trial to make."""

    steps: int
    n_examples: int
    factor: float


def passes(trial: Trial, target: float) -> bool:
    """True where so large a share of the set was memorized."""
    return is_complete(trial.known, trial.n_examples, target)


def next_trials(search: Rules, n_examples: int, trials: Sequence[Trial]) -> list[Proposal]:
    """The next trials of a search on a task of so many examples, `lanes` at most; none when done.

    >>> from memobench.methods.search import Search
    >>> from memobench.methods.training import Training
    >>> search = Search(training=Training(n_batches=1, epochs=1).exact(), sizes=3)
    >>> [trial.n_examples for trial in next_trials(search, 90, [])]
    [90, 30, 60]
    """
    if not trials:
        return _proposals(
            search, search.steps, [n_examples, *_even_sizes(0, n_examples, search.sizes - 1)]
        )
    steps = trials[-1].steps
    if _is_saturated(trials):
        return []
    sizes = _sizes(search, n_examples, trials)
    if sizes:
        return _proposals(search, steps, sizes)
    if _is_converged(trials) or steps >= search.steps * 2**search.doublings:
        return []
    low, high = _bracket(n_examples, trials, NEARLY)[0], n_examples
    return _proposals(search, 2 * steps, [n_examples, *_gallop(search, low, high)])


def columns(n_examples: int, trials: Sequence[Trial], n_choices: int) -> dict[str, Any]:
    """The columns of the row of a finished search.

    Returns:
      incomplete_99, incomplete_100: least sets above that the final steps did not memorize.
      best_accuracy: on all examples.
      rate_factor: with which the set of `complete_99` was memorized.
      previous_99, previous_known, previous_bits: `complete_99`, and how many of all examples and of
        their bits were known, before the last doubling; None where there was none.
      gain: by the last doubling, of `complete_99` or of what is known of all, the larger.
      trials: all of them, as lists.
    """
    gain = _gain(trials)
    brackets = [_bracket(n_examples, trials, target) for target in TARGETS]
    best, before = _best_of_whole(trials, n_examples), _found_before(trials)
    complete = [x for x in trials if x.n_examples == brackets[0][0] and passes(x, NEARLY)]
    return {
        "complete_99": brackets[0][0],
        "complete_100": brackets[1][0],
        "incomplete_99": brackets[0][1],
        "incomplete_100": brackets[1][1],
        "best_accuracy": best.known / n_examples,
        "rate_factor": complete[0].factor if complete else None,
        "final_steps": trials[-1].steps,
        "previous_99": before[0] if before else None,
        "previous_known": before[1] if before else None,
        "previous_bits": _bits(n_examples, n_choices, _earlier_trials(trials)) if before else None,
        "gain": gain if gain is None or math.isfinite(gain) else None,
        "converged": _is_converged(trials),
        "lower_bound": _is_saturated(trials),
        "trials": [
            [*trial[:-1], trial.loss if math.isfinite(trial.loss) else None] for trial in trials
        ],
    }


def best_of_whole(trials: Sequence[Trial], n_examples: int) -> tuple[float, float]:
    """The best accuracy and the least loss on all examples, of any learning rate and steps."""
    losses = [x.loss for x in trials if x.n_examples == n_examples and math.isfinite(x.loss)]
    return _best_of_whole(trials, n_examples).known / n_examples, min(losses, default=math.nan)


def _is_saturated(trials: Sequence[Trial]) -> bool:
    """True where the task's whole, on which every search begins, was memorized."""
    n_examples = max(trial.n_examples for trial in trials)
    return any(passes(x, NEARLY) for x in trials if x.n_examples == n_examples)


def _best_of_whole(trials: Sequence[Trial], n_examples: int) -> Trial:
    """The best trial on all examples."""
    whole = [x for x in trials if x.n_examples == n_examples]
    return max(whole, key=lambda x: (x.known, -x.loss if math.isfinite(x.loss) else -math.inf))


def _bracket(n_examples: int, trials: Sequence[Trial], target: float) -> tuple[int, int]:
    """The largest set that any trial memorized, and the least above that one of the last could not.

    What fewer steps memorize more steps do as well; what they do not says nothing.
    """
    low = max((x.n_examples for x in trials if passes(x, target)), default=0)
    steps = trials[-1].steps
    failed = (x.n_examples for x in trials if x.steps == steps and not passes(x, target))
    return low, min((n for n in failed if n > low), default=n_examples + 1)


def _sizes(search: Rules, n_examples: int, trials: Sequence[Trial]) -> list[int]:
    """Sizes inside the brackets that are still too wide."""
    # Most often both are the same one, of which all sizes then are.
    brackets = dict.fromkeys(_bracket(n_examples, trials, target) for target in TARGETS)
    wide = [(low, high) for low, high in brackets if high - low > _unit(search, low)]
    sizes: list[int] = []
    for i, (low, high) in enumerate(wide):
        n_more = (search.sizes - len(sizes)) // (len(wide) - i)
        earlier = low in {x.n_examples for x in trials if x.steps < trials[-1].steps}
        inside = _gallop(search, low, high) if earlier else _even_sizes(low, high, n_more)
        sizes += [n for n in inside if n not in sizes][:n_more]
    return sizes


def _unit(search: Rules, low: int) -> int:
    return max(1, int(search.resolution * low))


def _even_sizes(low: int, high: int, n_sizes: int) -> Iterable[int]:
    n_sizes = min(n_sizes, high - low - 1)
    return (low + (high - low) * i // (n_sizes + 1) for i in range(1, n_sizes + 1))


def _gallop(search: Rules, low: int, high: int) -> Iterable[int]:
    """More steps gain little, mostly: just above what fewer steps memorized, then farther off."""
    ahead = (low + _unit(search, low) * 4**i for i in range(search.sizes))
    return (n for n in ahead if n < high)


def _proposals(search: Rules, steps: int, sizes: Sequence[int]) -> list[Proposal]:
    """Each of the first sizes with every learning rate."""
    sizes = list(dict.fromkeys(sizes))[: search.sizes]
    return [Proposal(steps, n, factor) for n in sizes for factor in search.rate_factors]


def _gain(trials: Sequence[Trial]) -> float | None:
    before = _found_before(trials)
    if before is None:
        return None
    pairs = zip(before, _set_and_known(trials), strict=True)
    ratios = [now / was if was else (math.inf if now else 1.0) for was, now in pairs]
    return max(ratios) - 1


def _set_and_known(trials: Sequence[Trial]) -> tuple[int, int]:
    """The largest set memorized to 99%, and how many of all examples are known."""
    n_examples = max(trial.n_examples for trial in trials)
    return _bracket(n_examples, trials, NEARLY)[0], _best_of_whole(trials, n_examples).known


def _found_before(trials: Sequence[Trial]) -> tuple[int, int] | None:
    """`_set_and_known` before the last doubling; None where there was none."""
    before = _earlier_trials(trials)
    return _set_and_known(before) if before else None


def _earlier_trials(trials: Sequence[Trial]) -> list[Trial]:
    return [trial for trial in trials if trial.steps < trials[-1].steps]


def _bits(n_examples: int, n_choices: int, trials: Sequence[Trial]) -> float:
    """Bits of all examples by the trial of least loss; 0 where all diverged."""
    _, loss = best_of_whole(trials, n_examples)
    return 0.0 if math.isnan(loss) else float(memorized_bits(loss, n_examples, n_choices))


def _is_converged(trials: Sequence[Trial]) -> bool:
    gain = _gain(trials)
    return gain is not None and gain < GAIN
