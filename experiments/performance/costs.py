"""Rates of this device from measured shards, and predictions of what experiments cost against them.

It prints, and writes to --output as Markdown and CSV, three tables:

1. Predicted against measured: for every experiment and preset of whose runs nine tenths are in the
   shards, the seconds of its packs one after another, compilation included; of a pack that
   several experiments share, each has the share of its runs. `left out` is the prediction of rates
   derived without any pack that holds a run of the experiment, as for an experiment of a user's.
   Equal packs measured several times count once, by the fastest; `spread` is how many times longer
   all of an experiment's repeated packs took in their slowest measurement than in their fastest.
2. What every experiment costs on the device of the shards, two packs side by side, and a guess for
   one accelerator and for several, by the share of its bandwidth that steps reach.
3. The rates.

With --write the rates replace this device's in `memobench/rates.csv`, which comes with memobench:
measure all kinds of run, and while nothing else runs.

    memobench run 'dana2025/*' 'mahdavi2024/*' 'constructions/*' 'capacity/*' board/typical
    python experiments/performance/costs.py --shards=runs/shards --write
    python experiments/performance/costs.py --shards=runs/shards,elsewhere --output=elsewhere
"""

import pathlib
import sys
from collections.abc import Sequence

import jax
import measuring
import numpy as np
import pandas as pd
from absl import app, flags

from memobench.experiments import EXPERIMENTS
from memobench.planner import accelerators, costs, packing
from memobench.report import tables
from memobench.runtime import local
from memobench.table import results

OUTPUT = measuring.output_flag()
SHARDS = flags.DEFINE_list("shards", ["runs/shards"], "Folders of shards.")
WRITE = flags.DEFINE_bool("write", False, "Replace this device's rates in memobench/rates.csv.")
PRICE = flags.DEFINE_bool(
    "price", False, "Write only what experiments cost anew, by the rates that memobench has."
)
SAMPLE = flags.DEFINE_string("sample", None, "CSV file for a few packs of every kind, for tests.")

SCRIPT = "experiments/performance/costs.py"
# Share of a preset's runs that must be measured for a comparison.
COVERAGE = 0.9
ACCELERATOR, ACCELERATORS = "NVIDIA H100", 8
_SHORT = ACCELERATOR.removeprefix("NVIDIA ")
# How far off a prediction may be.
FACTOR = 1.5

MARKDOWN = """\
# Predicted and measured costs

{device}; {date}; jax {jax}. Written by `{command}`; never edited by hand.

## Predicted against measured

{compared}

Seconds of packs one after another, compilation included; two of them ran side by side. Within a
factor of {factor:g}: {within} of {of} by rates that saw the experiment, {left_within} of {of} by
rates that did not (`left out`). `spread` is the slowest over the fastest measurement of the same
packs, where there were several: so much do repeats differ.

{priced}

## Rates

{rates}

Nanoseconds of a floating-point operation as the planner counts them, and of a number that a head or
a hidden neuron holds for one example alone; a row with empty cells stands for all kinds that begin
so and are not measured.
"""
_PRICED = "## What each experiment costs"
# What was measured, which prices leave alone.
_COMPARED = ["packs", "predicted s", "measured s", "ratio", "left out", "spread"]
# Of this section alone there are prices anew, see `price_again`.
PRICED = """\
{title}

{priced}

On the CPU: predicted from measured rates, {workers} packs side by side. On accelerators: **a
guess**, by what steps move as the planner counts it, at {bandwidth:.2g} TB/s, which programs reach
on average (`first_light.md`), at least {step:g} µs a step and {compilation:g} s a compilation;
constructions at {arithmetic:g} TFLOP/s. Several share packs, not runs."""


