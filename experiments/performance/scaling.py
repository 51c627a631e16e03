"""A sweep of up to a million tiny runs, simulated: what planning, storing and reporting it takes.

Nothing is trained. Runs are made up, and so are their measures: they fit each other, so that
`memobench verify` passes them, but say nothing of any model; their shards say `simulated` for a
device, go into a temporary folder and are deleted at the end. At each number of packs, of one run
and of several, every stage runs in a process of its own, one after another:

    plan, programs  `packing.plan` where every pack has a program of its own: batches differ
    plan, sizes     `packing.plan` of as many runs where up to 1,000 sizes share a program
    write           `results.write_shard`, a shard for every pack; the rows' making is in it
    read            `results.load_results`
    resume          `sweep.plan` where all but a hundredth of the runs are done
    verify          `verify.verify`
    report          the page of an experiment of all runs, with figure and CSV
    leaderboard     the leaderboard's pages

Of each stage are measured wall seconds, seconds of CPU (of all threads; on a busy machine only
these compare) and the process's peak memory, imports and what the stage is given included. A stage
that takes longer than --limit is ended, and is not tried with more packs. It prints, and writes to
--output as Markdown and CSV, one table; what the CSV there holds of other stages and numbers is
kept. With the defaults it takes more than an hour, 4 GB of disk and 10 GB of memory.

    python experiments/performance/scaling.py
    python experiments/performance/scaling.py --packs=1000 --runs_per_pack=1 --output=elsewhere
"""

import datetime
import functools
import itertools
import logging as standard_logging
import multiprocessing
import os
import pathlib
import resource
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pandas as pd
from absl import app, flags, logging

from memobench import metrics, results
from memobench.errors import UserError
from memobench.experiment import Experiment, Figure
from memobench.methods.training import Training
from memobench.models.base import Architecture
from memobench.models.transformer import AttentionOnly
from memobench.report import tables
from memobench.runs import Run, cells
from memobench.spec import SPEC_VERSION
from memobench.tasks.associations import Associations
from memobench.version import __version__

OUTPUT = flags.DEFINE_string("output", "results/performance", "Folder of scaling.md and .csv.")
PACKS = flags.DEFINE_list("packs", ["1000", "10000", "100000"], "Numbers of packs.")
RUNS_PER_PACK = flags.DEFINE_list("runs_per_pack", ["1", "10"], "Runs in each pack.")
STAGES = flags.DEFINE_list("stages", None, "Only these stages, the first words of their names.")
LIMIT = flags.DEFINE_float("limit", 600.0, "Seconds after which a stage is ended.")
FOLDER = flags.DEFINE_string("folder", None, "Where the temporary folder is made.")

SCRIPT = "experiments/performance/scaling.py"
VOCAB_SIZE = 16
# d_model and n_heads of the sizes that share a program.
SIZES = tuple(itertools.product(range(2, 12), range(1, 101)))
CURVE_POINTS = 32
# Stages that need what `write` wrote.
ON_SHARDS = ("read", "verify", "report", "leaderboard")
# With more packs than this, `write` does not wait for the disk: it took 12 ms a shard here.
MOST_FSYNCS = 1_000
PROVENANCE = {
    **{"spec_version": SPEC_VERSION, "memobench": __version__, "commit": None},
    **{"jax": "0.0.0", "jaxlib": "0.0.0", "platform": "cpu", "device": "simulated"},
    **{"date": "2026-01-01T00:00:00+00:00", "compile_seconds": 0.0, "run_seconds": 0.0},
}

