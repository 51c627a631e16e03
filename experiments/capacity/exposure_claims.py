"""Attention against MLP by how often every fact was seen."""

from typing import Any

import numpy as np
import pandas as pd

from memobench.analysis.statistics import Means, bootstrap_means, divide_or
from memobench.claims.claim import Finding, Test
from memobench.claims.evidence import Region, conclude, report_too_few, statistic_of

ATTENTION, MLP = "attention_only", "mlp"


def means_per_parameter(table: pd.DataFrame, measure: str) -> Means:
    """Bootstrapped means per parameter of every architecture, exposure and learning rate.

    A fact is exposed once for every time that a step's batch contains it; a step over all facts is
    one exposure of each.
    """
    keys = ["architecture", "heads", "d_model", "d_head", "n_heads", "n_layers", "d_mlp"]
    keys += ["exposures", "learning_rate", "final_learning_rate", "n_params", "n_params_memory"]
    batch_size = table["batch_size"].astype(float).fillna(table["n_examples"])
    seen = (table["steps"] * batch_size / table["n_examples"]).round()
    known = table.assign(exposures=seen.astype(int))
    return bootstrap_means(known, keys, value=lambda rows: rows[measure] / rows["n_params"])


def best_rate(means: Means) -> Means:
    """The learning rate with the best mean, for each architecture, width of heads and exposure."""
    return means.select_best(["architecture", "heads", "d_head", "d_mlp", "exposures"])


def ratios(table: pd.DataFrame, measure: str) -> dict[int, tuple[np.ndarray, int]]:
    """For every exposure attention over MLP, each by its best form, and the fewest seeds."""
    means = best_rate(means_per_parameter(table, measure))
    found: dict[int, tuple[np.ndarray, int]] = {}
    for exposures, at in means.split_by("exposures").items():
        families = at.split_by("architecture")
        if ATTENTION in families and MLP in families:
            best = [
                families[name].where(families[name].mean_X == families[name].mean_X.max())
                for name in (ATTENTION, MLP)
            ]
            attention_B, mlp_B = (np.maximum(means.y_BX[:, 0], 0) for means in best)
            # Over an MLP that memorizes nothing there is no ratio, and nothing is decided.
            ratio_B = divide_or(attention_B, mlp_B, np.inf if mlp_B[0] > 0 else np.nan)
            found[int(exposures)] = ratio_B, min(means.seeds for means in best)
    return found


def attention_over_mlp(exposures: int, region: Region, measure: str = "memorized") -> Test:
    """At this many exposures, attention over MLP, per parameter, lies in the region."""

    def test(table: pd.DataFrame) -> Finding:
        found: dict[int, Any] = ratios(table, measure)
        if exposures not in found:
            return report_too_few(f"both families at {exposures:,} exposures")
        each = "; ".join(f"{n:,}: {ratio_B[0]:.2f}" for n, (ratio_B, _) in sorted(found.items()))
        ratio_B, seeds = found[exposures]
        name = f"{measure} per parameter, attention over MLP at {exposures:,} exposures"
        details = f"at other exposures {each}"
        return conclude([statistic_of(name, ratio_B, region, seeds, details)])

    return test