def main(argv: Sequence[str]) -> None:
    """Derives, compares, prints and writes."""
    output, about = measuring.begin(SCRIPT, OUTPUT.value), measuring.about(SCRIPT)
    if PRICE.value:
        price_again(output / "costs.md", about["device"])
        return
    folders = [measured(folder) for folder in SHARDS.value]
    device = about["device"]
    repeated = pd.concat(folders, ignore_index=True)
    repeated = repeated[repeated["device"] == device].sort_values("seconds")
    packs = repeated.drop_duplicates("runs", ignore_index=True)
    if packs.empty:
        sys.exit(f"{SCRIPT}: --shards hold no pack measured on {device}; name other folders")
    rates = derive(packs, device)
    compared = compare(packs, repeated, rates, device)
    priced = price(rates, device)
    table = costs.to_table(rates)
    if WRITE.value:
        write_rates(table, packs)
    if SAMPLE.value:
        sample(packs).to_csv(SAMPLE.value, index=False, float_format="%.4g")
    shown = table.drop(columns="device")
    for name in ("flop", "float"):
        shown[f"{name}_nanoseconds"] = 1e9 * shown.pop(f"{name}_seconds")
    text = MARKDOWN.format(
        compared=tables.markdown(compared, _DIGITS),
        priced=section(priced, device),
        rates=tables.markdown(shown.replace("", None), _RATES),
        factor=FACTOR,
        within=_within(compared["ratio"]),
        left_within=_within(compared["left out"]),
        of=len(compared),
        **about,
    )
    both = compared.merge(priced, how="outer", on=["experiment", "preset", "runs"])
    measuring.write(output, "costs", text, both, about)
    print(text)


def price_again(page: pathlib.Path, device: str) -> None:
    """Replaces the section of what experiments cost in a page; all else was measured and stays."""
    before, found, after = page.read_text().partition(_PRICED)
    if not found:
        sys.exit(f"{SCRIPT}: {page} has no section of costs; measure with --shards first")
    _, following, rest = after.partition("\n## ")
    rates = costs.known(device, "cpu")
    # Of a device that was not measured they are another's.
    device = rates[()].device or device
    priced = price(rates, device)
    page.write_text(f"{before}{section(priced, device)}\n{following}{rest}")
    if (path := page.with_suffix(".csv")).exists():
        known = pd.read_csv(path)
        compared = known.dropna(subset=["ratio"])[["experiment", "preset", *_COMPARED]]
        about = {name: known[name].iloc[0] for name in ("date", "jax", "command")}
        both = priced.merge(compared, how="left", on=["experiment", "preset"])
        both.assign(device=device, **about).to_csv(path, index=False, float_format="%.4g")


def section(priced: pd.DataFrame, device: str) -> str:
    """The section of what experiments cost."""
    figures, guess = accelerators.DEVICES[ACCELERATOR], costs.GUESSES["gpu"]
    return PRICED.format(
        title=_PRICED,
        priced=tables.markdown(side_by_side(priced, device), {}),
        workers=local.n_workers(),
        bandwidth=figures.reached * figures.bandwidth / 1e12,
        step=figures.step_seconds * 1e6,
        compilation=guess.program_seconds,
        arithmetic=1e-12 / guess.flop_seconds,
    )


_DIGITS = {"predicted s": 0, "measured s": 0, "ratio": 2, "left out": 2, "spread": 2}
_RATES = {"program_seconds": 2, "step_seconds": 5, "flop_nanoseconds": 4, "float_nanoseconds": 2}


def measured(folder: str) -> pd.DataFrame:
    """The packs of a folder of shards."""
    return costs.measured(results.load_rows(folder).values())


def compare(
    packs: pd.DataFrame,
    repeated: pd.DataFrame,
    rates: dict[costs.RateKey, costs.Rates],
    device: str,
) -> pd.DataFrame:
    """One row per experiment and preset of which enough is measured."""
    spread = repeated.groupby("runs")["seconds"].agg(["min", "max", "size"])
    spread = spread[spread["size"] > 1]
    ids_of_pack = [set(runs.split()) for runs in packs["runs"]]
    predicted, rows = predict(packs, rates), []
    for experiment in EXPERIMENTS.values():
        of_any = {run.run_id for runs in experiment.presets.values() for run in runs}
        others = packs[[not (ids & of_any) for ids in ids_of_pack]]
        without = predict(packs, derive(others, device))
        for preset, runs in experiment.presets.items():
            wanted = {run.run_id for run in runs}
            share = np.array([len(ids & wanted) / len(ids) for ids in ids_of_pack])
            found = sum(len(ids & wanted) for ids in ids_of_pack)
            if found < COVERAGE * len(wanted):
                continue
            seconds = float(share @ packs["seconds"])
            again = spread[spread.index.isin(packs["runs"][share > 0])].sum()
            rows.append(
                {
                    "experiment": experiment.name,
                    "preset": preset,
                    "runs": len(wanted),
                    "packs": int((share > 0).sum()),
                    "predicted s": float(share @ predicted),
                    "measured s": seconds,
                    "ratio": float(share @ predicted) / seconds,
                    "left out": float(share @ without) / seconds,
                    "spread": again["max"] / again["min"] if again["min"] else None,
                }
            )
    return pd.DataFrame(rows)


