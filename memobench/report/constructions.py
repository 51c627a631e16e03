"""The sections on constructions of an experiment's page."""

import pandas as pd

from memobench import claims
from memobench.analysis import seeds as analysis
from memobench.analysis.grouping import add_keys
from memobench.report import panels, tables
from memobench.store.rows import configuration

CERTIFIED = ["theorem", "contexts", "n_classes", "conditional", "vocab_size", "context_length"]
CERTIFIED += ["architecture", "heads", "activation", "d_model", "d_head", "n_heads", "d_mlp"]
CERTIFIED += ["n_examples", "aimed", "solve", "scale", "weights"]
MARGINS = ["seeds", "accuracy", "margin", "condition", "basis_condition", "rank", "fit_error"]
MARGINS += ["largest_weight", "gamma", "seconds"]
# A longer table nobody would read; the CSV has every run's.
MOST_CERTIFICATES = 80


def sections(table: pd.DataFrame) -> list[str]:
    """Paragraphs of a page, from a table of `seeds.add_theory`; none without constructions."""
    constructed = table[table["theorem"].notna()]
    if constructed.empty:
        return []
    parts = []
    # Where trainings start from constructions; a search chooses sets of its own.
    if table["start"].notna().any():
        parts += _proven_section(table)
    if constructed["weights"].nunique() > 2:
        parts += _survival(table)
    return parts + _certificates(table)


def _proven_section(table: pd.DataFrame) -> list[str]:
    compared = ratio_to_proven(table, panels.weight_origin(table))
    order = [column for column in claims.MADE if column in compared]
    compared = compared[[c for c in compared if c not in order] + order]
    return [
        "## Memorized over proven",
        "Chance-corrected associations over the number that the theorem promises, means over "
        "seeds." + _shares(compared),
        tables.markdown(compared, dict.fromkeys(order, 2) | {"promised": 0}),
    ]


def _shares(compared: pd.DataFrame) -> str:
    """The shares of what the exact gradient memorizes that other ways to make weights do."""
    others = [made for made in claims.MADE if made in compared and made != claims.EXACT]
    if claims.EXACT not in compared or not others:
        return ""
    shares = compared[others].div(compared[claims.EXACT], axis=0)
    listed = (f"{made} {shares[made].mean():.0%}" for made in others)
    return (
        f" Of what the exact gradient memorizes from scratch, mean of sizes: {'; '.join(listed)}."
    )


def _survival(table: pd.DataFrame) -> list[str]:
    digits = {"bits per parameter": 3, "of what is stored": 4, "accuracy there": 3}
    return [
        "## Bits that survive",
        "For each construction and precision of its weights, the load T over promised at which "
        "most bits per parameter survive.",
        tables.markdown(survival(table), digits),
    ]


def _certificates(table: pd.DataFrame) -> list[str]:
    certified = certificates(table)
    if len(certified) > MOST_CERTIFICATES:
        return []
    shown = analysis.distinguishing_columns(certified, CERTIFIED)
    shown += [x for x in (*MARGINS, "not_made") if x in certified and certified[x].notna().any()]
    return [
        "## Certificates",
        "The worst of all seeds: `accuracy` and `margin` (of the least certain example, as a share "
        "of the largest output) on the examples aimed at; `condition` of the linear system and "
        "`fit_error`, the largest deviation from its targets, in float64; `gamma`, how much more "
        "the Transformer diverges than the sequence encoder. `seconds` to construct and check.",
        tables.markdown(certified[shown], {"accuracy": 4, "seconds": 2}),
    ]


def certificates(table: pd.DataFrame) -> pd.DataFrame:
    """The worst certificate of all seeds, a row for each configuration of constructed weights.

    Columns, among others:
      seeds: whose weights could be made.
      not_made: others; no column where no configuration has any.
      accuracy: on the examples aimed at.
      seconds: to construct and judge, the mean of seeds.
    """
    made = table[table["theorem"].notna()]
    numeric = ["aimed_accuracy", "margin", "condition", "basis_condition", "fit_error", "seconds"]
    numeric += ["largest_weight", "gamma", "stored_bits"]
    made = made.assign(
        **{name: pd.to_numeric(made[name]) for name in numeric},
        aimed=made["n_aimed"].fillna(made["n_examples"]).astype(int),
        is_made=made["status"] == "ok",
    )
    keys = [name for name in configuration() if name in made]
    grouped = made.groupby([*keys, "aimed"], dropna=False, sort=False).agg(
        seeds=("is_made", "sum"),
        not_made=("is_made", lambda is_made: (~is_made).sum()),
        accuracy=("aimed_accuracy", "min"),
        margin=("margin", "min"),
        condition=("condition", "max"),
        basis_condition=("basis_condition", "max"),
        rank=("feature_rank", "min"),
        fit_error=("fit_error", "max"),
        largest_weight=("largest_weight", "max"),
        gamma=("gamma", "max"),
        seconds=("seconds", "mean"),
        stored_bits=("stored_bits", "max"),
    )
    if not grouped["not_made"].any():
        grouped = grouped.drop(columns="not_made")
    order = ["theorem", "contexts", "n_classes", "conditional", "n_examples", "d_model", "d_head"]
    return (
        add_keys(grouped)
        .sort_values([*order, "heads", "solve", "stored_bits"], ascending=[True] * 9 + [False])
        .drop(columns="stored_bits")
    )


def survival(table: pd.DataFrame) -> pd.DataFrame:
    """For every construction and precision, the load at which most bits per parameter survive."""
    made = table[table["theorem"].notna() & table["bits"].notna()]
    made = made.assign(per_parameter=made["bits"] / made["n_params"])
    keys = ["theorem", "weights", "stored_bits", "n_examples", "promised"]
    means = made.groupby(keys, as_index=False, sort=False, dropna=False)[
        ["per_parameter", "accuracy"]
    ].mean()
    means = means.sort_values(["theorem", "stored_bits"], ascending=[True, False])
    best = means.loc[means.groupby(["theorem", "weights"], sort=False)["per_parameter"].idxmax()]
    return pd.DataFrame(
        {
            "theorem": best["theorem"],
            "weights": best["weights"],
            "stored bits": best["stored_bits"].astype(float),
            "bits per parameter": best["per_parameter"],
            "of what is stored": best["per_parameter"] / best["stored_bits"].astype(float),
            "at load": best["n_examples"] / best["promised"],
            "accuracy there": best["accuracy"],
        }
    )


def ratio_to_proven(known: pd.DataFrame, made: pd.Series) -> pd.DataFrame:
    """Memorized over proven, means over seeds, a row for every size, a column for every `made`.

    Args:
      known: from `seeds.add_theory`.
      made: the way in which each run's weights came about.
    """
    sizes = ["n_heads", "d_head", "d_model", "n_params", "promised"]
    each = known.assign(made=made).groupby([*sizes, "made"], dropna=False)
    means = each["proven_ratio"].mean()
    return means.unstack("made").reset_index()
