"""The figure of an experiment: a column of panels for every protocol and kind of heads.

Lines are means over seeds, bars their 95% intervals; crosses are the published means.
"""

import dataclasses
import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from memobench import claims, theory
from memobench.analysis import seeds as analysis
from memobench.analysis import theorems
from memobench.claims.claim import FROM_SCRATCH
from memobench.common import notation
from memobench.common.errors import check_arguments, require, short_repr, suggest
from memobench.experiment import Drawing, Experiment
from memobench.report.drawing import (
    arms,
    key,
    legend,
    possible_range,
    subplots,
    whole_numbers,
)
from memobench.report.style import FAINT, styles_of
from memobench.store.rows import averaged_own_measures, configuration, row_columns
from memobench.theory import (
    BUBECK,
    COROLLARY_2,
    MAHDAVI_1,
    RANDOM_FEATURES,
    THEOREM_1,
    Bound,
    encoder_bound,
)

if TYPE_CHECKING:
    import matplotlib.figure
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D


# Lower bounds that are drawn against accuracy, where they apply.
BOUND_STYLES: dict[Bound, Any] = {
    COROLLARY_2: "-.",
    MAHDAVI_1: ":",
    RANDOM_FEATURES: (0, (5, 2, 1, 2, 1, 2)),
    BUBECK: (0, (8, 2)),
}
# Of bounds that users' kinds bring.
_OWN_BOUND = (0, (4, 1))
GUESSING = (0, (1, 3))
_THEOREM_2 = "Theorem 2's bound"
FIT_ALPHA = 0.35
FIT_STYLES = ["-", "--"]
# From where on an axis of accuracies need not begin at zero.
FAR_ABOVE = 0.6
# Line, marker and whether it is filled, for each number of steps, the fewest first.
_BUDGETS = (("-", "o", True), ("--", "s", False), (":", "D", True), ("-.", "^", False))
# Below it an infimum is zero to the eye and to rounding.
LEAST_LOSS = 1e-9
# Of the least mean divergence of a row of panels, what its bars may reach.
_BELOW = 0.3
# What panels of several architectures are called, by their protocol.
_PROTOCOLS = {"exact": "exact gradient", "published": "published protocol"}


# What a figure may have along its y-axis.
MEASURES = (
    *("accuracy", "accuracy_protocol", "known", "memorized", "bits", "bits_per_parameter", "loss"),
    "slope",
)
# Of these every figure has the means: of accuracy for its panels' variants, of loss for floors.
_MEANS = ("accuracy", "accuracy_protocol", "loss")


