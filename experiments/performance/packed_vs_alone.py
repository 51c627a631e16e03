"""Packed training against training one model at a time: model-steps per second, and wall time.

Everything is measured in one run on one machine. It prints, and writes to --output as Markdown and
CSV, two tables:

1. Throughput of one size, the attention-only Transformer of `dana2025/heads` with d = 10, H = 21
   on N = 50 tokens, batch 256. The baseline is PyTorch as its user would write it: eager, one model
   after another, one module per head; the better of its default thread count and one thread counts.
   Against it stand packs of memobench's runs. Rates are steady ones: without compilation, and from
   the end of a pack's first 64 steps to the end of its last but one 64. A round measures every row
   once, baseline first; a row's rate is its median over the rounds, its ratio that over the
   baseline's. Both sides shuffle every epoch and follow the learning rate; memobench also records
   loss and accuracy at every step, the baseline does not.
2. Wall time, compilation included, of the 77 sizes of experiment 1 (d = 3..13, H = 1, 6, .., 31),
   one seed each: the packs that `packing.plan` chooses, against a loop that trains one run after
   another, each at its true size in its own compiled program. The loop is measured on every
   --solo_every-th size, in order of arithmetic, and its sum is scaled to all 77. Once each.

PyTorch is an optional extra, `pip install -e .[torch]`; without it the rows that need it are left
out. A busy machine makes the numbers worthless; the columns `lowest` and `highest` tell.

    make performance
    python experiments/performance/packed_vs_alone.py --epochs=64 --output=elsewhere
"""

import dataclasses
import functools
import itertools
import math
import statistics
import time
from collections.abc import Callable, Sequence

import jax
import measuring
import numpy as np
import pandas as pd
import pytorch
from absl import app, flags
from associations import (
    METHOD,
    Case,
    packed_rate,
    progress,
    pytorch_name,
    pytorch_rate,
    run,
    train_packs,
)
from measuring import say

from memobench import engine
from memobench.core.run import Run
from memobench.methods import training
from memobench.planner import packing

OUTPUT = measuring.output_flag()
ROUNDS = flags.DEFINE_integer("rounds", 2, "How often every rate is measured.", lower_bound=1)
SECONDS = flags.DEFINE_float(
    "seconds", 5.0, "At least how long a measurement of a rate lasts.", lower_bound=0.1
)
EPOCHS = flags.DEFINE_integer(
    "epochs", 16, "Epochs of the 77 sizes; experiment 1 itself has 64.", lower_bound=1
)
SOLO_EVERY = flags.DEFINE_integer(
    "solo_every", 7, "The loop is measured on every so many-th size.", lower_bound=1
)

SCRIPT = "experiments/performance/packed_vs_alone.py"
SIZES = tuple(itertools.product(range(3, 14), (1, 6, 11, 16, 21, 26, 31)))

MARKDOWN = """\
# Packed training against one model at a time

{device}; {date}; jax {jax}, torch {torch}. Written by `{command}`; never edited by hand.

## One size: d = 10, H = 21, N = 50, batch 256

{rates}

Steady rates without compilation. A round measures all rows one after another, each for at least
{seconds:g} s; a rate is the median over {rounds} rounds, lowest and highest are over rounds, too.
`× PyTorch` is the ratio of medians, over the faster PyTorch row. A shape compiles once, however
many packs there are of it.

## Experiment 1: 77 sizes, d = 3..13, H = 1, 6, .., 31, one seed, {epochs} of 64 epochs

{sweeps}

Wall time and model-steps per second with everything in them, each row measured once. `compile s` is
that of the training programs alone; initialisation, too, compiles once for every size.
"""


def main(argv: Sequence[str]) -> None:
    """Measures, prints and writes."""
    output = measuring.begin(SCRIPT, OUTPUT.value)
    about = measuring.about(SCRIPT) | pytorch.version()
    rates = measure_rates(_cases(), ROUNDS.value, SECONDS.value)
    sweeps = measure_sweeps(EPOCHS.value, SOLO_EVERY.value)
    text = MARKDOWN.format(
        rates=measuring.markdown(rates),
        sweeps=measuring.markdown(sweeps),
        rounds=ROUNDS.value,
        seconds=SECONDS.value,
        epochs=EPOCHS.value,
        **about,
    )
    table = pd.concat([rates.assign(table="rates"), sweeps.assign(table="sweeps")])
    measuring.write(output, "packed_vs_alone", text, table, about)
    print(text)


# --- Rates -------------------------------------------------------------------------------------


