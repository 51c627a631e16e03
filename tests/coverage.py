"""How often intervals and verdicts are right: simulation through the project's own functions.

    python -m tests.coverage > docs/intervals.md

Shape letters: R repetitions, S seeds, X configurations, B the estimate and its replicates.
"""

import collections
import dataclasses
import functools
import itertools
import math
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from memobench import claims
from memobench.analysis import statistics
from memobench.board import capacity_summary, peak
from memobench.claims import evidence, slopes
from memobench.core.cells import from_cells
from memobench.experiments.blocks import claims as groups
from memobench.experiments.dana2025 import family_claims as families
from memobench.experiments.dana2025 import growth_claims as growth
from memobench.methods.peak import Peak
from memobench.report import peak_answer, tables
from memobench.store.published import published
from memobench.store.rows import configuration, parse_list

PUBLISHED = pathlib.Path(__file__).parents[1] / "results"
N_SEEDS = (3, 5, 10, 20)
# Label tables of entries of the board.
N_TABLES = (6, 8, 12, 24, 40, 96)
Runs = np.ndarray
Noise = Callable[[np.random.Generator, tuple[int, int, int]], Runs]


@dataclasses.dataclass(frozen=True)
class Spread:
    """How published runs spread over seeds.

    residual_I: standardised deviations of configurations of twenty runs or more.
    log_spread: standard deviation of the logarithm of the standard deviation among configurations
    that are compared. correlation: of two configurations' runs with the same seed.
    """

    residual_I: np.ndarray
    log_spread: float
    correlation: float
    n_configurations: int


@functools.cache
def spread() -> Spread:
    """The spread of all published runs that have an accuracy and three seeds or more."""
    residuals, excess, correlations, weights, n = [], [], [], [], 0
    for path in sorted(PUBLISHED.glob("**/*_runs.csv")):
        columns = {*configuration(), "seed", "status", "accuracy", "accuracy_protocol"}
        table = pd.read_csv(path, low_memory=False, usecols=lambda name: name in columns)  # noqa: B023
        # As read, each column is apart, and pandas warns of a hundred.
        table = table.copy()
        table = table.assign(y=statistics.compared_accuracy(table), variant=claims.variant(table))
        table = statistics.drop_diverged(table).dropna(axis=1, how="all")
        if table.empty:
            continue
        groups = table.groupby([x for x in configuration() if x in table], dropna=False)
        table = table.assign(
            n=groups["y"].transform("size"),
            deviation=table["y"] - groups["y"].transform("mean"),
            sd=groups["y"].transform("std"),
            at=groups.ngroup(),
        )
        table = table[(table["n"] >= 3) & (table["sd"] > 1e-9)]
        n += table["at"].nunique()
        residual = table["deviation"] / table["sd"] * np.sqrt(table["n"] / (table["n"] - 1))
        residuals.append(residual[table["n"] >= 20])
        for _, compared in table.assign(residual=residual).groupby(["variant", "steps"]):
            runs = compared.pivot(index="at", columns="seed", values="residual").dropna(axis=1)
            if len(runs) < 4 or runs.shape[1] < 3:
                continue
            # A logarithm of s² varies by itself, by about 2 / (n - 1) and a bit.
            log_sd = np.log(compared.drop_duplicates("at")["sd"])
            excess.append(log_sd.var() - _log_variance(runs.shape[1]) / 4)
            sums = runs.sum().pow(2).mean() - runs.pow(2).sum().mean()
            correlations.append(sums / len(runs) / (len(runs) - 1))
            weights.append(len(runs))
    return Spread(
        np.concatenate(residuals),
        float(np.sqrt(max(np.average(excess, weights=weights), 0))),
        float(np.average(correlations, weights=weights)),
        n,
    )


def _log_variance(n: int) -> float:
    """The variance of log s² of n normal values."""
    from scipy.special import polygamma

    return float(polygamma(1, (n - 1) / 2))


def _normal(random: np.random.Generator, shape: tuple[int, int, int]) -> Runs:
    return random.normal(size=shape)


