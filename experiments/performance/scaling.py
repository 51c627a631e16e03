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
import itertools
import logging as standard_logging
import multiprocessing
import pathlib
import resource
import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import pandas as pd
import scaling_stages as stages
from absl import app, flags, logging

from memobench.errors import UserError
from memobench.report import tables
from memobench.table import results

OUTPUT = flags.DEFINE_string("output", "results/performance", "Folder of scaling.md and .csv.")
PACKS = flags.DEFINE_list("packs", ["1000", "10000", "100000"], "Numbers of packs.")
RUNS_PER_PACK = flags.DEFINE_list("runs_per_pack", ["1", "10"], "Runs in each pack.")
STAGES = flags.DEFINE_list("stages", None, "Only these stages, the first words of their names.")
LIMIT = flags.DEFINE_float("limit", 600.0, "Seconds after which a stage is ended.")
FOLDER = flags.DEFINE_string("folder", None, "Where the temporary folder is made.")

SCRIPT = "experiments/performance/scaling.py"
# Stages that need what `write` wrote.
ON_SHARDS = ("read", "verify", "report", "leaderboard")
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
        chosen = stages.chosen(STAGES.value)
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
    from memobench.runtime import worker

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
    place = table["stage"].map(list(stages.STAGES).index)
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
    found: dict[str, Any] = {}
    started = time.monotonic()
    try:
        if receiver.poll(limit):
            found = receiver.recv()
        else:
            found = {"found": f"ended after {time.monotonic() - started:.0f} s"}
            process.terminate()
    except EOFError:
        found = {"found": "failed"}
    process.join()
    seconds = found.get("CPU s")
    return {
        "stage": stage,
        "packs": n_packs,
        "runs": n_packs * n_runs,
        "wall s": found.get("wall s"),
        "CPU s": seconds,
        "per run, µs": None if seconds is None else 1e6 * seconds / (n_packs * n_runs),
        "peak MiB": found.get("peak MiB"),
        "found": found["found"],
    }


def _in_child(sender: Any, stage: str, n_packs: int, n_runs: int, folder: str) -> None:
    # Reports warn of what they leave out; that is no part of the measurement.
    standard_logging.disable(standard_logging.WARNING)
    work = stages.STAGES[stage](n_packs, n_runs, pathlib.Path(folder))
    wall, cpu = time.perf_counter(), time.process_time()
    found = work()
    found = {"wall s": time.perf_counter() - wall, "CPU s": time.process_time() - cpu}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    sender.send({**found, "peak MiB": peak, "found": found})


if __name__ == "__main__":
    app.run(main)
