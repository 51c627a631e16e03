"""Packed training against the best of what users write: model-steps per second, and wall time.

Everything is measured in one run on one machine. It prints, and writes to --output as Markdown and
CSV, two tables:

1. Throughput of one size, the attention-only Transformer of `dana2025/heads` with d = 10, H = 21
   on N = 50 tokens, batch 256. Baselines, strongest last on most machines: eager PyTorch, one model
   after another, one module per head, with its default thread count and with one; PyTorch's `vmap`
   over seeds with one product for all heads, as it is and compiled; and `plain.py`, what a JAX user
   would write. Against them stand packs of memobench's runs. Rates are steady ones: without
   compilation, and of packs from the end of the first 64 steps to the end of the last but one 64.
   A round measures every row once, baselines first; a row's rate is its median over the rounds.
   All shuffle every epoch and follow the learning rate; memobench also records loss and accuracy
   at every step, `plain.py` the loss.
2. Wall time, compilation included, of the 77 sizes of experiment 1 (d = 3..13, H = 1, 6, .., 31),
   one seed each: the packs that `packing.plan` chooses, against `plain.py`, which compiles every
   size. That is measured on every --plain_every-th size, in order of arithmetic, and its sum is
   scaled to all 77. Once each.

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
from typing import NamedTuple

import associations
import jax
import measuring
import numpy as np
import pandas as pd
import plain
import pytorch
from absl import app, flags
from associations import (
    METHOD,
    TASK,
    Case,
    packed_rate,
    progress,
    pytorch_rate,
    pytorch_vmap_rate,
    run,
    train_packs,
)
from measuring import say

from memobench import engine
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
PLAIN_EVERY = flags.DEFINE_integer(
    "plain_every", 7, "Plain JAX is measured on every so many-th size.", lower_bound=1
)

SCRIPT = "experiments/performance/packed_vs_alone.py"
SIZES = tuple(itertools.product(range(3, 14), (1, 6, 11, 16, 21, 26, 31)))

MARKDOWN = """\
# Packed training against what users write

{device}; {date}; jax {jax}, torch {torch}. Written by `{command}`; never edited by hand.

## One size: d = 10, H = 21, N = 50, batch 256

{rates}

Steady rates without compilation. A round measures all rows one after another, each for at least
{seconds:g} s; a rate is the median over {rounds} rounds, lowest and highest are over rounds, too.
Ratios are those of medians: `× strongest` over the fastest baseline, and `× plain` over plain JAX
with as many seeds side by side. A shape compiles once, however many packs there are of it.

## Experiment 1: 77 sizes, d = 3..13, H = 1, 6, .., 31, one seed, {epochs} of 64 epochs

{sweeps}