@check_arguments
@dataclasses.dataclass(frozen=True, kw_only=True)
class Figure(Drawing):
    """A column of panels for every variant.

    Attributes:
      x: the column along the axis.
      hue: the column that tells the lines apart.
      y: `accuracy`, `memorized`, `bits`, `bits_per_parameter`, `known` examples (accuracy times
        their number), `loss` on a logarithmic axis, `slope` of accuracy on the heads, or a measure
        of one's own.
      row: the column with a row of panels for each value.
      bounds: whether the lower bounds of theory are drawn.
    """

    x: str
    hue: str
    y: str = "accuracy"
    row: str | None = None
    bounds: bool = True

    def __post_init__(self) -> None:
        known = [*MEASURES, *averaged_own_measures()]
        fix = suggest(str(self.y), known)
        require(self.y in known, f"figure: y={short_repr(self.y)} is not a measure{fix}")
        self._require_columns([*row_columns(), *theorems.OF_THEORY])

    def _require_columns(self, known: Collection[str]) -> None:
        for name, column in (("x", self.x), ("hue", self.hue), ("row", self.row)):
            fix = suggest(str(column), known, 0.6, others="; docs/columns.md has all")
            is_known = column is None or column in known
            require(is_known, f"figure: {name}={short_repr(column)} is not a column{fix}")

    def draw(
        self, experiment: "Experiment", preset: str, table: pd.DataFrame
    ) -> "matplotlib.figure.Figure":
        """See `Drawing`."""
        summary = _summary(table, self.y)
        if self.y != "slope":
            self._require_columns([str(column) for column in summary])
        hues = summary[self.hue]
        if hues.isna().any():  # Runs without a value have a line too.
            labels = hues.map(str).where(hues.notna(), "none")
            summary = summary.assign(**{self.hue: labels})
        points = _points(self, table, summary)
        rows = sorted(set(summary["row"]))
        columns = list(dict.fromkeys(summary["variant"]))
        styles = styles_of(points["hue"])
        architectures = styles_of(summary["architecture"])
        if len(styles) == len(architectures) == 1:
            styles = dict(zip(styles, architectures.values(), strict=True))
        colors = {hue: style.color for hue, style in styles.items()}
        size = (max(4.2 * len(columns), 8), 3.6 * len(rows) + 2.2)
        shared: Any = "row" if self.y == "loss" else True
        figure, axes = subplots(len(rows), len(columns), size, sharex=shared, sharey=shared)
        fits = _fits(self, experiment.claims_of(preset), table)
        for axes_of_row, row in zip(axes, rows, strict=True):
            for axis, variant in zip(axes_of_row, columns, strict=True):
                here = points[(points["row"] == row) & (points["variant"] == variant)]
                chosen = summary[(summary["row"] == row) & (summary["variant"] == variant)]
                _draw_theory(axis, self, chosen, colors)
                _draw_curves(axis, here, colors)
                if self.row is None:
                    _draw_fits(axis, self, fits.get(variant, ()), colors)
                if variant == claims.VARIANTS["published", "compressed"]:
                    _draw_published(axis, experiment, self, chosen, colors)
                title = _name_panel(variant, chosen, is_single=len(columns) == 1)
                title += f",\n{notation.label(self.row, row)}" if self.row else ""
                axis.set_title(title, fontsize="small")
            axes_of_row[0].set_ylabel(notation.name(self.y))
        for axis in axes[-1]:
            axis.set_xlabel(notation.name(self.x))
        if pd.api.types.is_integer_dtype(points["x"]):
            for axis in axes.flat:
                whole_numbers(axis)
        for axis in axes[:, 0]:
            _set_scales(axis, self, points, experiment)
        figure.suptitle(notation.typeset(experiment.title))
        bounds = {x: style for x, style in _bound_styles().items() if x.applies(summary).any()}
        bounded = any(line.get_label() == _THEOREM_2 for axis in axes.flat for line in axis.lines)
        handles = _legend(
            experiment, self, points, colors, {} if self.row else fits, bounds, bounded
        )
        legend(figure, handles, columns=3 if len(columns) > 2 else 2)
        return figure


def _set_scales(
    axis: "Axes", shown: Figure, points: pd.DataFrame, experiment: "Experiment"
) -> None:
    """Sets limits and scales, which all panels share."""
    if shown.y == "loss":
        axis.set_yscale("log")
        if shown.x == "d_model":
            axis.set_xscale("log")
    elif shown.y in ("accuracy", "known"):
        largest = max([points["high"].max(), *(row["published"] for row in experiment.published)])
        most, least = np.inf, 0.0
        if shown.y == "accuracy":
            most, lowest = 1.03, points["low"].min()
            least = 0.1 * np.floor(10 * lowest) if lowest > FAR_ABOVE else 0.0
        axis.set_ylim(least, min(most, 1.08 * largest))


def _summary(table: pd.DataFrame, y: str) -> pd.DataFrame:
    """Means over seeds, with theory's columns, the variant and what is measured in it."""
    also = () if y in (*_MEANS, "known", "slope") else (y,)
    if y == "bits_per_parameter":
        table = table.assign(bits_per_parameter=table["bits"] / table["n_params"])
    summary = analysis.mean_over_seeds(table, (*_MEANS, *also))
    summary = analysis.add_theory(summary)
    published = summary["protocol"] == "published"
    for suffix in ("", "_interval"):
        protocol = summary[f"accuracy_protocol{suffix}"]
        summary[f"accuracy{suffix}"] = protocol.where(published, summary[f"accuracy{suffix}"])
    summary["variant"] = _merge_variants(summary)
    # Where Transformers are shown the best encoders are their floor, not a curve.
    trained = summary["variant"] != claims.OPTIMUM
    if trained.any():
        summary = summary[trained].copy()
    for suffix in ("", "_interval"):
        summary[f"known{suffix}"] = summary[f"accuracy{suffix}"] * summary["n_examples"]
    conditional = summary["conditional"].astype(object).fillna("")
    return summary.assign(conditional=conditional).sort_values("variant")


def _merge_variants(summary: pd.DataFrame) -> pd.Series:
    """The variants, but of a protocol where no architecture has several forms of heads only that.

    So an architecture of one's own is beside the Transformers that it is compared with. Heads as
    wide as the stream are not compressed, but for models that differ in nothing else.
    """
    variant = claims.variant(summary)
    forms = summary["heads"].mask(summary["d_head"] == summary["d_model"], "full")
    others = [name for name in configuration() if name in summary and name != "heads"]
    for name in set(summary["protocol"]):
        plain = variant.isin([name, FROM_SCRATCH, *claims.VARIANTS.values()])
        merged = (plain | variant.str.startswith(f"{name}, ")) & (summary["protocol"] == name)
        rows = summary[merged]
        has_several = (forms[merged].groupby(rows["architecture"]).nunique() > 1).any()
        if variant[merged].nunique() > 1 and not has_several and not rows.duplicated(others).any():
            variant = variant.mask(merged, _PROTOCOLS.get(name, name))
    return variant


