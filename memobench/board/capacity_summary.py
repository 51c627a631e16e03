"""Typical capacities of every architecture measured, with intervals, and ranks with ties.

From a table of runs whose method is a Capacity. No files, no arithmetic by JAX.
"""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import scipy

from memobench.analysis import seeds as analysis
from memobench.analysis import statistics
from memobench.analysis.freedom import count_freedom
from memobench.board import families
from memobench.core.architecture import Architecture, read_family
from memobench.methods import thresholds
from memobench.methods.capacity import Capacity
from memobench.numerics import metrics
from memobench.store.rows import parse_list

# Columns that tell apart the sets on which architectures are compared.
SET = ["vocab_size", "n_examples", "protocol", "steps"]
# The sides that are compared, each by the best of its forms (`Architecture.side`).
SIDES = ATTENTION, MLP, BOTH = "attention alone", "MLP", "attention + MLP"
# The submitter of the project's own rows.
OWN = "memobench"
# A power law less likely than this is rejected.
REJECTED = 0.05


def capacity_runs(table: pd.DataFrame) -> pd.DataFrame:
    """The runs of a table that measured a typical capacity."""
    return table[(table["method"] == Capacity.name) & (table["status"] == "ok")]


def summarize(table: pd.DataFrame) -> pd.DataFrame:
    """A row for every run of a Capacity, estimates with intervals and ranks, the best first.

    Returns:
      Columns run_id, by (the submitter, if the table has it), family, entry, budget, SET, n_params,
      degrees_of_freedom (NaN if unknown), rate, best_bits and best_complete, and:
        model: the architecture, or the run's row where it is not registered here.
        bits, accuracy, memorized, gain, half_99: each with `_low` and `_high`; `gain` is bits over
          those of the trainings before, of a quarter of the steps, and `half_99` the examples that
          half of the trainings know to 99%.
        earlier: the mean bits of shorter trainings, a pair of steps and bits each.
        failed_sets: the share that fails on far smaller sets, `thresholds.share_failed`.
        rate_of_sets: the learning rate that pilots chose for sets.
        rank_low, rank_high: of bits per parameter within a set; entries that cannot be told apart
          share a range.
    """
    runs = capacity_runs(table)
    rows = [summarize_run(run) for run in runs.to_dict("records")]
    if not rows:
        return pd.DataFrame(
            columns=["run_id", "family", "entry", "model", "budget", *SET, "n_params", "bits"]
        )
    found = pd.DataFrame(rows)
    ranked = [
        rank_entries(of_set)
        for _, of_set in found.groupby(["budget", *SET], sort=True, dropna=False)
    ]
    return pd.concat(ranked, ignore_index=True).drop(columns="bits_T")


def models(run: Any, value: str) -> np.ndarray:
    """The value_KxTxS of a row, `rung_bits` or `rung_known` by rung, table and initial weights."""
    value_KxM = np.array(parse_list(run[value]), float)
    return value_KxM.reshape(len(value_KxM), int(run["tables"]), int(run["inits"]))


def summarize_run(run: Any) -> dict[str, Any]:
    """The columns of `summarize` for one run of a Capacity, all but ranks, and means of tables."""
    bits_KxTxS, steps_K = models(run, "rung_bits"), parse_list(run["rung_steps"])
    bits, known_TxS = statistics.estimate_mean(bits_KxTxS[-1]), models(run, "rung_known")[-1]
    known_as, n = architecture(run), int(run["n_examples"])
    guessing = analysis.chance_of_row(run)
    found: dict[str, Any] = {
        "run_id": run["run_id"],
        "by": run.get("by"),
        "family": read_family(run),
        "entry": " ".join(known_as.shown_sizes) if known_as else "",
        "model": known_as or run,
        "budget": budget(int(run["n_params"])),
        **{name: run[name] for name in SET},
        "task_seed": int(run["task_seed"]),
        "n_params": int(run["n_params"]),
        "degrees_of_freedom": count_freedom(run),
        "tables": int(run["tables"]),
        "inits": int(run["inits"]),
        "rate": parse_list(run["rung_rates"])[-1],
        "edge_of_rates": bool(run["edge_of_rates"]),
        "best_bits": run["best_bits"],
        "best_complete": run["best_complete"],
        "bits_T": bits_KxTxS[-1].mean(axis=1) / run["n_params"],
        **_estimate_columns("bits", bits),
        **_estimate_columns("accuracy", statistics.estimate_mean(known_TxS / n)),
        **_estimate_columns(
            "memorized",
            statistics.estimate_mean(metrics.correct_for_chance(known_TxS / n, n, guessing)),
        ),
        "earlier": list(zip(steps_K, bits_KxTxS.mean(axis=(1, 2)), strict=True))[:-1],
    }
    if len(steps_K) > 1:
        found |= _estimate_columns("gain", statistics.estimate_gain(bits_KxTxS))
    if half := estimate_half_known(run):
        found |= _estimate_columns("half_99", half)
        found["failed_sets"] = thresholds.share_failed(_trials(run), half.value)
        found["rate_of_sets"] = run.get("trial_rate")
    return found


