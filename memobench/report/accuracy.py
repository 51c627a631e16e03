"""The report of an experiment: accuracy against parameters, and published against ours."""

import pathlib
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns

from memobench import analysis
from memobench.experiment import Experiment
from memobench.report import tables
from memobench.theory import LOWER_BOUNDS

FAMILIES = {"attention_only": "attention only (AoT)", "mlp": "MLP Transformer"}
PROTOCOLS = {"published": "published protocol", "exact": "exact gradient"}


def write(experiment: Experiment, preset: str, table: pd.DataFrame, folder: pathlib.Path) -> str:
    """Writes the figure, the tables and the page of an experiment.

    Args:
      experiment: what was run.
      preset: its preset, `quick` or `full`.
      table: the rows of its runs that are there, perhaps not all.
      folder: where `NAME.md`, `NAME.png`, `NAME_runs.csv` go, under the experiment's own name.

    Returns:
      The page's text.
    """
    base = folder / experiment.name
    base.parent.mkdir(parents=True, exist_ok=True)
    summary = analysis.over_seeds(table)
    published = experiment.published_table()
    draw(experiment.title, summary, published, base.with_suffix(".png"))
    table.drop(columns=["curve_steps", "curve_accuracy", "curve_loss"]).to_csv(
        f"{base}_runs.csv", index=False, float_format="%.6g"
    )
    text = _page(experiment, preset, table, summary, published)
    base.with_suffix(".md").write_text(text)
    return text


def _page(
    experiment: Experiment,
    preset: str,
    table: pd.DataFrame,
    summary: pd.DataFrame,
    published: pd.DataFrame,
) -> str:
    n_wanted = len({run.run_id for run in experiment.presets[preset]})
    stem = pathlib.PurePath(experiment.name).name
    compared = analysis.against_published(summary, published)
    lines = [
        f"# {experiment.title}",
        "",
        f"`{experiment.name}`, preset `{preset}`: {len(table)} of {n_wanted} runs are here, "
        f"{int((table['status'] == 'diverged').sum())} diverged (they enter no mean).",
        f"Measured on: {'; '.join(sorted(set(table['device'])))}.",
    ]
    if preset == "quick":
        lines.append(f"Left out by `quick`: {experiment.left_out}.")
    lines += [
        "",
        f"![accuracy against parameters]({stem}.png)",
        "",
        "## Published vs ours",
        "",
        "Published protocol, accuracy as the authors' code reports it (mean of the last 100 "
        "batches but one). `interval` is half the 95% interval of our mean over seeds; no "
        "`difference` is given where we took other steps than they did.",
        "",
        tables.markdown(compared, DIGITS),
        "",
        "## All configurations",
        "",
        "Accuracy over all associations at the final weights.",
        "",
        tables.markdown(summary[SUMMARY_COLUMNS], DIGITS),
        "",
    ]
    return "\n".join(lines)


DIGITS = {
    "published": 3,
    "ours": 3,
    "interval": 3,
    "difference": 3,
    "accuracy": 3,
    "accuracy_interval": 3,
}
SUMMARY_COLUMNS = [
    "architecture",
    "protocol",
    "steps",
    "d_model",
    "d_head",
    "n_heads",
    "d_mlp",
    "n_params",
    "seeds",
    "diverged",
    "accuracy",
    "accuracy_interval",
]


def draw(title: str, summary: pd.DataFrame, published: pd.DataFrame, path: pathlib.Path) -> None:
    """Accuracy against parameters: one panel per width, one line per family and protocol.

    Lines are means, bars 95% intervals over seeds, crosses the published means; lower bounds are
    drawn as the accuracy of a model that memorizes just so many associations and guesses the rest.
    """
    sns.set_theme(context="notebook", style="whitegrid", palette="colorblind")
    widths = sorted(summary["d_model"].unique())
    n_columns = min(len(widths), 4)
    n_rows = -(-len(widths) // n_columns)
    figure, axes = plt.subplots(
        n_rows,
        n_columns,
        figsize=(max(3.6 * n_columns, 7.5), 3.4 * n_rows + 2.8),
        squeeze=False,
        sharey=True,
        layout="constrained",
    )
    for axis in axes.flat[len(widths) :]:
        axis.set_visible(False)
    for axis, d_model in zip(axes.flat, widths, strict=False):
        _panel(axis, summary[summary["d_model"] == d_model], published)
        axis.set_title(f"d = {d_model}", fontsize="medium")
        axis.set_xlabel("parameters")
    for axis in axes[:, 0]:
        axis.set_ylabel("accuracy")
    handles: dict[str, Any] = {}
    for axis in axes.flat:
        handles |= dict(zip(*reversed(axis.get_legend_handles_labels()), strict=True))
    figure.suptitle(title)
    figure.legend(
        handles.values(),
        handles.keys(),
        loc="outside lower center",
        ncols=1 if n_columns == 1 else 2,
        frameon=False,
        fontsize="small",
    )
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _panel(axis: plt.Axes, summary: pd.DataFrame, published: pd.DataFrame) -> None:
    colors = dict(zip(FAMILIES, sns.color_palette(n_colors=len(FAMILIES)), strict=True))
    fallback = sns.color_palette(n_colors=10)[len(FAMILIES)]
    groups: Any = summary.groupby(["architecture", "protocol", "steps"])
    for (family, protocol, steps), group in groups:
        line = group.sort_values("n_params")
        color = colors.get(family, fallback)
        exact = protocol == "exact"
        # The published curves are what the authors' code reports, so ours must be too.
        measure = "accuracy" if exact else "accuracy_protocol"
        axis.errorbar(
            line["n_params"],
            line[measure],
            yerr=line[f"{measure}_interval"].fillna(0),
            color=color,
            linestyle="-" if exact else "--",
            marker="o" if exact else "s",
            markersize=4,
            capsize=3,
            label=f"{FAMILIES.get(family, family)}, {PROTOCOLS[protocol]}, {steps:,} steps",
        )
    sizes = [column for column in published.columns if not column.startswith("published")]
    known = published.merge(summary[[*sizes, "n_params"]].drop_duplicates(), on=sizes)
    families: Any = known.groupby("architecture")
    for family, points in families:
        steps = points["published_steps"].iloc[0]
        axis.scatter(
            points["n_params"],
            points["published"],
            marker="x",
            s=70,
            linewidths=2.5,
            zorder=5,
            color=sns.dark_palette(colors.get(family, fallback), n_colors=5)[2],
            label=f"{FAMILIES.get(family, family)}, published ({steps:,} steps)",
        )
    attention = summary[summary["architecture"] == "attention_only"].drop_duplicates("n_params")
    attention = attention.sort_values("n_params")
    for bound, style in zip(LOWER_BOUNDS, ("-.", ":"), strict=True):
        memorized = bound.value(attention["n_heads"], attention["d_head"], attention["d_model"])
        axis.plot(
            attention["n_params"],
            analysis.predicted_accuracy(memorized, attention),
            color="0.35",
            linestyle=style,
            label=f"AoT lower bound, {bound.name}",
        )
    axis.set_ylim(0, 1.03)
