"""The least weights that know all of a set against its size, a panel for each stream width."""

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from memobench.analysis.statistics import interval
from memobench.common import notation
from memobench.experiment import Drawing, Experiment
from memobench.experiments.hebbian2026 import claims as widths
from memobench.experiments.hebbian2026.claims import Groups
from memobench.report import tables
from memobench.report.drawing import key, legend, subplots
from memobench.report.style import styles_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclasses.dataclass(frozen=True, kw_only=True)
class Widths(Drawing):
    """Weights of the least memory of each group that knows all, on logarithmic axes.

    Bars are 95% intervals. Where not all of a size know all a point is the widest memory tried,
    with an arrow up, and where all do the narrowest, with one down.
    """

    groups: Groups

    def draw(self, experiment: "Experiment", preset: str, table: pd.DataFrame) -> "Figure":
        """See `Drawing`."""
        from matplotlib.ticker import StrMethodFormatter

        shown = self._reader_table(table)
        streams = sorted(set(shown["d"]))
        size = (max(5.8 * len(streams), 9.0), 5.6)
        figure, (axes,) = subplots(1, len(streams), size, sharey="row")
        styles = styles_of(shown["group"])
        for name, style in styles.items():
            for axis, d_model in zip(axes, streams, strict=True):
                rows = shown[(shown["group"] == name) & (shown["d"] == d_model)].sort_values("F")
                known, outside = rows[rows["W"].notna()], rows[rows["W"].isna()]
                ends = [known["W"] - known["low"], known["high"] - known["W"]]
                axis.errorbar(known["F"], known["W"], yerr=ends, capsize=3, **style.for_line())
                axis.errorbar(
                    outside["F"],
                    outside["tried"],
                    yerr=outside["tried"] / 2,
                    uplims=outside["known"] == 1,
                    lolims=outside["known"] < 1,
                    linestyle="",
                    **style.for_points(),
                )
        for axis, d_model in zip(axes, streams, strict=True):
            axis.set_xscale("log", base=2)
            axis.set_yscale("log", base=2)
            for side in (axis.xaxis, axis.yaxis):
                side.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
            axis.set_xlabel("facts F")
            axis.set_title(f"d = {d_model}", fontsize="medium")
        axes[0].set_ylabel("weights W")
        figure.suptitle(notation.typeset(experiment.title))
        figure.supxlabel(
            "A line ends at the most facts that several widths were tried on", fontsize="small"
        )
        # In the order of the lines, of most weights first.
        most = shown.groupby("group")["W"].max().sort_values(ascending=False, na_position="first")
        handles = [key(name, **styles[name].for_line()) for name in most.index]
        arrows = {"$↓$": "the least tried, fewer may do", "$↑$": "the most tried, not enough"}
        for arrow, words in arrows.items():
            handles.append(key(words, linestyle="", marker=arrow, markersize=12))
        legend(figure, handles, columns=1, where="right center")
        return figure

    def sections(self, table: pd.DataFrame) -> list[str]:
        """See `Drawing`: the same as numbers."""
        shown = self._reader_table(table)
        text = pd.DataFrame(
            {
                "d": shown["d"],
                "F": shown["F"],
                "weights": shown["group"],
                "m: seeds that know all": shown["m"],
                "W": [_text(row) for row in shown.itertuples()],
                "W / F": shown["W"] / shown["F"],
            }
        )
        return [
            "## Least weights that know all",
            "`W`: by widths that know all and those that do not, mean over seeds (Spearman and "
            "Kärber) with a 95% interval (Student's); beside each width tried how many of its "
            "seeds know all.",
            tables.markdown(text.sort_values(["d", "F"], kind="stable"), {"W / F": 1}),
        ]

    def _reader_table(self, table: pd.DataFrame) -> pd.DataFrame:
        """A row for each group and size; W is NaN where not all seeds know all."""
        rows = []
        for name, sizes in widths.least_widths_by_group(table, self.groups).items():
            for (d_model, n), of in sizes.items():
                weights, low, high = _weights(of)
                rows.append(
                    {
                        "group": name,
                        "d": d_model,
                        "F": n,
                        "W": weights,
                        "low": low,
                        "high": high,
                        "tried": of.tried[0 if of.known_share == 1 else -1] * of.weights,
                        "m": ", ".join(
                            f"{m:,}: {known}/{runs}"
                            for m, runs, known in zip(of.tried, of.runs, of.successes, strict=True)
                        ),
                        "known": of.known_share,
                    }
                )
        return pd.DataFrame(rows)


def _text(row: Any) -> str:
    """The least weights with their interval, or what is known of them."""
    if np.isfinite(row.W):
        return f"{row.W:,.0f} [{row.low:,.0f}, {row.high:,.0f}]"
    return f"at most {row.tried:,}" if row.known == 1 else f"not all with {row.tried:,}"


def _weights(of: widths.Least) -> tuple[float, float, float]:
    if not of.is_complete:
        return np.nan, np.nan, np.nan
    y_BX, seeds = widths.log_weights([of])
    low, high = interval(np.exp(y_BX[:, 0]), seeds)
    return float(np.exp(y_BX[0, 0])), low, high