def estimate_half_known(run: Any) -> thresholds.Estimate | None:
    """The examples that half of the trainings of a Capacity know to 99%; None without trials.

    Its interval has no high end where half of those of the whole set know it, so that a larger one
    may be known.
    """
    trials = _trials(run)
    guessing = analysis.chance_of_row(run)
    if not trials or np.isnan(guessing):
        return None
    known, n = models(run, "rung_known")[-1].mean(), int(run["n_examples"])
    found = thresholds.fit_half_known(trials, thresholds.threshold_range(known, n, guessing))
    of_whole = [trial.complete for trial in trials if trial.n_examples == n]
    is_open = bool(of_whole) and 2 * sum(of_whole) >= len(of_whole)
    return found._replace(high=math.inf) if is_open else found


def _trials(run: Any) -> list[thresholds.Trial]:
    return [thresholds.Trial(n, bool(known)) for n, known in parse_list(run["complete_trials"])]


def budget(n_params: int) -> int:
    """The nearest budget of `families`."""
    return min(families.VOCAB_SIZES, key=lambda each: abs(np.log(n_params / each)))


def rank_entries(of_set: pd.DataFrame) -> pd.DataFrame:
    """The rows of a set, most bits per parameter first, with `rank_low` and `rank_high`.

    An entry ranks after those that know more, and before those that know less, at 95% after Holm's
    correction for all pairs. Entries of the same label tables are compared table by table: those of
    as many, unless the columns `vocab_size` and `task_seed` say that they were drawn otherwise.
    """
    order = of_set["bits_T"].map(np.mean).sort_values(ascending=False).index
    of_set = of_set.loc[order].reset_index(drop=True)
    known, failures = list(of_set["bits_T"]), _worst_failures(of_set)
    drawn = list(zip(*(of_set[x] for x in ("vocab_size", "task_seed") if x in of_set), strict=True))
    pairs = list(itertools.combinations(range(len(known)), 2))
    p_values = [
        p_value_of_equal(
            known[i],
            known[j],
            max(failures[i], failures[j]),
            paired=len(known[i]) == len(known[j]) and (not drawn or drawn[i] == drawn[j]),
        )
        for i, j in pairs
    ]
    apart = {
        pair for pair, holds in zip(pairs, statistics.holm(p_values), strict=True) if holds
    }  # The first of a pair knows more.
    ahead = [sum((i, j) in apart for i in range(j)) for j in range(len(known))]
    behind = [sum((i, j) in apart for j in range(i + 1, len(known))) for i in range(len(known))]
    high = [len(known) - n for n in behind]
    return of_set.assign(rank_low=[1 + n for n in ahead], rank_high=high)


def _worst_failures(of_set: pd.DataFrame) -> list[float]:
    """For each entry the most by which a label table lies below its median, of those like it.

    Those are the project's entries of as many layers, as deeper models fail by much more: others'
    may fail in ways that say nothing of ours.
    """
    of = pd.DataFrame({"n_layers": [getattr(x, "n_layers", 1) for x in of_set["model"]]})
    of["failure"] = [float(np.median(bits_T) - bits_T.min()) for bits_T in of_set["bits_T"]]
    own = of[of_set["by"].isin([OWN, None, np.nan])] if "by" in of_set else of
    own = of if own.empty else own
    worst = own.groupby("n_layers")["failure"].max()
    return of["n_layers"].map(worst).fillna(own["failure"].max()).tolist()