MARKDOWN = """\
# Scaling to a million runs

{device}; {date}. Written by `{commands}`; never edited by hand. Runs and measures are simulated and
nothing is trained: this is what planning, storing and reporting a sweep takes. How each stage is
measured stands in `{script}`. CPU seconds compare, wall seconds are of a machine that was busy with
other work; `per run` is CPU time over all runs, `peak` is of the whole process, some 245 MiB of it
imports.

{table}

## What breaks first

1. **Compilation**, long before anything here: every program takes three to five seconds
   ([packed_vs_alone](packed_vs_alone.md)), so 100,000 packs of a program each are five days of
   compilation, and a process keeps the last 32 programs only. Sizes cost next to nothing: let runs
   differ in what a pack can carry (sizes, seeds, learning rates, epochs), not in batch size,
   vocabulary or protocol. The planner then makes a tenth of the packs (`plan, sizes`).
2. **The scheduler.** A pack is seconds of work; starting one as a job costs as much. Slurm's
   MaxArraySize is 1001 by default (indices 0 to 1000) and MaxJobCount 10,000: 100,000 packs are
   100 arrays of 1,000, more than the controller holds, so memobench hands in the next array when
   fewer than 256 jobs are left, and gives Ray 64 packs at a time; workers write shards instead of
   returning rows. (The schedulers' limits are documented ones, not measured here.)
3. **Memory of a table**: 9 KB a row, so that a million rows take 9 GB to read (`read`), and reports
   want more. A row is a dict of Python objects, most of it the curves, and then a row of a table.
   Beyond a few hundred thousand runs report from a folder for every experiment.
4. **Files**: one for every pack, each a block of the disk at least and an inode. Two fsyncs a shard
   are the wall time of `write`; network file systems take longer still. Quotas on clusters count
   files, often a million of them. Packs of ten runs are a tenth of the files.
5. **Checking**: `verify` derives everything again; it is the slowest that is linear. Run it once,
   after a sweep, not in it.

All stages are about linear in runs now, but for the planner's cuts: it compares all pairs of sizes
that share a program, 1,000 of them in 0.2 s with all else. Of a million runs only `write` and
`read` were measured to their end: both plans were ended after 270 s, at a low priority on busy
cores, and 200 µs a run are 200 s of a core.

## What was mended

CPU seconds before (commit c4e8567) and after, same machine, simulated runs:

| | before | after |
|:---|---:|---:|
| plan 250 sizes of one program | 6.5 | 0.04 |
| plan 500 sizes of one program | 46.8 | 0.09 |
| resume among 10,000 runs | 0.62 | 0.26 |
| report of 10,000 configurations | 7.1 | 2.3 |
| leaderboard of 10,000 configurations | 3.0 | 0.67 |
| read 10,000 shards of a run, MiB above imports | 144 | 82 |
| count the parameters of 160 sizes of Transformers | 5.3 | 0.005 |

The planner's choice of cuts was cubic in sizes and is the same, cut for cut; parameters are counted
from the table of their shapes instead of tracing the model; means over seeds call nothing group by
group; run ids are derived once and without copies; rows share their names and texts.
"""


def main(argv: Sequence[str]) -> None:
    """Measures, prints and writes."""
    logging.set_verbosity(logging.WARNING)
    try:
        output = results.check_writable(OUTPUT.value)
        chosen = _chosen(STAGES.value)
    except UserError as error:
        sys.exit(f"{SCRIPT}: {error}")
    rows: list[dict[str, Any]] = []
    given_up: set[tuple[str, int]] = set()
    for n_packs, n_runs in itertools.product(map(int, PACKS.value), map(int, RUNS_PER_PACK.value)):
        with tempfile.TemporaryDirectory(dir=FOLDER.value) as folder:
            for stage in chosen:
                unwritten = stage in ON_SHARDS and ("write", n_runs) in given_up
                if (stage, n_runs) in given_up or unwritten:
                    continue
                row = measure(stage, n_packs, n_runs, folder, LIMIT.value)
                if row["CPU s"] is None:
                    given_up.add((stage, n_runs))
                rows.append(row)
                print(row, file=sys.stderr, flush=True)
    print(write(output, pd.DataFrame(rows)))


def write(output: pathlib.Path, table: pd.DataFrame) -> str:
    """Writes the Markdown and the CSV file; returns the Markdown."""
    from memobench import worker

    about = {
        "device": worker.device_name(_Cpu()),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "command": shlex.join(["python", SCRIPT, *sys.argv[1:]]),
    }
    digits = {"wall s": 1, "CPU s": 1, "per run, µs": 0, "peak MiB": 0}
    table = table.assign(**about)
    path = output / "scaling.csv"
    if path.exists():
        table = pd.concat([pd.read_csv(path), table])
    table = table.drop_duplicates(["stage", "packs", "runs"], keep="last")
    place = table["stage"].map(list(_STAGES).index)
    table = table.assign(place=place).sort_values(["place", "packs", "runs"]).drop(columns="place")
    table.to_csv(path, index=False, float_format="%.6g")
    devices = "; ".join(sorted(set(table["device"])))
    commands = "`, `".join(dict.fromkeys(table["command"]))
    shown = table.drop(columns=list(about))
    text = MARKDOWN.format(
        table=tables.markdown(shown, digits),
        script=SCRIPT,
        device=devices,
        date=max(table["date"]),
        commands=commands,
    )
    (output / "scaling.md").write_text(text)
    return text