def _exponential(random: np.random.Generator, shape: tuple[int, int, int]) -> Runs:
    return random.exponential(size=shape) - 1


def _zero_one(random: np.random.Generator, shape: tuple[int, int, int]) -> Runs:
    return (random.random(shape) < 0.7) / np.sqrt(0.21) - 0.7 / np.sqrt(0.21)


def _ours(random: np.random.Generator, shape: tuple[int, int, int]) -> Runs:
    """Residuals of ours, of unequal spreads, with what runs of one seed share."""
    found = spread()
    residual_I = found.residual_I - found.residual_I.mean()
    residual_I = residual_I / residual_I.std()
    own_RxSxX = random.choice(residual_I, shape)
    shared_RxSx1 = random.choice(residual_I, (*shape[:2], 1))
    share = max(found.correlation, 0)
    runs_RxSxX = np.sqrt(1 - share) * own_RxSxX + np.sqrt(share) * shared_RxSx1
    return runs_RxSxX * np.exp(found.log_spread * random.normal(size=(shape[0], 1, shape[2])))


NOISES: dict[str, Noise] = {
    "normal": _normal,
    "ours": _ours,
    "exponential": _exponential,
    "0/1": _zero_one,
}


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of interval: true means of configurations, their noise, and what is made of them.

    interval: from replicates of the means and the number of seeds to both ends.
    """

    name: str
    mean_X: np.ndarray
    truth: float
    interval: Callable[[np.ndarray, int], tuple[float, float]]
    sd: float | np.ndarray = 0.01
    # Fits on a grid take long.
    fitted: bool = False


def _statistic(function: Callable[[np.ndarray], np.ndarray]) -> Callable:
    return lambda y_BX, seeds: statistics.interval(function(y_BX), seeds)


def _slope(x_X: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    return lambda y_BX: statistics.least_squares(statistics.polynomial(x_X, 1), y_BX)[:, 1]


def _straightness(y_BX: np.ndarray) -> np.ndarray:
    return slopes.slope_ratio(HEADS, y_BX)


def _exponent(y_BX: np.ndarray) -> np.ndarray:
    return growth._power_fit(DIMENSIONS, y_BX)[0]


def _best(y_BX: np.ndarray) -> np.ndarray:
    """The ratio of two families, each at the best of five learning rates."""
    one_BX, other_BX = y_BX[:, :5], y_BX[:, 5:]
    return one_BX[:, one_BX[0].argmax()] / other_BX[:, other_BX[0].argmax()]


def _break(y_BX: np.ndarray) -> np.ndarray:
    return growth.fit_break(WIDTHS, y_BX)[0]


def _smallest(y_BX: np.ndarray, seeds: int) -> tuple[float, float]:
    found = evidence.smallest_mean("", y_BX, (0, np.inf), seeds)
    return found.low, found.high


def _groups(n: int) -> Callable[[np.ndarray, int], tuple[float, float]]:
    """The best of the first n configurations over the best of the others."""
    return lambda y_BX, seeds: groups.ratio_of_best(y_BX[:, :n], y_BX[:, n:], seeds)[1:]


def _widths(n: int) -> Callable[[np.ndarray, int], tuple[float, float]]:
    """The best of the first n configurations less the best of the others."""

    def interval(y_BX: np.ndarray, seeds: int) -> tuple[float, float]:
        (best_B, chosen_B), (other_B, other_chosen_B) = (
            [each_BI[:, 0] for each_BI in families.pick_best(of_BX.T[:, :, None], seeds)]
            for of_BX in (y_BX[:, :n], y_BX[:, n:])
        )
        low, _ = statistics.interval(chosen_B - other_B, seeds)
        return low, statistics.interval(best_B - other_chosen_B, seeds)[1]

    return interval


HEADS = np.array([1.0, 6, 11, 16, 21, 26])
DIMENSIONS = np.array([2.0, 5, 8, 11, 14, 17])
WIDTHS = np.arange(3.0, 17)
KINDS = (
    Kind("mean of one configuration", np.array([0.5]), 0.5, _statistic(lambda y_BX: y_BX[:, 0])),
    Kind("mean of 12 configurations", np.full(12, 0.5), 0.5, _statistic(lambda y_BX: y_BX.mean(1))),
    Kind(
        "difference of two families at 4 sizes",
        np.full(8, 0.5),
        0.0,
        _statistic(lambda y_BX: y_BX[:, :4].mean(1) - y_BX[:, 4:].mean(1)),
    ),
    Kind("slope of a line, 6 points", 0.1 + 0.02 * HEADS, 0.02, _statistic(_slope(HEADS))),
    Kind("ratio of slopes, 6 points", 0.1 + 0.02 * HEADS, 1.0, _statistic(_straightness)),
    Kind(
        "exponent of a power law, 6 points",
        0.1 + 0.002 * DIMENSIONS**2,
        2.0,
        _statistic(_exponent),
        fitted=True,
    ),
    Kind(
        "break of a line, 14 points",
        0.1 + 0.05 * np.minimum(WIDTHS, 9.5) + 0.01 * np.maximum(WIDTHS - 9.5, 0),
        9.5,
        _statistic(_break),
        fitted=True,
    ),
    Kind("smallest of 10", np.full(10, 0.5), 0.5, _smallest),
    Kind(
        "ratio at the best of 5 rates, one clearly best",
        np.tile([0.3, 0.4, 0.5, 0.4, 0.3], 2),
        1.0,
        _statistic(_best),
    ),
    Kind("ratio at the best of 5 equal rates", np.full(10, 0.5), 1.0, _statistic(_best)),
    Kind("group over group, 2 equal entries each", np.full(4, 0.5), 1.0, _groups(2)),
    # By as much as one run deviates.
    Kind(
        "group over group, 2 unequal entries each",
        np.array([0.5, 0.49, 0.5, 0.49]),
        1.0,
        _groups(2),
    ),
    Kind("group over group, 3 equal entries over 1", np.full(4, 0.5), 1.0, _groups(3)),
    Kind(
        "group over group, one best of 3 over 3 equal",
        np.array([0.4, 0.5, 0.4, 0.5, 0.5, 0.5]),
        1.0,
        _groups(3),
    ),
    Kind("group over group, 6 equal entries over 6", np.full(12, 0.5), 1.0, _groups(6)),
    Kind("difference at the best of 3 equal widths each", np.full(6, 0.5), 0.0, _widths(3)),
    Kind(
        "difference at the best of 3 equal widths each, thrice the spread",
        np.full(6, 0.5),
        0.0,
        _widths(3),
        sd=np.repeat([0.03, 0.01], 3),
    ),
    Kind("difference at the best of 6 equal widths over 3", np.full(9, 0.5), 0.0, _widths(6)),
    Kind(
        "difference at the best of 3 widths, one clearly best",
        np.array([0.4, 0.5, 0.4, 0.4, 0.5, 0.4]),
        0.0,
        _widths(3),
    ),
)


@dataclasses.dataclass(frozen=True)
class Rates:
    """Shares of repetitions: the interval has the truth, lies above it, below it, is missing."""

    covered: float
    above: float
    below: float
    none: float

    @property
    def of_those_given(self) -> float:
        """Coverage of the intervals that are there."""
        return self.covered / (1 - self.none) if self.none < 1 else np.nan


def rates(kind: Kind, noise: Noise, n_seeds: int, repetitions: int, number: int = 0) -> Rates:
    """How often the interval of a kind has the truth."""
    random = np.random.default_rng(number)
    n = len(kind.mean_X)
    runs_RxSxX = kind.mean_X + kind.sd * noise(random, (repetitions, n_seeds, n))
    low_R, high_R = np.full((2, repetitions), np.nan)
    # Replicates of many configurations at once are quick.
    for start in range(0, repetitions, 200):
        some_RxSxX = runs_RxSxX[start : start + 200]
        run_SxX = some_RxSxX.transpose(1, 0, 2).reshape(n_seeds, -1)
        y_BxRxX = statistics.replicates(run_SxX).reshape(-1, len(some_RxSxX), n)
        equal_R = (np.ptp(some_RxSxX, axis=1) == 0).any(axis=1)
        for i in range(len(some_RxSxX)):
            seeds = 1 if equal_R[i] else n_seeds
            low_R[start + i], high_R[start + i] = kind.interval(y_BxRxX[:, i], seeds)
    return Rates(
        float(((low_R <= kind.truth) & (kind.truth <= high_R)).mean()),
        float((low_R > kind.truth).mean()),
        float((high_R < kind.truth).mean()),
        float(np.isnan(low_R).mean()),
    )


def share_rates(n: int, share: float = 0.7) -> Rates:
    """The same, exactly, for the interval of a share of n runs."""
    import scipy.stats

    successes_N = np.arange(n + 1)
    low_N, high_N = np.array([statistics.share_interval(k, n) for k in successes_N]).T
    weight_N = scipy.stats.binom.pmf(successes_N, n, share)
    above, below = (float(weight_N[x].sum()) for x in (low_N > share, high_N < share))
    return Rates(1 - above - below, above, below, 0.0)


def failing_rate(n_tables: int, starts: int, share: float, repetitions: int) -> float:
    """How often the interval of a capacity has the mean where starts fail, and know a fifth then.

    Of others tables spread by 0.02 and the starts of each by 0.03.
    """
    random, shape = np.random.default_rng(n_tables), (n_tables, starts)
    truth, found = 1 - 0.8 * share, 0
    for _ in range(repetitions):
        spread_TxS = 0.02 * random.normal(size=(n_tables, 1)) + 0.03 * random.normal(size=shape)
        known_TxS = np.where(random.random(shape) < share, 0.2, 1.0) * (1 + spread_TxS)
        _, low, high = statistics.estimate_mean(known_TxS)
        found += low <= truth <= high
    return found / repetitions


def failing(repetitions: int) -> str:
    """These rates for as many tables and starts as entries of the board have, as Markdown."""
    head = "".join(f" {n} tables |" for n in N_TABLES)
    lines = [
        f"| fail | initial weights of a table |{head}",
        "|---:|" + "---:|" * (len(N_TABLES) + 1),
    ]
    for share in (0.05, 0.2):
        for starts in (1, 2, 4, 8):
            found = (failing_rate(n, starts, share, repetitions) for n in N_TABLES)
            lines.append(f"| {share} | {starts} | {' | '.join(f'{x:.2f}' for x in found)} |")
    return "\n".join(lines)


def ranked(repetitions: int) -> str:
    """A table of how often ranks of the board tell equal entries apart, under published spreads.

    Label tables of every entry are drawn again, at all sizes of set and learning rates, in units of
    its own peak. The last column is what they do tell: how much more attention alone must know than
    the MLP.
    """
    boards: dict[int, list[np.ndarray]] = {}
    models = collections.defaultdict[int, list[Any]](list)
    runs, known = published("board/peak"), {}
    for run in runs[runs["method"] == Peak.name].to_dict("records"):
        values = [parse_list(run[name]) for name in from_cells(run).method.row_columns()]
        bits_JxRxT = np.array(values[0], float)
        budget = capacity_summary.budget(run["n_params"])
        of_budget = boards.setdefault(budget, [])
        models[budget].append(capacity_summary.architecture(run))
        # Where tables are drawn from these, it knows so much in the best of its cells.
        best = peak.peak(bits_JxRxT)
        known[run["run_id"]] = best.value_T / run["n_params"]
        of_budget.append(bits_JxRxT / bits_JxRxT[best.size, best.rate].mean())
    random, lines = np.random.default_rng(0), []
    measured = peak_answer.name_peaks(runs)
    measured["bits_T"] = measured["run_id"].map(known)
    for budget, entries in sorted(boards.items()):
        wrong = np.zeros(2)
        for _ in range(repetitions):
            bits = [peak.peak(_draw_again(each, random)).value_T for each in entries]
            found = capacity_summary.rank_entries(
                pd.DataFrame({"model": models[budget], "bits_T": bits})
            )
            p_values = [
                capacity_summary.p_value_of_equal(x, y, 0.0, paired=len(x) == len(y))
                for x, y in itertools.combinations(bits, 2)
            ]
            wrong += any(statistics.holm(p_values)), found["rank_low"].max() > 1
        most = max(x.shape[-1] for x in entries)
        shares = (f"{share:.3f}" for share in wrong / repetitions)
        lead = f"{_find_least_lead(measured, budget):.0%}"
        lines.append([f"{budget:,}", len(entries), most, *shares, lead])
    columns = ["parameters", "entries", "label tables", "Student's alone", "ranks", "least lead"]
    return tables.markdown(pd.DataFrame(lines, columns=columns), {})


def _find_least_lead(found: pd.DataFrame, budget: int) -> float:
    """The least share by which attention alone must know more than the MLP to be ranked first."""
    best = peak_answer.find_best(found)[budget]
    attention, mlp = (best[side] for side in capacity_summary.SIDES[:2])
    over = attention["bits_T"].mean() / mlp["bits_T"].mean()
    rows = found[found["budget"] == budget].drop(columns=["rank_low", "rank_high"])
    for lead in np.arange(0.0, 1.0, 0.01):
        times = [(1 + lead) / over if x == attention["run_id"] else 1.0 for x in rows["run_id"]]
        bits_T = [x * each for x, each in zip(times, rows["bits_T"], strict=True)]
        of_lead = capacity_summary.rank_entries(rows.assign(bits_T=bits_T)).set_index("run_id")
        if of_lead["rank_high"][attention["run_id"]] < of_lead["rank_low"][mlp["run_id"]]:
            return float(lead)
    return math.inf


# Forms of a side that know less than this share of the best one's bits do not count for it.
_NEAR = 0.9
# What fails of the trainings of attention alone and of the MLP.
_FAILING = {"": (0.0, 0.0), ", 5% fail": (0.05, 0.05), ", 5% of the MLP's fail": (0.0, 0.05)}


def compared(repetitions: int) -> pd.DataFrame:
    """How often intervals of the answer's peaks, and of their ratio, have the truth, by budget.

    The forms of attention alone and of the MLP that know at least _NEAR of the best are measured
    again on as many label tables, normal, with the means and covariances over sizes, rates and
    forms that were published, those of other numbers of tables apart, and the best of each counts.
    Of all trainings a share fails, and knows a fifth.
    """
    runs, lines = published("board/peak"), []
    values = {
        run["run_id"]: np.array(parse_list(run["size_bits"]), float)
        for run in runs[runs["method"] == Peak.name].to_dict("records")
    }
    named = peak_answer.name_peaks(runs)
    for budget, best in peak_answer.find_best(named).items():
        rows = named[named["budget"] == budget].sort_values("bits", ascending=False)
        sides = [
            [
                values[row["run_id"]] / row["n_params"]
                for row in rows[rows["side"] == side].to_dict("records")
                if row["bits"] >= _NEAR * best[side]["bits"]
            ]
            for side in capacity_summary.SIDES[:2]
        ]
        # Those of equal numbers of label tables have the same ones.
        n_tables = list(dict.fromkeys(forms[0].shape[-1] for forms in sides))
        weighted = {x.shape[-1] for forms in sides for x in forms}
        shown = " and ".join(map(str, n_tables))
        line: dict[str, Any] = {"parameters": f"{budget:,}", "label tables": shown}
        for said, shares in _FAILING.items():
            random, covered = np.random.default_rng(budget), np.zeros(3)
            truths = [
                (1 - 0.8 * share) * max(x.mean(axis=-1).max() for x in forms)
                for forms, share in zip(sides, shares, strict=True)
            ]
            truths.append(truths[0] / truths[1])
            for _ in range(repetitions):
                weights = {n: random.normal(size=(n, n)) / np.sqrt(n - 1) for n in sorted(weighted)}
                found = [
                    max(
                        peak.peak(_measure_again(x, weights[x.shape[-1]], share, random)).estimate
                        for x in forms
                    )
                    for forms, share in zip(sides, shares, strict=True)
                ]
                found.append(peak.ratio(*found))
                covered += [x.low <= true <= x.high for x, true in zip(found, truths, strict=True)]
            names = (f"{x}{said}" for x in ("attention alone", "MLP", "ratio"))
            line |= dict(zip(names, covered / repetitions, strict=True))
        lines.append(line)
    return pd.DataFrame(lines)


def _measure_again(
    value_JxRxT: np.ndarray, weight_TxT: np.ndarray, share: float, random: np.random.Generator
) -> np.ndarray:
    """Values whose deviations from means are weighted sums of theirs; some of them fail."""
    mean_JxRx1 = value_JxRxT.mean(axis=-1, keepdims=True)
    new_JxRxT = mean_JxRx1 + (value_JxRxT - mean_JxRx1) @ weight_TxT
    return new_JxRxT * np.where(random.random(value_JxRxT.shape) < share, 0.2, 1.0)


def peaks(repetitions: int) -> str:
    """The table of `compared`, as Markdown."""
    found = compared(repetitions).drop(
        columns=["attention alone, 5% of the MLP's fail", "MLP, 5% of the MLP's fail"]
    )
    return tables.markdown(found, dict.fromkeys(found.columns[2:], 2))


def _draw_again(value_JxRxT: np.ndarray, random: np.random.Generator) -> np.ndarray:
    n_tables = value_JxRxT.shape[-1]
    return value_JxRxT[..., random.integers(n_tables, size=n_tables)]


def table(noise: str, repetitions: int, least: float = np.inf) -> str:
    """Coverage of intervals, as Markdown.

    Args:
      noise: a name of NOISES.
      repetitions: simulated experiments; an eighth of them for fits.
      least: kinds of interval that have the truth at least as often share the last row.
    """
    head = "".join(f" n = {n} |" for n in N_SEEDS)
    lines = [f"| interval |{head}", "|:---|" + "---:|" * len(N_SEEDS)]
    others = []
    for kind in KINDS:
        n = repetitions // 8 if kind.fitted else repetitions
        shares = [rates(kind, NOISES[noise], seeds, n).of_those_given for seeds in N_SEEDS]
        if min(shares) < least:
            lines.append(_row(kind.name, shares))
        else:
            others.append(shares)
    if others:
        name = "all others, at least" if len(others) < len(KINDS) else "all, at least"
        lines.append(_row(name, np.min(others, axis=0)))
    return "\n".join(lines)


def _row(name: str, shares: Sequence[float] | np.ndarray) -> str:
    return f"| {name} | {' | '.join(f'{share:.3f}' for share in shares)} |"


TEXT = """\
# Intervals