def _points(shown: Figure, table: pd.DataFrame, summary: pd.DataFrame) -> pd.DataFrame:
    """The points to draw, with columns row, variant, hue, steps, x, y, low and high."""
    summary["row"] = summary[shown.row] if shown.row else 0
    if shown.y == "slope":
        slopes = claims.slopes_in_heads(table)
        named = slopes.rename(columns={"slope": "y", "d_model": "x"})
        hue = summary[shown.hue].iloc[0]
        return _add_budget(named.assign(row=0, hue=hue).sort_values(["variant", "steps", "x"]))
    y = summary[shown.y]
    ends = possible_range(shown.y, summary) if shown.y in MEASURES else ()
    down, up = arms(y, summary[f"{shown.y}_interval"], *ends)
    low, high = y - down, y + up
    if shown.y == "loss":
        y, low, high = (values.clip(lower=LEAST_LOSS) for values in (y, low, high))
        # Of bars that reach zero as much is shown as leaves room for the means.
        low = low.clip(lower=_BELOW * y.groupby(summary["row"]).transform("min"))
    columns: dict[str, Any] = {
        "row": summary["row"],
        "variant": summary["variant"],
        "hue": summary[shown.hue],
        "steps": summary["steps"],
        "x": summary[shown.x],
        "y": y,
        "low": low,
        "high": high,
    }
    return _add_budget(pd.DataFrame(columns).sort_values(["variant", "hue", "steps", "x"]))


def _add_budget(points: pd.DataFrame) -> pd.DataFrame:
    """The points with a column that counts, for the same model and task, the numbers of steps."""
    groups = points.groupby(["row", "variant", "hue", "x"], dropna=False)["steps"]
    return points.assign(budget=groups.rank(method="dense").astype(int) - 1)


def _draw_curves(axis: "Axes", points: pd.DataFrame, colors: dict[Any, Any]) -> None:
    groups: Any = points.groupby(["hue", "budget"])
    for (hue, budget), line in groups:
        line_style, marker, is_filled = _BUDGETS[budget % len(_BUDGETS)]
        low, high = line["y"] - line["low"], line["high"] - line["y"]
        axis.errorbar(
            line["x"],
            line["y"],
            # Rounding leaves less than nothing.
            yerr=np.stack([low.fillna(0), high.fillna(0)]).clip(min=0),
            color=colors[hue],
            # Several points at one x are of settings that the figure does not tell apart: no curve.
            linestyle=line_style if line["x"].is_unique else "",
            marker=marker,
            markerfacecolor=colors[hue] if is_filled else "white",
            markersize=4,
            linewidth=1 if budget else 1.5,
            capsize=2,
            zorder=2 if budget else 3,
        )


def _is_one_line(shown: Figure, summary: pd.DataFrame) -> bool:
    """True where what theorems promise is the same for all hues."""
    return not summary.drop_duplicates([shown.x, "promised"])[shown.x].duplicated().any()


def _draw_theory(
    axis: "Axes", shown: Figure, summary: pd.DataFrame, colors: dict[Any, Any]
) -> None:
    """Draws the lower bounds and guessing, or the encoder's floor and T_eps."""
    if shown.y == "accuracy":
        for by_guessing in set(analysis.chance(summary)):
            axis.axhline(by_guessing, color=FAINT, linewidth=1, linestyle=GUESSING)
    if shown.bounds and shown.y == "known":
        # One line where all hues have the same.
        lines = [(None, summary)] if _is_one_line(shown, summary) else summary.groupby(shown.hue)
        for hue, line in lines:
            line = line.drop_duplicates(shown.x).sort_values(shown.x)
            promised = line["promised"].clip(upper=summary["n_examples"].max())
            color = "black" if hue is None else colors[hue]
            axis.plot(line[shown.x], promised, color=color, linestyle="-.", linewidth=1)
    if shown.x == "load":
        axis.axvline(1, color="black", linewidth=1, linestyle="-.")
    if shown.bounds and shown.y == "accuracy":
        for bound, style in _bound_styles().items():
            bounded = summary[bound.applies(summary)].drop_duplicates([shown.hue, shown.x])
            for hue, line in bounded.groupby(shown.hue):
                line = line.sort_values(shown.x)
                accuracy = analysis.predicted_accuracy(bound.value(line), line)
                axis.plot(
                    line[shown.x],
                    accuracy,
                    color=colors[hue],
                    linestyle=style,
                    linewidth=1,
                    alpha=0.7,
                    zorder=1,
                )
    if shown.y == "loss" and (shown.x, shown.hue) == ("d_model", "conditional"):
        _theorem_2(axis, summary, colors)
    if shown.y == "loss" and summary["floor"].notna().any():
        for hue, line in summary.groupby(shown.hue):
            floor, t_eps = line["floor"].iloc[0], line["t_eps"].iloc[0]
            if line["variant"].iloc[0] != claims.OPTIMUM:
                # A floor of zero is below all panels.
                if floor > _BELOW * summary["loss"].min():
                    axis.axhline(floor, color=colors[hue], linewidth=1, linestyle=":")
                axis.axvline(t_eps, color=colors[hue], linewidth=1, linestyle=":")


