"""Training on labelled contexts: model-steps per second of packs, and of all tokens one at a time.

The setting of Mahdavi, Liao & Thrampoulidis (2024): vectors of 64 entries, n = 32, d_model =
d_head = 64, values of dimension 1, 100 classes, batches of 256, Adam; shared and random contexts, H
= 20 and 60; 8192 examples. Everything is measured in one run on one machine. It prints, and writes
to --output as Markdown and CSV, one table. Its rows, for each kind of contexts and each H:

1. PyTorch as its user would write it: eager, one model after another; all n + 1 tokens are
   embedded, get positions and attend to all but themselves, and the query's output is read. With
   one module per head and with one module for all heads, each with its default number of threads
   and with one; the fastest of these rows is the baseline.
2. The same in JAX, jitted: all tokens, one model after another. What is left of memobench's lead
   over it is not due to compilation.
3. memobench: one run, packs of 2 to 16, and on a CPU two packs side by side, as `memobench run`
   trains them. Chunks of `engine.Lanes`.

Rates are steady ones: without compilation and initialisation. A round measures every row once,
baseline first; a row's rate is its median over the rounds, a ratio is one of medians. All shuffle
every epoch, on the host, and follow the learning rate. Nothing is evaluated, but in the column
`evaluated / s`: there memobench evaluates all examples after every 500 steps, as it does in truth.
Its rounds are of 25 steps here, by turns without and with an evaluation at their end; what that
takes is the difference, counted once per 500 steps.

PyTorch is an optional extra, `pip install -e .[torch]`; without it the rows that need it are left
out. A busy machine makes the numbers worthless; the columns `lowest` and `highest` tell.

    make performance
    python experiments/performance/labelled_contexts.py --rounds=1 --seconds=1 --output=elsewhere
"""

import dataclasses
import functools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import all_tokens
import contexts
import jax
import measuring
import numpy as np
import pandas as pd
import pytorch
from absl import app, flags
from contexts import METHOD, N_EXAMPLES, Setting

from memobench.core.run import Run

OUTPUT = measuring.output_flag()
ROUNDS = flags.DEFINE_integer("rounds", 3, "How often every rate is measured.", lower_bound=1)
SECONDS = flags.DEFINE_float(
    "seconds", 5.0, "At least how long a measurement of a rate lasts.", lower_bound=0.1
)

SCRIPT = "experiments/performance/labelled_contexts.py"
# Rounds are short ones here, so that a measurement holds several.
ROUND = dataclasses.replace(METHOD, evaluate_every=25)
WIDTHS = (1, 2, 4, 8, 16)
SIDE_BY_SIDE = (2, 4)

MARKDOWN = """\
# Labelled contexts: packs against all tokens one model at a time

{device}; {date}; jax {jax}, torch {torch}. Written by `{command}`; never edited by hand.

Vectors of 64 entries, n = 32, d_model = d_head = 64, values of dimension 1, 100 classes, {examples}
examples, batch 256, Adam.

{rates}

Steady rates without compilation. A round measures all rows one after another, each for at least
{seconds:g} s; a rate is the median over {rounds} rounds, lowest and highest are over rounds, too.
`model-steps / s` has batches, shuffling and the learning rate in it on all sides and no evaluation;
`evaluated / s` also has memobench's evaluation of all examples after every 500 steps. `× PyTorch`
and `× JAX` are ratios of medians of `model-steps / s`, over the fastest PyTorch row and over the
JAX row of the same contexts and H; both of these compute all tokens of one model after another.
"""


class Rates(NamedTuple):
    """Model-steps per second, without evaluations and with them."""

    plain: float
    evaluated: float = math.nan


SETTINGS = tuple(Setting(contexts, h) for h in (20, 60) for contexts in ("shared", "random"))


def main(argv: Sequence[str]) -> None:
    """Measures, prints and writes."""
    output = measuring.begin(SCRIPT, OUTPUT.value)
    about = measuring.about(SCRIPT) | pytorch.version()
    rates = measure(SETTINGS, ROUNDS.value, SECONDS.value)
    text = MARKDOWN.format(
        rates=measuring.markdown(rates),
        rounds=ROUNDS.value,
        seconds=SECONDS.value,
        examples=N_EXAMPLES,
        **about,
    )
    measuring.write(output, "labelled_contexts", text, rates, about)
    print(text)