def p_value_of_equal(
    first_T: np.ndarray, second_T: np.ndarray, failure: float, paired: bool
) -> float:
    """The p-value of equal means.

    Student's, or Welch's, as if two more tables lay off the mean, one on each side, by a failure:
    few tables may lack the rare initial weights that fail, and then vary by too little.

    Args:
      first_T: values of label tables.
      second_T: those of the other.
      failure: by how much a table that fails lies below the others.
      paired: whether both have learnt the same tables, in this order.
    """

    def moments(value_T: np.ndarray) -> tuple[float, float, float]:
        """The mean, its variance, and degrees of freedom."""
        n, squares = len(value_T), ((value_T - value_T.mean()) ** 2).sum()
        freedom = n + 1 if failure else n - 1
        return value_T.mean(), (squares + 2 * failure**2) / freedom / n, n - 1

    if paired:
        difference_T = first_T - second_T
        if np.ptp(difference_T) <= 1e-9 * np.abs(first_T).max():
            return 1.0  # Equal differences show no spread, which does not say that there is none.
        mean, variance, freedom = moments(difference_T)
    else:
        (mean, variance, n), (other, other_variance, m) = moments(first_T), moments(second_T)
        mean, both = mean - other, variance + other_variance
        if not both:
            return 1.0
        freedom = both**2 / (variance**2 / n + other_variance**2 / m)
        variance = both
    return float(2 * scipy.stats.t.sf(abs(mean) / np.sqrt(variance), freedom))


@dataclasses.dataclass(frozen=True)
class Contest:
    """The runs of one budget, set and number of steps that have learnt the same label tables.

    Attributes:
      budget: of parameters.
      best: of each side the run of most bits per parameter.
      wide: the best run of attention alone with heads as wide as the model.
      forms: the sides and forms of heads that were measured.
      runs: all of each side.
    """

    budget: int
    best: dict[str, Any]
    wide: Any | None
    forms: frozenset[tuple[str, str]]
    runs: dict[str, list[Any]]


def contests(table: pd.DataFrame) -> list[Contest]:
    """Attention against MLP by the exact gradient, at each budget that has both, least first.

    Where a budget has several sets, numbers of steps or label tables, those of most runs count.
    """
    runs = capacity_runs(table)
    exact: list[Any] = runs[runs["protocol"] == "exact"].to_dict("records")
    like: dict[Any, list[tuple[str, str, Any]]] = {}
    for run in exact:
        made = architecture(run)
        side, heads = made.side if made else ("", "")
        if side:
            same = *(run[name] for name in SET), run["tables"], run["task_seed"]
            like.setdefault((budget(run["n_params"]), *same), []).append((side, heads, run))
    found: dict[int, Contest] = {}
    for (of, *_), group in sorted(like.items(), key=lambda item: len(item[1])):
        forms = frozenset((side, heads) for side, heads, _ in group)
        if {ATTENTION, MLP} <= {side for side, _ in forms}:
            group.sort(key=lambda each: _bits_per_parameter(each[2]))
            wide = [run for *form, run in group if form == [ATTENTION, "full"]]
            runs_of: dict[str, list[Any]] = {}
            for side, _, run in group:
                runs_of.setdefault(side, []).append(run)
            best = {side: of_side[-1] for side, of_side in runs_of.items()}
            found[of] = Contest(of, best, wide[-1] if wide else None, forms, runs_of)
    return [found[each] for each in sorted(found)]


def _bits_per_parameter(run: Any) -> float:
    return float(models(run, "rung_bits")[-1].mean() / run["n_params"])


def select_complete(contests: Sequence[Contest], sides: Sequence[str] = SIDES) -> list[Contest]:
    """The contests at which every form of these sides was measured that any budget has."""
    known = frozenset().union(*(each.forms for each in contests))
    wanted = {form for form in known if form[0] in sides}
    return [each for each in contests if wanted <= each.forms]


def ratio(run: Any, other: Any, per: str = "n_params") -> list[tuple[int, thresholds.Estimate]]:
    """Steps, and one run's bits per parameter over another's, for every rung that both have.

    Args:
      run: of a Capacity.
      other: one that has learnt the same label tables; the interval is Student's of what follows
        from the means over them.
      per: the column that counts parameters.
    """
    found = []
    rungs = [parse_list(each["rung_steps"]) for each in (run, other)]
    both = [models(each, "rung_bits").mean(axis=2) / each[per] for each in (run, other)]
    for steps in (x for x in rungs[0] if x in rungs[1]):
        places = [of_run.index(steps) for of_run in rungs]
        run_TxX = np.stack([x[k] for x, k in zip(both, places, strict=True)], axis=1)
        mean_BxX = statistics.replicates(run_TxX)
        ratio_B = mean_BxX[:, 0] / mean_BxX[:, 1]
        found.append((int(steps), _estimate(ratio_B, len(run_TxX))))
    return found