def _theorem_2(axis: "Axes", summary: pd.DataFrame, colors: dict[Any, Any]) -> None:
    """The bound on encoders where it is finite, and the width from which on they reach all."""
    n = int(summary["vocab_size"].iloc[0])
    axis.axvline(n - 1, color=FAINT, linewidth=1, linestyle=":")
    # Where it is finite at widths of which none was measured, there is nothing to compare.
    widths = np.geomspace(1, 2 * summary["d_model"].max(), 200).astype(int)
    distributions = summary.dropna(subset=["n_next"]).drop_duplicates("conditional")
    rows: Any = distributions.itertuples()
    for row in rows:
        parameter = None if pd.isna(row.conditional_parameter) else row.conditional_parameter
        bound = [encoder_bound(n, d, int(row.n_next), row.conditional, parameter) for d in widths]
        finite = np.isfinite(bound)
        if finite.any():
            axis.plot(
                widths[finite],
                np.asarray(bound)[finite],
                color=colors[row.conditional],
                linestyle="--",
                linewidth=1,
                label=_THEOREM_2,
            )


def _fits(
    shown: Figure, tested: Sequence[claims.Claim], table: pd.DataFrame
) -> dict[str, Sequence[claims.Fit]]:
    """Per variant the fits of the first claim that has any to show, at the fewest steps."""
    fits: dict[str, Sequence[claims.Fit]] = {}
    variants = set(claims.variant(table))
    for _, variant, _, finding in claims.findings(tested, table):
        if of_shown := [fit for fit in finding.fits if _is_of(shown, fit)]:
            fits.setdefault(variant, of_shown)
        if fits.keys() == variants:
            break
    return fits


def _is_of(shown: Figure, fit: claims.Fit) -> bool:
    """True if a fit is of the figure's axes; one of accuracies becomes one of examples."""
    is_counted = shown.y == "known" and shown.hue == "n_examples" and fit.group is not None
    is_y = shown.y == fit.y_name or (is_counted and fit.y_name == "accuracy")
    return is_y and shown.x == fit.x_name


def _draw_fits(
    axis: "Axes", shown: Figure, fits: Sequence[claims.Fit], colors: dict[Any, Any]
) -> None:
    for fit, style in zip(fits, FIT_STYLES * len(fits), strict=False):
        grouped = fit.group in colors
        axis.plot(
            fit.x,
            fit.y * (fit.group if shown.y == "known" else 1),
            color=colors[fit.group] if grouped else "black",
            linestyle="-" if grouped else style,
            alpha=FIT_ALPHA,
            linewidth=5,
            solid_capstyle="butt",
            zorder=1,
        )


def _draw_published(
    axis: "Axes",
    experiment: "Experiment",
    shown: Figure,
    summary: pd.DataFrame,
    colors: dict[Any, Any],
) -> None:
    published = experiment.published_table()
    sizes = [column for column in published.columns if not column.startswith("published")]
    # A size without d_model in its own hue or x keeps one row for each of them.
    known = published.merge(
        summary.drop_duplicates(sizes)[list({*sizes, shown.x, shown.hue})], on=sizes
    )
    if not known.empty and shown.y == "accuracy":
        axis.scatter(
            known[shown.x],
            known["published"],
            color=[colors[hue] for hue in known[shown.hue]],
            edgecolors="black",
            marker="X",
            s=55,
            linewidths=0.8,
            zorder=5,
        )


