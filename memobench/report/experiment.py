"""The page of an experiment, with figure, verdicts, published means, cost and configurations."""

import contextlib
import io
import pathlib
import tempfile
from collections.abc import Iterator

import pandas as pd

from memobench import claims
from memobench.analysis import seeds as analysis
from memobench.common import atomic
from memobench.common.errors import UserError, describe, is_from_user_code, reason
from memobench.experiment import Experiment
from memobench.optimizers import Optimizer
from memobench.report import capacity, constructions, tables
from memobench.report.drawing import save
from memobench.report.verdicts import ENDING
from memobench.store import published, rows

# Our reading of "the same as published".
AGREES = 0.03

_DIGITS = {
    **dict.fromkeys(("published", "ours", "interval", "difference"), 3),
    **dict.fromkeys(("compile_s", "run_s"), 1),
}
CONFIGURATION_COLUMNS = [
    *("contexts", "n_classes", "n_examples", "architecture", "heads", "protocol"),
    *("context_length", "conditional", "n_layers", "residual", "d_model", "d_head", "n_heads"),
    *("d_mlp", "n_params", "steps", "seeds", "diverged"),
]
# Measures of all configurations, before those that only some tasks have.
MEANS = ("accuracy", "loss")
# More configurations are no table to read, and GitHub does not show a page of 500 kB.
MOST_LISTED = 1000


def write(
    experiment: Experiment,
    preset: str,
    table: pd.DataFrame,
    folder: pathlib.Path,
    seeds: int | None = None,
) -> str:
    """Writes the figure, the tables and the page of an experiment.

    Args:
      experiment: what was run.
      preset: one of its presets.
      table: the rows of those of its runs that are done.
      folder: where `NAME.md`, `NAME.png`, `NAME_runs.csv` and `NAME_verdicts.csv` go, under the
        experiment's own name.
      seeds: of the preset's seeds so many are declared; all by default.

    Returns:
      The page's text.

    Raises:
      UserError: a figure or table of the user's raises; one line says where, and what stays.
      Exception: one of ours raises. What was there before stays in either case.
    """
    base = folder / experiment.name
    known = analysis.add_theory(table)
    listed = {name: known[name].to_numpy() for name in rows.lists() if name in known}
    runs = known.drop(columns=[*listed, rows.FAMILY])
    with tempfile.TemporaryDirectory() as temporary:
        # Everything else follows from what is written, so that the page can be made from it anew.
        path = pathlib.Path(temporary, "runs.csv")
        tables.write_runs(runs, path)
        known = analysis.add_theory(published.read(path).assign(**listed))
    picture = io.BytesIO()
    with _tell_what_stays(pathlib.Path(f"{base}.md")):
        text, verdicts = page(experiment, preset, known, seeds)
        if _has_figure(experiment, preset, known):
            save(experiment.figure.draw(experiment, preset, known.copy()), picture)
    # Nothing of an earlier page is touched before all of this one is made.
    try:
        base.parent.mkdir(parents=True, exist_ok=True)
        tables.write_runs(runs, pathlib.Path(f"{base}{published.ENDING}"))
        tables.write_csv(verdicts, pathlib.Path(f"{base}{ENDING}"))
        atomic.replace_text(pathlib.Path(f"{base}.md"), text)
        figure = pathlib.Path(f"{base}.png")
        if drawn := picture.getbuffer():
            with atomic.replace(figure) as file:
                file.write(drawn)
        else:
            figure.unlink(missing_ok=True)
    except OSError as error:
        why = reason(error)
        raise UserError(f"{base}.md cannot be written ({why}); choose another folder") from error
    return text


def _has_figure(experiment: Experiment, preset: str, table: pd.DataFrame) -> bool:
    """True where the preset has a figure and not every run diverged."""
    return experiment.has_figure(preset) and bool((table["status"] != "diverged").any())


@contextlib.contextmanager
def _tell_what_stays(path: pathlib.Path) -> Iterator[None]:
    """Adds to whatever is raised inside that an earlier page and its figure stay."""
    try:
        yield
    except Exception as error:
        stays = f"; {path} and its figure stay as they were" * path.exists()
        if isinstance(error, UserError) or is_from_user_code(error):
            kind = type(error) if isinstance(error, UserError) else UserError
            raise kind(f"{describe(error)}{stays}") from error
        error.add_note(f"No page was made{stays}.")
        raise


def page(
    experiment: Experiment, preset: str, known: pd.DataFrame, seeds: int | None = None
) -> tuple[str, pd.DataFrame]:
    """The text of a page and its verdicts, from a table of `seeds.add_theory`; see `write`."""
    wanted = experiment.specs(preset, seeds)
    verdicts = claims.verdicts(experiment.claims_of(preset), known, wanted)
    return _page(experiment, preset, known, verdicts, wanted), verdicts


def _page(
    experiment: Experiment,
    preset: str,
    table: pd.DataFrame,
    verdicts: pd.DataFrame,
    wanted: pd.DataFrame,
) -> str:
    n_seeds, n_all = wanted["seed"].nunique(), len({run.seed for run in experiment.runs(preset)})
    first = f", the first {n_seeds} of {n_all} seeds" if n_seeds < n_all else ""
    parts = [
        f"# {experiment.title}",
        f"`{experiment.name}`, preset `{preset}`{first}: "
        f"{len(table)} of {wanted['run_id'].nunique()} runs are here, "
        f"{int((table['status'] == 'diverged').sum())} diverged (they enter no mean).\n"
        f"Measured on: {tables.join_distinct(table['device'])}."
        + (
            f"\nOf the largest preset `quick` has: {experiment.of_full}."
            if preset == "quick" and experiment.of_full
            else ""
        ),
        *([experiment.notes] if experiment.notes else []),
        *_figure(experiment, preset, table),
        *_verdicts(experiment, verdicts),
        *_published(experiment, table),
        *capacity.section(table),
        *experiment.figure.sections(table.copy()),
        *constructions.sections(table),
        *_bounds(table),
        "## Cost",
        "Seconds inside packs; packs that ran side by side count each in full. Compilation is paid "
        "once for a shape, by the pack that came first. `steps` are those of one model, at most: "
        "the run of a search trains many.",
        tables.markdown(analysis.cost(table), _DIGITS),
        "## All configurations",
        *_configurations(experiment, table),
    ]
    return "\n\n".join(parts) + "\n"