Wall time and model-steps per second with everything in them, each row measured once. `compile s` is
that of the training programs alone; initialisation, too, compiles once for every size.
"""

# Seeds that plain JAX trains side by side, and runs of a pack, on CPUs and on accelerators.
PLAIN_SEEDS = {True: (1, 4, 16), False: (1, 16, 256)}
PACKS = {True: (1, 4, 16, 64), False: (1, 16, 256, 1024)}


def main(argv: Sequence[str]) -> None:
    """Measures, prints and writes."""
    output = measuring.begin(SCRIPT, OUTPUT.value)
    about = measuring.about(SCRIPT) | pytorch.version()
    rates = measure_rates(_cases(), ROUNDS.value, SECONDS.value)
    sweeps = measure_sweeps(EPOCHS.value, PLAIN_EVERY.value)
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
    on_cpu = jax.default_backend() == "cpu"
    cases = [Case(f"pack of {n}", n) for n in PACKS[on_cpu]]
    if on_cpu:  # Elsewhere a driver trains one pack at a time.
        cases += [Case(f"two packs of {n} side by side", n, n_packs=2) for n in (2, 8)]
    return cases


class Row(NamedTuple):
    """A way to train: its rate, measured anew by every call, and so many seeds at a time."""

    measure: Callable[[], float]
    n_runs: int
    compile_seconds: float = math.nan


def measure_rates(cases: Sequence[Case], rounds: int, seconds: float) -> pd.DataFrame:
    """One row per baseline and per case, measured in turns."""
    baselines = _list_baselines(seconds)
    rows = dict(baselines)
    for case in cases:
        say(f"{case.name}: compiling, and sizing its measurement")
        compile_seconds = _compile_seconds(case)
        measure = functools.partial(packed_rate, case, _epochs(case, seconds))
        rows[case.name] = Row(measure, case.n_runs * case.n_packs, compile_seconds)

    rates = measuring.in_turns({name: row.measure for name, row in rows.items()}, rounds)
    median = {name: statistics.median(rates[name]) for name in rows}
    strongest = max(median[name] for name in baselines)
    return pd.DataFrame(
        {
            "configuration": name,
            "runs": row.n_runs,
            **measuring.columns(rates[name]),
            "× strongest": median[name] / strongest,
            "× plain": median[name] / median.get(_plain_name(row.n_runs), math.nan),
            "compile s": row.compile_seconds,
        }
        for name, row in rows.items()
    )


def _list_baselines(seconds: float) -> dict[str, Row]:
    """The rows to compare with, by name; without PyTorch those of JAX."""
    seeds = PLAIN_SEEDS[jax.default_backend() == "cpu"]
    rows, most = {}, max(seeds)
    for threads in pytorch.threads():
        one = functools.partial(pytorch_rate, threads, seconds)
        rows[f"PyTorch, {pytorch.where(threads)}"] = Row(one, 1)
    for threads, is_compiled in itertools.product(pytorch.threads(), (False, True)):
        name = f"PyTorch, vmap of {most}, {pytorch.where(threads)}" + ", compiled" * is_compiled
        many = functools.partial(pytorch_vmap_rate, most, is_compiled, threads, seconds)
        rows[name] = Row(many, most)
    for n_seeds in seeds:
        say(f"{_plain_name(n_seeds)}: compiling")
        trainer = plain.Trainer(_plain_module(associations.D_MODEL, associations.N_HEADS), n_seeds)
        rate = functools.partial(trainer.rate, seconds)
        rows[_plain_name(n_seeds)] = Row(rate, n_seeds, trainer.compile_seconds)
    return rows


def _plain_name(n_seeds: int) -> str:
    return f"plain JAX, vmap of {n_seeds}"


def _plain_module(d_model: int, n_heads: int) -> plain.Transformer:
    return plain.Transformer(TASK.vocab_size, d_model, n_heads)


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


def measure_sweeps(epochs: int, plain_every: int) -> pd.DataFrame:
    """One row for the packs and one for plain JAX."""
    method = dataclasses.replace(METHOD, epochs=epochs)
    runs = [run(d_model, n_heads, method) for d_model, n_heads in SIZES]
    packs = packing.plan(runs, jax.default_backend())
    say(f"{len(runs)} sizes in {len(packs)} packs")
    packed = _packed_sweep(packs)

    by_work = sorted(SIZES, key=lambda size: size[0] * math.prod(size))
    sample = by_work[min(plain_every, len(SIZES)) // 2 :: plain_every]
    _forget_programs()
    each = [_train_plain(*size, epochs) for size in sample]
    alone = np.sum(each, axis=0) * len(SIZES) / len(sample)
    steps = sum(run.method.steps for run in runs)
    scaled = f"measured {len(sample)} of {len(SIZES)}, scaled"
    rows = [
        (f"{len(packs)} packs", *packed, steps / packed[0], alone[0] / packed[0]),
        (f"plain JAX, size by size, {scaled}", *alone, steps / alone[0], 1.0),
    ]
    columns = ["configuration", "wall s", "compile s", "model-steps / s", "× plain"]
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


def _train_plain(d_model: int, n_heads: int, epochs: int) -> tuple[float, float]:
    """Wall seconds of training one size in plain JAX, and seconds of compilation in it."""
    started = time.perf_counter()
    trainer = plain.Trainer(_plain_module(d_model, n_heads), 1, epochs)
    for _ in range(epochs):
        trainer.train_epoch()
    seconds = time.perf_counter() - started
    say(f"d = {d_model}, H = {n_heads} in plain JAX took {seconds:.1f} s")
    return seconds, trainer.compile_seconds


if __name__ == "__main__":
    app.run(main)