def derive(packs: pd.DataFrame, device: str) -> dict[costs.RateKey, costs.Rates]:
    """Rates from these packs; a guess where they are too few for any."""
    return {(): costs.GUESSES[jax.default_backend()]} | costs.derive(packs, device)


def predict(packs: pd.DataFrame, rates: dict[costs.RateKey, costs.Rates]) -> np.ndarray:
    """Seconds of measured packs by these rates."""
    keys = packs[list(costs.KEY_COLUMNS)].itertuples(index=False, name=None)
    rate_PxA = np.array([costs.lookup(rates, key)[1].seconds for key in keys])
    return (packs[list(costs.AMOUNTS)].to_numpy(float) * rate_PxA).sum(axis=1)


def sample(packs: pd.DataFrame, n_packs: int = 16) -> pd.DataFrame:
    """So many packs of every kind, evenly spread over their seconds."""
    columns = [*costs.KEY_COLUMNS, *costs.AMOUNTS, "seconds", "device", "platform"]
    of_kinds = packs.sort_values("seconds").groupby(list(costs.KEY_COLUMNS))
    return pd.concat(
        of_kind.iloc[np.unique(np.linspace(0, len(of_kind) - 1, n_packs).astype(int))]
        for _, of_kind in of_kinds
    )[columns]


def _within(ratios: pd.Series) -> int:
    return int((np.log(ratios).abs() <= np.log(FACTOR)).sum())


def price(rates: dict[costs.RateKey, costs.Rates], device: str) -> pd.DataFrame:
    """What every preset of each experiment would take here, and guesses for accelerators."""
    rows = []
    for experiment in EXPERIMENTS.values():
        for preset, runs in experiment.presets.items():
            here = costs.predict(packing.plan(runs, "cpu"), rates, device, local.n_workers())
            guess: dict[costs.RateKey, costs.Rates] = {(): costs.GUESSES["gpu"]}
            there = packing.plan(runs, "gpu")
            one, several = (costs.predict(there, guess, ACCELERATOR, n) for n in (1, ACCELERATORS))
            rows.append(
                {
                    "experiment": experiment.name,
                    "preset": preset,
                    "runs": len(runs),
                    device: duration(here.wall_seconds),
                    f"one {_SHORT} (guess)": duration(one.wall_seconds),
                    f"{ACCELERATORS} {_SHORT} (guess)": duration(several.wall_seconds),
                }
            )
    return pd.DataFrame(rows)


def side_by_side(priced: pd.DataFrame, device: str) -> pd.DataFrame:
    """One row per experiment: presets on the device, on accelerators the full one."""
    of = {preset: rows.set_index("experiment") for preset, rows in priced.groupby("preset")}
    guesses = [name for name in map(str, priced) if name.endswith("(guess)")]
    columns = {f"{x}, {device}": of[x][device] for x in ("quick", "paper", "full")}
    columns |= {f"full, {name}": of["full"][name] for name in guesses}
    shown = pd.DataFrame(columns).reindex(list(dict.fromkeys(priced["experiment"])))
    return shown.rename_axis("experiment").fillna("–").reset_index()


def duration(seconds: float) -> str:
    """Two digits in the unit that suits.

    >>> duration(59.6), duration(4000), duration(800_000)
    ('60 s', '1.1 h', '220 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds / 60:.0f} min"
    hours = seconds / 3600
    return f"{hours:.1f} h" if hours < 10 else f"{float(f'{hours:.2g}'):.0f} h"


def write_rates(table: pd.DataFrame, packs: pd.DataFrame) -> pathlib.Path:
    """Replaces a device's rows of the packaged file."""
    about = {name: packs.sort_values("date").iloc[-1][name] for name in ("platform", "jax", "date")}
    old = costs.packaged()
    kept = old[~old["device"].isin(table["device"])]
    new = pd.concat([kept, table.assign(**about)], ignore_index=True)
    new.to_csv(costs.PACKAGED, index=False, float_format="%.4g")
    costs.packaged.cache_clear()
    return costs.PACKAGED


if __name__ == "__main__":
    app.run(main)