def measure(settings: Sequence[Setting], rounds: int, seconds: float) -> pd.DataFrame:
    """The rows of every setting, measured in turns."""
    measures: dict[tuple[Setting, str], Callable[[], Rates]] = {}
    compile_seconds: dict[tuple[Setting, str], float] = {}
    for setting in settings:
        for name, rate in all_tokens.baselines(setting).items():
            measures[setting, name] = functools.partial(_without_evaluation, rate, seconds)
        for width in WIDTHS:
            name = _packed_name(width)
            runs = [setting.run(i, ROUND) for i in range(width)]
            compile_seconds[setting, name] = contexts.lanes(runs).compile_seconds
            measuring.say(f"{setting}, {name}: compiled")
            measures[setting, name] = functools.partial(packed_rates, setting, width, 1, seconds)
        # Elsewhere than on a CPU a driver trains one pack at a time.
        for width in SIDE_BY_SIDE if jax.default_backend() == "cpu" else ():
            both = functools.partial(packed_rates, setting, width, 2, seconds)
            measures[setting, _packed_name(width, 2)] = both
    rates = measuring.in_turns(measures, rounds)
    median = {key: Rates(*map(statistics.median, zip(*rates[key], strict=True))) for key in rates}

    def fastest(setting: Setting, framework: str) -> float:
        of = [
            x.plain
            for (y, name), x in median.items()
            if y == setting and name.startswith(framework)
        ]
        return max(of, default=math.nan)

    return pd.DataFrame(
        {
            "contexts": setting.contexts,
            "H": setting.n_heads,
            "configuration": name,
            **measuring.columns([rate.plain for rate in rates[setting, name]]),
            "evaluated / s": median[setting, name].evaluated,
            "× PyTorch": median[setting, name].plain / fastest(setting, "PyTorch"),
            "× JAX": median[setting, name].plain / fastest(setting, "JAX"),
            "compile s": compile_seconds.get((setting, name), math.nan),
        }
        for setting, name in rates
    )


def _without_evaluation(rate: Callable[[float], float], seconds: float) -> Rates:
    return Rates(rate(seconds))


def packed_rates(setting: Setting, width: int, n_packs: int, seconds: float) -> Rates:
    """Rates of as many packs of as many runs, side by side."""
    trainings = [
        _round_seconds([setting.run(pack * width + i, ROUND) for i in range(width)])
        for pack in range(n_packs)
    ]
    for rounds in trainings:
        next(rounds)

    def work(rounds: Iterator[tuple[float, float]]) -> np.ndarray:
        started, taken = time.perf_counter(), []
        while time.perf_counter() < started + seconds:
            taken.append(next(rounds))
        plain, evaluated = np.mean(taken, axis=0)
        per_step = plain / ROUND.evaluate_every
        evaluation = max(0.0, evaluated - plain) / METHOD.evaluate_every
        return width / np.array([per_step, per_step + evaluation])

    both = measuring.side_by_side([functools.partial(work, rounds) for rounds in trainings])
    return Rates(*np.sum(both, axis=0).tolist())


def _round_seconds(runs: Sequence[Run]) -> Iterator[tuple[float, float]]:
    """Trains a pack for ever; yields how long a round took, one without evaluation and one with."""
    lanes = contexts.lanes(runs)

    def seconds(evaluated: bool) -> float:
        started = time.perf_counter()
        lanes.train()
        if evaluated:
            lanes.evaluate()
        jax.block_until_ready(lanes.state)
        return time.perf_counter() - started

    while True:
        yield seconds(evaluated=False), seconds(evaluated=True)
        for job in lanes.jobs:
            if job is not None and job.step > METHOD.steps - 4 * ROUND.evaluate_every:
                job.step = 0


def _packed_name(width: int, n_packs: int = 1) -> str:
    name = f"pack of {width}" if width > 1 else "one run"
    return f"two packs of {width} side by side" if n_packs == 2 else name


if __name__ == "__main__":
    app.run(main)