What this project calls a 95% interval, and its coverage. Written by `make intervals`, which
simulates through the project's own functions (`memobench/analysis/statistics.py`).

## How intervals are made

- **A statistic of means over seeds (mean, slope, ratio, exponent, break)**: percentiles of
  replicates, which add to each mean the deviations of its runs with Gaussian weights, one for a
  seed, widened so that a mean has Student's; at least {least} seeds.
- **The smallest of many means**: Student's of each, the upper end with Bonferroni's correction.
- **The best of a group over that of another (`blocks/*`)**: the lower end corrected for the
  entries of the first, the upper for those of the second, as each may look best by luck.
- **The best width of a family less that of another (`dana2025/attention-vs-mlp`)**: the lower end
  by the width of the first that looks best, corrected for those that may be, and the best of the
  second in each replicate; the upper end is its mirror image.
- **A claim on several groups**: holds where all intervals say so; fails where one does after
  Bonferroni's correction, with which they are shown.
- **The set that half of the trainings know (*half know*)**: credible, of a logistic curve in the
  logarithm of the set's size, at the learning rate that pilots chose.
- **Means of capacities**: Student's of the means of label tables.
- **Peaks**: half of the label tables choose the learning rate and the size of set at which the
  other half counts, and the reverse. The lower end is Student's of these; the upper end is the
  highest of all sizes' and rates'.