class _Cpu:
    platform = "cpu"


def measure(stage: str, n_packs: int, n_runs: int, folder: str, limit: float) -> dict[str, Any]:
    """One row: a stage in a process of its own; without numbers where it was ended."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_in_child, args=(sender, stage, n_packs, n_runs, folder))
    process.start()
    sender.close()
    told: dict[str, Any] = {}
    started = time.monotonic()
    try:
        if receiver.poll(limit):
            told = receiver.recv()
        else:
            told = {"found": f"ended after {time.monotonic() - started:.0f} s"}
            process.terminate()
    except EOFError:
        told = {"found": "failed"}
    process.join()
    seconds = told.get("CPU s")
    return {
        "stage": stage,
        "packs": n_packs,
        "runs": n_packs * n_runs,
        "wall s": told.get("wall s"),
        "CPU s": seconds,
        "per run, µs": None if seconds is None else 1e6 * seconds / (n_packs * n_runs),
        "peak MiB": told.get("peak MiB"),
        "found": told["found"],
    }


def _in_child(sender: Any, stage: str, n_packs: int, n_runs: int, folder: str) -> None:
    # Reports warn of what they leave out; that is no part of the measurement.
    standard_logging.disable(standard_logging.WARNING)
    work = _STAGES[stage](n_packs, n_runs, pathlib.Path(folder))
    wall, cpu = time.perf_counter(), time.process_time()
    found = work()
    told = {"wall s": time.perf_counter() - wall, "CPU s": time.process_time() - cpu}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    sender.send({**told, "peak MiB": peak, "found": found})


# --- Simulated runs ------------------------------------------------------------------------------


def _run(d_model: int, n_heads: int, batch_size: int, seed: int) -> Run:
    architecture = AttentionOnly(d_model=d_model, d_head=d_model, n_heads=n_heads, heads="full")
    method = Training(batch_size=batch_size, n_batches=32, epochs=4)
    return Run(task=_TASK, architecture=architecture, method=method, seed=seed)


_TASK = Associations(vocab_size=VOCAB_SIZE)


def own_programs(n_packs: int, n_runs: int) -> list[Run]:
    """Runs of which each `n_runs` have a program of their own."""
    return [_run(4, 2, 1 + i, seed) for i in range(n_packs) for seed in range(n_runs)]


def shared_programs(n_packs: int, n_runs: int) -> Iterator[list[Run]]:
    """Configurations of `n_runs` seeds each: all SIZES of a program, then those of the next."""
    for i in range(n_packs):
        d_model, n_heads = SIZES[i % len(SIZES)]
        yield [_run(d_model, n_heads, 1 + i // len(SIZES), seed) for seed in range(n_runs)]


def simulated_row(run: Run) -> dict[str, Any]:
    """A row of which every measure is made up and fits the others."""
    n_params, n_params_memory, n_params_distinct = _counts(run.architecture)
    n_examples = run.task.n_examples
    number = int(run.run_id, 16)
    known = number % (n_examples + 1)
    accuracy, loss = known / n_examples, 3.0 - 2.0 * known / n_examples + number % 97 / 1e4
    steps = sorted({1 + (run.method.steps - 1) * i // CURVE_POINTS for i in range(CURVE_POINTS)})
    steps = [*(step for step in steps if step < run.method.steps), run.method.steps]
    return {
        **cells(run),
        "n_params": n_params,
        "n_params_memory": n_params_memory,
        "n_params_distinct": n_params_distinct,
        "status": "ok",
        "accuracy": accuracy,
        "accuracy_protocol": accuracy,
        "memorized": float(metrics.chance_corrected(accuracy, n_examples, run.task.chance)),
        "bits": float(metrics.memorized_bits(loss, n_examples, VOCAB_SIZE)),
        "loss": loss,
        "curve_steps": steps,
        "curve_accuracy": [accuracy * step / steps[-1] for step in steps],
        "curve_loss": [loss + 1 - step / steps[-1] for step in steps],
    }


@functools.cache
def _counts(architecture: Architecture) -> tuple[int, int, int]:
    from memobench.models import base as models

    module = architecture.build(_TASK)
    counted = models.count_parameters(module, _TASK.context_length)
    return *counted, models.count_distinct(module, _TASK.context_length)


# --- Stages: each prepares, and returns what is measured -----------------------------------------

Work = Callable[[], str]


def _plan(runs: Sequence[Run]) -> str:
    from memobench import packing

    return f"{len(packing.plan(runs, 'cpu')):,} packs"


def _plan_programs(n_packs: int, n_runs: int, _: pathlib.Path) -> Work:
    from memobench import packing  # noqa: F401

    return functools.partial(_plan, own_programs(n_packs, n_runs))


def _plan_sizes(n_packs: int, n_runs: int, _: pathlib.Path) -> Work:
    from memobench import packing  # noqa: F401

    return functools.partial(_plan, list(itertools.chain(*shared_programs(n_packs, n_runs))))


def _write(n_packs: int, n_runs: int, folder: pathlib.Path) -> Work:
    provenance = {**PROVENANCE, "pack_size": n_runs}
    for architecture in dict.fromkeys(_run(*size, 1, 0).architecture for size in SIZES):
        _counts(architecture)

    waits = n_packs <= MOST_FSYNCS
    if not waits:
        os.fsync = lambda handle: None  # type: ignore[assignment,misc]

    def work() -> str:
        size = 0
        for runs in shared_programs(n_packs, n_runs):
            rows = [simulated_row(run) for run in runs]
            size += results.write_shard(folder, rows, provenance).stat().st_size
        return f"{n_packs:,} files, {size / 1e6:,.0f} MB" + ", without fsync" * (not waits)

    return work


def _read(_: int, n_runs: int, folder: pathlib.Path) -> Work:
    def work() -> str:
        table = results.load_results(folder)
        return f"{len(table):,} rows of {len(table.columns)} columns"

    return work


def _resume(n_packs: int, n_runs: int, _: pathlib.Path) -> Work:
    from memobench import sweep

    runs = list(itertools.chain(*shared_programs(n_packs, n_runs)))
    done = [run.run_id for i, run in enumerate(runs) if i % 100]
    # Another process would have other objects: what these remember of themselves is forgotten.
    runs = list(itertools.chain(*shared_programs(n_packs, n_runs)))
    return lambda: f"{len(sweep.plan(runs, done=done)):,} packs"


def _verify(n_packs: int, n_runs: int, folder: pathlib.Path) -> Work:
    from memobench import sweep, verify  # noqa: F401

    return lambda: verify.verify(folder).summary


def _report(n_packs: int, n_runs: int, folder: pathlib.Path) -> Work:
    from memobench.report import experiment as page

    runs = tuple(itertools.chain(*shared_programs(n_packs, n_runs)))
    experiment = Experiment(
        name="simulated",
        title="Simulated",
        presets={"full": runs},
        left_out="",
        figure=Figure(x="n_heads", hue="d_model"),
    )
    table = results.load_results(folder)

    def work() -> str:
        with tempfile.TemporaryDirectory(dir=folder.parent) as output:
            text = page.write(experiment, "full", table, pathlib.Path(output))
        return f"a page of {len(text.encode()) / 1e6:,.1f} MB"

    return work


def _leaderboard(n_packs: int, n_runs: int, folder: pathlib.Path) -> Work:
    from memobench.report import leaderboard

    table = results.load_results(folder)

    def work() -> str:
        with tempfile.TemporaryDirectory(dir=folder.parent) as output:
            leaderboard.write(table, pathlib.Path(output))
            size = sum(path.stat().st_size for path in pathlib.Path(output).iterdir())
        return f"pages of {size / 1e6:,.1f} MB"

    return work


_STAGES: dict[str, Callable[[int, int, pathlib.Path], Work]] = {
    "plan, programs": _plan_programs,
    "plan, sizes": _plan_sizes,
    "write": _write,
    "read": _read,
    "resume": _resume,
    "verify": _verify,
    "report": _report,
    "leaderboard": _leaderboard,
}


def _chosen(names: Sequence[str] | None) -> list[str]:
    plain = {stage: stage.replace(",", "") for stage in _STAGES}
    chosen = [stage for stage in _STAGES if names is None or plain[stage].startswith(tuple(names))]
    if not chosen:
        raise UserError(f"stages={names} names none of {'; '.join(plain.values())}")
    return chosen


if __name__ == "__main__":
    app.run(main)