def _figure(experiment: Experiment, preset: str, table: pd.DataFrame) -> list[str]:
    if _has_figure(experiment, preset, table):
        return [f"![{experiment.title}]({pathlib.PurePath(experiment.name).name}.png)"]
    if preset in experiment.too_short:
        return [
            f"The preset `{preset}` takes too few steps to decide anything: its models know little "
            "more than guessing, so that a figure would mislead, and there is none."
        ]
    return []


def _verdicts(experiment: Experiment, verdicts: pd.DataFrame) -> list[str]:
    if not experiment.claims:
        return []
    if verdicts.empty:
        return ["## Verdicts", "This preset is too short to decide any claim."]
    statements = [
        f"- **{claim.name}**: {claim.statement} ({claim.source})" for claim in experiment.claims
    ]
    changed = verdicts[verdicts["doubling"].str.startswith("becomes")]
    changes = "; ".join(
        f"*{row.claim}* under {row.variant} at {row.steps:,} steps ({row.verdict}) {row.doubling}"
        for row in changed.itertuples()
    )
    compared = verdicts["doubling"].isin(["same verdict"]).any() or len(changed)
    doubling = f"Twice the steps change these verdicts: {changes}." if changes else ""
    if not changes and compared:
        doubling = "Twice the steps change no verdict."
    columns = ["claim", "variant", "steps", "verdict", "doubling", "claimed", "evidence"]
    if verdicts["claimed"].isna().all():
        columns.remove("claimed")
    shown = verdicts[columns]
    is_elsewhere = (verdicts["verdict"] == claims.NOT_TESTED).any()
    elsewhere = f" Claims made for another design are *{claims.NOT_TESTED}*." * bool(is_elsewhere)
    return [
        "## Verdicts",
        "\n".join(statements),
        "A verdict compares a 95% interval (Student's, over seeds) with the range in which the "
        "claim is true: it holds inside, fails outside, and is undecided where the interval "
        "reaches over the edge, seeds or points are too few, or declared runs are missing. "
        "Claims about every run are counted instead." + elsewhere,
        *([doubling] if doubling else []),
        tables.markdown(shown.rename(columns={"doubling": "twice the steps"}), {}),
    ]


def agreement(experiment: Experiment, table: pd.DataFrame) -> str:
    """The distance of means from the published accuracies, in a sentence; "" without these."""
    if not experiment.published:
        return ""
    return _agreement(_compare_published(experiment, table))


def _compare_published(experiment: Experiment, table: pd.DataFrame) -> pd.DataFrame:
    return analysis.compare_published(analysis.mean_over_seeds(table), experiment.published_table())


def _agreement(compared: pd.DataFrame) -> str:
    differences = compared["difference"].dropna()
    if differences.empty:
        return "No configuration here ran with their number of steps."
    within = int((differences.abs() <= AGREES).sum())
    return (
        f"{within} of {len(differences)} means lie within {AGREES} of the published ones, the "
        f"farthest {max(differences, key=abs):+.3f}."
    )


def _published(experiment: Experiment, table: pd.DataFrame) -> list[str]:
    if not experiment.published:
        return []
    compared = _compare_published(experiment, table)
    return [
        "## Published vs ours",
        "Published protocol, accuracy as the authors' code reports it (mean of the last 100 "
        "batches but one). `interval` is half the 95% interval of our mean; no `difference` is "
        f"given where we took other steps than they did. {_agreement(compared)}",
        tables.markdown(compared, _DIGITS),
    ]


def _bounds(known: pd.DataFrame) -> list[str]:
    bounds = analysis.bounds(known)
    if bounds.empty:
        return []
    return [
        "## Bounds",
        "What theorems say of these runs. `least` and `most` are the extremes over runs of what "
        "was memorized over the number proven to be possible, or of what was measured over the "
        "limit; no run may exceed a limit.",
        tables.markdown(bounds, {"least": 3, "most": 3}),
    ]


def _configurations(experiment: Experiment, table: pd.DataFrame) -> list[str]:
    measures = [name for name in MEANS if table[name].notna().any()]
    measures += [name for name in rows.averaged_own_measures() if table[name].notna().any()]
    summary = analysis.mean_over_seeds(table, tuple(measures))
    if len(summary) > MOST_LISTED:
        file = f"{pathlib.PurePath(experiment.name).name}_runs.csv"
        return [f"{len(summary):,} are too many to list: [{file}]({file}) has the runs of each."]
    shown = analysis.distinguishing_columns(summary, CONFIGURATION_COLUMNS)
    # Rates that tell optimisers apart do not name them.
    optimizer = Optimizer.noun
    if optimizer in summary and optimizer not in shown and summary[optimizer].nunique() > 1:
        shown.append(optimizer)
    for measure in measures:
        shown += [measure, f"{measure}_interval"]
    return [
        "At the final weights (of an annealed run those of least loss), over all examples by their "
        "prior: `accuracy`, and `loss`, the divergence from the task in nats (for one next token "
        "or class the cross-entropy, for a scalar the squared error); `_interval` is half the 95% "
        "interval of the mean.",
        tables.markdown(summary[shown], rows.digits()),
    ]
