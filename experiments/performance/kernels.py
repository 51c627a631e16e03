"""Kernels, which take a model's steps in one call, against XLA's programs of the same steps.

On a GPU or a CPU, in one run, by turns. Rows are entries of `board/peak`, whose models learn sets
of six sizes by the exact gradient, and models on batches of 256, of the size that
`packed_vs_alone.py` times, with other heads and longer contexts. Rates are steady ones, of all
lanes of a run's pack, without compilation. It prints how far losses of the first steps differ, and
writes to --output as Markdown and CSV one table.

    python experiments/performance/kernels.py --rounds=2
"""

import dataclasses
import os
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import associations
import jax
import measuring
import numpy as np
import pandas as pd
from absl import app, flags

from memobench import engine
from memobench.core.run import Run
from memobench.engine import resident
from memobench.experiments.board import peak
from memobench.planner import packing

OUTPUT = measuring.output_flag()
ROUNDS = flags.DEFINE_integer("rounds", 2, "How often every rate is measured.", lower_bound=1)
SECONDS = flags.DEFINE_float(
    "seconds", 3.0, "At least how long a measurement of a rate lasts.", lower_bound=0.1
)

SCRIPT = "experiments/performance/kernels.py"
BUDGETS = (512, 2048, 8192)
# Of models on batches: twice as many as an H100 has multiprocessors; a pack on a CPU.
N_SEEDS = {"gpu": 264, "cpu": 16}
# Of the first steps of a chunk, before rates that are too high for a lane have grown differences.
FIRST_STEPS = 8

MARKDOWN = """\
# Kernels against XLA's programs

{device}; {date}; jax {jax}. Written by `{command}`; never edited by hand.

{rates}

Steady rates without compilation, medians over {rounds} rounds of at least {seconds:g} s each, by
turns. `first losses` is the largest relative difference of losses over the first {steps} steps.
"""


def main(argv: Sequence[str]) -> None:
    """Measures, prints and writes."""
    output = measuring.begin(SCRIPT, OUTPUT.value)
    about = measuring.about(SCRIPT)
    os.environ[resident.VARIABLE] = "1"
    table = pd.DataFrame(_measure(name, runs) for name, runs in _list_cases())
    text = MARKDOWN.format(
        rates=measuring.markdown(table),
        rounds=ROUNDS.value,
        seconds=SECONDS.value,
        steps=FIRST_STEPS,
        **about,
    )
    measuring.write(output, "kernels", text, table, about)
    print(text)


def _list_cases() -> Iterator[tuple[str, list[Run]]]:
    for run in peak.runs(BUDGETS):
        name = f"{run.architecture.family}, {run.task.n_examples:,} associations or fewer"
        yield name, [run]
    wide, narrow = {"d_head": 10, "n_heads": 21}, {"d_head": 2, "n_heads": 70}
    compressed = {"heads": "compressed", "d_head": 5, "n_heads": 21}
    for sizes, length in ((wide, 2), (narrow, 2), (compressed, 2), (compressed, 4)):
        plain = associations.run(10, 21, associations.METHOD)
        heads: Any = plain.architecture.replace(**{"heads": "full", **sizes})
        task: Any = plain.task
        if length > 2:
            task = task.replace(context_length=length, n_sequences=task.n_examples)
        each = dataclasses.replace(plain, architecture=heads, task=task)
        n_seeds = N_SEEDS.get(jax.default_backend(), 1)
        runs = [dataclasses.replace(each, seed=seed) for seed in range(n_seeds)]
        yield f"{heads.family}, {length} tokens, batches of {associations.METHOD.batch_size}", runs


def _measure(name: str, runs: list[Run]) -> dict[str, Any]:
    """A row of a pack of runs."""
    trained = {by: _Trained(runs, by == "kernel") for by in ("kernel", "XLA")}
    first = [each.first_losses for each in trained.values()]
    rates = measuring.in_turns(
        {by: each.measure_rate for by, each in trained.items()}, ROUNDS.value
    )
    median = {by: measuring.spread(of)["rate"] for by, of in rates.items()}
    return {
        "models": name,
        "side by side": trained["XLA"].n_lanes,
        **{f"{by}, model-steps / s": rate for by, rate in median.items()},
        "ratio": median["kernel"] / median["XLA"],
        "first losses": f"{np.abs(first[0] / first[1] - 1).max():.1e}",
    }


class _Trained:
    """A pack's lanes, all of whose steps one kernel takes, or XLA."""

    def __init__(self, runs: list[Run], by_kernel: bool) -> None:
        pack = packing.make_pack(runs, platform=jax.default_backend())
        method: Any = runs[0].method
        policy = method.policy(pack, None)
        self._curves: list[Any] = []
        policy.record = lambda jobs, step_R, curve: self._curves.append(curve)
        self._lanes = engine.Lanes(policy)
        self._lanes.fill()
        self.n_lanes = len(self._lanes.jobs)
        signature = policy.signature
        parts = engine.to_compile(signature, self.n_lanes, policy.n_instances)
        chunk = resident.find_chunk(signature) if by_kernel else parts["chunk"].compile()
        if chunk is None:
            sys.exit(f"{SCRIPT}: no kernel can take the steps of {signature.task} on this device")
        self._lanes.program = dataclasses.replace(self._lanes.program, chunk=chunk)
        # A chunk is recorded once the next has begun.
        for _ in range(2):
            self._advance()
        loss_RxC, _ = self._curves[0]
        self.first_losses = np.asarray(loss_RxC)[:, :FIRST_STEPS]

    def _advance(self) -> None:
        self._lanes.train()

    def measure_rate(self) -> float:
        """Model-steps per second."""
        jax.block_until_ready(self._lanes.state)
        started, n = time.perf_counter(), 0
        while time.perf_counter() < started + SECONDS.value:
            self._advance()
            n += 1
        jax.block_until_ready(self._lanes.state)
        chunk_steps = self._lanes.policy.signature.chunk_steps
        return n * self.n_lanes * chunk_steps / (time.perf_counter() - started)


if __name__ == "__main__":
    app.run(main)