def _bound_styles() -> dict[Bound, Any]:
    own = set(theorems.lower_bounds()) - {*theory.LOWER_BOUNDS}
    return BOUND_STYLES | dict.fromkeys(sorted(own, key=lambda bound: bound.name), _OWN_BOUND)


def _legend(
    experiment: "Experiment",
    shown: Figure,
    points: pd.DataFrame,
    colors: dict[Any, Any],
    fits: Mapping[str, Sequence[claims.Fit]],
    bounds: Mapping[Bound, Any],
    bounded: bool,
) -> list["Line2D"]:
    budgets = _budgets(points)
    # A line of a color would be one of the budgets.
    shape: dict[str, Any] = (
        {"marker": "s", "linestyle": ""} if budgets else {"marker": "o", "markersize": 4}
    )
    keys = [
        key(notation.label(shown.hue, hue), color=color, **shape) for hue, color in colors.items()
    ]
    for label, (line, marker, is_filled) in zip(budgets, itertools.cycle(_BUDGETS), strict=False):
        fill = "black" if is_filled else "white"
        look = {"linestyle": line, "marker": marker, "markerfacecolor": fill}
        keys.append(key(label, markersize=4, **look))
    if experiment.published and shown.y == "accuracy":
        steps = sorted({str(row["published_steps"]) for row in experiment.published})
        cross = {"marker": "X", "linestyle": "", "markeredgecolor": "black", "color": "0.7"}
        keys.append(key(f"published mean ({' or '.join(steps)} steps)", **cross))
    if shown.x == "load" or (shown.bounds and shown.y == "known"):
        one = THEOREM_1 if THEOREM_1 in bounds else next(iter(bounds)) if len(bounds) == 1 else None
        keys.append(key(one.name if one else "proven", linestyle="-.", linewidth=1))
    elif shown.bounds:
        for bound, style in bounds.items():
            keys.append(key(f"lower bound, {bound.name}", color=FAINT, linestyle=style))
    if shown.y == "accuracy" and points["low"].min() <= FAR_ABOVE:
        keys.append(key("guessing", color=FAINT, linewidth=1, linestyle=GUESSING))
    if shown.y == "loss" and shown.x == "promised":
        keys.append(key("encoder's floor; T_eps (vertical)", color=FAINT, linestyle=":"))
    if shown.y == "loss" and (shown.x, shown.hue) == ("d_model", "conditional"):
        if bounded:
            keys.append(key(_THEOREM_2, color=FAINT, linestyle="--"))
        keys.append(key("d = N − 1", color=FAINT, linestyle=":"))
    for name, dashes in _names_of(fits).items():
        band = {"color": FAINT, "alpha": FIT_ALPHA, "linewidth": 5, "linestyle": dashes}
        several = points["budget"].any()
        keys.append(
            key(f"{name} fitted at the fewer steps" if several else f"fitted {name}", **band)
        )
    return keys


def _names_of(fits: Mapping[str, Sequence[claims.Fit]]) -> dict[str, str]:
    """The names of fits, without numbers that differ between variants, and their line styles."""
    names: dict[str, str] = {}
    for several in fits.values():
        for fit, style in zip(several, FIT_STYLES * len(several), strict=False):
            names.setdefault(fit.label.split(",")[0], style if fit.group is None else "-")
    return names


def _name_panel(variant: str, summary: pd.DataFrame, is_single: bool) -> str:
    """A variant, without compression where heads have the width; its letter tells several apart."""
    name = variant.partition(") ")[2] if is_single and variant.startswith("(") else variant
    is_wide = (summary["d_head"] == summary["d_model"]).all()
    return name.removesuffix(", compressed heads") if is_wide else name


def _budgets(points: pd.DataFrame) -> list[str]:
    """The numbers of steps in words, the fewest first, such as "(a) 2,048; (b), (c) 512 steps".

    A single variant is not named, and the list is empty where all take as many steps.
    """
    if points["steps"].nunique() <= 1:
        return []
    if points["variant"].nunique() == 1:
        points = points.assign(variant="")
    by_steps: list[dict[str, list[str]]] = [{} for _ in range(points["budget"].max() + 1)]
    groups: Any = points.groupby(["variant", "budget"])
    for (variant, budget), rows in groups:
        name = str(variant)
        short = name.split(" ")[0] if name.startswith("(") else name
        least, most = rows["steps"].min(), rows["steps"].max()
        steps = f"{least:,}" + (f" to {most:,}" if most > least else "")
        by_steps[budget].setdefault(steps, []).append(short)
    return [
        "; ".join(f"{', '.join(names)} {steps}".strip() for steps, names in place.items())
        + " steps"
        for place in by_steps
        if place
    ]