def _cases() -> list[Case]:
    cases = [Case(f"pack of {n}", n) for n in (1, 4, 16, 64)]
    if jax.default_backend() == "cpu":  # Elsewhere a driver trains one pack at a time.
        cases += [Case(f"two packs of {n} side by side", n, n_packs=2) for n in (8, 16)]
    return [*cases, Case("pack of 16, exact protocol", 16, method=METHOD.exact())]


def measure_rates(cases: Sequence[Case], rounds: int, seconds: float) -> pd.DataFrame:
    """One row per PyTorch thread count and per case, measured in turns."""
    compile_seconds: dict[str, float] = {}
    measures: dict[str, Callable[[], float]] = {
        pytorch_name(threads): functools.partial(pytorch_rate, threads, seconds)
        for threads in pytorch.threads()
    }
    baselines = list(measures)
    for case in cases:
        say(f"{case.name}: compiling, and sizing its measurement")
        compile_seconds[case.name] = _compile_seconds(case)
        measures[case.name] = functools.partial(packed_rate, case, _epochs(case, seconds))

    rates = measuring.in_turns(measures, rounds)
    baseline = max((statistics.median(rates[name]) for name in baselines), default=math.nan)
    n_runs = {case.name: case.n_runs * case.n_packs for case in cases}
    return pd.DataFrame(
        {
            "configuration": name,
            "runs": n_runs.get(name, 1),
            **measuring.columns(rates[name]),
            "× PyTorch": statistics.median(rates[name]) / baseline,
            "compile s": compile_seconds.get(name, math.nan),
        }
        for name in measures
    )


def _compile_seconds(case: Case) -> float:
    lanes = engine.Lanes(training.TrainingPolicy(case.packs(1)[0]))
    lanes.fill()
    return lanes.compile_seconds


def _epochs(case: Case, seconds: float) -> int:
    """The number of epochs that keep the case steady for so many seconds."""
    times = progress(case.packs(2))
    chunk_seconds = max(t[-1] - t[0] for t in times) / (len(times[0]) - 1)
    chunks = max(2, math.ceil(seconds / chunk_seconds)) + 2
    return math.ceil(chunks * case.method.chunk_steps / case.method.n_batches)


# --- The sizes of experiment 1 -----------------------------------------------------------------


def measure_sweeps(epochs: int, solo_every: int) -> pd.DataFrame:
    """One row for the packs and one for the loop."""
    method = dataclasses.replace(METHOD, epochs=epochs)
    runs = [run(d_model, n_heads, method) for d_model, n_heads in SIZES]
    packs = packing.plan(runs, jax.default_backend())
    say(f"{len(runs)} sizes in {len(packs)} packs")
    packed = _packed_sweep(packs)

    by_work = sorted(runs, key=lambda run: run.method.cost(run).flops_per_step)
    sample = by_work[min(solo_every, len(by_work)) // 2 :: solo_every]
    _forget_programs()
    solo = np.sum([_solo(run) for run in sample], axis=0) * len(runs) / len(sample)
    steps = sum(run.method.steps for run in runs)
    scaled = f"measured {len(sample)} of {len(runs)}, scaled"
    rows = [
        (f"{len(packs)} packs", *packed, steps / packed[0], solo[0] / packed[0]),
        (f"loop of solo runs, {scaled}", *solo, steps / solo[0], 1.0),
    ]
    columns = ["configuration", "wall s", "compile s", "model-steps / s", "× loop"]
    return pd.DataFrame(rows, columns=columns)


def _forget_programs() -> None:
    """Forgets everything compiled but what any run needs, so that what comes next compiles it."""
    engine.compile_program.cache_clear()
    jax.clear_caches()
    training.train_one(run(2, 1, dataclasses.replace(METHOD, epochs=1)))  # None of the 77.


def _packed_sweep(packs: Sequence[packing.Pack]) -> tuple[float, float]:
    """Wall seconds of training all packs as a sweep does, and seconds of compilation in it."""
    _forget_programs()
    started = time.perf_counter()
    compile_seconds = 0.0
    for result in train_packs(packs):
        compile_seconds += result.compile_seconds
        say(f"{len(result.loss_R)} sizes done after {time.perf_counter() - started:.0f} s")
    return time.perf_counter() - started, compile_seconds


def _solo(run: Run) -> tuple[float, float]:
    """Wall seconds of training one run alone, and seconds of compilation in it."""
    started = time.perf_counter()
    compile_seconds = training.train_one(run).compile_seconds
    seconds = time.perf_counter() - started
    sizes = run.architecture.shared_cells()
    say(f"d = {sizes['d_model']}, H = {sizes['n_heads']} alone took {seconds:.1f} s")
    return seconds, compile_seconds


if __name__ == "__main__":
    app.run(main)