def power_laws(table: pd.DataFrame) -> pd.DataFrame:
    """The law bits = a·parameters^b·f^log2(2s) of each family over its budgets; exact gradient.

    s is the share of all pairs of tokens that a set has, as boards alternate between all and half
    of them. A family needs more budgets than the law has numbers, and has no f where all its sets
    have the same share. Least squares in logarithms, every budget alike.

    Returns:
      Columns family and budgets, and:
        exponent: b, with `_low` and `_high`, NaN where the law is rejected; 1 where bits per
          parameter stay as they are.
        all_pairs: f, bits of a set of all pairs over those of one of half of them, likewise.
        p_value: of deviations as large as those of the means from the law, were it true, by the
          variances of means.
        n_params, bits: lists of what the law says of each budget.
    """
    runs = capacity_runs(table)
    exact: list[Any] = runs[runs["protocol"] == "exact"].to_dict("records")
    found = []
    for name in dict.fromkeys(map(read_family, exact)):
        of_name = (run for run in exact if read_family(run) == name)
        own = sorted(of_name, key=lambda run: run["n_params"])
        doublings_X = np.log2([2 * run["n_examples"] / run["vocab_size"] ** 2 for run in own])
        columns = [np.ones(len(own)), np.log([run["n_params"] for run in own])]
        columns += [] if np.ptp(doublings_X) == 0 else [doublings_X]
        budgets = {budget(run["n_params"]) for run in own}
        if len(budgets) == len(own) > len(columns):
            law = _power_law(own, np.stack(columns, axis=1))
            found.append({"family": name, "budgets": len(own), **law})
    return pd.DataFrame(found)


def _power_law(own: Sequence[Any], design_XxC: np.ndarray) -> dict[str, Any]:
    """The columns of `power_laws`, from one family's runs and the design matrix of its law."""
    bits = [models(run, "rung_bits")[-1].mean(axis=1) for run in own]
    run_TxX = np.full((max(map(len, bits)), len(own)), np.nan)
    for x, bits_T in enumerate(bits):
        run_TxX[: len(bits_T), x] = bits_T
    log_BxX = np.log(np.maximum(statistics.replicates(run_TxX), 1e-9))
    # By errors that few tables tell badly intervals would lack the truth more often than 5%.
    fit_BxC = statistics.least_squares(design_XxC, log_BxX)
    error_X = np.maximum(log_BxX[1:].std(axis=0), 1e-9)
    weighed_X = log_BxX[0] / error_X
    misfit_X = weighed_X - statistics.fit_of(design_XxC / error_X[:, None], weighed_X)
    p_value = float(scipy.stats.chi2.sf(misfit_X @ misfit_X, np.subtract(*design_XxC.shape)))
    # Intervals are those of a law that is true.
    tables = 0 if p_value < REJECTED else min(map(len, bits))
    exponent_B, factor_B = fit_BxC[:, 1], np.exp(fit_BxC[:, 2:])
    return {
        **_estimate_columns("exponent", _estimate(exponent_B, tables)),
        **(
            _estimate_columns("all_pairs", _estimate(factor_B[:, 0], tables))
            if factor_B.size
            else {}
        ),
        "p_value": p_value,
        "n_params": [run["n_params"] for run in own],
        "bits": np.exp(design_XxC @ fit_BxC[0]).tolist(),
    }


def _estimate(value_B: np.ndarray, tables: int) -> thresholds.Estimate:
    """Of replicates, of which the first is the estimate itself."""
    return thresholds.Estimate(float(value_B[0]), *statistics.interval(value_B, tables))


def _estimate_columns(name: str, estimate: thresholds.Estimate) -> dict[str, float]:
    return {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}


def architecture(run: Any) -> Architecture | None:
    """The architecture of a row; None for one that is not registered here, or has no name."""
    try:
        found = Architecture.from_row(run)
        str(found.full_name)
    except Exception:  # A user's own code may raise anything.
        return None
    return found