- **A ratio of two peaks**: of their intervals, by Zou & Donner (2008), as if of other tables.
- **`board/design`**: Student's of what designs differ by that least squares leave.
- **A share of runs**: exact (Clopper & Pearson).

More on them:

- **Not covered**: the choice of shapes, learning rates, steps, vocabulary, context length and
  optimiser; a second look at the same seeds; trainings that fail where few initial weights were
  drawn ([below](#where-trainings-fail)).
- **Half know** has the size at the rate that pilots chose nearly always
  (`tests/analysis/test_estimates.py`). Pilots may miss the best rate: where a fifth of the
  trainings fail the interval then often lies too low.
- **What would decide an undecided claim**: so many seeds, or label tables, that an interval that
  narrows with their root excludes the nearer edge with 80% chance, were the estimate the true
  value.
- **Means in tables** (±) are half of Student's interval. Figures and verdicts do not leave what
  is possible.
- **Equal runs** show no spread, which does not say that there is none. Equal accuracies vary as
  if one run were off by one example. Where no least step is known, equal runs have no interval
  and decide nothing.
- **Variances are not pooled**: in the {n} published configurations with three seeds or more the
  logarithm of the standard deviation has a standard deviation of {log_spread:.2f}, and runs with
  one seed have a correlation of {correlation:.2f}.

## How often they are right

The share of intervals that have the truth, of {repetitions:,} simulated experiments each
({fitted} for exponents and breaks). A verdict on a region is wrong as often as
the interval misses on the side of its nearer end.

Runs that spread **as ours do**: standardised deviations of ours, standard deviations that differ
as much, the same correlation of runs with one seed:

{ours}

The same of runs that are distributed **normally**:

{normal}

**Exponential** runs (skewness 2), heavier than any of ours. Few such runs often lack the rare
large values, so that intervals of single means, and of the smallest of many, lie too low:

{exponential}

## Where trainings fail

Of capacities a share of the initial weights may fail, and then know a fifth of what others do.
How often the interval of the mean has the truth ({repetitions:,} simulated cases each), by that
share, by label tables and by initial weights of each table. Of few models often none is seen to
fail, and the mean is taken for higher than it is:

{failing}

## Peaks

How often the intervals of the answer have the truth ({repetitions:,} simulated cases each), with
the choice of each side's best form among those within a tenth of it: normal, with the covariances
of the published entries over label tables, settings and forms; and if moreover one in twenty of
all trainings fails, or of the MLP's alone, and knows a fifth:

{compared}

## Ranks

How often the board tells equal entries apart ({boards} simulated boards each), if label tables of
each are drawn again, with failures, and all know equally much in the best of their cells: by
Student's test of each pair alone, with Holm's correction for all, and by that of the ranks. It
counts two more tables of each pair, one on each side of the mean, as far off as the worst table of
the board's entries of as many layers, for few tables may lack rare failures. *Least lead*: by how
much more than the MLP attention alone must know, as both spread, to be ranked above it:

{ranked}
"""


def main(repetitions: int = 2000) -> None:
    """Prints docs/intervals.md."""
    found = spread()
    text = TEXT.format(
        least=statistics.MIN_SEEDS,
        n=f"{found.n_configurations:,}",
        log_spread=found.log_spread,
        correlation=found.correlation,
        repetitions=repetitions,
        fitted=repetitions // 8,
        failing=failing(repetitions),
        compared=peaks(repetitions),
        boards=repetitions // 10,
        ranked=ranked(repetitions // 10),
        # No table for 0 or 1, which is for the tests: no mean of ours is of such values.
        ours=table("ours", repetitions),
        normal=table("normal", repetitions, least=0.93),
        exponential=table("exponential", repetitions, least=0.93),
    )
    print(text, end="")


if __name__ == "__main__":
    main()
