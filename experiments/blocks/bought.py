"""A figure of all ratios of the published verdicts on blocks: the worth of each block.

`python -m memobench.experiments.blocks.bought` writes `bought.png` beside these.
"""

import re
from typing import Any

import numpy as np
import pandas as pd

from memobench.common import folders, notation
from memobench.experiments import EXPERIMENTS
from memobench.experiments.blocks.common import EQUAL
from memobench.experiments.blocks.weights import MANY
from memobench.report.drawing import key, legend, save, subplots
from memobench.report.style import GREY, INDIGO, RED
from memobench.report.verdicts import ENDING

# Of ratios that are more than 1, less, and neither.
COLORS = {1: INDIGO, -1: RED, 0: GREY}
FOLDER = folders.published() / "blocks"


def ratios() -> pd.DataFrame:
    """A table of columns experiment, name, estimate, low and high.

    The name is of the two groups, and of the measure unless it is MANY. Recall is left out: it does
    not depend on weights.
    """
    tables = []
    for path in sorted(FOLDER.glob(f"*{ENDING}")):
        table = pd.read_csv(path).dropna(subset="low")
        pair = table["evidence"].str.split(" [", regex=False).str[0].str.rpartition(" ")[0]
        measure = table["claim"].str.rpartition(" (")[2].str.removesuffix(")")
        named = pair.where(measure == MANY.name, pair + ", " + measure)
        tables.append(table.assign(experiment=path.name.removesuffix(ENDING), name=named))
    found = pd.concat(tables).query("experiment != 'recall'")
    found = found.drop_duplicates(["experiment", "name"], ignore_index=True)
    return found[["experiment", "name", "estimate", "low", "high"]]


def figure(found: pd.DataFrame) -> Any:
    """A line for each ratio, with its 95% interval; what is equal within a tenth is shaded.

    Groups of ratios stand below each other in two columns, each below its name.
    """
    rows: list[Any] = found.to_dict("records")
    groups: dict[str, list[Any]] = {}
    for row in rows:
        group, label = split_name(row["name"])
        title = notation.typeset(EXPERIMENTS[f"blocks/{row['experiment']}"].title.split(",")[0])
        groups.setdefault(f"{title}: {group}" if group else title, []).append((label, row))
    lengths = np.cumsum([len(of) + 1 for of in groups.values()])
    n_first = int(np.abs(lengths - lengths[-1] / 2).argmin()) + 1
    n_rows = max(lengths[n_first - 1], lengths[-1] - lengths[n_first - 1])
    drawn, (axes,) = subplots(1, 2, (13, 1.4 + 0.29 * n_rows), sharex=True)
    for axis, titles in zip(axes, (list(groups)[:n_first], list(groups)[n_first:]), strict=True):
        names: list[str] = []
        for title in titles:
            names.append(title)
            for label, row in groups[title]:
                ends = [[row["estimate"] - row["low"]], [row["high"] - row["estimate"]]]
                color = COLORS[(row["low"] > 1) - (row["high"] < 1)]
                axis.errorbar(
                    row["estimate"], len(names), xerr=ends, fmt="o", capsize=3, color=color
                )
                names.append(label)
        axis.set_yticks(range(len(names)), names, fontsize="x-small")
        for text in axis.get_yticklabels():
            if text.get_text() in groups:
                text.set_fontweight("bold")
        axis.set_ylim(n_rows - 0.5, -0.5)
        axis.grid(visible=False, axis="y")
        axis.axvspan(*EQUAL, color="black", alpha=0.1)
        axis.axvline(1, color="black", linewidth=1)
        axis.set_xlabel("ratio of bits known")
    axes[0].set_xlim(left=min(0.4, 0.9 * found["low"].min()))
    axes[0].set_xticks([0.5, 0.75, 1, 1.25])
    drawn.suptitle("What blocks memorize, per parameter where no other measure is named")
    handles = [
        key("more", color=COLORS[1], marker="o"),
        key("less", color=COLORS[-1], marker="o"),
        key("not told apart at 95%", color=COLORS[0], marker="o"),
    ]
    legend(drawn, handles)
    return drawn


def split_name(name: str) -> tuple[str, str]:
    """The part that both sides of a ratio share, and the ratio without it.

    >>> split_name("Muon, neurons over Adam, neurons")
    ('neurons', 'Muon over Adam')
    >>> split_name("MLP rounded to int4 over MLP trained for int4, bits per byte")
    ('MLP', 'rounded to int4 over trained for int4, per byte')
    """
    ratio, *measure = name.split(", bits ")
    sides = ratio.split(" over ")
    measure = [x.removeprefix("per parameter ") for x in measure if x != "known of an answer"]
    for group in ("attention", "neurons", "MLP"):
        if all(group in re.split("[ ,]+", side) for side in sides):
            rest = (re.sub(rf"(, )?\b{group}\b(, | )?", "", side) for side in sides)
            return group, ", ".join([" over ".join(rest), *measure])
    return "", ", ".join([ratio, *measure])


if __name__ == "__main__":
    save(figure(ratios()), FOLDER / "bought.png")
