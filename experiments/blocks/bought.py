"""A figure of all ratios of the published verdicts on blocks: the worth of each block.

`python -m memobench.experiments.blocks.bought` writes `bought.png` beside these.
"""

from typing import Any

import pandas as pd

from memobench.claims import UNDECIDED
from memobench.common import folders
from memobench.experiments.blocks.common import EQUAL
from memobench.experiments.blocks.weights import MANY
from memobench.report.drawing import key, legend, palette, save, subplots
from memobench.report.verdicts import ENDING

FOLDER = folders.published() / "blocks"


def ratios() -> pd.DataFrame:
    """A table of columns experiment, name, estimate, low, high and decided.

    The name is of the two groups, and of the measure unless it is MANY; decided is whether any
    claim on the ratio is. Recall is left out: it does not depend on weights.
    """
    tables = []
    for path in sorted(FOLDER.glob(f"*{ENDING}")):
        table = pd.read_csv(path).dropna(subset="low")
        pair = table["evidence"].str.split(" [", regex=False).str[0].str.rpartition(" ")[0]
        measure = table["claim"].str.rpartition(" (")[2].str.removesuffix(")")
        named = pair.where(measure == MANY.name, pair + ", " + measure)
        tables.append(table.assign(experiment=path.name.removesuffix(ENDING), name=named))
    found = pd.concat(tables).query("experiment != 'recall'")
    found["decided"] = found["verdict"] != UNDECIDED
    found["decided"] = found.groupby(["experiment", "name"])["decided"].transform("any")
    found = found.drop_duplicates(["experiment", "name"], ignore_index=True)
    return found[["experiment", "name", "estimate", "low", "high", "decided"]]


def figure(found: pd.DataFrame) -> Any:
    """A line for each ratio, with its 95% interval; what is equal within a tenth is shaded."""
    drawn, ((axis,),) = subplots(1, 1, (10, 1.5 + 0.3 * len(found)))
    names = list(dict.fromkeys(found["experiment"]))
    colors = dict(zip(names, palette(len(names)), strict=True))
    rows: list[Any] = found.to_dict("records")
    for y, row in enumerate(rows):
        ends = [[row["estimate"] - row["low"]], [row["high"] - row["estimate"]]]
        color = colors[row["experiment"]]
        filled = color if row["decided"] else "white"
        axis.errorbar(row["estimate"], y, xerr=ends, fmt="o", capsize=3, color=color, mfc=filled)
    axis.axvspan(*EQUAL, color="black", alpha=0.1)
    axis.axvline(1, color="black", linewidth=1)
    axis.set_yticks(range(len(found)), found["name"], fontsize="small")
    axis.set_ylim(len(found) - 0.5, -0.5)
    axis.set_xlim(left=0)
    axis.set_xlabel("ratio")
    handles = [key(f"blocks/{x}", color=colors[x], marker="o") for x in names]
    handles.append(key("undecided", color="black", marker="o", markerfacecolor="white"))
    legend(drawn, handles, columns=5)
    return drawn


if __name__ == "__main__":
    save(figure(ratios()), FOLDER / "bought.png")
