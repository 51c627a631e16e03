"""The page of the roofline: ceilings, the work of a step, rates, and their figure."""

import math
import pathlib
from typing import Any

import matplotlib
import measuring
import numpy as np
import pandas as pd
from rows import Rows

from memobench.report.style import INDIGO, ORANGE, PINK, RED, TEAL

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import seaborn as sns

MARKDOWN = """\
# Packs against the roofline of the device

{device}; {date}; jax {jax}, torch {torch}. Written by `{command}`,
measured in {sittings}; never edited by hand.

![Model-steps per second against the size of packs](roofline.png)

## Ceilings

{ceilings}

Float32 products of square matrices at the precision of training, and copies; the best of {rounds}.

## The work of a step

{costs}

Per model-step, by XLA's count and as explained in `{script}`; `planner` is
`Cost.flops_per_step`. `roofline` is the most model-steps per second that both ceilings allow, and
`bound by` tells which decides.

## Rates

{rates}

`steps alone`: the compiled chunk, again and again; median over {rounds} rounds of at least
{seconds:g} s, lowest and highest over them. `as run`: with shuffles, evaluations and whatever else
comes between chunks, which takes the share `between` of the time. `shuffle`: the share that
shuffling on the device takes. `% of roofline` is of the steps alone. `µs / kernel`: time of a
pack's step over its kernels. `program MB`: what XLA plans for the chunk; `peak MB`: the most the
device held so far. `× PyTorch`: over the fastest row of PyTorch, eager, one model after another
({baseline}).
"""


def write(output: pathlib.Path, this: dict[str, str], rows: Rows, settings: dict[str, Any]) -> str:
    """Writes Markdown, CSV and figure; returns the Markdown. `settings` fills in `MARKDOWN`."""
    ceilings, eager = rows.table("ceiling"), rows.table("baseline")
    fastest = eager["rate"].max() if len(eager) else math.nan
    costs, rates = summary(ceilings, rows.table("cost"), rows.table("rate"), fastest)
    draw(this["device"], costs, rates, fastest, output / "roofline.png")
    per_second = ceilings.assign(
        **{"GFLOP / s": ceilings["FLOP/s"] / 1e9, "GB / s": ceilings["bytes/s"] / 1e9}
    )
    text = MARKDOWN.format(
        ceilings=measuring.markdown(per_second[["callers", "GFLOP / s", "GB / s"]]),
        costs=measuring.markdown(costs),
        rates=measuring.markdown(rates),
        baseline="–" if math.isnan(fastest) else f"{fastest:.1f} model-steps / s",
        **settings,
        sittings=rows.sittings(),
        **this,
    )
    kinds = {"ceiling": per_second, "baseline": eager, "cost": costs, "rate": rates}
    table = pd.concat([t.assign(table=kind) for kind, t in kinds.items()])
    table = table.drop(columns=["kind", "of", "sitting", "FLOP/s", "bytes/s"], errors="ignore")
    measuring.write(output, "roofline", text, table, this)
    return text


def summary(
    ceilings: pd.DataFrame, costs: pd.DataFrame, rates: pd.DataFrame, baseline: float
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Tables of the cost of a step, with the rate that it allows, and of the rates of packs."""
    flops, copies = ceilings["FLOP/s"].max(), ceilings["bytes/s"].max()
    by_flop, by_bytes = flops / costs["FLOP"], copies / costs["bytes"]
    costs = pd.DataFrame(
        {
            "case": costs["case"],
            "MFLOP": costs["FLOP"] / 1e6,
            "planner MFLOP": costs["planner FLOP"] / 1e6,
            "MB": costs["bytes"] / 1e6,
            "of it by hand": costs["by hand"] / 1e6,
            "kernels": costs["kernels"],
            "FLOP bound / s": by_flop,
            "byte bound / s": by_bytes,
            "roofline / s": np.minimum(by_flop, by_bytes),
            "bound by": np.where(by_flop < by_bytes, "FLOP", "bytes"),
        }
    )
    if "rate" not in rates:
        return costs, rates
    names = ("as run", "shuffle", "peak MB", "does not fit")
    rates = rates.assign(**{name: math.nan for name in names if name not in rates})
    rates = rates[rates["rate"].notna()].merge(costs, on="case", sort=False)
    pack_step = 1e6 * rates["runs"] * rates["packs"] / rates["rate"]
    rates = pd.DataFrame(
        {
            "case": rates["case"],
            "packs": rates["packs"],
            "runs": rates["runs"],
            "steps alone / s": rates["rate"],
            "lowest / s": rates["lowest"],
            "highest / s": rates["highest"],
            "as run / s": rates["as run"],
            "between %": 100 * (1 - rates["as run"] / rates["rate"]),
            "shuffle %": 100 * rates["shuffle"],
            "GFLOP / s": rates["rate"] * rates["MFLOP"] / 1e3,
            "% of FLOP": 100 * rates["rate"] / rates["FLOP bound / s"],
            "GB / s": rates["rate"] * rates["MB"] / 1e3,
            "% of bytes": 100 * rates["rate"] / rates["byte bound / s"],
            "% of roofline": 100 * rates["rate"] / rates["roofline / s"],
            "µs / kernel": pack_step / rates["kernels"],
            "× PyTorch": rates["rate"].where(rates["case"].str.startswith("heads")) / baseline,
            "compile s": rates["compile s"],
            "program MB": rates["program MB"],
            "peak MB": rates["peak MB"],
        }
    )
    return costs, rates.dropna(axis="columns", how="all")


def draw(
    device: str, costs: pd.DataFrame, rates: pd.DataFrame, baseline: float, path: pathlib.Path
) -> None:
    """One panel a case: rates against the runs of a pack, below the two bounds."""
    sns.set_theme(context="notebook", style="whitegrid")
    alone, two, run, flop, moved = INDIGO, ORANGE, TEAL, RED, PINK
    figure, axes = plt.subplots(1, len(costs), figsize=(4.2 * len(costs), 5.0), sharey=True)
    for axis, (_, of) in zip(np.ravel(axes), costs.iterrows(), strict=True):
        mine = rates[rates["case"] == of["case"]] if len(rates) else rates
        if len(mine):
            one, both = mine[mine["packs"] == 1], mine[mine["packs"] == 2]
            axis.plot(one["runs"], one["steps alone / s"], "o-", color=alone, label="steps alone")
            if "as run / s" in one:
                style = {"color": run, "label": "as run", "mfc": "none"}
                axis.plot(one["runs"], one["as run / s"], "s", ms=10, **style)
            if len(both):
                at, style = both["runs"], {"color": two, "label": "two packs side by side"}
                axis.plot(at, both["steps alone / s"], "^", **style)
        axis.axhline(of["FLOP bound / s"], color=flop, ls="--", label="bound by operations")
        axis.axhline(of["byte bound / s"], color=moved, ls="-.", label="bound by bytes moved")
        if of["case"].startswith("heads") and not math.isnan(baseline):
            axis.axhline(baseline, color="black", ls=":", lw=2, label="PyTorch, one at a time")
        axis.set(title=of["case"], xlabel="runs of a pack", yscale="log")
        axis.set_xscale("log", base=2)
    np.ravel(axes)[0].set_ylabel("model-steps / s")
    handles = {
        label: handle
        for axis in np.ravel(axes)
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    figure.suptitle(device)
    figure.legend(handles.values(), handles.keys(), loc="lower center", ncols=3, frameon=False)
    figure.tight_layout(rect=(0, 0.13, 1, 1))
    figure.savefig(path, dpi=130)
    plt.close(figure)
